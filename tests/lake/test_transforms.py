"""Rows of the journal as rows of the tables, on a real Spark."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from spark_store.lake import arrow_rows
from spark_store.lake.tables import EVENTS, LATEST
from spark_store.pipeline.tables import event_rows, latest_rows

pytestmark = [pytest.mark.spark, pytest.mark.soak(shard="lake")]

AT = datetime(2030, 1, 15, 7, 30, 0, 250_001, UTC)


def test_an_entry_becomes_a_row_with_its_namespace_and_its_time_to_the_microsecond(spark: SparkSession) -> None:
    long_id = "acme." + "x" * 240 + ":lamp"
    entries = spark.createDataFrame(
        [
            ("thing", "acme.site:lamp:7", 2, 11, AT, "modified", "/attributes/größe", "9007199254740993", '{"a":"b"}'),
            ("thing", "acme.site:lamp:7", 1, 10, AT, "deleted", "/", None, "{}"),
            ("stream", "orders/0", 1, 12, AT, "created", "/", '"text"', "{}"),
            ("thing", ":lamp", 1, 13, AT, "created", "/", '{"a": 1.50}', "{}"),
            ("thing", long_id, 1, 14, AT, "created", "/", "{}", "{}"),
        ],
        from_arrow_schema(arrow_rows.EVENTS),
    ).coalesce(1)
    rows = event_rows(entries)
    assert dict(rows.dtypes) == {column.name: column.type.replace("long", "bigint") for column in EVENTS.columns}
    found = {row["seq"]: row for row in rows.withColumn("ts", rows["ts"].cast("string")).collect()}
    assert [row["seq"] for row in rows.collect()] == [13, 10, 11, 14, 12], "by entity and revision"
    assert {seq: row["namespace"] for seq, row in found.items()} == {
        10: "acme.site", 11: "acme.site", 12: "", 13: "", 14: long_id[:-5],
    }  # fmt: skip
    assert found[11]["ts"] == "2030-01-15 07:30:00.250001"
    assert (found[11]["value"], found[10]["value"], found[13]["value"]) == ("9007199254740993", None, '{"a": 1.50}')


def test_a_state_becomes_a_row_and_a_missing_state_marks_a_deleted_entity(spark: SparkSession) -> None:
    states = spark.createDataFrame(
        [
            ("thing", "acme.site:lamp", "acme.site:pol", 5, 17, AT, AT, '{"attributes":{}}'),
            ("policy", "acme.site:pol", None, 2, 12, AT, AT, None),
        ],
        from_arrow_schema(arrow_rows.STATES),
    )
    rows = latest_rows(states)
    assert dict(rows.dtypes) == {column.name: column.type.replace("long", "bigint") for column in LATEST.columns}
    thing, policy = sorted(rows.collect(), key=lambda row: str(row["entity"]))
    assert (thing["namespace"], thing["policy_id"], thing["deleted"]) == ("acme.site", "acme.site:pol", False)
    assert (thing["revision"], thing["seq"]) == (5, 17)
    assert (policy["policy_id"], policy["deleted"], policy["state"]) == (None, True, None)

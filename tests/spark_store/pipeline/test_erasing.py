"""An erased entity leaves the lake, bytes and all. One real Spark, and pure decisions."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest
from deltalake import DeltaTable, WriterProperties, write_deltalake
from pyspark.sql import SparkSession

from connectivity.erasing import erase_here
from mappings.ids import EntityId, EntityType, parse_entity_id, partition_entity
from spark_store.erasure import Erasure
from spark_store.errors import LakeUnfit
from spark_store.lag import read_status
from spark_store.pipeline import erasing, maintenance, moments, snapshots
from spark_store.pipeline.erasing import condition, ready
from spark_store.pipeline.jobs import Target
from spark_store.pipeline.rebuild import Progress
from spark_store.records import Change, Snapshot
from spark_store.tables import EVENTS, LATEST, SNAPSHOTS, TABLES
from spark_store.watermark import read_watermark
from tests.behaviours.journal import change, event, timestamp
from tests.spark_store.pipeline.site import Site, differences, lamp, take_all

MARK = "a-secret-nobody-else-has"

ODD = partition_entity("${spark.app.name}/0")
"""Spark would put something else in its place, were it part of a statement as it is."""


def record(number: int, *, is_done: bool = True) -> Erasure:
    return Erasure(number, "thing", f"acme:it's-{number}", 10 * number, "t", "anna", "t" if is_done else None, None)


def test_an_erasure_waits_for_the_journal_and_for_those_before_it() -> None:
    first, second, third = record(1), record(2, is_done=False), record(3)
    assert ready([]) == []
    assert ready([first, third]) == [first, third]
    assert ready([first, second, third]) == [first]


def test_rows_are_meant_up_to_the_number_of_the_record() -> None:
    assert condition([record(1), record(2)]) == (
        r"(entity_type = 'thing' AND entity = 'acme:it\'s-1' AND seq <= 10)"
        r" OR (entity_type = 'thing' AND entity = 'acme:it\'s-2' AND seq <= 20)"
    )


def secret(revision: int, entity: EntityId | None = None) -> Change:
    """An event with the mark, and the state that it makes: none that says something, of a stream."""
    entity = entity or lamp(9)
    made = event(entity, revision, b'{"n":%d,"mark":"%b"}' % (revision, MARK.encode()), "/attributes")
    state = {} if entity == ODD else {"attributes": {"n": revision, "mark": MARK}}
    return Change((made,), (Snapshot(entity, revision, timestamp(1), timestamp(revision), state, None),))


def interrupted_rebuild(site: Site) -> None:
    """What one leaves that was killed after a part: whole states, beside the lake."""
    made = DeltaTable(site.lake.path(LATEST)).to_pyarrow_table()
    uncompressed = WriterProperties(compression="UNCOMPRESSED")
    write_deltalake(str(site.lake.rebuild / "latest"), made, writer_properties=uncompressed)
    (site.lake.rebuild / "progress.json").write_bytes(msgspec.json.encode(Progress(1, 1, [], 1)))


def marked(site: Site) -> list[str]:
    """The files that hold the mark, as it is or in a compressed column that a reader would show."""
    plain = [
        str(it.relative_to(site.folder))
        for it in site.folder.rglob("*")
        if it.is_file() and MARK.encode() in it.read_bytes()
    ]
    rows = [f"{table.name}" for table in TABLES for row in site.table(table) if MARK in str(row)]
    return plain + rows


@pytest.mark.spark
def test_nothing_is_left_of_the_entity_in_any_file(
    spark: SparkSession, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In older versions of the tables neither; with events that the lake has not seen; killed on the way."""
    # What compression would hide from a look at the bytes.
    spark.conf.set("spark.sql.parquet.compression.codec", "uncompressed")
    try:
        target = Target.of(spark, site.folder)
        for first in (1, 5):
            site.append([secret(revision) for revision in range(first, first + 4)])
            site.append([secret(revision, ODD) for revision in range(first, first + 4)])
            site.write(6, entities=3)
            take_all(spark, site)
            assert snapshots.take(target, 4) >= 1
            assert moments.keep(target, read_watermark(site.lake.watermark).seq) >= 4
        maintenance.optimize(target)
        interrupted_rebuild(site)
        assert any("rebuild" in name for name in marked(site)), "the search goes over all of the folder"
        newest = max(row["revision"] for row in site.table(EVENTS) if row["entity"] == str(lamp(9)))
        site.append([secret(newest + 1)])
        site.write(3, entities=3)
        assert parse_entity_id(EntityType.STREAM, str(ODD)) == ODD
        erase_here(site.folder, lamp(9), "anna")
        erase_here(site.folder, ODD, "anna")
        assert differences(site) == [], "what the lake has not done yet is no difference"
        # Made again before the lake has heard of it.
        site.append([change(lamp(9), newest + 2)])

        def killed(_: Target) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(erasing, "clean", killed)
        with pytest.raises(KeyboardInterrupt):
            take_all(spark, site)
        assert read_watermark(site.lake.watermark).erased == 0

        def damaged(_: Target) -> None:
            raise LakeUnfit("an old file is damaged")

        monkeypatch.setattr(erasing, "clean", damaged)
        site.write(3, entities=3)
        said = take_all(spark, site)
        assert [fields["reason"] for name, fields in said if name == "erasure failed"] == ["an old file is damaged"]
        kept = read_watermark(site.lake.watermark)
        assert (kept.erased, kept.erasure_failure) == (0, "an old file is damaged")
        status = read_status(site.lake, datetime.now(UTC))
        assert (status["erasures_pending"], status["lag_events"]) == (2, 0), "new events are not kept out"
        monkeypatch.undo()
        said = take_all(spark, site)
        assert read_watermark(site.lake.watermark).erasure_failure is None
    finally:
        spark.conf.set("spark.sql.parquet.compression.codec", "zstd")
    assert [fields for event, fields in said if event == "erased"] == [{"erasures": [1, 2]}]
    assert marked(site) == []
    site.assert_equal()
    assert [row["revision"] for row in site.table(EVENTS) if row["entity"] == str(lamp(9))] == [newest + 2]
    assert [row["revision"] for row in site.table(LATEST) if row["entity"] == str(lamp(9))] == [newest + 2]
    assert str(lamp(9)) not in {row["entity"] for row in site.table(SNAPSHOTS)}
    assert not [row for table in TABLES for row in site.table(table) if row["entity"] == str(ODD)]
    assert differences(site) == []
    assert [event for event, _ in take_all(spark, site)] == ["following"], "once"
    # A row that is there all the same is told, and nothing else.
    columns = (f"CAST(1 AS BIGINT) AS {it}" if it in ("revision", "seq") else it for it in SNAPSHOTS.column_names)
    left = target.read(LATEST).where(f"entity = '{lamp(9)}'").selectExpr(*columns)
    left.write.format("delta").mode("append").save(site.lake.path(SNAPSHOTS))
    assert differences(site) == [f"snapshots: erased, and still there: {lamp(9)} at revision 1, event 1"]

"""Spark queries on a real Spark, over Spark Connect: answered, limited, stopped, refused."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from mappings.ids import EntityId, EntityType
from spark_store import rql
from spark_store.errors import QueryCancelled, QueryRefused, QueryTimeout, StoreUnavailable
from spark_store.journal import erasure
from spark_store.journal.journal import Journal
from spark_store.journal.reader import JournalReader
from spark_store.lake import rows
from spark_store.lake.tables import EVENTS, LATEST
from spark_store.pipeline.query_jobs import OPERATION, end_abandoned_jobs
from spark_store.pipeline.session import connect_port
from spark_store.queries.export import export_events
from spark_store.queries.selection import EventSelection
from spark_store.queries.spark_query import Cancellation, QueryLimits, SparkQueries, Tables
from spark_store.sql import literal
from tests.support.journal_entries import TANK, change, published, timestamp
from tests.support.lake.java_process import java_pid
from tests.support.lake.pipeline_process import WITHIN, DataFolder, take_all
from tests.support.lake.sql_query import sql
from tests.support.wait import wait_until_sync

pytestmark = pytest.mark.spark

ENDLESS = (
    "SELECT max(a.id * 1.5 + b.id) AS most FROM range(0, 1000000000, 1, 1) AS a CROSS JOIN range(0, 10000000) AS b"
)
"""Minutes of work for one core of any machine, without a row before its end."""

EXPORTED = ("entity", "entity_type", "revision", "seq", "value")

LONG = QueryLimits(WITHIN)


def spark_queries(data_folder: DataFolder, address: str) -> SparkQueries:
    return SparkQueries(data_folder.lake, address)


def is_idle(spark: SparkSession) -> bool:
    """Return whether no task runs, of the pipeline or of any query."""
    # Not by the jobs, because Spark's list of them may be ten seconds late.
    executors = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    return all(executor.numRunningTasks() == 0 for executor in executors)


@pytest.mark.soak(shard="lake")
def test_tables_are_asked_as_sql_and_as_a_function(spark: SparkSession, data_folder: DataFolder, address: str) -> None:
    data_folder.write(20, entities=3)
    take_all(spark, data_folder)
    asking, odd = spark_queries(data_folder, address), "it's {odd} \\n \n ${x} ` -- é😀"
    counted = sql(
        f"WITH mine AS (SELECT * FROM events WHERE entity <> {literal(odd)}) "
        f"SELECT entity, count(*) AS n, {literal(odd)} AS odd FROM mine JOIN latest USING (entity) GROUP BY 1 ORDER BY 1"
    )
    assert [tuple(row) for row in asking.run(counted, LONG)] == [
        (f"acme.site:lamp-{number}", n, odd) for number, n in enumerate((7, 7, 6))
    ]

    def newest(tables: Tables) -> Any:
        return tables.read(LATEST).where("revision = 7").select("entity", "modified").orderBy("entity")

    assert [row.entity for row in asking.run(newest, LONG)] == ["acme.site:lamp-0", "acme.site:lamp-1"]
    # An older version, although a newer one exists.
    version = spark.sql(f"DESCRIBE HISTORY delta.`{data_folder.lake.path(EVENTS)}` LIMIT 1").collect()[0]["version"]
    data_folder.write(5)
    take_all(spark, data_folder)
    for versions, expected in (({"events": version}, 20), ({}, 25)):
        assert [row.n for row in asking.run(sql("SELECT count(*) AS n FROM events", versions=versions), LONG)] == [
            expected
        ]


def test_time_is_limited_and_spark_stops(spark: SparkSession, data_folder: DataFolder, address: str) -> None:
    with pytest.raises(QueryTimeout, match="within 2 s, its limit"):
        spark_queries(data_folder, address).run(sql(ENDLESS), QueryLimits(2))
    wait_until_sync(lambda: is_idle(spark), WITHIN)


def test_the_job_of_a_query_that_has_ended_is_ended_and_no_other(
    spark: SparkSession, data_folder: DataFolder, address: str
) -> None:
    def run_to_its_end() -> None:
        spark_queries(data_folder, address).run(sql(ENDLESS), LONG, stop)

    def run_without_query() -> None:
        spark.sparkContext.addJobTag(f"{OPERATION}User__Session_ended_Operation_ended")
        spark.sql(ENDLESS).collect()

    stop = Cancellation()
    with ThreadPoolExecutor() as threads:
        running = threads.submit(run_to_its_end)
        wait_until_sync(lambda: not is_idle(spark), WITHIN)
        assert end_abandoned_jobs(spark) == []
        left = threads.submit(run_without_query)
        with pytest.raises(Py4JJavaError, match="cancelled"):
            left.result(WITHIN)
        assert not running.done()
        stop.cancel()
        with pytest.raises(QueryCancelled):
            running.result(WITHIN)
    wait_until_sync(lambda: is_idle(spark), WITHIN)


@pytest.mark.soak(shard="lake")
def test_a_query_is_stopped_from_another_thread_at_any_step(
    spark: SparkSession, data_folder: DataFolder, address: str
) -> None:
    asking, cancellation = spark_queries(data_folder, address), Cancellation()
    outcomes: list[BaseException] = []

    def ask() -> None:
        try:
            asking.run(sql(ENDLESS), LONG, cancellation)
        except BaseException as error:
            outcomes.append(error)

    running = threading.Thread(target=ask)
    running.start()
    wait_until_sync(lambda: not is_idle(spark), WITHIN)
    cancellation.cancel()
    running.join(WITHIN)
    assert [type(it) for it in outcomes] == [QueryCancelled]
    wait_until_sync(lambda: is_idle(spark), WITHIN)
    # A query that was cancelled before it started.
    with pytest.raises(QueryCancelled):
        asking.run(sql(ENDLESS), LONG, cancellation)
    assert [row.one for row in asking.run(sql("SELECT 1 AS one"), LONG)] == [1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELEC 1", "PARSE_SYNTAX_ERROR"),
        ("SELECT nothing FROM latest", "latest"),
        ("SELECT raise_error('no')", "USER_RAISED_EXCEPTION"),
    ],
)
def test_a_query_that_spark_refuses_returns_the_error_of_spark(
    text: str, message: str, data_folder: DataFolder, address: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(QueryRefused, match=message) as refused:
        spark_queries(data_folder, address).run(sql(text), LONG)
    assert "JVM" not in str(refused.value)
    assert "QueryContextLogger" not in "".join(capfd.readouterr())


def test_only_this_machine_and_only_with_the_token(spark: SparkSession, data_folder: DataFolder, address: str) -> None:
    port = connect_port(spark)
    listening = [it.laddr for it in psutil.Process(java_pid(spark)).net_connections() if it.status == "LISTEN"]
    assert {it.ip for it in listening if it.port == port} <= {"127.0.0.1", "::ffff:127.0.0.1"}
    assert port in {it.port for it in listening}
    token = address.partition("token=")[2]
    assert token not in " ".join(psutil.Process(java_pid(spark)).cmdline())
    for wrong in (f"sc://localhost:{port}/;token=guessed", f"sc://localhost:{port}"):
        with pytest.raises(StoreUnavailable, match=r"[Tt]oken"):
            spark_queries(data_folder, wrong).run(sql("SELECT 1"), LONG)
    with pytest.raises(StoreUnavailable, match="expected a pipeline"):
        spark_queries(data_folder, "sc://localhost:1/;token=x").run(sql("SELECT 1"), LONG)


def test_the_driver_reads_no_objects_of_strangers(spark: SparkSession) -> None:
    name, text = b"endpoint-verifier", b"\xac\xed\x00\x05t\x00\x01a"
    body = b"\x00\x00" + struct.pack(">H", len(name)) + name + text
    request = struct.pack(">QbQI", 21 + len(body), 3, 7, len(body)) + body
    types = set()
    for it in psutil.Process(java_pid(spark)).net_connections():
        if it.status == "LISTEN":
            with (
                contextlib.suppress(TimeoutError),
                socket.create_connection(("127.0.0.1", it.laddr.port), 2) as stranger,
            ):
                stranger.sendall(request)
                types.add(stranger.recv(9)[8:])
    response, failure = b"\x04", b"\x05"
    assert failure in types, "the stranger is asked to authenticate"
    assert response not in types


@pytest.mark.soak(shard="lake")
def test_an_export_equals_the_journal_regardless_of_the_lake_lag(
    spark: SparkSession, data_folder: DataFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, other = (
        EntityId(EntityType.POLICY, "acme.site", "lamp-1"),
        EntityId(EntityType.THING, "it's.$other", "lämp"),
    )
    data_folder.write(40, entities=5)
    data_folder.append([change(policy, 1), change(other, 1), change(other, 2, b'{"text":"it\'s \\\\ ${x}"}')])
    data_folder.append([published(TANK, 1, rb'"{\"v\":1}"')])
    take_all(spark, data_folder)
    data_folder.write(12, entities=7)
    data_folder.append([change(policy, 2), change(other, 3), published(TANK, 2, b'"{nope"', b'{"ts":1}')])
    with JournalReader.open(data_folder.lake.journal) as follower:
        entries = sorted(
            follower.entries(1, follower.newest()), key=lambda it: (it.entity, it.entity_type, it.revision)
        )
    expected = [(it.entity, it.entity_type, it.revision, it.seq, it.value and it.value.decode()) for it in entries]

    def exported(selection: EventSelection) -> list[tuple[object, ...]]:
        export_events(data_folder.lake, selection, tmp_path / "it.parquet", LONG, Cancellation(), force=True)
        table = pq.read_table(tmp_path / "it.parquet")
        return list(zip(*(table.column(name).to_pylist() for name in EXPORTED), strict=True))

    assert exported(EventSelection()) == expected
    with monkeypatch.context() as patch:
        # Read in several parts.
        patch.setattr(rows, "MOST_BYTES", 1_000)
        assert exported(EventSelection()) == expected
    assert exported(EventSelection(entity=other.id)) == [it for it in expected if it[0] == other.id]
    assert [it[4] for it in exported(EventSelection(TANK.id, "stream"))] == [r'"{\"v\":1}"', '"{nope"']
    some = EventSelection(namespace="acme.site", entity_type="thing", first=3, last=9)
    assert exported(some) == [it for it in expected if it[1] == "thing" and it[0][:4] == "acme" and 3 <= it[2] <= 9]
    counter = EventSelection(predicate=rql.parse('and(ge(attributes/counter,7),ne(thingId,"acme.site:lamp-0"))'))
    found = exported(counter)
    assert found == [
        it
        for it in expected
        if it[1] == "thing" and (it[4] or "").isdigit() and int(it[4] or 0) >= 7 and it[0][-1] != "0"
    ]
    assert {it[2] for it in found} == {8, 9, 10}, "some of the lake, some of the journal"
    moment = datetime.fromisoformat(timestamp(4))
    assert exported(EventSelection(since=moment, until=moment + timedelta(seconds=1))) == [
        it for it in expected if it[2] == 4
    ]
    with contextlib.closing(Journal.open(data_folder.lake.journal)) as journal:
        journal.within(lambda it: erasure.begin(it, "thing", other.id, timestamp(5), "anna"))
        journal.commit()
    assert exported(EventSelection()) == [it for it in expected if it[0] != other.id], "the lake still has it"

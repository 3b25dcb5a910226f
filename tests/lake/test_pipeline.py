"""From the journal to the tables on a real Spark: exactly once and in order after any loss."""

from __future__ import annotations

import os
import re
import shutil
import time
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from connectivity.maintenance.erasure import erase_offline
from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from spark_store.errors import LakeBusy, LakeUnfit
from spark_store.lake.reader import last_transaction, size, versions_before
from spark_store.lake.tables import APP, EVENTS, FULL_SNAPSHOTS, LATEST, LOG_RETENTION, SNAPSHOTS, TABLES
from spark_store.lake.watermark import Watermark, publish_watermark, read_watermark
from spark_store.pipeline import snapshots, table_maintenance
from spark_store.pipeline.tables import (
    LakeWriter,
    append_events,
    merge_latest,
    merge_rows,
    prepare,
    write_checkpoint,
)
from spark_store.records import Change, Snapshot
from tests.support.journal_entries import TANK, change, published, timestamp
from tests.support.lake.pipeline_process import DataFolder, PipelineMessages, counted, differences, lamp, take_all
from tests.support.lake.pipeline_tables import write_all_tables

pytestmark = pytest.mark.spark


def batches(events: PipelineMessages) -> list[int]:
    return [fields["rows"] for event, fields in events if event == "batch"]


def odd_changes() -> list[Change]:
    """Events of a thing with long and unusual texts that ends deleted, a policy, and a stream."""
    entity = EntityId(EntityType.THING, "acme.site", "lämp:" + "é" * 200)
    values = [
        b'{"big":9007199254740993,"same":1.50}',
        '"😀\\u0000\\n"'.encode(),
        b'"' + b"x" * 3_000_000 + b'"',
    ]
    changes = []
    for revision, value in enumerate(values, 1):
        event = Event(
            entity, revision, timestamp(revision), "modified", "/attributes/größe", value, '{"a":"ß"}'.encode()
        )
        state = Snapshot(entity, revision, timestamp(1), timestamp(revision), {"n": 2**60}, None)
        changes.append(Change((event,), (state,)))
    deletion = Event(entity, 4, timestamp(4), "deleted", "/", None, b"{}")
    changes.append(Change((deletion,), (Snapshot(entity, 4, timestamp(1), timestamp(4), None, "acme.site:owner"),)))
    changes.append(change(EntityId(EntityType.POLICY, "acme.site", "owner"), 1, b'{"entries":{}}'))
    changes.append(published(TANK, 1))
    return changes


@pytest.mark.slow(reason="the first stream of the session")
def test_the_tables_are_the_journal_row_for_row_and_only_the_next_events_are_appended(
    spark: SparkSession, data_folder: DataFolder
) -> None:
    """In two batches: deletions, policies, streams and odd values too."""
    data_folder.append(odd_changes())
    data_folder.write(24)
    assert batches(take_all(spark, data_folder, max_batch_rows=20)) == [20, 10]
    data_folder.assert_equal()
    assert read_watermark(data_folder.lake.watermark).seq == 30
    for table in TABLES:
        protocol = DeltaTable(data_folder.lake.path(table)).protocol()
        assert (protocol.min_reader_version, protocol.reader_features) == (1, None), "for every Delta reader"
    assert {(row["entity_type"], row["namespace"]) for row in data_folder.table(EVENTS)} == {
        ("thing", "acme.site"), ("policy", "acme.site"), ("stream", "acme.site"),
    }  # fmt: skip
    (row,) = [row for row in data_folder.table(LATEST) if row["entity"].startswith("acme.site:lämp:")]
    assert (row["namespace"], row["deleted"], row["state"], row["policy_id"]) == (
        "acme.site", True, None, "acme.site:owner",
    )  # fmt: skip
    # The states of these changes are not what their events fold to; everything else is compared.
    assert [it for it in differences(data_folder) if "different from a replay of the events" not in it] == []
    target = LakeWriter.of(spark, data_folder.folder)
    for first, last in ((7, 30), (21, 30)):
        with pytest.raises(LakeBusy, match=rf"lake/events: expected its last event to be {first - 1}, found 30"):
            append_events(target, first, last)
    data_folder.assert_equal()


@pytest.mark.soak(shard="lake")
def test_the_tables_match_the_journal_after_losses(spark: SparkSession, data_folder: DataFolder) -> None:
    data_folder.write(30)
    assert batches(take_all(spark, data_folder, max_batch_rows=20)) == [20, 10]
    data_folder.assert_equal()
    # Without new events there is no batch; with new ones, only those are written.
    assert batches(take_all(spark, data_folder)) == []
    data_folder.write(5)
    assert batches(take_all(spark, data_folder)) == [5]
    data_folder.assert_equal()
    # A watermark from before the last batch, as after a crash, and then no watermark.
    publish_watermark(data_folder.lake.watermark, Watermark(30))
    assert ("catching up", {"first": 31, "last": 35}) in take_all(spark, data_folder)
    data_folder.assert_equal()
    data_folder.lake.watermark.unlink()
    assert batches(take_all(spark, data_folder)) == []
    data_folder.assert_equal()
    assert read_watermark(data_folder.lake.watermark).seq == 35
    # A table that vanished is made again, while the journal has everything.
    shutil.rmtree(data_folder.lake.path(LATEST))
    take_all(spark, data_folder)
    data_folder.assert_equal()
    shutil.rmtree(data_folder.lake.path(EVENTS))
    assert batches(take_all(spark, data_folder)) == [35]
    data_folder.assert_equal()
    assert differences(data_folder) == []


@pytest.mark.soak(shard="lake")
def test_states_that_are_too_many_for_one_process_are_read_by_spark(
    spark: SparkSession, data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_store.pipeline.source.FEW_STATES", 3)
    data_folder.write(20, entities=7)
    take_all(spark, data_folder)
    data_folder.assert_equal()
    data_folder.write(15, entities=7)
    take_all(spark, data_folder)
    data_folder.assert_equal()


@pytest.mark.soak(shard="lake")
def test_a_merge_without_its_append_is_repaired_by_the_next_batch(spark: SparkSession, data_folder: DataFolder) -> None:
    """Both run at the same time, so a crash may leave either."""
    data_folder.write(10)
    take_all(spark, data_folder)
    data_folder.write(10)
    merge_latest(LakeWriter.of(spark, data_folder.folder), 11, 20)
    assert max(row["seq"] for row in data_folder.table(LATEST)) == 20
    assert max(row["seq"] for row in data_folder.table(EVENTS)) == 10
    assert batches(take_all(spark, data_folder)) == [10]
    data_folder.assert_equal()


@pytest.mark.soak(shard="lake")
def test_a_merge_records_its_sequence_number_and_runs_again_if_repeated(
    spark: SparkSession, data_folder: DataFolder
) -> None:
    data_folder.write(10)
    take_all(spark, data_folder)
    target = LakeWriter.of(spark, data_folder.folder)
    assert last_transaction(target.lake, LATEST, APP) == 10
    # No row is newer than those in the table.
    merge_rows(target, target.read(LATEST), 12)
    assert last_transaction(target.lake, LATEST, APP) == 12
    spark.sql(f"DELETE FROM {target.name(LATEST)} WHERE entity = '{lamp(3)}'")
    merge_latest(target, 1, 10)
    data_folder.assert_equal()
    assert last_transaction(target.lake, LATEST, APP) == 12
    assert [key for key in spark.conf.getAll if ".write.txn" in key] == [], (
        "nothing else that is written gets the number"
    )
    # A concurrent append has its own transaction.
    spark.conf.set("spark.databricks.delta.write.txnAppId", APP)
    spark.conf.set("spark.databricks.delta.write.txnVersion", "99")
    try:
        data_folder.write(1)
        append_events(target, 11, 11)
    finally:
        spark.conf.unset("spark.databricks.delta.write.txnAppId")
        spark.conf.unset("spark.databricks.delta.write.txnVersion")
    assert last_transaction(target.lake, EVENTS, APP) == 11


@pytest.mark.soak(shard="lake")
def test_states_restored_from_a_backup_are_updated(
    spark: SparkSession, data_folder: DataFolder, tmp_path: Path
) -> None:
    """The states are restored without the other tables and the watermark; erased entities stay erased."""

    data_folder.write(20)
    take_all(spark, data_folder)
    shutil.copytree(data_folder.lake.path(LATEST), tmp_path / "backup")
    data_folder.write(20, entities=3)
    erase_offline(data_folder.folder, lamp(6), "anna")
    assert ("erased", {"erasures": [1]}) in take_all(spark, data_folder)
    shutil.rmtree(data_folder.lake.path(LATEST))
    shutil.copytree(tmp_path / "backup", data_folder.lake.path(LATEST))
    # A new process has no other table in its cache.
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    events = take_all(spark, data_folder)
    assert ("catching up", {"first": 21, "last": 40}) in events
    assert ("erased", {"erasures": [1]}) in events
    data_folder.assert_equal()
    assert str(lamp(6)) not in {row["entity"] for row in data_folder.table(LATEST)}
    assert differences(data_folder) == []
    assert [event for event, _ in take_all(spark, data_folder)] == ["following"]


def test_a_lake_of_another_journal_or_of_another_shape_is_refused(spark: SparkSession, data_folder: DataFolder) -> None:
    data_folder.write(10)
    write_all_tables(data_folder.folder)
    for suffix in ("", "-wal", "-shm"):
        data_folder.lake.journal.with_name(f"journal.db{suffix}").unlink(missing_ok=True)
    DataFolder(data_folder.folder).write(4)
    with pytest.raises(LakeUnfit, match="has events up to 10"):
        take_all(spark, data_folder)
    data_folder.write(20, entities=3)
    with pytest.raises(LakeUnfit, match="do not match"):
        take_all(spark, data_folder)
    shutil.rmtree(data_folder.lake.path(LATEST))
    write_deltalake(data_folder.lake.path(LATEST), pa.table({"id": [1, 2, 3]}))
    with pytest.raises(LakeUnfit, match="expected the columns entity_type string"):
        take_all(spark, data_folder)


@pytest.mark.soak(shard="lake")
def test_compaction_leaves_few_files_and_every_row(spark: SparkSession, data_folder: DataFolder) -> None:
    data_folder.write(40)
    take_all(spark, data_folder, max_batch_rows=10)
    target, before = LakeWriter.of(spark, data_folder.folder), DeltaTable(data_folder.lake.path(EVENTS))
    assert len(before.file_uris()) >= 4
    table_maintenance.optimize(target)
    table_maintenance.vacuum(target)
    assert len(DeltaTable(data_folder.lake.path(EVENTS)).file_uris()) == 1
    data_folder.assert_equal()
    assert before.to_pyarrow_table().num_rows == 40, "who holds the older version goes on reading it"
    assert differences(data_folder) == []


@pytest.mark.slow(reason="Spark compacts by thousands of ranges")
def test_compaction_puts_the_events_of_each_of_many_entities_together_by_one_task(
    spark: SparkSession, data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of an entity decodes the row groups that have some of its events; batches have Spark's other tasks."""
    target, entities = LakeWriter.of(spark, data_folder.folder), 1500
    data_folder.write(2 * entities, entities)
    prepare(target)
    for first in (1, entities + 1):
        append_events(target, first, first + entities - 1)
    monkeypatch.setattr(table_maintenance, "_FILE_BYTES", size(data_folder.lake, EVENTS).bytes // 3 + 1)
    table_maintenance.optimize(target, [EVENTS])
    uris = DeltaTable(data_folder.lake.path(EVENTS)).file_uris()
    files = {re.sub(r"-[0-9a-f-]{36}-", " ", Path(uri).name): uri for uri in uris}
    assert sorted(files) == [f"part-00000 c00{number}.zstd.parquet" for number in range(3)]
    rows = [
        it for _, file in sorted(files.items()) for it in pq.read_table(file, columns=["entity"])["entity"].to_pylist()
    ]
    found = [entity for entity, _ in groupby(rows)]
    assert len(found) == len(set(found)) == entities


@pytest.mark.soak(shard="lake")
def test_files_that_were_compacted_together_are_compacted_again_below_a_size(
    spark: SparkSession, data_folder: DataFolder
) -> None:
    target = LakeWriter.of(spark, data_folder.folder)
    prepare(target)

    def files_after(events: int, stable_from: int) -> int:
        first = last_transaction(data_folder.lake, EVENTS, APP) + 1
        for event in range(first, first + events):
            append_events(target, event, event)
        table_maintenance.optimize(target, [EVENTS], stable_from)
        return len(DeltaTable(data_folder.lake.path(EVENTS)).file_uris())

    data_folder.write(6)
    assert [files_after(2, 1), files_after(2, 1), files_after(0, 1 << 20), files_after(2, 1)] == [1, 2, 1, 2]


@pytest.mark.soak(shard="lake")
def test_a_moment_is_kept_once_and_found_by_when_its_things_changed(
    spark: SparkSession, data_folder: DataFolder
) -> None:
    target = LakeWriter.of(spark, data_folder.folder)
    data_folder.append([published(TANK, 1)])
    data_folder.append([counted(lamp(number), revision) for revision in (1, 2, 3) for number in range(3)])
    gone = Event(lamp(3), 1, timestamp(9), "deleted", "/", None, b"{}")
    data_folder.append([Change((gone,), (Snapshot(lamp(3), 1, timestamp(1), timestamp(9), None, None),))])
    after = datetime.fromisoformat(timestamp(9))
    assert ("full snapshot", {"seq": 11, "things": 4}) in take_all(spark, data_folder, full_snapshot_events=8)
    assert "full snapshot" not in [event for event, _ in take_all(spark, data_folder, full_snapshot_events=8)]
    assert snapshots.take_full_snapshot(target, 11) == 0, "Delta knows that this one is there"
    data_folder.append([counted(lamp(0), 4)])
    assert "full snapshot" not in [event for event, _ in take_all(spark, data_folder, full_snapshot_events=2)]
    # At least twice as many events as entities.
    data_folder.append([counted(lamp(0), revision) for revision in range(5, 14)])
    assert ("full snapshot", {"seq": 21, "things": 4}) in take_all(spark, data_folder, full_snapshot_events=2)
    kept = [row for row in data_folder.table(FULL_SNAPSHOTS) if row.pop("as_of") == 21]
    assert sorted(kept, key=str) == sorted(
        (row for row in data_folder.table(LATEST) if row["entity_type"] == "thing"), key=str
    )
    table_maintenance.optimize(target)
    data_folder.assert_equal()
    # The number includes deleted things: they existed before, and the snapshot has no state of them.
    for since, found in ((0, 0), (1, 11), (1000, 11), (4000, 11), (5000, 21)):
        assert versions_before(data_folder.lake, after + timedelta(milliseconds=since, microseconds=1)).seq == found, (
            since
        )
    shutil.rmtree(data_folder.lake.path(FULL_SNAPSHOTS))
    assert ("full snapshot", {"seq": 21, "things": 4}) in take_all(spark, data_folder, full_snapshot_events=2), (
        "created again"
    )


@pytest.mark.soak(shard="lake")
def test_snapshots_are_taken_once_each_time_an_entity_has_grown(spark: SparkSession, data_folder: DataFolder) -> None:
    target = LakeWriter.of(spark, data_folder.folder)

    def taken() -> list[tuple[str, int, int]]:
        return sorted((it["entity"], it["revision"], it["seq"]) for it in data_folder.table(SNAPSHOTS))

    data_folder.append([counted(lamp(0), revision) for revision in range(1, 5)])
    data_folder.append([counted(lamp(1), revision) for revision in range(1, 3)])
    take_all(spark, data_folder)
    assert (snapshots.take(target, 3), snapshots.take(target, 3)) == (1, 0)
    data_folder.append([counted(lamp(0), revision) for revision in range(5, 7)])
    data_folder.append([counted(lamp(1), 3)])
    take_all(spark, data_folder)
    assert (snapshots.take(target, 3), snapshots.take(target, 3)) == (1, 0)
    first, second = str(lamp(0)), str(lamp(1))
    assert taken() == [(first, 4, 4), (second, 3, 9)]
    data_folder.append([counted(lamp(0), 7), *(published(TANK, offset) for offset in range(1, 5))])
    take_all(spark, data_folder)
    assert snapshots.take(target, 3) == 1, "streams have no states"
    assert taken() == [(first, 4, 4), (first, 7, 10), (second, 3, 9)]
    newest = [row for row in data_folder.table(SNAPSHOTS) if row["revision"] == 7]
    assert newest == [row for row in data_folder.table(LATEST) if row["entity"] == first]
    assert differences(data_folder) == []
    spark.sql(f"INSERT INTO {target.name(SNAPSHOTS)} SELECT * FROM {target.name(SNAPSHOTS)} WHERE revision = 7")
    assert differences(data_folder) == [f"snapshots: there more than once: {first} at revision 7"]


@pytest.mark.soak(shard="lake")
def test_statistics_have_whole_ids(spark: SparkSession, data_folder: DataFolder) -> None:
    """IDs with a long common beginning differ only after the length of Delta's default statistics.

    Then no file could be skipped.
    """

    def greatest() -> set[str]:
        tables = (DeltaTable(data_folder.lake.path(table)) for table in (EVENTS, LATEST))
        return {id for table in tables for id in table.get_add_actions(flatten=True)["max.entity"].to_pylist()}

    first, second = (EntityId(EntityType.THING, "acme.site", f"{'x' * 120}-{number}") for number in (1, 2))
    write_all_tables(data_folder.folder)
    data_folder.append([counted(first, 1)])
    take_all(spark, data_folder)
    assert greatest() == {str(first)}
    data_folder.append([counted(second, 1)])
    take_all(spark, data_folder)
    assert greatest() == {str(first), str(second)}
    data_folder.assert_equal()


@pytest.mark.soak(shard="lake")
def test_the_log_keeps_an_hour_and_is_two_files_for_each_batch(spark: SparkSession, data_folder: DataFolder) -> None:
    """At a batch every five seconds: what everyone who opens the table has to list."""
    data_folder.write(10)
    write_all_tables(data_folder.folder)
    target, log = LakeWriter.of(spark, data_folder.folder), Path(data_folder.lake.path(EVENTS)) / "_delta_log"
    for _ in range(3):
        data_folder.write(10)
        take_all(spark, data_folder)
    assert not list(log.glob(".*")), "no checksums of files"
    opened = DeltaTable(data_folder.lake.path(EVENTS))
    first = write_checkpoint(target, EVENTS)
    long_ago = time.time() - LOG_RETENTION.total_seconds() - 120
    os.utime(log / f"{first:020}.checkpoint.parquet", (long_ago, long_ago))
    for _ in range(2):
        data_folder.write(10)
        take_all(spark, data_folder)
    table_maintenance.vacuum(target)
    assert min(int(it.stem) for it in log.glob("*.json")) == first
    assert opened.to_pyarrow_table().num_rows == 40, "a version that is open is still read"
    data_folder.write(10)
    take_all(spark, data_folder)
    data_folder.assert_equal()

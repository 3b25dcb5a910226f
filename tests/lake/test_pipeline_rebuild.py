"""Rebuilds of `latest` from `events`, on a real Spark: right, and never visible in part."""

from __future__ import annotations

import shutil
import threading
from typing import Any

import psutil
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_store.errors import LakeUnfit
from spark_store.lake.tables import EVENTS, LATEST, SNAPSHOTS
from spark_store.maintenance.verify import verify
from spark_store.pipeline.rebuild import FoldReport, rebuild_latest
from spark_store.pipeline.tables import LakeWriter
from tests.support.lake.checker import check
from tests.support.lake.pipeline_process import WITHIN, DataFolder, PipelineProcess, lamp, take_all
from tests.support.lake.twin_changes import erase_and_create, states, write_eventful_past
from tests.support.wait import wait_until_sync


def rows(data_folder: DataFolder) -> list[tuple[Any, ...]]:
    table = DeltaTable(data_folder.lake.path(LATEST)).to_pyarrow_table().to_pylist()
    return sorted(tuple(row.values()) for row in table)


def damage(target: LakeWriter) -> None:
    """Make one row wrong, and remove one."""
    for statement in ("UPDATE {} SET state = '{{}}' WHERE entity = '{}2'", "DELETE FROM {} WHERE entity = '{}4'"):
        target.spark.sql(statement.format(target.name(LATEST), "acme.site:lamp-")).collect()


@pytest.mark.soak(shard="lake")
@pytest.mark.spark
def test_latest_is_rebuilt_and_readers_find_old_or_new_rows(spark: SparkSession, data_folder: DataFolder) -> None:
    write_eventful_past(data_folder)
    take_all(spark, data_folder)
    target, whole = LakeWriter.of(spark, data_folder.folder), rows(data_folder)
    damage(target)
    damaged = rows(data_folder)
    seen: list[list[tuple[Any, ...]]] = []
    is_over = threading.Event()

    def read() -> None:
        while not is_over.wait(0.05):
            found = rows(data_folder)
            if not seen or seen[-1] != found:
                seen.append(found)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert rebuild_latest(target) == FoldReport(folded=10, known=0, lost=0, changed=1, added=1, removed=0)
    finally:
        is_over.set()
        reader.join()
    assert [*seen, whole][:2] == [damaged, whole], "the old rows or the new ones"
    assert len(seen) <= 2
    assert rebuild_latest(target) == FoldReport(folded=10, known=0, lost=0, changed=0, added=0, removed=0)
    assert check(data_folder.folder) == []
    properties = DeltaTable(data_folder.lake.path(LATEST)).metadata().configuration
    assert properties["delta.deletedFileRetentionDuration"] == "interval 30 minutes"
    data_folder.write(1, entities=99)
    take_all(spark, data_folder)
    assert rebuild_latest(target).folded == 11
    assert check(data_folder.folder) == []
    assert verify(data_folder.lake).count == 0


@pytest.mark.soak(shard="lake")
@pytest.mark.spark
def test_a_rebuild_uses_snapshots_and_the_journal_if_events_are_missing(
    spark: SparkSession, data_folder: DataFolder
) -> None:
    write_eventful_past(data_folder)
    take_all(spark, data_folder)
    whole = rows(data_folder)
    target = LakeWriter.of(spark, data_folder.folder)
    # Everything up to event 25 has expired, and a row of `latest` is missing.
    spark.sql(f"DELETE FROM {target.name(EVENTS)} WHERE seq <= 25").collect()
    shutil.rmtree(data_folder.lake.path(SNAPSHOTS))
    shutil.copytree(data_folder.lake.path(LATEST), data_folder.lake.path(SNAPSHOTS))
    gone = f"DELETE FROM {target.name(LATEST)} WHERE entity = 'acme.site:lamp-0'"
    spark.sql(gone).collect()
    found = rebuild_latest(target)
    assert (found.folded, found.lost) == (5, 0)
    assert (found.changed, found.added) == (0, 1), "a snapshot knew it"
    assert rows(data_folder) == whole
    # No table has the state, so that of the journal is used.
    shutil.rmtree(data_folder.lake.path(SNAPSHOTS))
    spark.sql(gone).collect()
    found = rebuild_latest(target)
    assert (found.lost, found.added, found.removed) == (1, 0, 0)
    assert rows(data_folder) == whole
    shutil.rmtree(data_folder.lake.path(EVENTS))
    with pytest.raises(LakeUnfit, match="expected a table to rebuild from"):
        rebuild_latest(target)
    assert states(data_folder) != []


@pytest.mark.soak(shard="lake")
@pytest.mark.spark
def test_a_rebuild_omits_erased_history_of_a_recreated_thing(spark: SparkSession, data_folder: DataFolder) -> None:
    """Neither of events, nor of a row of `latest` or `snapshots`."""
    write_eventful_past(data_folder)
    take_all(spark, data_folder)
    target = LakeWriter.of(spark, data_folder.folder)
    shutil.rmtree(data_folder.lake.path(SNAPSHOTS))
    shutil.copytree(data_folder.lake.path(LATEST), data_folder.lake.path(SNAPSHOTS))
    erase_and_create(data_folder, lamp(3))
    erased = rebuild_latest(target)
    assert (erased.folded, erased.known, erased.lost) == (9, 0, 0)
    assert (erased.changed, erased.added, erased.removed) == (0, 0, 1)
    take_all(spark, data_folder)
    whole = rows(data_folder)
    found = rebuild_latest(target)
    assert (found.folded, found.changed, found.added, found.removed) == (10, 0, 0, 0)
    assert rows(data_folder) == whole
    # Without the new events, only erased ones could provide the state, so that of the journal is used.
    spark.sql(f"DELETE FROM {target.name(EVENTS)} WHERE entity = '{lamp(3)}' AND revision > 5").collect()
    spark.sql(f"DELETE FROM {target.name(LATEST)} WHERE entity = '{lamp(3)}'").collect()
    assert rebuild_latest(target).folded == 9
    assert str(lamp(3)) not in {row["entity"] for row in data_folder.table(LATEST)}


def version(data_folder: DataFolder) -> int:
    return DeltaTable(data_folder.lake.path(LATEST)).version()


def kill_when(data_folder: DataFolder, seen: str, before: int) -> None:
    """A rebuild as a process, killed as soon as something is to be seen; it may also have ended by then."""

    def is_time() -> bool:
        if seen == "latest":
            return version(data_folder) > before
        return any(data_folder.lake.scratch.rglob(seen))

    with PipelineProcess(data_folder, "rebuild") as process:
        process.wait_for("spark")
        java = process.java()
        wait_until_sync(lambda: is_time() or process.process.poll() is not None, WITHIN)
        process.process.kill()
        process.wait()
        psutil.wait_procs(java, WITHIN)


@pytest.mark.soak(shard="lake-kills")
@pytest.mark.spark
@pytest.mark.parametrize("seen", ["blockmgr-*", "shuffle_*", "latest"])
def test_a_killed_rebuild_is_repeated_and_gives_the_same_result(
    seen: str, spark: SparkSession, data_folder: DataFolder
) -> None:
    """Ten kills: at the start, during the work, or about when the new rows replace the old ones."""
    data_folder.write(2000, entities=50)
    take_all(spark, data_folder)
    target, whole = LakeWriter.of(spark, data_folder.folder), rows(data_folder)
    for _ in range(10):
        damage(target)
        damaged = rows(data_folder)
        kill_when(data_folder, seen, version(data_folder))
        assert rows(data_folder) in (damaged, whole)
        rebuild_latest(target)
        assert rows(data_folder) == whole
    assert check(data_folder.folder) == []

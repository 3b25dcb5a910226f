"""`latest` made anew from `events`, on a real Spark: right, resumable, and never half for a reader."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import SparkSession

from spark_store.errors import LakeUnfit
from spark_store.lake import rows as lake_rows
from spark_store.lake.rows import EntityRange
from spark_store.lake.tables import EVENTS, LATEST, SNAPSHOTS, Lake
from spark_store.maintenance.verify import VerifyOptions, verify
from spark_store.pipeline import rebuild as module
from spark_store.pipeline.rebuild import FoldReport, fold_rows, rebuild_latest
from spark_store.pipeline.tables import LakeWriter
from tests.support.lake.checker import check
from tests.support.lake.pipeline_process import WITHIN, DataFolder, PipelineProcess, lamp, take_all
from tests.support.lake.tables import fill
from tests.support.lake.twin_changes import eventful, made_anew, states
from tests.support.wait import wait_until_sync

HALVES = [EntityRange(None, "acme.site:lamp-3"), EntityRange("acme.site:lamp-3", None)]


class Killed(Exception):
    pass


def rows(data_folder: DataFolder) -> list[tuple[Any, ...]]:
    table = DeltaTable(data_folder.lake.path(LATEST)).to_pyarrow_table().to_pylist()
    return sorted(tuple(row.values()) for row in table)


def damage(target: LakeWriter) -> None:
    """One row is wrong, one is missing."""
    for statement in ("UPDATE {} SET state = '{{}}' WHERE entity = '{}2'", "DELETE FROM {} WHERE entity = '{}4'"):
        target.spark.sql(statement.format(target.name(LATEST), "acme.site:lamp-")).collect()


@pytest.mark.soak(shard="lake")
@pytest.mark.spark
def test_latest_is_made_again_continues_when_killed_and_is_never_half(
    spark: SparkSession, data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    eventful(data_folder)
    take_all(spark, data_folder)
    monkeypatch.setattr(lake_rows, "parts", lambda *_: HALVES)
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
    said: list[int] = []

    def say(event: str, **fields: Any) -> None:
        said.append(fields["part"])
        if said == [1]:
            raise Killed

    def killed(*_: object, **__: object) -> None:
        raise Killed

    try:
        # Killed after the first part; before the new rows are in their place; after that.
        with pytest.raises(Killed):
            rebuild_latest(target, say)
        with monkeypatch.context() as patch:
            patch.setattr(module, "_replace", killed)
            with pytest.raises(Killed):
                rebuild_latest(target, say)
        assert rows(data_folder) == damaged
        with monkeypatch.context() as patch:
            patch.setattr(module, "discard", killed)
            with pytest.raises(Killed):
                rebuild_latest(target, say)
        version = lake_rows.version(data_folder.lake, LATEST)
        assert rebuild_latest(target, say) == FoldReport(folded=10, known=0, lost=0, changed=1, added=1, removed=0)
    finally:
        is_over.set()
        reader.join()
    assert said == [1, 2], "no part is folded twice"
    assert lake_rows.version(data_folder.lake, LATEST) == version, "what is in its place is not put there again"
    assert [*seen, whole][:2] == [damaged, whole], "the old rows or the new ones"
    assert len(seen) <= 2
    assert not data_folder.lake.rebuild.exists()
    assert check(data_folder.folder) == []
    properties = DeltaTable(data_folder.lake.path(LATEST)).metadata().configuration
    assert properties["delta.deletedFileRetentionDuration"] == "interval 30 minutes"
    # One that was done while the clock ran ahead has a number above those that a clock gives.
    none = target.read(LATEST).limit(0).write.format("delta").mode("append").option("txnAppId", module.APP)
    none.option("txnVersion", time.time_ns() + 10**18).save(data_folder.lake.path(LATEST))
    # New events, damage again, a rebuild of which only the first part was done: it begins anew.
    said.clear()
    damage(target)
    with pytest.raises(Killed):
        rebuild_latest(target, say)
    eventful_again(data_folder)
    take_all(spark, data_folder)
    assert rebuild_latest(target, say).folded == 11
    assert said == [1, 1, 2]
    assert check(data_folder.folder) == []
    assert verify(data_folder.lake, VerifyOptions(fold_all=True)).count == 0


def test_a_rebuild_number_is_higher_than_the_last_one_regardless_of_the_clock(tmp_path: Path) -> None:
    """Or `latest` would take it for one that has been: one that goes on keeps its number for that reason."""
    place = Lake(tmp_path)
    fill(place, 1, 1)

    def replaced(run: int) -> None:
        properties = CommitProperties(app_transactions=[Transaction(module.APP, run)])
        write_deltalake(place.path(LATEST), pa.table({"n": [1]}), mode="append", commit_properties=properties)

    replaced(ahead := time.time_ns() + 10**18)
    begun = module._progress(place, 100)
    assert begun.run == ahead + 1
    replaced(begun.run)
    assert module._progress(place, 100) == begun
    module.discard(place)
    assert module._progress(place, 100).run == ahead + 2


def eventful_again(data_folder: DataFolder) -> None:
    data_folder.write(1, entities=99)


@pytest.mark.soak(shard="lake")
@pytest.mark.spark
def test_a_rebuild_uses_snapshots_and_the_journal_if_events_are_missing(
    spark: SparkSession, data_folder: DataFolder
) -> None:
    eventful(data_folder)
    take_all(spark, data_folder)
    whole = rows(data_folder)
    target = LakeWriter.of(spark, data_folder.folder)
    # Everything up to event 25 is past its time, and a row of `latest` is gone.
    spark.sql(f"DELETE FROM {target.name(EVENTS)} WHERE seq <= 25").collect()
    shutil.rmtree(data_folder.lake.path(SNAPSHOTS))
    shutil.copytree(data_folder.lake.path(LATEST), data_folder.lake.path(SNAPSHOTS))
    gone = f"DELETE FROM {target.name(LATEST)} WHERE entity = 'acme.site:lamp-0'"
    spark.sql(gone).collect()
    found = rebuild_latest(target, lambda *_, **__: None)
    assert (found.folded, found.lost) == (5, 0)
    assert (found.changed, found.added) == (0, 1), "a snapshot knew it"
    assert rows(data_folder) == whole
    # Nothing knows it: the journal's state is taken.
    shutil.rmtree(data_folder.lake.path(SNAPSHOTS))
    spark.sql(gone).collect()
    found = rebuild_latest(target, lambda *_, **__: None)
    assert (found.lost, found.added, found.removed) == (1, 0, 0)
    assert rows(data_folder) == whole
    shutil.rmtree(data_folder.lake.path(EVENTS))
    with pytest.raises(LakeUnfit, match="expected a table to rebuild from"):
        rebuild_latest(target, lambda *_, **__: None)
    assert states(data_folder) != []


@pytest.mark.soak(shard="lake")
@pytest.mark.spark
def test_a_rebuild_omits_erased_history_of_a_recreated_thing(spark: SparkSession, data_folder: DataFolder) -> None:
    """Neither of events, nor of a row of `latest` or `snapshots`."""
    eventful(data_folder)
    take_all(spark, data_folder)
    target = LakeWriter.of(spark, data_folder.folder)
    shutil.rmtree(data_folder.lake.path(SNAPSHOTS))
    shutil.copytree(data_folder.lake.path(LATEST), data_folder.lake.path(SNAPSHOTS))
    made_anew(data_folder, lamp(3))
    erased = rebuild_latest(target, lambda *_, **__: None)
    assert (erased.folded, erased.known, erased.lost) == (9, 0, 0)
    assert (erased.changed, erased.added, erased.removed) == (0, 0, 1)
    take_all(spark, data_folder)
    whole = rows(data_folder)
    found = rebuild_latest(target, lambda *_, **__: None)
    assert (found.folded, found.changed, found.added, found.removed) == (10, 0, 0, 0)
    assert rows(data_folder) == whole
    # Without its new events either: nothing but what was erased could tell something, so the journal does.
    spark.sql(f"DELETE FROM {target.name(EVENTS)} WHERE entity = '{lamp(3)}' AND revision > 5").collect()
    spark.sql(f"DELETE FROM {target.name(LATEST)} WHERE entity = '{lamp(3)}'").collect()
    assert rebuild_latest(target, lambda *_, **__: None).folded == 9
    assert str(lamp(3)) not in {row["entity"] for row in data_folder.table(LATEST)}


def item(entity: str, revision: int, seq: int) -> tuple[Any, ...]:
    at = f"2030-01-15T07:30:{revision:02}.000000Z"
    return ("thing", entity, revision, 0, seq, at, "modified", "/attributes/n", str(revision), "{}", None, None)


def known(entity: str, revision: int, state: str | None) -> tuple[Any, ...]:
    at = f"2030-01-15T07:30:{revision:02}.000000Z"
    return ("thing", entity, revision, 1, 0, at, "known", "/", state, "{}", "a:policy", at)


def test_rows_of_one_entity_after_the_other_become_one_state_each() -> None:
    found = list(
        fold_rows(
            [
                item("a:1", 1, 10),
                item("a:1", 2, 13),
                known("a:1", 2, "{}"),
                item("a:2", 3, 11),
                item("a:3", 3, 12),
                known("a:3", 3, '{"policyId":"a:policy"}'),
                item("a:3", 4, 14),
                known("a:4", 7, None),
            ]
        )
    )
    assert [(row[1], row[2], row[3], row[6], row[7], row[8]) for row in found] == [
        ("a:1", None, 2, '{"attributes":{"n":2}}', 13, "events"),
        ("a:2", None, 3, None, 11, "nothing"),
        ("a:3", "a:policy", 4, '{"policyId":"a:policy","attributes":{"n":4}}', 14, "known"),
        ("a:4", "a:policy", 7, None, 0, "known"),
    ]
    assert list(fold_rows([])) == []


def test_a_rebuilt_state_has_the_sequence_number_of_its_last_event() -> None:
    """Otherwise the events that are missing, of a table put back alone, would change nothing when they come again."""
    newer = known("a:1", 9, "{}")
    (row,) = fold_rows([item("a:1", 1, 10), item("a:1", 2, 13), (*newer[:4], 900, *newer[5:])])
    assert (row[3], row[6], row[7]) == (2, '{"attributes":{"n":2}}', 13)


def test_a_rebuilt_state_contains_the_metadata_of_its_events() -> None:
    """Metadata rests in the stored headers of an event; a rebuild that passed over them would take it from every thing."""
    *event, _, _, _ = item("a:1", 1, 10)
    said = '{"_metadata":[["/attributes/n/unit","kg"]]}'
    (row,) = fold_rows([(*event, said, None, None)])
    assert row[6] == '{"attributes":{"n":1},"_metadata":{"attributes":{"n":{"unit":"kg"}}}}'


def kill_when(data_folder: DataFolder, seen: str, version: int) -> None:
    """A rebuild as a process, killed as soon as something is to be seen; it may also have ended by then."""

    def is_time() -> bool:
        if seen == "latest":
            return lake_rows.version(data_folder.lake, LATEST) > version
        return (data_folder.lake.pipeline / seen).exists()

    with PipelineProcess(data_folder, "rebuild") as process:
        process.wait_for("spark")
        java = process.java()
        wait_until_sync(lambda: is_time() or process.process.poll() is not None, WITHIN)
        process.process.kill()
        process.wait()
        psutil.wait_procs(java, WITHIN)


@pytest.mark.soak(shard="lake-kills")
@pytest.mark.spark
@pytest.mark.parametrize("seen", ["rebuild/progress.json", "rebuild/latest/_delta_log", "latest"])
def test_a_killed_rebuild_continues_and_gives_the_same_result(
    seen: str, spark: SparkSession, data_folder: DataFolder
) -> None:
    """Ten kills: when it has begun, amid the first part, or about when the new rows are put in their place."""
    data_folder.write(2000, entities=50)
    take_all(spark, data_folder)
    target, whole = LakeWriter.of(spark, data_folder.folder), rows(data_folder)
    for _ in range(10):
        damage(target)
        damaged = rows(data_folder)
        kill_when(data_folder, seen, lake_rows.version(data_folder.lake, LATEST))
        assert rows(data_folder) in (damaged, whole)
        rebuild_latest(target, lambda *_, **__: None)
        assert rows(data_folder) == whole
        assert not data_folder.lake.rebuild.exists()
    assert check(data_folder.folder) == []

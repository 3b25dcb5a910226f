"""An erased entity leaves the lake, bytes and all. One real Spark, and pure decisions."""

from __future__ import annotations

import os
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from connectivity.maintenance.erasure import erase_offline
from mappings.ids import EntityId, EntityType, parse_entity_id, partition_entity
from spark_store.errors import LakeUnfit, StoreUnavailable
from spark_store.journal.erasure import Erasure
from spark_store.journal.reader import JournalReader
from spark_store.lake import reader
from spark_store.lake.history_reader import LakeHistory
from spark_store.lake.status import read_status
from spark_store.lake.tables import ERASURES, EVENTS, FULL_SNAPSHOTS, LATEST, SNAPSHOTS, TABLES, Lake
from spark_store.lake.watermark import read_watermark
from spark_store.pipeline import erasure, snapshots, table_maintenance
from spark_store.pipeline.erasure import finished_erasures
from spark_store.pipeline.tables import LakeWriter
from spark_store.records import Change, Snapshot
from tests.support.journal_entries import change, event, timestamp
from tests.support.lake.pipeline_process import DataFolder, differences, lamp, take_all
from tests.support.lake.pipeline_tables import add_states, latest_row, write_all_tables, write_full_snapshot

MARK = "a-secret-nobody-else-has"

ODD = partition_entity("${spark.app.name}/0")
"""An ID that Spark would substitute if it were part of a statement."""


def record(number: int, *, is_done: bool = True) -> Erasure:
    return Erasure(number, "thing", f"acme:lamp-{number}", 10 * number, "t", "anna", "t" if is_done else None, None)


def test_an_erasure_waits_for_the_journal_and_for_those_before_it() -> None:
    first, second, third = record(1), record(2, is_done=False), record(3)
    assert finished_erasures([]) == []
    assert finished_erasures([first, third]) == [first, third]
    assert finished_erasures([first, second, third]) == [first]


def secret(revision: int, entity: EntityId | None = None) -> Change:
    """An event with the mark, and its state, which is None for a stream."""
    entity = entity or lamp(9)
    made = event(entity, revision, b'{"n":%d,"mark":"%b"}' % (revision, MARK.encode()), "/attributes")
    state = {} if entity == ODD else {"attributes": {"n": revision, "mark": MARK}}
    return Change((made,), (Snapshot(entity, revision, timestamp(1), timestamp(revision), state, None),))


AHEAD = 3600.0
"""So many seconds the clock was ahead when some files were written."""


def put_ahead(place: Lake) -> None:
    """Give every file of the tables a time that is to come."""
    at = time.time() + AHEAD
    for table in TABLES:
        for file in Path(place.path(table)).rglob("*.parquet"):
            os.utime(file, (at, at))


@pytest.fixture
def place(tmp_path: Path) -> Lake:
    """A lake whose rows were deleted or replaced, with every file it ever had; no Spark."""
    place = Lake(tmp_path)
    place.pipeline.mkdir(parents=True)
    for table in TABLES:
        path, partitions = place.path(table), list(table.partitioned_by)
        for number in (1, 2):
            row = pa.table({"as_of": [number], "entity": [f"{MARK} {number}"]})
            write_deltalake(path, row, mode="append", partition_by=partitions)
        if table != LATEST:
            DeltaTable(path).delete("as_of = 1")
    DeltaTable(place.path(LATEST)).optimize.compact()
    for table in TABLES:
        DeltaTable(place.path(table)).create_checkpoint()
    put_ahead(place)
    return place


def versions(place: Lake) -> dict[str, int]:
    return {table.name: DeltaTable(place.path(table)).version() for table in TABLES}


def data_files(place: Lake) -> dict[str, set[str]]:
    """The files of each table, without its log."""
    found: dict[str, set[str]] = {}
    for table in TABLES:
        folder = Path(place.path(table))
        files = (it for it in folder.rglob("*") if it.is_file() and "_delta_log" not in it.parts)
        found[table.name] = {str(it.relative_to(folder)) for it in files}
    return found


def rows(place: Lake) -> list[list[Any]]:
    return [DeltaTable(place.path(table)).to_pyarrow_table().to_pylist() for table in TABLES]


def test_cleaning_keeps_only_the_files_of_the_newest_versions_regardless_of_their_age(place: Lake) -> None:
    """Uncommitted files are removed too, and the checksums of removed files."""
    needed = {table.name: set(reader.files(place, table)) for table in TABLES}
    assert [len(it) for it in needed.values()] == [1, 1, 1, 1]
    for table in TABLES:
        for name in data_files(place)[table.name]:
            file = Path(place.path(table)) / name
            file.with_name(f".{file.name}.crc").write_bytes(b"sum")
        Path(place.path(table), "never-committed.parquet").write_bytes(MARK.encode())
    before = rows(place)
    erasure.clean(place, versions(place))
    sums = {name: {str(Path(it).with_name(f".{Path(it).name}.crc")) for it in files} for name, files in needed.items()}
    assert data_files(place) == {name: files | sums[name] for name, files in needed.items()}
    assert next(iter(needed[FULL_SNAPSHOTS.name])).startswith("as_of=2/")
    assert rows(place) == before
    assert MARK.encode() not in b"".join(it.read_bytes() for it in place.folder.rglob("*0.json")), "nor in a log"
    erasure.clean(place, versions(place))
    assert rows(place) == before, "twice"


def test_nothing_goes_from_a_table_with_another_version_than_spark_has(place: Lake) -> None:
    before = data_files(place)
    with pytest.raises(
        StoreUnavailable, match=r"lake/events: expected version 9, which Spark reads, found version 2; no data"
    ):
        erasure.clean(place, versions(place) | {EVENTS.name: 9})
    assert data_files(place) == before


def test_a_table_behind_a_symbolic_link_is_cleaned_too(place: Lake, tmp_path: Path) -> None:
    folder = Path(place.path(EVENTS))
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    erasure.clean(place, versions(place))
    assert data_files(place)["events"] == set(reader.files(place, EVENTS))


def test_nothing_goes_from_a_table_that_lacks_a_file(place: Lake) -> None:
    """Its log and its folder do not tell the same."""
    (needed,) = reader.files(place, SNAPSHOTS)
    Path(place.path(SNAPSHOTS), needed).unlink()
    before = data_files(place)[SNAPSHOTS.name]
    with pytest.raises(StoreUnavailable, match=r"snapshots/\S+: this file of the table is missing"):
        erasure.clean(place, versions(place))
    assert data_files(place)[SNAPSHOTS.name] == before


@pytest.mark.parametrize("call", ["scandir", "unlink"])
def test_a_file_that_cannot_be_removed_raises_an_error(call: str, place: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(path: Any, **_: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, call, refuses)
    expected = r"lake/events\S*: erased data cannot be removed from the files: Permission denied"
    with pytest.raises(StoreUnavailable, match=expected):
        erasure.clean(place, versions(place))


def marked(data_folder: DataFolder) -> list[str]:
    """The files that contain the mark, plain or in a compressed column."""
    plain = [
        str(it.relative_to(data_folder.folder))
        for it in data_folder.folder.rglob("*")
        if it.is_file() and MARK.encode() in it.read_bytes()
    ]
    rows = [f"{table.name}" for table in TABLES for row in data_folder.table(table) if MARK in str(row)]
    return plain + rows


def named(data_folder: DataFolder) -> list[str]:
    """The files of the lake that hold the ID. The journal's record keeps it."""
    files = (it for it in data_folder.lake.folder.rglob("*") if it.is_file())
    return [str(it.relative_to(data_folder.folder)) for it in files if str(lamp(9)).encode() in it.read_bytes()]


@pytest.mark.slow(reason="Spark deletes from four tables, the first that it does in a session")
@pytest.mark.spark
def test_an_erased_thing_is_in_no_file_and_the_others_stay(spark: SparkSession, data_folder: DataFolder) -> None:
    """In every table. The files before the erasure are written without Spark."""
    # Compression would hide the mark from a search in the bytes.
    spark.conf.set("spark.sql.parquet.compression.codec", "uncompressed")
    try:
        data_folder.append([secret(1)])
        data_folder.write(6, entities=3)
        write_full_snapshot(data_folder.folder)
        with JournalReader.open(data_folder.lake.journal) as follower:
            add_states(data_folder.folder, SNAPSHOTS, map(latest_row, follower.states(1, follower.newest())))
        write_all_tables(data_folder.folder)
        history = LakeHistory(data_folder.lake)
        assert history.snapshot(lamp(9), 5) is not None
        assert {Path(it).parts[1] for it in named(data_folder)} == {table.name for table in TABLES}
        files = {Path(it).parts[1] for it in marked(data_folder) if it.startswith("lake/")}
        assert files == {table.name for table in TABLES}, "the search finds the mark"
        erase_offline(data_folder.folder, lamp(9), "anna")
        events = take_all(spark, data_folder)
    finally:
        spark.conf.set("spark.sql.parquet.compression.codec", "zstd")
    assert ("erased", {"erasures": [1]}) in events
    assert marked(data_folder) == []
    assert named(data_folder) == []
    assert history.snapshot(lamp(0), 5) is not None, "a reader goes on behind the end of the log that it knew"
    data_folder.assert_equal()
    assert differences(data_folder) == []
    others = sorted(str(lamp(number)) for number in range(3))
    for table in (SNAPSHOTS, FULL_SNAPSHOTS):
        assert sorted(row["entity"] for row in data_folder.table(table)) == others, table.name


@pytest.mark.soak(shard="lake")
@pytest.mark.spark
def test_nothing_is_left_of_the_entity_in_any_file(
    spark: SparkSession, data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In older versions of the tables neither; with events that the lake has not seen; killed on the way."""
    # Compression would hide the secret from a search for its bytes.
    spark.conf.set("spark.sql.parquet.compression.codec", "uncompressed")
    try:
        target = LakeWriter.of(spark, data_folder.folder)
        for first in (1, 5):
            data_folder.append([secret(revision) for revision in range(first, first + 4)])
            data_folder.append([secret(revision, ODD) for revision in range(first, first + 4)])
            data_folder.write(6, entities=3)
            take_all(spark, data_folder)
            assert snapshots.take(target, 4) >= 1
            assert snapshots.take_full_snapshot(target, read_watermark(data_folder.lake.watermark).seq) >= 4
        table_maintenance.optimize(target)
        assert any("full_snapshots" in name for name in marked(data_folder)), "the search goes over all of the folder"
        newest = max(row["revision"] for row in data_folder.table(EVENTS) if row["entity"] == str(lamp(9)))
        data_folder.append([secret(newest + 1)])
        data_folder.write(3, entities=3)
        assert parse_entity_id(EntityType.STREAM, str(ODD)) == ODD
        erase_offline(data_folder.folder, lamp(9), "anna")
        erase_offline(data_folder.folder, ODD, "anna")
        assert differences(data_folder) == [], "what the lake has not done yet is no difference"
        # Created again before the erasure reaches the lake.
        data_folder.append([change(lamp(9), newest + 2)])

        def killed(*_: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(erasure, "clean", killed)
        with pytest.raises(KeyboardInterrupt):
            take_all(spark, data_folder)
        assert read_watermark(data_folder.lake.watermark).erased == 0

        def damaged(*_: Any) -> None:
            raise LakeUnfit("an old file is damaged")

        monkeypatch.setattr(erasure, "clean", damaged)
        data_folder.write(3, entities=3)
        events = take_all(spark, data_folder)
        assert [fields["reason"] for name, fields in events if name == "erasure failed"] == ["an old file is damaged"]
        kept = read_watermark(data_folder.lake.watermark)
        assert (kept.erased, kept.maintenance_failures) == (0, {"erasure": "an old file is damaged"})
        status = read_status(data_folder.lake, datetime.now(UTC))
        assert (status["erasures_pending"], status["lag_events"]) == (2, 0), "new events are not kept out"
        monkeypatch.undo()
        # As left by a clock that was ahead and was then corrected.
        put_ahead(data_folder.lake)
        events = take_all(spark, data_folder)
        assert read_watermark(data_folder.lake.watermark).maintenance_failures == {}
    finally:
        spark.conf.set("spark.sql.parquet.compression.codec", "zstd")
    assert [fields for event, fields in events if event == "erased"] == [{"erasures": [1, 2]}]
    assert marked(data_folder) == []
    data_folder.assert_equal()
    assert [row["revision"] for row in data_folder.table(EVENTS) if row["entity"] == str(lamp(9))] == [newest + 2]
    assert [row["revision"] for row in data_folder.table(LATEST) if row["entity"] == str(lamp(9))] == [newest + 2]
    assert str(lamp(9)) not in {row["entity"] for row in data_folder.table(SNAPSHOTS)}
    assert not [row for table in TABLES for row in data_folder.table(table) if row["entity"] == str(ODD)]
    assert differences(data_folder) == []
    assert [event for event, _ in take_all(spark, data_folder)] == ["following"], "once"
    # A row that still exists is reported, and nothing else.
    columns = (f"CAST(1 AS BIGINT) AS {it}" if it in ("revision", "seq") else it for it in SNAPSHOTS.column_names)
    left = target.read(LATEST).where(f"entity = '{lamp(9)}'").selectExpr(*columns)
    left.write.format("delta").mode("append").save(data_folder.lake.path(SNAPSHOTS))
    assert differences(data_folder) == [f"snapshots: erased, and still there: {lamp(9)} at revision 1, event 1"]


@pytest.mark.soak(shard="lake")
@pytest.mark.spark
def test_erased_entities_are_erased_again_from_a_restored_table(
    spark: SparkSession, data_folder: DataFolder, tmp_path: Path
) -> None:
    """Each table in turn, even if no event has come since."""
    target = LakeWriter.of(spark, data_folder.folder)
    data_folder.write(14)
    take_all(spark, data_folder)
    assert snapshots.take(target, 2) == 7
    shutil.copytree(data_folder.lake.path(SNAPSHOTS), tmp_path / "backup")
    erase_offline(data_folder.folder, lamp(6), "anna")
    take_all(spark, data_folder)
    assert [reader.last_transaction(data_folder.lake, table, ERASURES) for table in TABLES] == [1, 1, 1, 1]
    shutil.rmtree(data_folder.lake.path(SNAPSHOTS))
    shutil.copytree(tmp_path / "backup", data_folder.lake.path(SNAPSHOTS))
    # A new process has no other table in its cache.
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    assert ("erased", {"erasures": [1]}) in take_all(spark, data_folder)
    assert str(lamp(6)) not in {row["entity"] for row in data_folder.table(SNAPSHOTS)}
    assert [event for event, _ in take_all(spark, data_folder)] == ["following"]

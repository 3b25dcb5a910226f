"""An incomplete lake is reported, with its missing or damaged parts."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from spark_store.errors import LakeUnfit, StoreUnavailable
from spark_store.journal.journal import Journal
from spark_store.journal.reader import JournalReader
from spark_store.lake.check import check_lake, check_reach, expect_lake
from spark_store.lake.durability import is_complete
from spark_store.lake.tables import EVENTS, LATEST, Table
from tests.support.lake.pipeline_process import DataFolder, lamp
from tests.support.lake.pipeline_tables import write_lake
from tests.support.lake.tables import corrupt_page
from tests.support.lake.twin_changes import erase_events, trim


@pytest.fixture
def data_folder(tmp_path: Path) -> DataFolder:
    """A table of two commits with files, `latest` of one."""
    data_folder = DataFolder(tmp_path)
    data_folder.write(10)
    write_lake(data_folder.folder, 5)
    write_lake(data_folder.folder)
    return data_folder


def look(data_folder: DataFolder) -> None:
    with JournalReader.open(data_folder.lake.journal) as follower:
        check_lake(data_folder.lake, follower)


def fault_of(data_folder: DataFolder) -> str:
    """Return the fault of the lake; empty for an intact one."""
    try:
        look(data_folder)
    except LakeUnfit as error:
        return str(error)
    return ""


def test_a_complete_lake_passes_the_check_after_any_trim(data_folder: DataFolder) -> None:
    assert fault_of(data_folder) == ""
    trim(data_folder, 7)
    assert fault_of(data_folder) == ""
    trim(data_folder, 10)
    assert fault_of(data_folder) == ""


def test_events_missing_from_both_journal_and_lake_are_reported(data_folder: DataFolder) -> None:
    trim(data_folder, 7)
    shutil.rmtree(data_folder.lake.folder)
    with pytest.raises(
        LakeUnfit, match=r"begins at event 8, but the lake ends at event 0, .*; restore the folder `lake`"
    ):
        look(data_folder)
    trim(data_folder, 10)
    with pytest.raises(LakeUnfit, match="begins at event 11"):
        look(data_folder)


def test_a_lake_is_not_required_if_the_journal_is_complete(tmp_path: Path) -> None:
    data_folder = DataFolder(tmp_path)
    assert fault_of(data_folder) == ""
    data_folder.write(3)
    assert fault_of(data_folder) == ""


def test_a_table_that_is_being_created_is_not_checked(tmp_path: Path) -> None:
    data_folder = DataFolder(tmp_path)
    data_folder.write(3)
    Path(data_folder.lake.path(EVENTS), "_delta_log").mkdir(parents=True)
    assert fault_of(data_folder) == ""


def test_erased_events_are_not_reported_as_missing(tmp_path: Path) -> None:
    data_folder = DataFolder(tmp_path)
    data_folder.write(3, entities=1)
    with contextlib.closing(Journal.open(data_folder.lake.journal)) as journal:
        erase_events(journal, lamp(0))
    with JournalReader.open(data_folder.lake.journal) as follower:
        assert follower.oldest() is None
        check_reach(data_folder.lake, follower)
    assert fault_of(data_folder) == ""


def commit(table: Path, number: int) -> Path:
    return table / "_delta_log" / f"{number:020}.json"


def no_first_commit(table: Path) -> None:
    # A reader can do without it: the next commit has the table's metadata, too.
    commit(table, 1).write_bytes(commit(table, 0).read_bytes() + commit(table, 1).read_bytes())
    commit(table, 0).unlink()


def a_gap(table: Path) -> None:
    commit(table, 1).rename(commit(table, 2))


def an_empty_commit(table: Path) -> None:
    commit(table, 1).write_bytes(b"")


def no_commit(table: Path) -> None:
    for file in (table / "_delta_log").glob("*.json"):
        file.unlink()


def newest_file(table: Path) -> Path:
    return max(table.glob("*.parquet"), key=lambda file: file.stat().st_mtime_ns)


def no_file(table: Path) -> None:
    newest_file(table).unlink()


def half_a_file(table: Path) -> None:
    file = newest_file(table)
    file.write_bytes(file.read_bytes()[:200])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (no_first_commit, "every commit up to 1 from a checkpoint or from 0 on, found some missing"),
        (a_gap, "every commit up to 2"),
        (no_commit, "every commit up to 0"),
        (an_empty_commit, "found an empty file"),
        (no_file, "this file of the table is missing"),
        (half_a_file, "bytes, found 200"),
    ],
)
@pytest.mark.parametrize("table", [EVENTS, LATEST])
def test_a_damaged_table_is_reported_with_its_path_and_the_next_step(
    data_folder: DataFolder, table: Table, damage: Callable[[Path], None], message: str
) -> None:
    folder = Path(data_folder.lake.path(table))
    damage(folder)
    with pytest.raises(LakeUnfit, match=f"{folder}.*{message}.*; .*restore"):
        look(data_folder)


@pytest.mark.parametrize("table", [EVENTS, LATEST])
def test_a_part_of_the_log_removed_meanwhile_by_a_pipeline_is_not_missed(data_folder: DataFolder, table: Table) -> None:
    folder = Path(data_folder.lake.path(table))
    DeltaTable(folder).create_checkpoint()
    # It is listed, and not there when it is looked at.
    commit(folder, 0).unlink()
    commit(folder, 0).symlink_to("nowhere")
    assert fault_of(data_folder) == ""


def test_a_checkpoint_that_is_made_meanwhile_is_found(data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Path] = []

    def late(log: Path, version: int) -> bool:
        looks.append(log)
        return looks.count(log) > 1 and is_complete(log, version)

    monkeypatch.setattr("spark_store.lake.check.is_complete", late)
    assert fault_of(data_folder) == ""
    assert len(looks) > len(set(looks))


def test_a_corrupt_page_is_found(data_folder: DataFolder) -> None:
    trim(data_folder, 10)
    file = corrupt_page(Path(data_folder.lake.path(EVENTS)))
    with pytest.raises(LakeUnfit, match=f"{file}: expected intact pages, found: .*; .*restore"):
        look(data_folder)


@pytest.mark.parametrize(
    ("number", "step"),
    [
        (errno.EMFILE, "raise the limit of open files"),
        (errno.EACCES, "check the owner and permissions"),
        (errno.EIO, "check the disk"),
    ],
)
def test_a_file_that_the_system_does_not_let_be_read_is_not_damaged(
    data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch, number: int, step: str
) -> None:
    def refuses(file: Path, **_: object) -> None:
        raise OSError(number, f"Failed to open local file '{file}'. Detail: [errno {number}] {os.strerror(number)}")

    monkeypatch.setattr(pq, "ParquetFile", refuses)
    with pytest.raises(StoreUnavailable, match=step):
        look(data_folder)


def test_a_missing_lake_is_awaited_if_the_journal_was_trimmed(data_folder: DataFolder) -> None:
    """Its disk may not be mounted yet: no table is created in its place."""
    shutil.rmtree(data_folder.lake.folder)
    expect_lake(data_folder.lake)
    trim(data_folder, 3)
    with pytest.raises(
        StoreUnavailable, match=r"lake: found no lake, expected one with the events before 4, .*; mount the folder"
    ):
        expect_lake(data_folder.lake)

"""A copy of journal and lake, made during writes, is a valid start for a service."""

from __future__ import annotations

import errno
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_store.errors import LakeUnfit, OutputUnusable, StoreUnavailable
from spark_store.journal.reader import JournalReader
from spark_store.lake.tables import EVENTS, LATEST, SNAPSHOTS, Lake
from spark_store.maintenance import backup as module
from spark_store.maintenance.backup import MANIFEST, back_up
from spark_store.maintenance.verify import verify
from spark_store.pipeline.session import scratch_folder
from tests.support.lake.pipeline_process import DataFolder
from tests.support.lake.pipeline_tables import add_events, add_states, event_row, write_events, write_lake
from tests.support.lake.twin_changes import states, trim, write_eventful_past

_copyfile = shutil.copyfile


@pytest.fixture
def data_folder(tmp_path: Path) -> DataFolder:
    """A journal whose newest events are not in the lake yet, and whose oldest are there alone."""
    made = DataFolder(tmp_path / "data")
    write_eventful_past(made)
    write_lake(made.folder, 30)
    trim(made, 10)
    return made


def same(copy: Path) -> list[str]:
    return [str(each) for each in verify(Lake(copy)).differences]


def on_copy(monkeypatch: pytest.MonkeyPatch, happens: Callable[[Path], None]) -> None:
    """Call a function before each file is copied."""

    def copyfile(source: Any, target: Any) -> Any:
        happens(Path(source))
        return _copyfile(source, target)

    monkeypatch.setattr("spark_store.maintenance.backup.shutil.copyfile", copyfile)


def once(work: Callable[[], None]) -> Callable[[], None]:
    """The same, the first time only."""
    waiting = [work]

    def run() -> None:
        if waiting:
            waiting.pop()()

    return run


def test_a_backup_has_the_same_events_and_states_as_journal_and_lake(data_folder: DataFolder, tmp_path: Path) -> None:
    made = back_up(data_folder.lake, tmp_path / "copy")
    assert (made.trimmed, made.lake, made.linked) == (10, 30, 0)
    assert json.loads((tmp_path / "copy" / MANIFEST).read_text())["events"] == made.events
    copy = DataFolder(tmp_path / "copy")
    assert states(copy) == states(data_folder)
    assert same(copy.folder) == same(data_folder.folder) == []
    assert [row["seq"] for row in copy.table(EVENTS)] == [row["seq"] for row in data_folder.table(EVENTS)]


def test_a_copy_is_for_its_owner_alone(data_folder: DataFolder, tmp_path: Path) -> None:
    # An empty folder that others may look into is closed.
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy").chmod(0o755)
    back_up(data_folder.lake, tmp_path / "copy")
    assert (tmp_path / "copy").stat().st_mode & 0o077 == 0
    assert (tmp_path / "copy" / "journal.db").stat().st_mode & 0o077 == 0
    assert sorted(each.name for each in (tmp_path / "copy").iterdir()) == [MANIFEST, "journal.db", "lake"]


def test_a_journal_without_a_lake_is_copied_too(tmp_path: Path) -> None:
    data_folder = DataFolder(tmp_path / "data")
    write_eventful_past(data_folder)
    made = back_up(data_folder.lake, tmp_path / "copy")
    assert (made.lake, made.tables, made.trimmed) == (None, {}, 0)
    assert states(DataFolder(tmp_path / "copy")) == states(data_folder)


def test_a_backup_has_all_events_stored_before_it_began_and_does_not_stop_writes(
    data_folder: DataFolder, tmp_path: Path
) -> None:
    stop = threading.Event()
    written: list[int] = []

    def write() -> None:
        while not stop.is_set():
            data_folder.write(5)
            with JournalReader.open(data_folder.lake.journal) as follower:
                written.append(follower.newest())

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(5):
            while len(written) < 3 * (number + 1):
                stop.wait(0.01)
            before = written[-1]
            made = back_up(data_folder.lake, tmp_path / f"copy-{number}")
            assert made.events >= before
            with JournalReader.open(tmp_path / f"copy-{number}" / "journal.db") as copy:
                assert copy.newest() == made.events
                assert sum(1 for _ in copy.entries(11, made.events)) == made.events - 10
            assert same(tmp_path / f"copy-{number}") == []
    finally:
        stop.set()
        writer.join()


def test_events_trimmed_during_a_backup_are_copied_from_the_lake(
    data_folder: DataFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the lake were read only once, the copy would lack events 31 to 35.

    They leave the journal and reach the lake during the backup.
    """
    copied, times = module._CopyAttempt.lake, []

    def lake(attempt: module._CopyAttempt) -> dict[str, int]:
        tables = copied(attempt)
        times.append(tables)
        if len(times) == 1:
            with JournalReader.open(data_folder.lake.journal) as follower:
                newest = follower.newest()
                rest = list(follower.entries(31, newest))
            add_events(data_folder.folder, map(event_row, rest), newest)
            trim(data_folder, 35)
        return tables

    monkeypatch.setattr(module._CopyAttempt, "lake", lake)
    made = back_up(data_folder.lake, tmp_path / "copy")
    assert (len(times), made.trimmed, made.lake) == (2, 35, made.events)
    assert len(DataFolder(tmp_path / "copy").table(EVENTS)) == made.events


def test_a_backup_that_retention_overtakes_keeps_each_history_with_its_beginning(
    data_folder: DataFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the copy would lack the events up to a boundary, and the snapshot at the boundary."""
    lake = data_folder.lake
    add_states(data_folder.folder, SNAPSHOTS, [])
    (row,) = (it for it in data_folder.table(LATEST) if it["entity"] == "acme.site:lamp-0")

    @once
    def retain() -> None:
        add_states(data_folder.folder, SNAPSHOTS, [{**row, "revision": 3, "seq": 4}])
        write_events(data_folder.folder, [it for it in data_folder.table(EVENTS) if it["seq"] not in (2, 3, 4)])

    on_copy(monkeypatch, lambda source: retain() if source.match(f"{lake.path(LATEST)}/*.parquet") else None)
    back_up(lake, tmp_path / "copy")
    assert len(data_folder.table(SNAPSHOTS)) == 1
    assert same(tmp_path / "copy") == []


def test_a_table_with_files_removed_during_a_backup_is_copied_again(
    data_folder: DataFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an erasure: rows are written again, and the files that held them are removed at once."""
    folder = Path(data_folder.lake.path(EVENTS))

    def erase() -> None:
        old = list(folder.glob("*.parquet"))
        rows = data_folder.table(EVENTS)
        write_events(data_folder.folder, rows[:-1])
        for file in old:
            file.unlink()

    happens = once(erase)
    on_copy(monkeypatch, lambda source: happens() if source.parent.name == "_delta_log" else None)
    expected = len(data_folder.table(EVENTS)) - 1
    made = back_up(data_folder.lake, tmp_path / "copy")
    assert len(DataFolder(tmp_path / "copy").table(EVENTS)) == expected
    assert made.tables["events"] == 1


def test_a_file_that_repeatedly_vanishes_causes_no_endless_loop(
    data_folder: DataFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_in_log(source: Path) -> None:
        if source.suffix == ".json" and source.parent.name == "_delta_log":
            raise FileNotFoundError(errno.ENOENT, "gone", str(source))

    on_copy(monkeypatch, fail_in_log)
    with pytest.raises(LakeUnfit, match="after 5 attempts"):
        back_up(data_folder.lake, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_lake_that_is_ahead_of_its_journal_belongs_to_another(data_folder: DataFolder, tmp_path: Path) -> None:
    other = DataFolder(tmp_path / "other")
    other.write(5)
    shutil.copytree(data_folder.lake.folder, other.lake.folder)
    with pytest.raises(LakeUnfit, match="the lake has event 30, but the journal ends at event 5"):
        back_up(other.lake, tmp_path / "copy")


def test_files_of_an_earlier_copy_are_linked(data_folder: DataFolder, tmp_path: Path) -> None:
    first = back_up(data_folder.lake, tmp_path / "first")
    data_folder.write(5)
    second = back_up(data_folder.lake, tmp_path / "second", tmp_path / "first")
    (file,) = (tmp_path / "second" / "lake" / "events").glob("*.parquet")
    assert file.stat().st_ino == (tmp_path / "first" / "lake" / "events" / file.name).stat().st_ino
    assert second.linked > 0
    assert second.events == first.events + 5
    shutil.rmtree(tmp_path / "first")
    assert same(tmp_path / "second") == []


def test_a_lake_that_was_created_again_is_copied_beside_an_earlier_copy(
    data_folder: DataFolder, tmp_path: Path
) -> None:
    """The parts of its logs have the names, and often the sizes, of the earlier ones."""
    back_up(data_folder.lake, tmp_path / "first")
    shutil.rmtree(data_folder.lake.folder)
    shutil.copytree(tmp_path / "first" / "lake", data_folder.lake.folder)
    table = Path(data_folder.lake.path(EVENTS))
    (file,) = table.glob("*.parquet")
    (commit,) = (table / "_delta_log").glob("*.json")
    other = file.with_name(f"{file.stem[:-1]}x.parquet")
    file.rename(other)
    commit.write_text(commit.read_text().replace(file.name, other.name))
    assert back_up(data_folder.lake, tmp_path / "second", tmp_path / "first").linked > 0
    assert same(tmp_path / "second") == []


def test_where_links_are_not_to_be_had_files_are_copied(
    data_folder: DataFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: Any) -> None:
        raise OSError(errno.EXDEV, "another disk")

    back_up(data_folder.lake, tmp_path / "first")
    monkeypatch.setattr("spark_store.maintenance.backup.os.link", link)
    assert back_up(data_folder.lake, tmp_path / "second", tmp_path / "first").linked == 0
    assert same(tmp_path / "second") == []


def test_a_backup_leaves_out_temporary_files_and_scratch_folders(data_folder: DataFolder, tmp_path: Path) -> None:
    log = Path(data_folder.lake.path(EVENTS)) / "_delta_log"
    (log / "_last_checkpoint").write_text('{"version": 99, "size": 1}')
    (log / ".00000000000000000007.json.tmp").write_text("{")
    with scratch_folder(data_folder.lake) as scratch:
        (scratch / "spilled").touch()
        back_up(data_folder.lake, tmp_path / "copy")
    assert not Lake(tmp_path / "copy").scratch.exists()
    assert sorted(each.name for each in (tmp_path / "copy/lake/events/_delta_log").iterdir()) == [f"{0:020}.json"]


@pytest.mark.parametrize("place", ["data", "data/backups", "."])
def test_a_backup_folder_must_be_outside_the_data_folder(data_folder: DataFolder, tmp_path: Path, place: str) -> None:
    with pytest.raises(OutputUnusable, match="expected a folder outside the data folder"):
        back_up(data_folder.lake, tmp_path / place)


def test_a_folder_with_something_in_it_is_left_alone(data_folder: DataFolder, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "mine").write_text("x")
    with pytest.raises(OutputUnusable, match="found files in it"):
        back_up(data_folder.lake, tmp_path / "copy")
    assert (tmp_path / "copy" / "mine").read_text() == "x"
    with pytest.raises(OutputUnusable, match="expected a folder"):
        back_up(data_folder.lake, tmp_path / "copy" / "mine")


def test_an_earlier_copy_has_to_be_whole(data_folder: DataFolder, tmp_path: Path) -> None:
    with pytest.raises(OutputUnusable, match=f"found no {MANIFEST}"):
        back_up(data_folder.lake, tmp_path / "copy", tmp_path / "data")


@pytest.mark.parametrize("is_there", [True, False])
def test_a_failed_backup_leaves_no_files(
    data_folder: DataFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    def full(source: Path) -> None:
        if source.suffix == ".parquet":
            raise OSError(errno.ENOSPC, "No space left on device", str(source))

    if is_there:
        (tmp_path / "copy").mkdir()
    on_copy(monkeypatch, full)
    with pytest.raises(StoreUnavailable, match="free space"):
        back_up(data_folder.lake, tmp_path / "copy")
    assert (tmp_path / "copy").exists() is is_there
    assert not is_there or list((tmp_path / "copy").iterdir()) == []


def test_a_backup_of_a_damaged_journal_fails_and_leaves_no_folder(data_folder: DataFolder, tmp_path: Path) -> None:
    content = bytearray(data_folder.lake.journal.read_bytes())
    content[4096 * 3 : 4096 * 5] = b"\xff" * 8192
    data_folder.lake.journal.write_bytes(content)
    with pytest.raises(StoreUnavailable):
        back_up(data_folder.lake, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_folder_without_a_journal_is_no_data_folder(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(StoreUnavailable, match="found no journal"):
        back_up(Lake(tmp_path / "data"), tmp_path / "copy")

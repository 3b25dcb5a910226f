"""Loss in a power cut: durable files, and repairs. The tables are of another library, the disks fake."""

from __future__ import annotations

import ctypes
import errno
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_store.errors import StoreUnavailable
from spark_store.lake import durability
from spark_store.lake.tables import EVENTS, FULL_SNAPSHOTS, LATEST, Lake
from spark_store.lake.watermark import Watermark, publish_watermark


class Disk:
    """A fake C library, which records its calls and fails on demand."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.requests: list[str] = []

    def syncfs(self, descriptor: int) -> int:
        self.requests.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        ctypes.set_errno(self.number)
        return -1 if self.number else 0


@pytest.fixture
def place(tmp_path: Path) -> Lake:
    """A lake with both tables in versions 0 to 2, rows 0 to 2."""
    place = Lake(tmp_path)
    place.pipeline.mkdir(parents=True)
    for table in (EVENTS, LATEST):
        for number in range(3):
            write_deltalake(place.path(table), pa.table({"n": [number]}), mode="append")
    return place


def commit(place: Lake, number: int) -> Path:
    return Path(place.path(EVENTS)) / "_delta_log" / f"{number:020}.json"


def rows(place: Lake) -> list[int]:
    return sorted(DeltaTable(place.path(EVENTS)).to_pyarrow_table()["n"].to_pylist())


def publish(place: Lake, *, before: bool = False) -> None:
    """The watermark, published now; or before everything else was written."""
    publish_watermark(place.watermark, Watermark(3))
    at = 1 if before else time.time_ns() + 10**9
    os.utime(place.watermark, ns=(at, at))


def test_the_file_system_of_the_lake_is_made_durable_in_one_call(place: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    durability.sync(place)
    disk = Disk()
    monkeypatch.setattr(durability, "_LIBC", disk)
    durability.sync(place)
    assert disk.requests == [str(place.folder)]


def test_a_disk_that_refuses_makes_the_store_unavailable(place: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durability, "_LIBC", Disk(errno.EIO))
    with pytest.raises(
        StoreUnavailable, match=f"{place.folder}: the lake cannot be synced to disk: Input/output error"
    ):
        durability.sync(place)
    monkeypatch.setattr(durability, "_LIBC", Disk(errno.ENOSPC))
    with pytest.raises(StoreUnavailable, match="free space"):
        durability.sync(place)
    with pytest.raises(StoreUnavailable, match="No such file"):
        durability.sync(Lake(place.folder / "elsewhere"))


def test_without_syncfs_every_file_and_folder_is_made_durable(place: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda it: found.append(os.readlink(f"/proc/self/fd/{it}")))
    monkeypatch.setattr(durability, "_LIBC", object())
    durability.sync(place)
    assert sorted(found) == sorted(str(it) for it in (place.folder, *place.folder.rglob("*")))


@pytest.mark.parametrize("damage", ["empty", "half", "rows"])
def test_a_newest_commit_damaged_by_a_power_failure_is_removed(place: Lake, damage: str) -> None:
    publish(place, before=True)
    newest = commit(place, 2)
    beside = [newest.with_suffix(".crc"), newest.with_name(f".{newest.name}.crc")]
    for file in beside:
        file.write_bytes(b"")
    if damage == "rows":
        added = DeltaTable(place.path(EVENTS)).file_uris()
        os.truncate(max(added, key=lambda it: Path(it).stat().st_mtime_ns), 0)
    else:
        os.truncate(newest, 0 if damage == "empty" else newest.stat().st_size - 20)
    assert durability.repair(place) == [newest]
    assert rows(place) == [0, 1]
    assert [file for file in (newest, *beside) if file.exists()] == []
    assert durability.repair(place) == []


def test_files_of_a_partition_are_made_durable_and_checked_too(place: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Path(place.path(FULL_SNAPSHOTS))
    for number in (7, 8):
        write_deltalake(table, pa.table({"n": [1], "as_of": [number]}), mode="append", partition_by=["as_of"])
    (file,) = (table / "as_of=8").iterdir()
    found: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda it: found.append(os.readlink(f"/proc/self/fd/{it}")))
        patched.setattr(durability, "_LIBC", object())
        durability.sync(place)
    assert {str(file), str(file.parent)} <= set(found)
    publish(place, before=True)
    assert durability.repair(place) == []
    os.truncate(file, 0)
    assert durability.repair(place) == [table / "_delta_log" / f"{1:020}.json"]


def test_commits_that_are_spoilt_one_upon_the_other_go_together(place: Lake) -> None:
    publish(place, before=True)
    os.truncate(commit(place, 1), 0)
    assert durability.repair(place) == [], "what stands below a good one is for people to see"
    os.truncate(commit(place, 2), 0)
    assert durability.repair(place) == [commit(place, 2), commit(place, 1)]
    assert rows(place) == [0]


def checkpoint(place: Lake, number: int) -> Path:
    """Write a checkpoint of a table that ends there."""
    DeltaTable(place.path(EVENTS)).create_checkpoint()
    file = commit(place, number).with_suffix(".checkpoint.parquet")
    assert file.stat().st_size > 0
    return file


@pytest.mark.parametrize("damage", ["commit", "checkpoint", "both"])
@pytest.mark.parametrize("is_old", [False, True])
def test_a_checkpoint_of_the_newest_commit_is_removed_if_the_log_is_complete_without_it(
    place: Lake, damage: str, is_old: bool
) -> None:
    """From its beginning, or from an older checkpoint. Delta writes one right after each fiftieth commit."""
    if is_old:
        checkpoint(place, 2)
        for number in (0, 1):
            commit(place, number).unlink()
    write_deltalake(place.path(EVENTS), pa.table({"n": [3]}), mode="append")
    publish(place, before=True)
    newest = checkpoint(place, 3)
    beside = newest.with_name(f".{newest.name}.crc")
    beside.touch()
    gone = [newest] if damage == "checkpoint" else [newest, commit(place, 3)]
    for file in gone[damage == "commit" :]:
        os.truncate(file, 0)
    assert durability.repair(place) == gone
    assert [file for file in (*gone, beside) if file.exists()] == []
    assert not newest.with_name("_last_checkpoint").exists(), "it is of the one that went"
    kept = [0, 1, 2, 3] if damage == "checkpoint" else [0, 1, 2]
    assert rows(place) == kept
    write_deltalake(place.path(EVENTS), pa.table({"n": [4]}), mode="append")
    assert rows(place) == [*kept, 4]
    assert durability.repair(place) == []


@pytest.mark.parametrize("missing", ["commit", "empty commit", "older checkpoint"])
def test_a_checkpoint_without_which_the_log_would_lack_something_stays(place: Lake, missing: str) -> None:
    older = checkpoint(place, 2)
    write_deltalake(place.path(EVENTS), pa.table({"n": [3]}), mode="append")
    publish(place, before=True)
    newest = checkpoint(place, 3)
    if missing == "older checkpoint":
        commit(place, 0).unlink()
        os.truncate(older, 0)
    else:
        older.unlink()
        os.truncate(commit(place, 1), 0)
        if missing == "commit":
            commit(place, 1).unlink()
    os.truncate(commit(place, 3), 0)
    assert durability.repair(place) == []
    assert newest.exists()
    os.truncate(newest, 0)
    assert durability.repair(place) == [], "its content cannot be restored"


def test_other_damage_stays_as_it_is(place: Lake) -> None:
    os.truncate(commit(place, 2), 0)
    assert durability.repair(place) == [], "the published content is unknown"
    publish(place)
    assert durability.repair(place) == [], "what was published is durable: this was no power cut"
    publish(place, before=True)
    for number in (1, 0):
        os.truncate(commit(place, number), 0)
    assert durability.repair(place) == [commit(place, 2), commit(place, 1)], "without the first one there is no table"
    assert durability.repair(Lake(place.folder / "elsewhere")) == []


def commits(place: Lake) -> list[int]:
    return sorted(int(it.stem) for it in commit(place, 0).parent.glob("[0-9]*.json"))


def test_a_log_is_shortened_from_its_beginning(place: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interruption leaves a complete log."""
    unlinked: list[str] = []
    monkeypatch.setattr(Path, "unlink", lambda it: unlinked.append(it.name))
    durability.shorten_log(Path(place.path(EVENTS)) / "_delta_log", 2)
    assert unlinked == [f"{number:020}.json" for number in (0, 1)]


@pytest.mark.parametrize(("age", "damage", "first"), [(7_300.0, False, 2), (3_500.0, False, 0), (7_300.0, True, 0)])
def test_a_log_keeps_an_hour_before_its_checkpoint(age: float, damage: bool, first: int, place: Lake) -> None:
    """Versions of the last hour can still be opened, and the table too."""
    file = checkpoint(place, 2)
    if damage:
        os.truncate(file, 100)
    now = time.time()
    os.utime(file, (now - age, now - age))
    durability.clean_log(Path(place.path(EVENTS)) / "_delta_log", now)
    assert commits(place) == [*range(first, 3)]
    if not damage:
        assert [DeltaTable(place.path(EVENTS), version=it).version() for it in commits(place)] == commits(place)

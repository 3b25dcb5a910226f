"""Protects the lake from power cuts, and shortens logs: `sync`, `repair`, `clean_log`.

Spark and Delta never wait for the disk. So the pipeline calls `sync` before the watermark covers events, and before files
are removed that were replaced. A power cut may leave later files empty; no one relies on those versions, and they are
written again: `repair` removes damaged commits. One system call makes the lake's file system durable; where there is none,
each file is synced.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from spark_store.errors import translate_system_error
from spark_store.files import size_of, sync_path
from spark_store.lake.tables import LOG_RETENTION, TABLES, Lake

_LIBC = ctypes.CDLL(None, use_errno=True)


def sync(lake: Lake) -> None:
    """Return when everything that was written to the lake is on the disk.

    Raises StoreUnavailable where that fails.
    """
    folders = [*(folder for table in TABLES if (folder := Path(lake.path(table))).is_dir()), lake.folder]
    try:
        # One of each file system: a table's folder may be a link.
        for folder in {folder.stat().st_dev: folder for folder in folders}.values():
            _sync_folder(folder)
    except OSError as error:
        raise translate_system_error(
            error.filename or lake.folder, error, "the lake cannot be synced to disk"
        ) from error


def _sync_folder(folder: Path) -> None:
    call: Callable[[int], int] | None = getattr(_LIBC, "syncfs", None)
    if call is None:
        sync_files(folder)
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if call(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(descriptor)


def sync_files(folder: Path) -> None:
    """The same, file by file. Raises OSError."""
    for place, _, names in os.walk(folder, topdown=False, followlinks=True):
        for path in (*(Path(place) / name for name in names), Path(place)):
            # Removed meanwhile.
            with contextlib.suppress(FileNotFoundError):
                sync_path(path)


def repair(lake: Lake) -> list[Path]:
    """Remove commits that a power cut has damaged, newest first; return which.

    Only the newest one of a table, only if it is younger than the watermark (so it is done again), and only if it is empty,
    cut off, or names incomplete files. Its checkpoint goes too. Nothing is removed that would leave the log incomplete;
    other damage stays for the operator, and so does all of it without a watermark. The lake must not be written meanwhile.
    Raises StoreUnavailable.
    """
    try:
        if not lake.watermark.exists():
            return []
        published = lake.watermark.stat().st_mtime_ns
        return [file for table in TABLES for file in _repair(Path(lake.path(table)), published)]
    except OSError as error:
        raise translate_system_error(error.filename or lake.folder, error) from error


def _repair(table: Path, published: int) -> Iterator[Path]:
    log = table / "_delta_log"
    for commit in sorted((it for it in log.glob("*.json") if it.stem.isdigit()), reverse=True):
        if int(commit.stem) == 0 or commit.stat().st_mtime_ns <= published:
            return
        is_damaged, checkpoints = _is_damaged(commit), sorted(log.glob(f"{commit.stem}.checkpoint*"))
        if checkpoints and (is_damaged or not all(map(_is_parquet, checkpoints))):
            if not is_complete(log, int(commit.stem)):
                return
            # Without it a reader looks for the checkpoints that there are.
            _remove(log / "_last_checkpoint")
            for checkpoint in checkpoints:
                _remove(checkpoint)
                yield checkpoint
        if not is_damaged:
            return
        # The commit goes last: if this is interrupted, the next one takes it up.
        _remove(log / f"{commit.stem}.crc")
        _remove(commit)
        yield commit


def _remove(file: Path) -> None:
    """With its checksum."""
    for it in (file.with_name(f".{file.name}.crc"), file):
        it.unlink(missing_ok=True)


def is_complete(log: Path, version: int) -> bool:
    """Whether a table's log is complete before this version, from a checkpoint or its beginning.

    Files removed meanwhile are treated as missing. Raises OSError.
    """
    found = (int(it.name.partition(".")[0]) for it in log.glob("[0-9]*.checkpoint.parquet") if _is_parquet(it))
    first = max((number + 1 for number in found if number < version), default=0)
    commits = {it.name for it in log.glob("*.json") if size_of(it)}
    return all(f"{number:020}.json" in commits for number in range(first, version))


def shorten_log(log: Path, version: int) -> None:
    """Remove what is before the checkpoint of this version, oldest first: a kill leaves no gap."""
    for file in sorted(log.iterdir(), key=lambda it: it.name.lstrip(".")):
        number = file.name.lstrip(".").partition(".")[0]
        if number.isdigit() and int(number) < version:
            file.unlink()


def clean_log(log: Path, now: float) -> None:
    """Remove what is before the newest checkpoint that is older than `LOG_RETENTION`.

    Delta itself does that to the day: thousands of parts, which everyone who opens the table has to list. Raises
    StoreUnavailable.
    """
    until = now - LOG_RETENTION.total_seconds()
    try:
        old = [it for it in log.glob("[0-9]*.checkpoint.parquet") if it.stat().st_mtime < until and _is_parquet(it)]
        shorten_log(log, max((int(it.name.partition(".")[0]) for it in old), default=0))
    except OSError as error:
        raise translate_system_error(error.filename or log, error) from error


def _is_parquet(file: Path) -> bool:
    """Whether it has its end, which a file that was cut off lacks."""
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - 4))
            return opened.read() == b"PAR1"
    except FileNotFoundError:
        return False


def _is_damaged(commit: Path) -> bool:
    try:
        actions = [msgspec.json.decode(line, type=dict[str, Any]) for line in commit.read_bytes().splitlines()]
    except ValueError:
        return True
    added = [action["add"] for action in actions if "add" in action]
    # Names are plain: `full_snapshots`, the one table with partitions, has a folder for each number, such as `as_of=7`.
    return not actions or any(size_of(commit.parent.parent / it["path"]) != it["size"] for it in added)

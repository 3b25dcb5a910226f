"""A copy of journal and lake while both are in use, such that a service can go on from it.

Journal and lake hold one history between them: what the journal has trimmed is in the lake alone. So a copy is whole if the
copied lake has everything that the copied journal has trimmed, and nothing that it has never had. The lake is copied first,
the journal last: whatever the lake has by then, the journal had before. What is trimmed between the two is older than the
hot window and was in the lake for as long, as a rule; where it was not, the numbers of both copies tell, and the copy is
made again.

**A table of the lake** is its log and the files that the log names. Neither changes once it is written. The log's parts are
listed first and copied last, so that every file they name is there by then; files that only older versions need may be
missing, and what nobody has committed yet is of no use and no harm. Where a file is missing after all, because an erasure
took it away meanwhile, the table is copied again. Tables are copied in the order in which a crash could leave them behind:
states may be ahead of the watermark, and events ahead of states. The pipeline goes on from there.

**The journal** is copied in one read transaction, next to which others write on, and checked.

The files of an earlier copy may be linked instead of copied: they are the same for ever.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Mapping
from pathlib import Path

import msgspec

from spark_store.errors import LakeUnfit, OutputUnusable, StoreUnavailable, translate_system_error
from spark_store.files import write_atomically
from spark_store.journal.reader import JournalReader
from spark_store.lake.durability import sync
from spark_store.lake.reader import files, position
from spark_store.lake.rows import version
from spark_store.lake.tables import EVENTS, LATEST, SNAPSHOTS, Lake, Table
from spark_store.records import now_text
from spark_store.sqlite_errors import translate_sqlite_error

MANIFEST = "backup.json"
"""Stands in a copy that is whole, and says what it holds."""

ATTEMPTS = 5
"""So often is a copy made that something was taken away from meanwhile."""

_IN_ORDER = (SNAPSHOTS, LATEST, EVENTS)
_LOG = "_delta_log"
_HINT = "_last_checkpoint"
"""Where readers begin, for speed.

It is written anew all the time, so it may be newer than the parts that were listed.
"""


class Backup(msgspec.Struct, frozen=True):
    """What a copy holds.

    `events`: the number of the journal's newest event; `trimmed`: up to which they are in the lake alone; `lake`: up to
    which the lake has them, None without a lake. `tables`: their versions. `linked` of the `bytes` are shared with an
    earlier copy.
    """

    taken: str
    events: int
    trimmed: int
    lake: int | None
    tables: Mapping[str, int]
    bytes: int
    linked: int


def back_up(source: Lake, folder: Path, earlier: Path | None = None) -> Backup:
    """Copy journal and lake into a folder that is new or empty; files that are in `earlier`, another copy, are linked.

    Raises OutputUnusable for a folder that cannot be used, SchemaTooNew, StoreUnavailable, and LakeUnfit where journal and
    lake do not belong together. Then the folder is as it was before.
    """
    _check(source, folder, earlier)
    with contextlib.ExitStack() as undo:
        is_new = not folder.exists()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            undo.callback(_empty, folder, is_new)
            with contextlib.suppress(PermissionError):
                # Somebody else's folder is as private as they have made it.
                folder.chmod(0o700)
            return _copy_all(source, folder, earlier, undo)
        except OSError as error:
            raise translate_system_error(error.filename or folder, error, "cannot be copied") from error


def _check(source: Lake, folder: Path, earlier: Path | None) -> None:
    data, place = source.data_dir.resolve(), folder.resolve()
    if place == data or place.is_relative_to(data) or data.is_relative_to(place):
        raise OutputUnusable(f"{folder}: expected a folder apart from {source.data_dir}")
    try:
        if folder.exists() and any(folder.iterdir()):
            raise OutputUnusable(f"{folder}: found files in it, expected a folder that is new or empty")
    except OSError as error:
        raise OutputUnusable(f"{folder}: expected a folder: {error.strerror}") from error
    if earlier is not None and not (earlier / MANIFEST).is_file():
        raise OutputUnusable(f"{earlier}: found no {MANIFEST}, expected an earlier copy that is whole")


def _empty(folder: Path, is_new: bool) -> None:
    for each in folder.iterdir():
        if each.is_dir():
            shutil.rmtree(each, ignore_errors=True)
        else:
            each.unlink(missing_ok=True)
    if is_new:
        folder.rmdir()


def _copy_all(source: Lake, folder: Path, earlier: Path | None, undo: contextlib.ExitStack) -> Backup:
    target, error = Lake(folder), None
    for _ in range(ATTEMPTS):
        _empty(folder, is_new=False)
        copying = _Copying(source, target, Lake(earlier) if earlier is not None else None)
        try:
            tables = copying.lake()
            copying.journal()
            backup = _held(target, tables, copying)
        except _TakenAway as again:
            error = again
            continue
        sync(target) if tables else os.sync()
        write_atomically(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(backup), indent=2), is_durable=True)
        undo.pop_all()
        return backup
    raise LakeUnfit(f"{folder}: journal and lake do not come to fit, after {ATTEMPTS} attempts: {error}")


class _TakenAway(Exception):
    """A file or an event that the copy needs is not there any more."""


class _Copying:
    """One attempt."""

    def __init__(self, source: Lake, target: Lake, earlier: Lake | None) -> None:
        self._source, self._target, self._earlier = source, target, earlier
        self.bytes = self.linked = 0

    def lake(self) -> dict[str, int]:
        """Copy the tables; their versions. Raises OSError, StoreError."""
        tables = [table for table in _IN_ORDER if self._source.has(table)]
        if not tables:
            return {}
        self._target.pipeline.mkdir(parents=True)
        with contextlib.suppress(FileNotFoundError):
            # First of all: what it says is in the lake must be there.
            shutil.copyfile(self._source.watermark, self._target.watermark)
        return {table.name: self._table(table) for table in tables}

    def _table(self, table: Table) -> int:
        source, target = Path(self._source.path(table)), Path(self._target.path(table))
        earlier = Path(self._earlier.path(table)) if self._earlier is not None else None
        parts = sorted(_names(source / _LOG) - {_HINT})
        for name in sorted(_names(source)):
            with contextlib.suppress(FileNotFoundError):
                # Whether anybody needs it shows in the log.
                self._file(source, target, earlier, name)
        for name in parts:
            try:
                self._file(source / _LOG, target / _LOG, earlier and earlier / _LOG, name)
            except FileNotFoundError as error:
                raise _TakenAway(f"{error.filename} is gone") from error
        for name, size in files(self._target, table).items():
            found = target / name
            if not found.is_file() or found.stat().st_size != size:
                raise _TakenAway(f"{source / name} is gone")
        return version(self._target, table)

    def _file(self, source: Path, target: Path, earlier: Path | None, name: str) -> None:
        """Copy or link a file. Raises FileNotFoundError, OSError."""
        target.mkdir(parents=True, exist_ok=True)
        size = (source / name).stat().st_size
        if earlier is not None and _is_same(earlier / name, size):
            try:
                os.link(earlier / name, target / name)
                self.bytes, self.linked = self.bytes + size, self.linked + size
                return
            except OSError:
                # Another disk, or one without links.
                pass
        shutil.copyfile(source / name, target / name)
        self.bytes += size

    def journal(self) -> None:
        """Copy the journal as it is now, and look whether the copy is sound.

        Raises StoreUnavailable, SchemaTooNew.
        """
        with JournalReader.open(self._source.journal):
            pass  # it is one, and of this version
        path = self._target.journal
        # Before anything is in it: whoever has opened it meanwhile would go on reading.
        path.touch(mode=0o600)
        try:
            with (
                contextlib.closing(
                    sqlite3.connect(f"{self._source.journal.absolute().as_uri()}?mode=rw", uri=True)
                ) as ours,
                contextlib.closing(sqlite3.connect(path)) as copy,
            ):
                ours.execute("PRAGMA query_only = ON")
                ours.backup(copy)
                (said,) = copy.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.Error as error:
            raise translate_sqlite_error(path, error) from error
        if said != "ok":
            raise StoreUnavailable(f"{path}: the copy is damaged: {said}")
        self.bytes += path.stat().st_size


def _names(folder: Path) -> set[str]:
    """The files of a folder; those whose names begin with a dot are on their way, or say what others are."""
    with os.scandir(folder) as entries:
        return {entry.name for entry in entries if entry.is_file() and not entry.name.startswith(".")}


def _is_same(file: Path, size: int) -> bool:
    """Whether an earlier copy has a file that is never written twice."""
    try:
        return file.stat().st_size == size
    except OSError:
        return False


def _held(copy: Lake, tables: Mapping[str, int], copying: _Copying) -> Backup:
    """What the copies hold, once it is clear that they belong together.

    Raises _TakenAway, LakeUnfit, StoreError.
    """
    with JournalReader.open(copy.journal) as journal:
        newest, oldest = journal.newest(), journal.oldest_known()
    for name in ("-wal", "-shm"):
        copy.journal.with_name(f"{copy.journal.name}{name}").unlink(missing_ok=True)
    trimmed = newest if oldest is None else oldest - 1
    reached = position(copy).seq if EVENTS.name in tables else None
    if reached is not None and reached > newest:
        raise LakeUnfit(f"the lake has event {reached}, the journal none above {newest}: they do not belong together")
    if trimmed > (reached or 0):
        raise _TakenAway(f"events up to {trimmed} were trimmed, and the lake has them up to {reached or 0}")
    return Backup(now_text(), newest, trimmed, reached, tables, copying.bytes, copying.linked)

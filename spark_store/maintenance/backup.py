"""Copies journal and lake while both are in use, so that a service can start from the copy.

Trimmed events are in the lake only, so the copied lake must have all events that the copied journal has trimmed, and no
unknown ones. The lake is copied first, the journal last; if events were trimmed between that the lake's copy lacks, the copy
is made again. The logs of all tables are copied first, and then the files that they name; if one is gone, because of an
erasure for example, the copy is made again. So retention during a copy leaves all tables as they were before it. Tables are
copied in the order in which a crash could leave them: states may be ahead of the watermark, and events ahead of states. The
journal is copied in one read transaction, and checked. Data files of an earlier copy may be linked: they are immutable.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Mapping
from pathlib import Path

import msgspec

from spark_store.errors import (
    LakeUnfit,
    OutputUnusable,
    StoreUnavailable,
    translate_sqlite_error,
    translate_system_error,
)
from spark_store.files import size_of, write_atomically
from spark_store.journal.reader import JournalReader
from spark_store.lake.durability import sync
from spark_store.lake.tables import APP, EVENTS, LATEST, SNAPSHOTS, Lake, Table
from spark_store.records import now_text

MANIFEST = "backup.json"
"""The file of a complete copy that describes it."""

ATTEMPTS = 5
"""How often a copy is tried while files disappear."""

_IN_ORDER = (SNAPSHOTS, LATEST, EVENTS)
_LOG = "_delta_log"
"""The folder of a table's log. Files that begin with a dot or an underscore are not part of it."""


class Backup(msgspec.Struct, frozen=True):
    """The content of a copy.

    `events`: the journal's newest number; `trimmed`: up to which events are in the lake only; `lake`: up to which the lake
    has them, None without a lake. `tables`: their versions. `linked` of the `bytes` are shared with an earlier copy.
    """

    taken: str
    events: int
    trimmed: int
    lake: int | None
    tables: Mapping[str, int]
    bytes: int
    linked: int


def back_up(source: Lake, folder: Path, earlier: Path | None = None) -> Backup:
    """Copy journal and lake into a new or empty folder; data files of the copy `earlier` are linked.

    Raises OutputUnusable for an invalid folder, SchemaTooNew, StoreUnavailable, and LakeUnfit if journal and lake do not
    match. Then the folder is as before.
    """
    _check(source, folder, earlier)
    with contextlib.ExitStack() as undo:
        is_new = not folder.exists()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            undo.callback(_empty, folder, is_new)
            with contextlib.suppress(PermissionError):
                # An existing folder keeps its permissions.
                folder.chmod(0o700)
            return _copy_all(source, folder, earlier, undo)
        except OSError as error:
            raise translate_system_error(error.filename or folder, error, "cannot be copied") from error


def _check(source: Lake, folder: Path, earlier: Path | None) -> None:
    data, place = source.data_dir.resolve(), folder.resolve()
    if place == data or place.is_relative_to(data) or data.is_relative_to(place):
        raise OutputUnusable(f"{folder}: expected a folder outside the data folder {source.data_dir}")
    try:
        if folder.exists() and any(folder.iterdir()):
            raise OutputUnusable(f"{folder}: found files in it, expected a folder that is new or empty")
    except OSError as error:
        raise OutputUnusable(f"{folder}: expected a folder: {error.strerror}") from error
    try:
        if earlier is not None and not (earlier / MANIFEST).is_file():
            raise OutputUnusable(f"{earlier}: found no {MANIFEST}, expected a complete earlier backup")
    except OSError as error:
        raise OutputUnusable(f"{earlier}: expected a complete earlier backup: {error.strerror}") from error


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
        attempt = _CopyAttempt(source, target, Lake(earlier) if earlier is not None else None)
        try:
            tables = attempt.lake()
            attempt.journal()
            backup = _check_content(target, tables, attempt)
        except _FileDisappeared as again:
            error = again
            continue
        sync(target) if tables else os.sync()
        write_atomically(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(backup), indent=2), is_durable=True)
        undo.pop_all()
        return backup
    raise LakeUnfit(f"{folder}: the copies of journal and lake do not match after {ATTEMPTS} attempts: {error}")


class _FileDisappeared(Exception):
    """A file or an event that the copy needs is not there any more."""


class _CopyAttempt:
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
            # First of all: the lake must have what the watermark covers.
            shutil.copyfile(self._source.watermark, self._target.watermark)
        try:
            # All logs first: retention moves the beginning of a history from one table to the other.
            for table in tables:
                for part in sorted(Path(self._source.path(table), _LOG).glob("[!._]*")):
                    self._file(table, f"{_LOG}/{part.name}")
            return {table.name: self._table(table) for table in tables}
        except FileNotFoundError as error:
            raise _FileDisappeared(f"{error.filename} is gone") from error

    def _table(self, table: Table) -> int:
        """Copy the files of the version that the copied log ends with. Raises FileNotFoundError."""
        from spark_store.lake.reader import files_of_version

        version, files = files_of_version(self._target, table)
        for name, size in files.items():
            if self._file(table, name) != size:
                raise _FileDisappeared(f"{Path(self._source.path(table), name)} does not have {size} bytes")
        return version

    def _file(self, table: Table, name: str) -> int:
        """Copy or link a file of a table; its size. Raises FileNotFoundError, OSError."""
        source, target = (Path(it.path(table), name) for it in (self._source, self._target))
        target.parent.mkdir(parents=True, exist_ok=True)
        size = source.stat().st_size
        self.bytes += size
        # Data files are immutable; the log of a table that was created again has the old names.
        if self._earlier is not None and not name.startswith(_LOG):
            earlier = Path(self._earlier.path(table), name)
            # Another disk, or one without links, raises OSError.
            with contextlib.suppress(OSError):
                if size_of(earlier) == size:
                    os.link(earlier, target)
                    self.linked += size
                    return size
        shutil.copyfile(source, target)
        return size

    def journal(self) -> None:
        """Copy the journal as it is now, and check the copy. Raises StoreUnavailable, SchemaTooNew."""
        with JournalReader.open(self._source.journal):
            pass  # it is one, and of this version
        path = self._target.journal
        # While it is empty: a reader that has opened it would keep the old file.
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


def _check_content(copy: Lake, tables: Mapping[str, int], attempt: _CopyAttempt) -> Backup:
    """Return the content of the copies, after checking that they match.

    Raises _FileDisappeared, LakeUnfit, StoreError.
    """
    with JournalReader.open(copy.journal) as journal:
        newest, trimmed = journal.newest(), journal.oldest_known() - 1
    for name in ("-wal", "-shm"):
        copy.journal.with_name(f"{copy.journal.name}{name}").unlink(missing_ok=True)
    reached = None
    if EVENTS.name in tables:
        from spark_store.lake.reader import last_transaction

        reached = last_transaction(copy, EVENTS, APP)
    if reached is not None and reached > newest:
        raise LakeUnfit(
            f"the lake has event {reached}, but the journal ends at event {newest}: they belong to different services"
        )
    if trimmed > (reached or 0):
        raise _FileDisappeared(f"events up to {trimmed} were trimmed, and the lake has them up to {reached or 0}")
    return Backup(now_text(), newest, trimmed, reached, tables, attempt.bytes, attempt.linked)

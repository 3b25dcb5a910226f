"""What the errors of SQLite, of the system and of Spark mean for the store, and what to do about them.

Whoever reads a message should know the next step from it. A fault that may pass by itself is StoreUnavailable; after
LakeUnfit somebody has to look first, because going on could lose events, or would fail the same way for ever.
"""

from __future__ import annotations

import errno
import re
import sqlite3
from pathlib import Path

from spark_store.errors import LakeUnfit, StoreError, StoreUnavailable

FULL = "the disk is full: make room, and writing goes on by itself"
DAMAGED_JOURNAL = "the file is damaged: stop the service and restore it from a backup"

_SQLITE_STEPS = {
    sqlite3.SQLITE_FULL: FULL,
    sqlite3.SQLITE_READONLY: "the file cannot be written: look at its owner, its rights and its mount",
    sqlite3.SQLITE_IOERR: "input or output failed: look at the disk and at the system's log",
    sqlite3.SQLITE_CORRUPT: DAMAGED_JOURNAL,
    sqlite3.SQLITE_NOTADB: "the file is no journal: choose another data_dir, or restore it from a backup",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened: look at its folder and its rights",
    sqlite3.SQLITE_BUSY: "another process holds the file's lock: end it",
    sqlite3.SQLITE_LOCKED: "another process holds the file's lock: end it",
}

_FULL_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

_STEP_LAKE = (
    "stop the pipeline; restore the table's folder from a backup, or, while the journal has everything, move the folder "
    "away: the pipeline makes it anew"
)
_STEP_TOMORROW = (
    "start the newer service, or, while the journal has everything, move the table's folder away: the pipeline makes it "
    "anew"
)
_OURS = re.compile(r"spark_store\.errors\.(LakeUnfit|SchemaTooNew|StoreUnavailable): (.+)")
_FULL_TEXT = re.compile(r"No space left on device|Disk quota exceeded|File too large")
_SYSTEM_STEPS = {
    "Too many open files": "raise the limit of open files (LimitNOFILE of the service, `ulimit -n`)",
    "Permission denied": "look at the owner and the rights of the lake's folder and of what is in it",
    "Read-only file system": "look at its mount and at the system's log",
    "Input/output error": "look at the disk and at the system's log",
    "Cannot allocate memory": "give the machine more memory, or others less",
}
_SYSTEM_TEXT = re.compile(r"\b(?:" + "|".join(_SYSTEM_STEPS) + r")\b")
"""Why the system opens no file that is there: Java says of each that it was not found."""

_TOMORROW = re.compile(
    r"DELTA_INVALID_PROTOCOL_VERSION|DELTA_UNSUPPORTED_FEATURES_FOR_(?:READ|WRITE)|InvalidProtocolVersion|"
    r"UnsupportedTableFeature|(?i:unsupported (?:reader |table )?feature|unknown (?:reader |table )?feature|"
    r"minimum reader version)|Kernel error: Unsupported"
)
_DAMAGED = re.compile(
    r"is not a Parquet file|CANNOT_READ_FILE_FOOTER|FAILED_READ_FILE|FileNotFoundException|DELTA_LOG_FILE|"
    r"DELTA_STATE_RECOVER_ERROR|DELTA_TRUNCATED_TRANSACTION_LOG|DELTA_MISSING_|Json(?:Parse|EOF|Mapping)\w*Exception|"
    r"MalformedRecord|UnexpectedEndOfInput|Parquet magic bytes|Truncated record|Json error|"
    r"Could not open Parquet|could not verify page integrity|Expected contiguous commit files|"
    r"[Pp]arquet file size is|Object at location \S+ not found"
)
_ASIDE = re.compile(r"FileNotFoundException: [^\n]*/(?:lake/pipeline/(?:tmp|checkpoint)|blockmgr-[^/\n]+)/[^\n]*")
"""What Spark has put aside and does not find again is no part of a table."""

_FILE = re.compile(r"(?:file:)?(/[^\s'\"`;,]+\.(?:parquet|json))")
_SHOWN = 400


def damaged(said: str) -> LakeUnfit:
    """A file of a table is not what it was."""
    return LakeUnfit(f"{said}; {_STEP_LAKE}")


def lake_fault(path: str | Path, error: Exception) -> StoreError:
    """What a reader of Delta tables in this process says about the table at `path`."""
    text = str(error)
    shown = " ".join(text.partition("   0: <unknown>")[0].split())[:_SHOWN]
    said = f"{path}: expected a Delta table that can be read, found: {shown}"
    if _TOMORROW.search(text):
        return LakeUnfit(f"{said}; {_STEP_TOMORROW}")
    if reason := _SYSTEM_TEXT.search(text):
        return StoreUnavailable(f"{said}; {_SYSTEM_STEPS[reason[0]]}")
    return damaged(said) if _DAMAGED.search(text) else StoreUnavailable(said)


def sqlite_fault(path: str | Path, error: sqlite3.Error) -> StoreUnavailable:
    """SQLite's error about the file at `path`."""
    code = getattr(error, "sqlite_errorcode", None)
    step = _SQLITE_STEPS.get(code & 0xFF) if code is not None else None
    return StoreUnavailable(f"{path}: {error}" + (f"; {step}" if step is not None else ""))


def system_fault(path: str | Path, error: OSError, what: str = "cannot be used") -> StoreUnavailable:
    """The system's error about the file at `path`, and what could not be done with it."""
    step = f"; {FULL}" if error.errno in _FULL_ERRORS else ""
    return StoreUnavailable(f"{path}: {what}: {error.strerror or error}{step}")


def spark_fault(kind: str, text: str) -> StoreError:
    """What Spark says in `text` (with an exception of this kind), as ours. A worker's own error is named in it."""
    if found := _OURS.search(text):
        return StoreUnavailable(found[2]) if found[1] == "StoreUnavailable" else LakeUnfit(found[2])
    file = _FILE.search(text)
    where = f"{file[1]}: " if file else ""
    shown = " ".join(text.split())[:_SHOWN]
    if full := _FULL_TEXT.search(text):
        return StoreUnavailable(f"{where}{full[0]}; {FULL}")
    if reason := _SYSTEM_TEXT.search(text):
        return StoreUnavailable(f"{where}{reason[0]}; {_SYSTEM_STEPS[reason[0]]} ({shown})")
    if _TOMORROW.search(text):
        return LakeUnfit(f"a table was written by a later version; {_STEP_TOMORROW} ({shown})")
    if _DAMAGED.search(_ASIDE.sub("", text)):
        return damaged(f"{where}expected a file that can be read, found: {shown}")
    return StoreUnavailable(f"{kind}: {shown}")

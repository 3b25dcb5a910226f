"""Errors of SQLite as errors of the store, with what an operator can do."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from spark_store.errors import DAMAGED_JOURNAL, FULL, StoreUnavailable

_SQLITE_STEPS = {
    sqlite3.SQLITE_FULL: FULL,
    sqlite3.SQLITE_READONLY: "the file cannot be written: check its owner, permissions and mount",
    sqlite3.SQLITE_IOERR: "input or output failed: check the disk and the system's log",
    sqlite3.SQLITE_CORRUPT: DAMAGED_JOURNAL,
    sqlite3.SQLITE_NOTADB: "the file is no journal: choose another data_dir, or restore it from a backup",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened: check its folder and permissions",
    sqlite3.SQLITE_BUSY: "another process holds the file's lock: end it",
    sqlite3.SQLITE_LOCKED: "another process holds the file's lock: end it",
}


def translate_sqlite_error(path: str | Path, error: sqlite3.Error) -> StoreUnavailable:
    """SQLite's error about the file at `path`."""
    code = getattr(error, "sqlite_errorcode", None)
    step = _SQLITE_STEPS.get(code & 0xFF) if code is not None else None
    return StoreUnavailable(f"{path}: {error}" + (f"; {step}" if step is not None else ""))

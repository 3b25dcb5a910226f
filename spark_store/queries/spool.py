"""A spool: search results in any order, read in the order of the search, page by page.

It is a database of SQLite in a file without a name, which disappears with the spool or the process. In memory is one number
for each record.
"""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
import threading
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from spark_store.errors import LimitExceeded, StoreUnavailable, translate_sqlite_error, translate_system_error
from spark_store.rql.query import SortField, SortKey

_STEPS: Final = 10_000
"""After how many steps of SQLite a sort looks whether the spool was closed."""


class SpoolLimits(NamedTuple):
    """The limits of a spool."""

    records: int = 2_000_000
    bytes: int = 2 << 30


class Spool:
    """Add records, `sort` once, read. One thread at a time, but `close` may come from any, at any time."""

    def __init__(self, folder: Path, order: Sequence[SortField], bound: SpoolLimits) -> None:
        """Raises StoreUnavailable."""
        self._bound, self._folder = bound, folder
        self._number = self.bytes = 0
        self._ranking = array("q")
        self._lock = threading.Lock()
        self._is_closed = False
        places = range(len(order))
        columns = ", ".join(f"rank{place}, value{place}" for place in places)
        signs = ["DESC" if sorting.is_descending else "ASC" for sorting in order]
        by = ", ".join(f"rank{place} {sign}, value{place} {sign}" for place, sign in zip(places, signs, strict=True))
        self._insert = f"INSERT INTO places VALUES ({', '.join('?' * 2 * len(order))})"
        self._select = f"SELECT rowid FROM places ORDER BY {by}, rowid"
        # Two tables with the same numbers: a sort reads no record.
        tables = f"CREATE TABLE places ({columns})", "CREATE TABLE records (record)"
        try:
            with self._used(), tempfile.TemporaryDirectory(dir=folder) as name:
                self._database = sqlite3.connect(Path(name, "spool"), isolation_level=None, check_same_thread=False)
                self._database.set_progress_handler(lambda: self._is_closed, _STEPS)
                for statement in ("PRAGMA journal_mode = OFF", "BEGIN", *tables):
                    self._database.execute(statement)
        except OSError as error:
            raise translate_system_error(folder, error, "search results cannot be written") from error

    def __len__(self) -> int:
        return self._number

    def add(self, place: SortKey, record: bytes) -> None:
        """Raises LimitExceeded, StoreUnavailable."""
        values = [it for rank, value in place for it in (int(rank), _comparable(value))]
        size = len(record) + sum(len(it) for it in values if isinstance(it, bytes))
        if self._number >= self._bound.records or self.bytes + size > self._bound.bytes:
            raise LimitExceeded(
                f"found more than {self._number} things of {self.bytes} bytes, expected at most {self._bound.records} of "
                f"{self._bound.bytes} bytes; narrow the search"
            )
        with self._used():
            self._database.execute(self._insert, values)
            self._database.execute("INSERT INTO records VALUES (?)", (record,))
        self._number, self.bytes = self._number + 1, self.bytes + size

    def sort(self) -> None:
        """Everything has been added. Raises StoreUnavailable."""
        with self._used():
            self._ranking = array("q", (number for (number,) in self._database.execute(self._select)))

    def read(self, start: int, number: int, max_bytes: int = 1 << 20) -> list[bytes]:
        """Return records and bytes up to these limits from this number on, in order; at least one.

        Raises StoreUnavailable.
        """
        found: list[bytes] = []
        with self._used():
            for it in self._ranking[start : start + number]:
                (record,) = self._database.execute("SELECT record FROM records WHERE rowid = ?", (it,)).fetchone()
                if found and len(record) > max_bytes:
                    break
                found.append(record)
                max_bytes -= len(record)
        return found

    def close(self) -> None:
        """Close the file, or have it closed by the thread that uses it. May be repeated."""
        self._is_closed = True
        if self._lock.acquire(blocking=False):
            self._database.close()
            self._lock.release()

    @contextlib.contextmanager
    def _used(self) -> Iterator[None]:
        """Use the file. Raises StoreUnavailable."""
        try:
            with self._lock:
                yield
        except sqlite3.Error as error:
            if self._is_closed:
                raise StoreUnavailable("the search results were released: the search was cancelled") from error
            raise translate_sqlite_error(self._folder, error) from error
        finally:
            if self._is_closed:
                self.close()


def _comparable(value: Any) -> Any:
    """Return the value of a place as SQLite compares it: texts as bytes, by code points."""
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value

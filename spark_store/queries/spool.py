"""A spool: search results in any order, read in the order of the search, page by page.

Records are in a file, what they are sorted by in a temporary database of SQLite, which uses the disk if they are many; in
memory are two numbers for each. The files have no names, so they disappear with the spool or the process.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile
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
        self._ends = array("q", [0])
        self._ranking = array("q")
        self._lock = threading.Lock()
        self._is_closed = False
        try:
            self._file = TemporaryFile(dir=folder)  # noqa: SIM115 - it is open as long as the spool
        except OSError as error:
            raise translate_system_error(folder, error, "search results cannot be written") from error
        places = range(len(order))
        columns = ", ".join(f"rank{place}, value{place}" for place in places)
        signs = ["DESC" if sorting.is_descending else "ASC" for sorting in order]
        by = ", ".join(f"rank{place} {sign}, value{place} {sign}" for place, sign in zip(places, signs, strict=True))
        self._insert = f"INSERT INTO places VALUES ({', '.join('?' * 2 * len(order))})"
        self._select = f"SELECT rowid - 1 FROM places ORDER BY {by}, rowid"
        # Without a name it is a temporary database.
        self._places = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._places.set_progress_handler(lambda: self._is_closed, _STEPS)
        with self._used():
            for statement in ("PRAGMA journal_mode = OFF", "BEGIN", f"CREATE TABLE places ({columns})"):
                self._places.execute(statement)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def add(self, place: SortKey, record: bytes) -> None:
        """Raises LimitExceeded, StoreUnavailable."""
        end = self._ends[-1] + len(record)
        if len(self) >= self._bound.records or end > self._bound.bytes:
            raise LimitExceeded(
                f"found more than {len(self)} things of {self._ends[-1]} bytes, expected at most {self._bound.records} of "
                f"{self._bound.bytes} bytes; narrow the search"
            )
        values = [it for rank, value in place for it in (int(rank), _comparable(value))]
        with self._used():
            self._file.write(record)
            self._places.execute(self._insert, values)
        self._ends.append(end)

    def sort(self) -> None:
        """Everything has been added. Raises StoreUnavailable."""
        with self._used():
            self._ranking = array("q", (number for (number,) in self._places.execute(self._select)))
            self._places.close()
            self._file.flush()

    def read(self, start: int, number: int, max_bytes: int = 1 << 20) -> list[bytes]:
        """Return records and bytes up to these limits from this number on, in order; at least one.

        Raises StoreUnavailable.
        """
        found: list[bytes] = []
        with self._used():
            for it in self._ranking[start : start + number]:
                size = self._ends[it + 1] - self._ends[it]
                if found and size > max_bytes:
                    break
                found.append(os.pread(self._file.fileno(), size, self._ends[it]))
                max_bytes -= size
        return found

    def close(self) -> None:
        """Close the files, or have them closed by the thread that uses them. May be repeated."""
        self._is_closed = True
        if self._lock.acquire(blocking=False):
            self._places.close()
            self._file.close()
            self._lock.release()

    @contextlib.contextmanager
    def _used(self) -> Iterator[None]:
        """Use the files. Raises StoreUnavailable."""
        try:
            with self._lock:
                yield
        except (OSError, ValueError, sqlite3.Error) as error:
            raise self._fault(error) from error
        finally:
            if self._is_closed:
                self.close()

    def _fault(self, error: OSError | ValueError | sqlite3.Error) -> StoreUnavailable:
        if self._is_closed:
            return StoreUnavailable("the search results were released: the search was cancelled")
        if isinstance(error, sqlite3.Error):
            return translate_sqlite_error(self._folder, error)
        assert isinstance(error, OSError)
        return translate_system_error(self._folder, error, "search results cannot be written")


def _comparable(value: Any) -> Any:
    """Return the value of a place as SQLite compares it: texts as bytes, by code points."""
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value

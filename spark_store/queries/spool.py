"""A spool: search results in any order, read in the order of the search, page by page.

The place of each record is in memory, its content in a file; both are bounded. The file has no name, so it disappears with
the spool or the process.
"""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

from spark_store.errors import StoreUnavailable, TooManyRows, translate_system_error
from spark_store.rql.query import SortField, SortKey


class SpoolLimits(NamedTuple):
    """The limits of a spool."""

    records: int = 500_000
    bytes: int = 512 << 20


class Spool:
    """Add records, `sort` once, read. One thread at a time, but `close` may come from any, at any time."""

    def __init__(self, folder: Path, order: Sequence[SortField], bound: SpoolLimits) -> None:
        """Raises StoreUnavailable."""
        self._order, self._bound, self._folder = order, bound, folder
        self._sort_keys: list[SortKey] = []
        self._ends = array("q", [0])
        self._ranking = array("q")
        self._lock = threading.Lock()
        try:
            self._file = TemporaryFile(dir=folder)  # noqa: SIM115 - it is open as long as the spool
        except OSError as error:
            raise translate_system_error(folder, error, "search results cannot be written") from error

    def __len__(self) -> int:
        return len(self._ends) - 1

    def add(self, place: SortKey, record: bytes) -> None:
        """Raises TooManyRows, StoreUnavailable."""
        end = self._ends[-1] + len(record)
        if len(self) >= self._bound.records or end > self._bound.bytes:
            raise TooManyRows(
                f"found more than {len(self)} things of {self._ends[-1]} bytes, expected at most {self._bound.records} of "
                f"{self._bound.bytes} bytes; narrow the search"
            )
        with self._lock:
            try:
                self._file.write(record)
            except (OSError, ValueError) as error:
                raise self._fault(error) from error
        self._sort_keys.append(place)
        self._ends.append(end)

    def sort(self) -> None:
        """Everything has been added. Raises StoreUnavailable."""
        places = self._sort_keys
        ranking = list(range(len(places)))
        # By the last field first, so that equal values keep their order.
        for number in reversed(range(len(self._order))):
            ranking.sort(key=lambda it, n=number: places[it][n], reverse=self._order[number].is_descending)  # type: ignore[misc]
        self._ranking, self._sort_keys = array("q", ranking), []
        with self._lock:
            try:
                self._file.flush()
            except (OSError, ValueError) as error:
                raise self._fault(error) from error

    def read(self, start: int, number: int, max_bytes: int = 1 << 20) -> list[bytes]:
        """Return records and bytes up to these limits from this number on, in order; at least one.

        Raises StoreUnavailable.
        """
        found: list[bytes] = []
        with self._lock:
            try:
                for it in self._ranking[start : start + number]:
                    size = self._ends[it + 1] - self._ends[it]
                    if found and size > max_bytes:
                        break
                    found.append(os.pread(self._file.fileno(), size, self._ends[it]))
                    max_bytes -= size
            except (OSError, ValueError) as error:
                raise self._fault(error) from error
        return found

    def close(self) -> None:
        """Close the file. May be repeated."""
        with self._lock:
            self._file.close()

    def _fault(self, error: OSError | ValueError) -> StoreUnavailable:
        if isinstance(error, OSError):
            return translate_system_error(self._folder, error, "search results cannot be written")
        return StoreUnavailable("the search results were released: the search was cancelled")

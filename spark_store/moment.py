"""One state of the journal's file, as a search reads it: sets of keys, things by key, and who may see anything by what.

A moment lies within a transaction that only reads. It is bounded by a clock, which SQLite asks amid its statements, so that
no statement takes longer than the search may. What of all this is asked, and why, is `spark_store.walking`'s business.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, TypeAlias

from spark_store.index import COMPLETE
from spark_store.records import namespace_of

CHUNK: Final = 128
"""Things that are loaded at a time."""

POLICIES: Final = 200
"""Up to so many policies are asked one by one what they allow."""

NAMESPACES: Final = 50

COLUMNS: Final = "key, id, revision, created, modified, policy, state"
_LOAD: Final = f"SELECT {COLUMNS} FROM entities WHERE key = ? AND type = 'thing' AND state IS NOT NULL"
_LOAD_CHUNK: Final = f"""
    SELECT {COLUMNS} FROM entities WHERE key IN ({",".join("?" * CHUNK)}) AND type = 'thing' AND state IS NOT NULL
"""
_IDS_CHUNK: Final = f"SELECT id, key FROM entities WHERE key IN ({','.join('?' * CHUNK)}) AND type = 'thing'"

Row: TypeAlias = tuple[int, str, int, str, str, str | None, bytes]


class Clock:
    """When to stop looking. `tick` is what SQLite asks now and then."""

    __slots__ = ("_deadline", "_slice", "has_stopped")

    def __init__(self, deadline: float, slice_seconds: float) -> None:
        """`deadline` as `time.perf_counter` has it; after the slice a page gives what it has."""
        self._deadline = deadline
        self._slice = min(deadline, time.perf_counter() + slice_seconds)
        self.has_stopped = False

    def tick(self) -> int:
        if time.perf_counter() > self._deadline:
            self.has_stopped = True
        return int(self.has_stopped)

    def is_late(self) -> bool:
        return time.perf_counter() > self._slice


class Stopped(Exception):
    """The clock says that the time for looking is over."""


class Moment:
    """One state of the file, and what is read from it more than once."""

    def __init__(self, connection: sqlite3.Connection, clock: Clock) -> None:
        self.connection = connection
        self.clock = clock

    def column(self, sql: str, parameters: Sequence[Any] = (), limit: int = -1) -> list[Any]:
        """The first column of up to `limit` rows."""
        rows = self.connection.execute(f"{sql} LIMIT ?", (*parameters, limit)).fetchall()
        return [row[0] for row in rows]

    def is_indexed(self) -> bool:
        (indexed,) = self.connection.execute("SELECT indexed FROM search_progress").fetchone()
        return bool(indexed >= COMPLETE)

    def things(self) -> int:
        """About how many things there are: not fewer."""
        (newest,) = self.connection.execute("SELECT max(key) FROM entities").fetchone()
        return newest or 0

    def large(self) -> list[int]:
        return self.column("SELECT thing FROM search_large")

    def load(self, keys: Collection[int]) -> Iterator[Row]:
        """The things with these keys, in no order."""
        if len(keys) <= 4:
            for key in keys:
                yield from self.connection.execute(_LOAD, (key,))
            return
        for chunk in _chunks(keys):
            yield from self.connection.execute(_LOAD_CHUNK, chunk).fetchall()

    def ids(self, keys: Collection[int]) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        for chunk in _chunks(keys):
            found += self.connection.execute(_IDS_CHUNK, chunk).fetchall()
        return found

    def policies(self, subjects: Collection[str]) -> list[str] | None:
        """Policies by which these subjects may be allowed anything; None for more than are worth a list."""
        named = sorted(subjects)
        marks = ",".join("?" * len(named))
        found = set(self.column(f"SELECT policy FROM search_subjects WHERE subject IN ({marks})", named, POLICIES + 1))
        new = list(found)
        while new and len(found) <= POLICIES:
            importers = self.column(
                "SELECT importer FROM search_imports WHERE imported = ?", (new.pop(),), POLICIES + 1
            )
            new += [importer for importer in importers if importer not in found]
            found.update(importers)
        return sorted(found) if len(found) <= POLICIES else None

    def namespaces(self) -> list[str] | None:
        """The namespaces of things; None for more than are worth a list."""
        found: list[str] = []
        after = ""
        while len(found) <= NAMESPACES:
            first = self.column("SELECT id FROM entities WHERE type = 'thing' AND id >= ?", (after,), 1)
            if not first:
                return found
            found.append(namespace_of(first[0]))
            after = f"{found[-1]};" if ":" in first[0] else f"{first[0]}\0"
        return None


def _chunks(keys: Collection[int]) -> Iterator[list[int | None]]:
    ordered = sorted(keys)
    for start in range(0, len(ordered), CHUNK):
        chunk = ordered[start : start + CHUNK]
        yield [*chunk, *([None] * (CHUNK - len(chunk)))]

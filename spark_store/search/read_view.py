"""A read view: one state of the journal's file for a search.

It lasts as long as a reading transaction. SQLite calls a clock during statements, so that none takes longer than the search
may. `spark_store.search.scan` uses it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from mappings.ids import namespace_of
from spark_store.rql.order import TypeRank
from spark_store.rql.pace import ThreadPace
from spark_store.search.index import COMPLETE, DeclaredPathState
from spark_store.search.state_sql import Condition

CHUNK: Final = 128
"""Things that are loaded at a time."""

POLICIES: Final = 200
"""How many policies are checked one by one."""

IMPORTS: Final = 21
"""How many imported policies are read for a policy.

If it imports as many or more, its things are evaluated.
"""

NAMESPACES: Final = 50

HEAD: Final = "key, id, revision, created, modified, policy"
STATE: Final = "CAST(state AS BLOB)"
COLUMNS: Final = f"{HEAD}, {STATE}"
_LOAD: Final = f"SELECT {COLUMNS} FROM entities WHERE key = ? AND +type = 'thing' AND state IS NOT NULL"
_LOAD_CHUNK: Final = f"""
    SELECT {COLUMNS} FROM entities WHERE key IN ({",".join("?" * CHUNK)}) AND +type = 'thing' AND state IS NOT NULL
"""
_IDS_CHUNK: Final = f"SELECT id, key FROM entities WHERE key IN ({','.join('?' * CHUNK)}) AND +type = 'thing'"

_NAMED: Final = f"""
    (EXISTS (SELECT 1 FROM search_subjects WHERE subject IN ({{subjects}}) AND policy = entities.policy)
    OR (
        WITH RECURSIVE others (policy) AS (
            SELECT imported FROM search_imports WHERE importer = entities.policy
            UNION SELECT imported FROM search_imports JOIN others ON importer = others.policy
            LIMIT {IMPORTS}
        )
        SELECT count(*) = {IMPORTS}
            OR max(EXISTS (SELECT 1 FROM search_subjects WHERE subject IN ({{subjects}}) AND policy = others.policy))
        FROM others
    ))
"""
"""A condition on a thing: its policy, or one that this imports, names a subject.

It is also met if the policy imports very many policies. The subjects are given twice.
"""

_DECLARED: Final = f"SELECT id FROM search_paths WHERE path = ? AND declared = {int(DeclaredPathState.THERE)}"

CandidateRow: TypeAlias = tuple[int, str, int, str, str, str | None, bytes]


_ARRAY: Final = int(TypeRank.ARRAY)


class Deadline:
    """The end of a search's time, in which its thread rests now and then. Rests move the deadline."""

    __slots__ = ("_deadline", "_pace", "_slice", "has_stopped")

    def __init__(self, deadline: float, slice_seconds: float, pace: ThreadPace) -> None:
        """`deadline` is that of the pace's clock; after the slice, with its rests, a page returns its results."""
        self._deadline = deadline
        self._pace = pace
        self._slice = min(deadline, pace.now() + slice_seconds)
        self.has_stopped = False

    def tick(self) -> int:
        """Rest if the thread has to, and return whether the time is over. Called for rows, and by SQLite."""
        now = self._pace.now()
        if now >= self._pace.ends:
            now, before = self._pace.rest(now), now
            self._deadline += now - before
        if now > self._deadline:
            self.has_stopped = True
        return int(self.has_stopped)

    def is_late(self) -> bool:
        return self._pace.now() > self._slice


class SearchTimeout(Exception):
    """The time of the search is over."""


class ReadView:
    """One state of the file, and cached results of it."""

    def __init__(self, connection: sqlite3.Connection, clock: Deadline) -> None:
        self.connection = connection
        self.clock = clock
        self.visible = Condition("1", ())
        """A condition on rows of `entities` that every thing meets which the requester may see."""
        self._paths: dict[str, int | None] = {}

    def column(self, sql: str, parameters: Sequence[Any] = (), limit: int = -1) -> list[Any]:
        """The only column of up to `limit` rows: whole numbers and texts."""
        # One row with all of them is built without the interpreter's lock, in half the time.
        whole = f"WITH found (it) AS ({sql}) SELECT json_group_array(it) FROM (SELECT it FROM found LIMIT ?)"
        (text,) = self.connection.execute(whole, (*parameters, limit)).fetchone()
        found: list[Any] = msgspec.json.decode(text)
        return found

    def first(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        """Return the first column of the first row; None without one."""
        row = self.connection.execute(sql, parameters).fetchone()
        return None if row is None else row[0]

    def has_for_all(self, path: int) -> bool:
        """Whether every thing with rows certainly has a value at a path, or null. (A few milliseconds.)"""
        # Each thing has one row with the time of its creation.
        made = self.first("SELECT count(*) FROM search_values WHERE path = ?", (self.path("_created"),))
        found = self.first("SELECT count(*) FROM search_values WHERE path = ?", (path,))
        return bool(found == made) and not self.has_arrays(path)

    def has_arrays(self, path: int) -> bool:
        """Whether a thing may have several rows at a path: because of arrays on the path."""
        name = self.first("SELECT path FROM search_paths WHERE id = ?", (path,))
        return any(self._is_array(prefix) for prefix in _prefixes(name))

    def _is_array(self, name: str) -> bool:
        path = self.path(name)
        array = f"SELECT 1 FROM search_values WHERE path = ? AND rank = {_ARRAY} LIMIT 1"
        return path is not None and self.first(array, (path,)) is not None

    def path(self, name: str) -> int | None:
        """Return the number of a path; None if no thing ever had it."""
        if name not in self._paths:
            self._paths[name] = self.first("SELECT id FROM search_paths WHERE path = ?", (name,))
        return self._paths[name]

    def declared_path(self, name: str) -> int | None:
        """Return the number of a path with a complete index of its own; None for others."""
        found: int | None = self.first(_DECLARED, (name,))
        return found

    def is_indexed(self) -> bool:
        return bool(self.first("SELECT indexed FROM search_progress") >= COMPLETE)

    def things(self) -> int:
        """About how many things there are: not fewer."""
        return self.first("SELECT max(key) FROM entities") or 0

    def large(self) -> list[int]:
        return self.column("SELECT thing FROM search_large")

    def load(self, keys: Collection[int]) -> Iterator[CandidateRow]:
        """The visible things with these keys, in no order."""
        condition, parameters = self.visible
        if len(keys) <= 4:
            for key in keys:
                yield from self.connection.execute(f"{_LOAD} AND {condition}", (key, *parameters))
            return
        for chunk in _chunks(keys):
            yield from self.connection.execute(f"{_LOAD_CHUNK} AND {condition}", (*chunk, *parameters)).fetchall()

    def ids(self, keys: Collection[int]) -> list[tuple[str, int]]:
        """The IDs and keys of the visible things with these keys, in no order."""
        condition, parameters = self.visible
        found: list[tuple[str, int]] = []
        for chunk in _chunks(keys):
            found += self.connection.execute(f"{_IDS_CHUNK} AND {condition}", (*chunk, *parameters)).fetchall()
        return found

    def restrict(self, subjects: Collection[str]) -> list[str] | None:
        """Leave out things of policies that do not name these subjects, and return the other policies.

        The index is complete. Returns None for too many policies.
        """
        policies = self.policies(subjects)
        if policies is None:
            named = sorted(subjects)
            self.visible = Condition(_NAMED.format(subjects=_marks(named)), (*named, *named))
        else:
            self.visible = Condition(f"policy IN ({_marks(policies)})", tuple(policies))
        return policies

    def policies(self, subjects: Collection[str]) -> list[str] | None:
        """Return the policies that may permit something to these subjects; None if there are too many."""
        named = sorted(subjects)
        select = f"SELECT policy FROM search_subjects WHERE subject IN ({_marks(named)})"
        found = set(self.column(select, named, POLICIES + 1))
        new = list(found)
        while new and len(found) <= POLICIES:
            importers = self.column(
                "SELECT importer FROM search_imports WHERE imported = ?", (new.pop(),), POLICIES + 1
            )
            new += [importer for importer in importers if importer not in found]
            found.update(importers)
        return sorted(found) if len(found) <= POLICIES else None

    def namespaces(self) -> list[str] | None:
        """Return the namespaces of things; None if there are too many."""
        found: list[str] = []
        after = ""
        while len(found) <= NAMESPACES:
            first = self.first("SELECT id FROM entities WHERE type = 'thing' AND id >= ? ORDER BY id LIMIT 1", (after,))
            if first is None:
                return found
            found.append(namespace_of(first))
            after = f"{found[-1]};" if ":" in first else f"{first}\0"
        return None


def _marks(values: Collection[str]) -> str:
    return ",".join("?" * len(values))


def _chunks(keys: Collection[int]) -> Iterator[list[int | None]]:
    ordered = sorted(keys)
    for start in range(0, len(ordered), CHUNK):
        chunk = ordered[start : start + CHUNK]
        yield [*chunk, *([None] * (CHUNK - len(chunk)))]


def _prefixes(name: str) -> Iterator[str]:
    """A path and those that lead to it."""
    segments = name.split("/")
    for length in range(min(2, len(segments)), len(segments) + 1):
        yield "/".join(segments[:length])

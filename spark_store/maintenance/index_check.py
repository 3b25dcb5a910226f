"""Compares the whole search index with the states.

It reads in one transaction, so it may run beside a service, whose writes wait in the log. Checksums of the rows of each
thing, expected minus actual, need two passes and eight bytes of memory for each entity; for some different ones, rows are
compared one by one. It reports places, never values. Entities that the index has not reached yet
(`spark_store.search.index_builder`) are not missed.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from spark_store.errors import translate_sqlite_error
from spark_store.search import index, index_builder
from spark_store.search.index import LARGE

SHOWN = 50
"""For how many things the rows are compared one by one."""

_MASK = 2**64 - 1
_BEGIN = "BEGIN"
_END = "ROLLBACK"
_STATES = f"""
    SELECT key, type, id, created, length(state), CASE WHEN type = 'policy' OR length(state) <= {LARGE} THEN state END
    FROM entities WHERE key <= ? AND state IS NOT NULL ORDER BY key
"""
_STATE = "SELECT id, revision, created, CASE WHEN length(state) <= ? THEN state END FROM entities WHERE key = ?"
_PATHS = "SELECT path, id FROM search_paths"
_VALUES = "SELECT path, rank, value, thing FROM search_values"
_VALUES_OF = """
    SELECT coalesce(search_paths.path, 'place ' || search_values.path), rank, value, thing
    FROM search_values LEFT JOIN search_paths ON search_paths.id = search_values.path
    WHERE thing IN (SELECT value FROM json_each(?))
"""
# The index of a path may be incomplete.
_DECLARED = """
    SELECT v.path, e.id FROM search_paths AS p JOIN search_values AS v ON v.path = p.id JOIN entities AS e ON e.key = v.thing
    WHERE p.declared = 2 AND NOT EXISTS (
        SELECT 1 FROM search_declared AS d
        WHERE d.path = v.path AND d.rank = v.rank AND d.value = v.value AND d.id = e.id AND d.thing = v.thing
    )
    UNION SELECT d.path, d.id FROM search_declared AS d WHERE NOT EXISTS (
        SELECT 1 FROM entities AS e JOIN search_values AS v ON v.thing = e.key
        WHERE e.key = d.thing AND e.id = d.id AND v.path = d.path AND v.rank = d.rank AND v.value = d.value
    )
"""
_LARGE = "SELECT thing FROM search_large"
_SUBJECTS = "SELECT subject, policy FROM search_subjects"
_IMPORTS = "SELECT importer, imported FROM search_imports"


class IndexDifference(NamedTuple):
    """A difference: place, entity and revision (0 if it does not exist)."""

    what: str
    entity: str
    revision: int


class IndexComparison(NamedTuple):
    """How many entities were compared, not reached yet, different, and some differences."""

    entities: int
    waiting: int
    differing: int
    examples: list[IndexDifference]


def compare(path: Path) -> IndexComparison:
    """Compare all of a journal's file. Raises StoreUnavailable."""
    connection = None
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None)
        connection.execute("PRAGMA query_only = ON")
        connection.execute(_BEGIN)
        found = index_builder.progress(connection)
        # Rows that are being deleted for a rebuild are meaningless.
        compared = IndexComparison(0, found.last, 0, []) if found.is_stale else _Comparing(connection, found).compare()
        connection.execute(_END)
        return compared
    except sqlite3.Error as error:
        raise translate_sqlite_error(path, error) from error
    finally:
        if connection is not None:
            connection.close()


def _rows(text: bytes | str, created: str) -> set[index.IndexRow] | None:
    """Return the rows that a state requires; None if its rows are among the large things.

    Damaged states are reported elsewhere.
    """
    state = _parse(text)
    return set() if state is None else index.rows_of(state, created)


def _parse(text: bytes | str) -> Mapping[str, Any] | None:
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
    return found if isinstance(found, Mapping) else None


class _Comparing:
    def __init__(self, connection: sqlite3.Connection, progress: index_builder.IndexProgress) -> None:
        self._connection = connection
        self._reached, self._last = progress.indexed, progress.last
        # For each thing the required rows minus its rows; the last element has rows of no thing.
        self._sums = array("Q", bytes(8 * (self._last + 2)))
        self._large: set[int] = set()
        self._subjects: set[tuple[str, str]] = set()
        self._imports: set[tuple[str, str]] = set()
        self._entities = 0

    def compare(self) -> IndexComparison:
        self._add_states()
        self._take_rows()
        differing = [key for key, sum in enumerate(self._sums) if sum]
        large = self._large ^ {thing for (thing,) in self._connection.execute(_LARGE)}
        policies = self._policies()
        examples = [
            *self._of_things(differing[:SHOWN]),
            *(self._named(key, "its size") for key in sorted(large)[:SHOWN]),
        ]
        examples += [IndexDifference("subjects or imports", policy, 0) for policy in sorted(policies)[:SHOWN]]
        declared = self._connection.execute(_DECLARED).fetchall()
        paths = {id: path for path, id in self._connection.execute(_PATHS)}
        examples += [IndexDifference(f"declared: {paths.get(path, path)}", id, 0) for path, id in declared[:SHOWN]]
        count = len(differing) + len(large) + len(policies) + len({id for _, id in declared})
        return IndexComparison(self._entities, self._last - self._reached, count, examples[:SHOWN])

    def _add_states(self) -> None:
        ids = dict(self._connection.execute(_PATHS).fetchall())
        for key, type, id, created, size, text in self._connection.execute(_STATES, (self._reached,)):
            self._entities += 1
            if type == "policy":
                policy = _parse(text) or {}
                self._subjects.update((subject, id) for subject in index.subjects(policy))
                self._imports.update((id, imported) for imported in index.imports(policy))
            elif type == "thing" and size > LARGE:
                self._large.add(key)
            elif type == "thing":
                rows = _rows(text, created)
                if rows is None:
                    self._large.add(key)
                    continue
                # A row cannot be at a place that the index does not know.
                total = sum(hash((ids.get(path, path), rank, value, key)) for path, rank, value in rows)
                self._sums[key] = total & _MASK

    def _take_rows(self) -> None:
        nobody = self._last + 1
        for row in self._connection.execute(_VALUES):
            key = row[3] if 0 < row[3] <= self._last else nobody
            self._sums[key] = (self._sums[key] - hash(row)) & _MASK

    def _policies(self) -> set[str]:
        subjects = self._subjects ^ set(self._connection.execute(_SUBJECTS).fetchall())
        imports = self._imports ^ set(self._connection.execute(_IMPORTS).fetchall())
        return {policy for _, policy in subjects} | {policy for policy, _ in imports}

    def _of_things(self, keys: list[int]) -> Iterator[IndexDifference]:
        there: dict[int, set[index.IndexRow]] = {key: set() for key in keys}
        for path, rank, value, key in self._connection.execute(_VALUES_OF, (msgspec.json.encode(keys).decode(),)):
            there[key].add((path, rank, value))
        for key in keys:
            if key > self._last:
                yield IndexDifference("rows without an entity", "", 0)
                continue
            wanted = self._expected_rows(key)
            for what, rows in (("missing", wanted - there[key]), ("too much", there[key] - wanted)):
                for path in sorted({path for path, *_ in rows}):
                    yield self._named(key, f"{what}: {path}")

    def _expected_rows(self, key: int) -> set[index.IndexRow]:
        _, _, created, text = self._connection.execute(_STATE, (LARGE, key)).fetchone() or (None, 0, "", None)
        return (_rows(text, created) if text is not None and key <= self._reached else None) or set()

    def _named(self, key: int, what: str) -> IndexDifference:
        id, revision, *_ = self._connection.execute(_STATE, (LARGE, key)).fetchone() or (f"entity {key}", 0)
        return IndexDifference(what, id, revision)

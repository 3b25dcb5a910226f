"""Compares the whole search index with the states.

It reads in one transaction, so it may run beside a service, whose writes wait in the log. Checksums of the rows of each
entity, expected minus actual, need two passes and eight bytes of memory for each; for some different ones, rows are compared
one by one. It reports places, never values. Entities that the index has not reached yet
(`spark_store.search.index_builder`) are not missed.
"""

from __future__ import annotations

import contextlib
import sqlite3
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from mappings.json_values import parse_json
from spark_store.errors import translate_sqlite_error
from spark_store.search import index, index_builder
from spark_store.search.index import LARGE

SHOWN = 50
"""For how many things the rows are compared one by one."""

_MASK = 2**64 - 1
_STATES = f"""
    SELECT key, type, created, length(state), CASE WHEN type = 'policy' OR length(state) <= {LARGE} THEN state END
    FROM entities WHERE key BETWEEN ? AND ? AND state IS NOT NULL ORDER BY key
"""
_NAME = "SELECT id, revision FROM entities WHERE key = ?"
_PATHS = "SELECT path, id FROM search_paths"
_VALUES = "SELECT thing, path, rank, value FROM search_values"
_SIZE, _SUBJECTS, _IMPORTS = "its size", "subjects", "imports"
_OTHERS = f"""
    SELECT thing, '{_SIZE}', NULL FROM search_large
    UNION ALL SELECT key, '{_SUBJECTS}', subject FROM search_subjects
              LEFT JOIN entities ON type = 'policy' AND id = search_subjects.policy
    UNION ALL SELECT key, '{_IMPORTS}', imported FROM search_imports
              LEFT JOIN entities ON type = 'policy' AND id = importer
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


_Row: TypeAlias = tuple[Any, ...]


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
    try:
        address = f"{path.absolute().as_uri()}?mode=rw"
        with contextlib.closing(sqlite3.connect(address, uri=True, isolation_level=None)) as connection:
            connection.execute("PRAGMA query_only = ON")
            connection.execute("BEGIN")
            found = index_builder.progress(connection)
            # Rows that are being deleted for a rebuild are meaningless.
            return IndexComparison(0, found.last, 0, []) if found.is_stale else _Comparator(connection, found).compare()
    except sqlite3.Error as error:
        raise translate_sqlite_error(path, error) from error


class _Comparator:
    """Compares places with contents: numbers of paths (names of those without one), and labels."""

    def __init__(self, connection: sqlite3.Connection, progress: index_builder.IndexProgress) -> None:
        self._connection = connection
        self._reached, self._last = progress.indexed, progress.last
        self._ids: dict[str, int] = dict(connection.execute(_PATHS).fetchall())
        self._names = {id: path for path, id in self._ids.items()}

    def compare(self) -> IndexComparison:
        entities = 0
        # For each entity the required rows minus its rows; the last element has rows of no entity.
        sums = array("Q", bytes(8 * (self._last + 2)))
        for key, rows in self._expected(0, self._last):
            entities += 1
            sums[key] = sum(map(_checksum, rows)) & _MASK
        for key, row in self._actual():
            sums[key] = (sums[key] - _checksum(row)) & _MASK
        differing = [key for key, sum in enumerate(sums) if sum]
        declared = self._connection.execute(_DECLARED).fetchall()
        examples = [*self._examples(differing[:SHOWN])]
        examples += [IndexDifference(f"declared: {self._label(path)}", id, 0) for path, id in declared[:SHOWN]]
        count = len(differing) + len({id for _, id in declared})
        return IndexComparison(entities, self._last - self._reached, count, examples[:SHOWN])

    def _expected(self, first: int, last: int) -> Iterator[tuple[int, set[_Row]]]:
        """Yield the keys of entities that the index has reached, with the rows that they require."""
        for key, type, created, size, text in self._connection.execute(_STATES, (first, min(last, self._reached))):
            rows: set[_Row] = set()
            if type == "policy":
                policy = _parse(text) or {}
                rows = {(_SUBJECTS, subject) for subject in index.subjects(policy)}
                rows |= {(_IMPORTS, imported) for imported in index.imports(policy)}
            elif type == "thing":
                state = _parse(text) if size <= LARGE else None
                found = None if size > LARGE else set() if state is None else index.rows_of(state, created)
                rows = {(_SIZE, None)} if found is None else {(self._ids.get(it[0], it[0]), *it[1:]) for it in found}
            yield key, rows

    def _actual(self) -> Iterator[tuple[int, _Row]]:
        """Yield the rows of the index with the keys of their entities; a key above all for an unknown one."""
        for statement in (_VALUES, _OTHERS):
            for key, *row in self._connection.execute(statement):
                yield key if key is not None and 0 < key <= self._last else self._last + 1, tuple(row)

    def _examples(self, keys: list[int]) -> Iterator[IndexDifference]:
        there: dict[int, set[_Row]] = {key: set() for key in keys}
        for key, row in self._actual() if keys else ():
            if key in there:
                there[key].add(row)
        for key in keys:
            if key > self._last:
                yield IndexDifference("rows without an entity", "", 0)
                continue
            id, revision = self._connection.execute(_NAME, (key,)).fetchone() or (f"entity {key}", 0)
            wanted = dict(self._expected(key, key)).get(key, set())
            for what, rows in (("missing", wanted - there[key]), ("too much", there[key] - wanted)):
                for label in sorted({self._label(place) for place, *_ in rows}):
                    yield IndexDifference(f"{what}: {label}", id, revision)

    def _label(self, place: int | str) -> str:
        return place if isinstance(place, str) else self._names.get(place, f"place {place}")


def _checksum(row: _Row) -> int:
    # To Python's hash, the values -1 and -2 are the same.
    return hash((row, row[-1] == -1))


def _parse(text: bytes | str) -> Mapping[str, Any] | None:
    """Return a state; None for a damaged one, which is reported elsewhere."""
    try:
        found = parse_json(text)
    except msgspec.DecodeError:
        return None
    return found if isinstance(found, Mapping) else None

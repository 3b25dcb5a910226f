"""Compares the whole search index with the states.

It reads in one transaction, so it may run beside a service, whose writes wait in the log. Checksums of the rows of each
entity, expected minus actual, need eight bytes of memory for each. Entities that the index has not reached yet
(`spark_store.search.index_builder`) are not missed.
"""

from __future__ import annotations

import contextlib
import sqlite3
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from mappings.json_values import parse_json
from spark_store.errors import translate_sqlite_error
from spark_store.search import index, index_builder
from spark_store.search.index import LARGE

SHOWN = 50
"""How many differences are named."""

_MASK = 2**64 - 1
_STATES = f"""
    SELECT key, type, created, length(state), CASE WHEN type = 'policy' OR length(state) <= {LARGE} THEN state END
    FROM entities WHERE key <= ? AND state IS NOT NULL ORDER BY key
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
    SELECT p.path, e.id FROM search_paths AS p JOIN search_values AS v ON v.path = p.id JOIN entities AS e ON e.key = v.thing
    WHERE p.declared = 2 AND NOT EXISTS (
        SELECT 1 FROM search_declared AS d
        WHERE d.path = v.path AND d.rank = v.rank AND d.value = v.value AND d.id = e.id AND d.thing = v.thing
    )
    UNION SELECT p.path, d.id FROM search_declared AS d LEFT JOIN search_paths AS p ON p.id = d.path WHERE NOT EXISTS (
        SELECT 1 FROM entities AS e JOIN search_values AS v ON v.thing = e.key
        WHERE e.key = d.thing AND e.id = d.id AND v.path = d.path AND v.rank = d.rank AND v.value = d.value
    )
"""


_Row: TypeAlias = tuple[Any, ...]


class IndexDifference(NamedTuple):
    """A difference, and the entity with its revision (0 if it does not exist)."""

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
            if found.is_stale:
                return IndexComparison(0, found.last, 0, [])
            return _compare(connection, found.indexed, found.last)
    except sqlite3.Error as error:
        raise translate_sqlite_error(path, error) from error


def _compare(connection: sqlite3.Connection, reached: int, last: int) -> IndexComparison:
    """Compare the entities that the index has `reached`; `last` is the greatest key."""
    places: dict[str, int] = dict(connection.execute(_PATHS).fetchall())
    entities = 0
    # For each entity the required rows minus its rows; the last element has rows of no entity.
    sums = array("Q", bytes(8 * (last + 2)))
    for key, *entity in connection.execute(_STATES, (min(last, reached),)):
        entities += 1
        sums[key] = sum(map(_checksum, _expected(places, *entity))) & _MASK
    for statement in (_VALUES, _OTHERS):
        for key, *row in connection.execute(statement):
            owner = key if isinstance(key, int) and 0 < key <= last else last + 1
            sums[owner] = (sums[owner] - _checksum(tuple(row))) & _MASK
    differing = [key for key, sum in enumerate(sums) if sum]
    declared = connection.execute(_DECLARED).fetchall()
    examples = [_difference(connection, key) for key in differing[:SHOWN]]
    examples += [IndexDifference(f"declared: {path}", id, 0) for path, id in declared[:SHOWN]]
    count = len(differing) + len({id for _, id in declared})
    return IndexComparison(entities, last - reached, count, examples[:SHOWN])


def _expected(places: Mapping[str, int], type: str, created: str, size: int, text: bytes | str) -> set[_Row]:
    """Return the rows that an entity requires, with the number of each path, or its name if it has none."""
    if type == "policy":
        policy = _parse(text) or {}
        subjects: set[_Row] = {(_SUBJECTS, subject) for subject in index.subjects(policy)}
        return subjects | {(_IMPORTS, imported) for imported in index.imports(policy)}
    if type != "thing":
        return set()
    state = _parse(text) if size <= LARGE else None
    rows = None if size > LARGE else set() if state is None else index.rows_of(state, created)
    return {(_SIZE, None)} if rows is None else {(places.get(path, path), *row) for path, *row in rows}


def _difference(connection: sqlite3.Connection, key: int) -> IndexDifference:
    if (entity := connection.execute(_NAME, (key,)).fetchone()) is None:
        return IndexDifference("rows without an entity", "", 0)
    return IndexDifference("rows different from the state", *entity)


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

"""Builds the search index from the states: for files without one, or for a rebuild.

Short steps inside the caller's transaction, in the order of the entities' keys. The progress is in the same transaction
(`spark_store.search.index`), so an interrupted build continues. Writers may change entities meanwhile; they leave rows of
entities that are not reached yet to the steps. Declared paths come after everything else, all together; undeclared ones are
deleted. Their rows are written by writers from the beginning, so both may insert a row.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from mappings.ids import EntityType
from mappings.json_values import parse_json
from spark_store.search.index import COMPLETE, DELETE_PATH, LARGE, SearchIndex, rows_of, wildcard

STEP_ENTITIES = 200
"""How many entities one step indexes at most: some tens of milliseconds."""

STEP_BYTES = 1 << 19
"""How many bytes of states end a step."""

STEP_ROWS = 4000
"""How many rows of the index one step deletes."""

_PROGRESS = "SELECT indexed, is_stale FROM search_progress"
_BEGIN_ANEW = (
    "UPDATE search_progress SET indexed = 0, is_stale = 1, declared = 0",
    "UPDATE search_paths SET declared = 1 WHERE declared = 2",
)
_DECLARED = "SELECT path FROM search_paths WHERE declared > 0"
_IS_MOVING = "SELECT 1 FROM search_paths WHERE declared IN (-1, 1)"
_DECLARE = """
    INSERT INTO search_paths (path, wildcard, declared) VALUES (?, ?, 1)
    ON CONFLICT (path) DO UPDATE SET declared = 1
"""
_DECLARE_NOT = "UPDATE search_paths SET declared = -1 WHERE path = ?"
_BEGIN_DECLARED = "UPDATE search_progress SET declared = 0"
_LEAVING = "SELECT id FROM search_paths WHERE declared = -1 LIMIT 1"
_ROWS_LEAVING = "SELECT path, rank, value, id FROM search_declared WHERE path = ? LIMIT ?"
_DELETE_DECLARED = "DELETE FROM search_declared WHERE path = ? AND rank = ? AND value = ? AND id = ?"
_HAS_LEFT = "UPDATE search_paths SET declared = 0 WHERE id = ?"
_COMING = "SELECT path, id FROM search_paths WHERE declared = 1"
_REACHED_DECLARED = "SELECT declared FROM search_progress"
_REACH_DECLARED = "UPDATE search_progress SET declared = ?"
_INSERT_DECLARED = "INSERT OR IGNORE INTO search_declared (path, rank, value, id, thing) VALUES (?, ?, ?, ?, ?)"
_ARE_THERE = "UPDATE search_paths SET declared = 2 WHERE declared = 1"
_IS_CLEAR = "UPDATE search_progress SET is_stale = 0"
_REACH = "UPDATE search_progress SET indexed = ?"
_LAST = "SELECT coalesce(max(key), 0) FROM entities"
# The states of large things are not read.
_NEXT = f"""
    SELECT key, type, id, created, length(state), CASE WHEN type = 'policy' OR length(state) <= {LARGE} THEN state END
    FROM entities WHERE key > ? ORDER BY key LIMIT ?
"""
_CLEARING = [
    (
        "SELECT path, rank, value, thing FROM search_values LIMIT ?",
        "DELETE FROM search_values WHERE path = ? AND rank = ? AND value = ? AND thing = ?",
    ),
    ("SELECT path, rank, value, id FROM search_declared LIMIT ?", _DELETE_DECLARED),
    ("SELECT id FROM search_paths WHERE declared = 0 LIMIT ?", "DELETE FROM search_paths WHERE id = ?"),
    ("SELECT thing FROM search_large LIMIT ?", "DELETE FROM search_large WHERE thing = ?"),
    (
        "SELECT subject, policy FROM search_subjects LIMIT ?",
        "DELETE FROM search_subjects WHERE subject = ? AND policy = ?",
    ),
    (
        "SELECT importer, imported FROM search_imports LIMIT ?",
        "DELETE FROM search_imports WHERE importer = ? AND imported = ?",
    ),
]
"""How rows are found, and how they are deleted."""


class IndexProgress(NamedTuple):
    """The index has entities up to the key `indexed`, of those up to `last`.

    `is_stale`: it is being deleted for a rebuild.
    """

    indexed: int
    last: int
    is_complete: bool
    is_stale: bool = False


def progress(connection: sqlite3.Connection) -> IndexProgress:
    """Return the progress of the index."""
    indexed, is_stale = connection.execute(_PROGRESS).fetchone()
    (last,) = connection.execute(_LAST).fetchone()
    return IndexProgress(min(indexed, last), last, indexed == COMPLETE and not is_stale, bool(is_stale))


def has_work(connection: sqlite3.Connection) -> bool:
    """Whether there are steps left."""
    return not progress(connection).is_complete or connection.execute(_IS_MOVING).fetchone() is not None


def restart(connection: sqlite3.Connection) -> None:
    """Invalidate the index; the following steps delete and rebuild it."""
    for statement in _BEGIN_ANEW:
        connection.execute(statement)


def declare(connection: sqlite3.Connection, paths: Iterable[str]) -> bool:
    """Declare these paths, as `path_of` writes them, and no others; return whether steps are needed."""
    known = {path for (path,) in connection.execute(_DECLARED)}
    wanted = set(paths)
    connection.executemany(_DECLARE_NOT, [(path,) for path in sorted(known - wanted)])
    if new := sorted(wanted - known):
        connection.executemany(_DECLARE, [(path, wildcard(path)) for path in new])
        connection.execute(_BEGIN_DECLARED)
    return connection.execute(_IS_MOVING).fetchone() is not None


def step(connection: sqlite3.Connection) -> bool:
    """Index some entities, or delete a part of an invalid index; return whether steps are left."""
    indexed, is_stale = connection.execute(_PROGRESS).fetchone()
    if is_stale:
        _clear(connection)
    elif indexed != COMPLETE:
        _take_in(connection, indexed)
    else:
        _step_declared(connection)
    return has_work(connection)


def _take_in(connection: sqlite3.Connection, indexed: int) -> None:
    rows = _next(connection, indexed)
    connection.execute(_REACH, (rows[-1][0] if rows else COMPLETE,))
    index = SearchIndex(connection)
    for key, type, id, created, size, text in rows:
        if size is not None:
            index.change(type, id, key, None, created, size, _parse_state(text))
    index.end()


def _next(connection: sqlite3.Connection, after: int) -> list[tuple[Any, ...]]:
    """The next entities, bounded by their number and by the bytes of their states."""
    rows = connection.execute(_NEXT, (after, STEP_ENTITIES)).fetchall()
    sizes = accumulate(min(size or 0, LARGE) for *_, size, _ in rows)
    return rows[: next((n for n, total in enumerate(sizes, 1) if total >= STEP_BYTES), len(rows))]


def _step_declared(connection: sqlite3.Connection) -> None:
    if (leaving := connection.execute(_LEAVING).fetchone()) is not None:
        if found := connection.execute(_ROWS_LEAVING, (*leaving, STEP_ROWS)).fetchall():
            connection.executemany(_DELETE_DECLARED, found)
        else:
            connection.execute(_HAS_LEFT, leaving)
            connection.execute(DELETE_PATH, leaving)
        return
    coming = dict(connection.execute(_COMING).fetchall())
    (reached,) = connection.execute(_REACHED_DECLARED).fetchone()
    rows = _next(connection, reached) if coming else []
    made = [
        (coming[path], rank, value, id, key)
        for key, type, id, created, _, text in rows
        if type == EntityType.THING.value and (state := _parse_state(text)) is not None
        for path, rank, value in rows_of(state, created) or ()
        if path in coming
    ]
    connection.executemany(_INSERT_DECLARED, made)
    if rows:
        connection.execute(_REACH_DECLARED, (rows[-1][0],))
    else:
        connection.execute(_ARE_THERE)


def _parse_state(text: bytes | str | None) -> dict[str, Any] | None:
    """A state as a value. One that is damaged has no rows."""
    try:
        found = None if text is None else parse_json(text)
    except msgspec.DecodeError:
        return None
    return found if isinstance(found, dict) else None


def _clear(connection: sqlite3.Connection) -> None:
    for select, delete in _CLEARING:
        if rows := connection.execute(select, (STEP_ROWS,)).fetchall():
            connection.executemany(delete, rows)
            return
    connection.execute(_IS_CLEAR)

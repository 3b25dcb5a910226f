"""The search index made of the states: for a file from before there was one, or because somebody wants it anew.

It comes in short steps, each inside the caller's transaction, in the order of the entities' keys. How far it came stands in
the same transaction (`spark_store.index`), so whatever is killed, the next step goes on there. Meanwhile everybody else may
write: who changes an entity that the steps have not reached leaves its rows to them.
"""

from __future__ import annotations

import sqlite3
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from spark_store.index import COMPLETE, LARGE, Index

STEP_ENTITIES = 500
"""How many entities one step takes in, at most: some tens of milliseconds."""

STEP_BYTES = 1 << 19
"""So many bytes of states end a step, too."""

STEP_ROWS = 5000
"""How many rows of the index one step takes away."""

_PROGRESS = "SELECT indexed, is_stale FROM search_progress"
_BEGIN_ANEW = "UPDATE search_progress SET indexed = 0, is_stale = 1"
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
    ("SELECT id FROM search_paths LIMIT ?", "DELETE FROM search_paths WHERE id = ?"),
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
"""How rows are found, and how they are taken away."""


class Progress(NamedTuple):
    """The index has entities up to the key `indexed`, of those up to `last`.

    `is_stale`: it is being taken away, to begin anew.
    """

    indexed: int
    last: int
    is_complete: bool
    is_stale: bool = False


def progress(connection: sqlite3.Connection) -> Progress:
    """How far the index has come."""
    indexed, is_stale = connection.execute(_PROGRESS).fetchone()
    (last,) = connection.execute(_LAST).fetchone()
    return Progress(min(indexed, last), last, indexed == COMPLETE and not is_stale, bool(is_stale))


def begin_anew(connection: sqlite3.Connection) -> None:
    """From now on nobody counts on the index; the steps that follow take all of it away, and make it again."""
    connection.execute(_BEGIN_ANEW)


def step(connection: sqlite3.Connection) -> bool:
    """Take in some entities, or take away what is left of an index that begins anew; whether there is more to do."""
    indexed, is_stale = connection.execute(_PROGRESS).fetchone()
    if is_stale:
        _clear(connection)
        return True
    if indexed == COMPLETE:
        return False
    rows = connection.execute(_NEXT, (indexed, STEP_ENTITIES)).fetchall()
    sizes = accumulate(min(size or 0, LARGE) for *_, size, _ in rows)
    rows = rows[: next((n for n, total in enumerate(sizes, 1) if total >= STEP_BYTES), len(rows))]
    reached = rows[-1][0] if rows else COMPLETE
    connection.execute(_REACH, (reached,))
    index = Index(connection)
    for key, type, id, created, size, text in rows:
        if size is not None:
            index.change(type, id, key, None, created, size, _parsed(text))
    index.end()
    return reached != COMPLETE


def _parsed(text: bytes | str | None) -> dict[str, Any] | None:
    """A state as a value. One that is damaged has no rows."""
    try:
        found = None if text is None else msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
    return found if isinstance(found, dict) else None


def _clear(connection: sqlite3.Connection) -> None:
    for select, delete in _CLEARING:
        if rows := connection.execute(select, (STEP_ROWS,)).fetchall():
            connection.executemany(delete, rows)
            return
    connection.execute(_IS_CLEAR)

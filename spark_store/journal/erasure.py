"""Erasure of one entity from the journal: its record, and the steps that delete everything.

An erasure deletes every event of the entity, its state, its search index, its incarnations, and answers to its deliveries.
It keeps the record, and the entity's row with the revision up to which it was erased (`erased`), so that revisions continue.
Each function is one short step inside the caller's transaction and may be repeated; the record comes first and is finished
last, so an unfinished one is continued.

The numbers of erased events are kept as holes, because a pipeline counts on numbers without gaps, until events after them
have been trimmed. Deleted bytes are overwritten (`secure_delete`), and leave the write-ahead log when it is emptied.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from spark_store.journal import creators, incarnations
from spark_store.search import index
from spark_store.sql import literal

STEP_ENTRIES = 50
"""How many events one step deletes: less than a millisecond, if they are of ordinary size."""

STEP_ANSWERS = 500
"""How many answers one step examines."""

STEP_BYTES = 1 << 20
"""How many bytes end a step, after at least one event or answer."""

STEP_HOLES = 1000
"""How many holes one step deletes."""

_COLUMNS = "id, type, entity, seq, requested_at, requested_by, journal_done, lake_done"
_ALL = f"SELECT {_COLUMNS} FROM erasures WHERE id > ? ORDER BY id"
_UNFINISHED = f"SELECT {_COLUMNS} FROM erasures WHERE lake_done IS NULL ORDER BY id"
_INSERT = """
    INSERT INTO erasures (id, type, entity, seq, requested_at, requested_by)
    VALUES (?, ?, ?, (SELECT value FROM counters WHERE name = 'seq'), ?, ?)
"""
# The sequence has the IDs that AUTOINCREMENT has given before, deleted rows included.
_LAST_NUMBER = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'erasures'"
_ENTOMB = """
    UPDATE entities SET state = NULL, policy = NULL, created = ?, modified = ?, newest_seq = 0, erased = revision
    WHERE type = ? AND id = ?
"""
_KEY = "SELECT key FROM entities WHERE type = ? AND id = ?"
_CHUNK = """
    SELECT revision, seq, coalesce(length(value), 0) + length(headers) FROM entries
    WHERE entity = ? AND seq <= ? ORDER BY revision LIMIT ?
"""
_HOLE = "INSERT OR IGNORE INTO holes (seq) VALUES (?)"
_DELETE = "DELETE FROM entries WHERE entity = ? AND revision = ?"
_ANSWERS = "SELECT id, length(answer) FROM answers WHERE id > ? ORDER BY id LIMIT ?"
# The answer to a command without events names no entity: search for its ID.
_DELETE_ANSWERS = """
    DELETE FROM answers WHERE id > ?1 AND id <= ?2
    AND (entity = ?3 OR instr(others, ',' || ?3 || ',') > 0 OR (entity IS NULL AND instr(answer, ?4) > 0))
"""
_FINISH_JOURNAL = "UPDATE erasures SET journal_done = ? WHERE id = ? AND journal_done IS NULL"
_FINISH_LAKE = "UPDATE erasures SET lake_done = ? WHERE id <= ? AND journal_done IS NOT NULL AND lake_done IS NULL"
_FILL_HOLES = "DELETE FROM holes WHERE seq IN (SELECT seq FROM holes WHERE seq < ? ORDER BY seq LIMIT ?)"


class Erasure(NamedTuple):
    """The record of an erasure.

    Of the entity everything goes up to the event number `seq`. Times are UTC text.
    """

    id: int
    entity_type: str
    entity: str
    seq: int
    requested_at: str
    requested_by: str
    journal_done: str | None
    lake_done: str | None


def records(connection: sqlite3.Connection, after: int = 0) -> list[Erasure]:
    """Return the erasures with IDs above `after`, oldest first."""
    return [Erasure._make(row) for row in connection.execute(_ALL, (after,))]


def unfinished_erasures(connection: sqlite3.Connection) -> list[Erasure]:
    """Every erasure that journal or lake have not done, as far as the journal knows, oldest first."""
    return [Erasure._make(row) for row in connection.execute(_UNFINISHED)]


def condition(erasures: Sequence[Erasure]) -> str:
    """The rows, of any table, that these erasures mean, in SQL."""
    return " OR ".join(
        f"(entity_type = {literal(it.entity_type)} AND entity = {literal(it.entity)} AND seq <= {it.seq})"
        for it in erasures
    )


def spared_condition(erasures: Sequence[Erasure]) -> str:
    """The rows, of any table, that these erasures leave, in SQL."""
    return f"NOT ({condition(erasures)})" if erasures else "true"


def begin(
    connection: sqlite3.Connection, entity_type: str, entity: str, at: str, by: str, lake_erased: int = 0
) -> Erasure:
    """Write the record down, and leave the entity without state and policy.

    `lake_erased`: the last number that the lake says it has carried out. A journal that was restored from a backup may not
    know of it; it must not come again, or the lake's word for that erasure would be taken for this one.
    """
    (last,) = connection.execute(_LAST_NUMBER).fetchone()
    number = max(int(last), lake_erased) + 1
    connection.execute(_INSERT, (number, entity_type, entity, at, by))
    index.forget(connection, entity_type, entity)
    incarnations.forget(connection, entity_type, entity)
    connection.execute(_ENTOMB, (at, at, entity_type, entity))
    creators.forget(connection, entity_type, entity)
    return records(connection, number - 1)[0]


def take_entries(connection: sqlite3.Connection, erasure: Erasure) -> bool:
    """Take some of the events away; whether there may be more."""
    row = connection.execute(_KEY, (erasure.entity_type, erasure.entity)).fetchone()
    if row is None:
        return False
    (key,) = row
    found = connection.execute(_CHUNK, (key, erasure.seq, STEP_ENTRIES)).fetchall()
    taken = found[: _within_bytes([size for *_, size in found])]
    connection.executemany(_HOLE, [(seq,) for _, seq, _ in taken])
    connection.executemany(_DELETE, [(key, revision) for revision, *_ in taken])
    return len(taken) < len(found) or len(found) == STEP_ENTRIES


def _within_bytes(sizes: Sequence[int]) -> int:
    """Return how many of the first items reach STEP_BYTES, the exceeding one included."""
    return next((n for n, total in enumerate(accumulate(sizes), 1) if total >= STEP_BYTES), len(sizes))


def take_answers(connection: sqlite3.Connection, erasure: Erasure, after: int) -> int | None:
    """Delete answers of the entity after position `after`; return where to continue, None at the end."""
    found = connection.execute(_ANSWERS, (after, STEP_ANSWERS)).fetchall()
    if not found:
        return None
    row = connection.execute(_KEY, (erasure.entity_type, erasure.entity)).fetchone()
    last = int(found[_within_bytes([size for _, size in found]) - 1][0])
    key = row[0] if row is not None else -1
    connection.execute(_DELETE_ANSWERS, (after, last, key, erasure.entity.encode()))
    return last


def finish_journal(connection: sqlite3.Connection, erasure: Erasure, at: str) -> None:
    """The journal has nothing of it any more."""
    connection.execute(_FINISH_JOURNAL, (at, erasure.id))


def finish_lake(connection: sqlite3.Connection, last: int, at: str) -> None:
    """The lake has carried out every erasure up to the number `last`."""
    connection.execute(_FINISH_LAKE, (at, last))


def fill_holes(connection: sqlite3.Connection, boundary: int) -> bool:
    """Forget some of the holes below `boundary`; return whether there may be more."""
    return connection.execute(_FILL_HOLES, (boundary, STEP_HOLES)).rowcount == STEP_HOLES

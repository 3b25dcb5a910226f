"""Erasure of one entity from the journal: the record that it happened, and the steps that take everything away.

An operator asks for it; nothing else in the service forgets on purpose. What an erasure takes: every event of the entity up
to then, its state, and the answers that redeliveries would get. What stays: the record, and the entity's row without state
or policy, because its revisions go on counting if it is ever made again.

Each function here is one short step inside the caller's transaction, and may be done twice. The record comes first and is
finished last, so whoever finds an unfinished one goes on with it. The numbers of events that have been taken away and that
the lake may not have seen yet are kept as holes, because a pipeline counts on numbers without gaps.

Bytes that are deleted are overwritten (`secure_delete`); they leave the write-ahead log when it is moved into the file,
which is the business of `spark_store.journal`.
"""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

STEP_ENTRIES = 50
"""How many events one step takes away: less than a millisecond, if they are of ordinary size."""

STEP_ANSWERS = 500
"""How many answers one step looks at."""

_COLUMNS = "id, type, entity, seq, asked, asked_by, journal_done, lake_done"
_ALL = f"SELECT {_COLUMNS} FROM erasures WHERE id > ? ORDER BY id"
_INSERT = """
    INSERT INTO erasures (type, entity, seq, asked, asked_by)
    VALUES (?, ?, (SELECT value FROM counters WHERE name = 'seq'), ?, ?)
"""
_ENTOMB = """
    UPDATE entities SET state = NULL, policy = NULL, created = ?, modified = ?, newest_seq = 0 WHERE type = ? AND id = ?
"""
_KEY = "SELECT key FROM entities WHERE type = ? AND id = ?"
_CHUNK = "SELECT revision, seq FROM entries WHERE entity = ? AND seq <= ? ORDER BY revision LIMIT ?"
_HOLE = "INSERT OR IGNORE INTO holes (seq) VALUES (?)"
_DELETE = "DELETE FROM entries WHERE entity = ? AND revision = ?"
_ANSWERS_END = "SELECT max(id) FROM answers"
_DELETE_ANSWERS = """
    DELETE FROM answers WHERE id > ? AND id <= ? AND (entity IS ? OR instr(answer, ?) > 0)
"""
_FINISH_JOURNAL = "UPDATE erasures SET journal_done = ? WHERE id = ? AND journal_done IS NULL"
_FINISH_LAKE = "UPDATE erasures SET lake_done = ? WHERE id <= ? AND journal_done IS NOT NULL AND lake_done IS NULL"
_FILL_HOLES = "DELETE FROM holes WHERE seq IN (SELECT seq FROM holes WHERE seq <= ? ORDER BY seq LIMIT 5000)"


class Erasure(NamedTuple):
    """The record of an erasure. Of the entity everything goes up to the event number `seq`. Times are UTC text."""

    id: int
    entity_type: str
    entity: str
    seq: int
    asked: str
    asked_by: str
    journal_done: str | None
    lake_done: str | None


def records(connection: sqlite3.Connection, after: int = 0) -> list[Erasure]:
    """Every erasure whose number is above `after`, oldest first."""
    return [Erasure._make(row) for row in connection.execute(_ALL, (after,))]


def begin(connection: sqlite3.Connection, entity_type: str, entity: str, at: str, by: str) -> Erasure:
    """Write the record down, and leave the entity without state and policy."""
    number = connection.execute(_INSERT, (entity_type, entity, at, by)).lastrowid
    assert number is not None
    connection.execute(_ENTOMB, (at, at, entity_type, entity))
    return records(connection, number - 1)[0]


def take_entries(connection: sqlite3.Connection, erasure: Erasure) -> bool:
    """Take some of the events away; whether there may be more."""
    row = connection.execute(_KEY, (erasure.entity_type, erasure.entity)).fetchone()
    if row is None:
        return False
    (key,) = row
    found = connection.execute(_CHUNK, (key, erasure.seq, STEP_ENTRIES)).fetchall()
    connection.executemany(_HOLE, [(seq,) for _, seq in found])
    connection.executemany(_DELETE, [(key, revision) for revision, _ in found])
    return len(found) == STEP_ENTRIES


def take_answers(connection: sqlite3.Connection, erasure: Erasure, after: int) -> int | None:
    """Take away what redeliveries would be answered, among the answers behind `after`; where to go on, None at the end."""
    (end,) = connection.execute(_ANSWERS_END).fetchone()
    if end is None or end <= after:
        return None
    row = connection.execute(_KEY, (erasure.entity_type, erasure.entity)).fetchone()
    (oldest,) = connection.execute("SELECT min(id) FROM answers WHERE id > ?", (after,)).fetchone()
    last = int(oldest) - 1 + STEP_ANSWERS
    key = row[0] if row is not None else -1
    connection.execute(_DELETE_ANSWERS, (after, last, key, erasure.entity.encode()))
    return last


def finish_journal(connection: sqlite3.Connection, erasure: Erasure, at: str) -> None:
    """The journal has nothing of it any more."""
    connection.execute(_FINISH_JOURNAL, (at, erasure.id))


def finish_lake(connection: sqlite3.Connection, last: int, at: str) -> None:
    """The lake has carried out every erasure up to the number `last`."""
    connection.execute(_FINISH_LAKE, (at, last))


def fill_holes(connection: sqlite3.Connection, watermark: int) -> bool:
    """Forget holes that the lake has passed; whether there may be more."""
    return connection.execute(_FILL_HOLES, (watermark,)).rowcount > 0

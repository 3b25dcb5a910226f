"""Policies that have to be looked at because something in them expires: where the journal's file has them.

A policy is due as soon as it is written with a subject that expires: triggers of the file see to that, so it holds whoever
writes, a service or a rebuild, and what is deleted or erased is due no more. Whoever looks says when it is due again and
leaves a note for the next time (`spark_store.journal.Journal`). What there is to do is none of the journal's business.
"""

from __future__ import annotations

import sqlite3

from mappings.ids import EntityId
from spark_store.records import Due, entity_of

_DUE = """
    SELECT entities.type, entities.id, policy_due.note FROM policy_due JOIN entities ON entities.key = policy_due.entity
    WHERE policy_due.due <= ? ORDER BY policy_due.due LIMIT ?
"""
_LOOK_AGAIN = """
    UPDATE policy_due SET note = ?, due = CASE entities.revision WHEN ? THEN ? ELSE due END
    FROM entities WHERE entities.key = policy_due.entity AND type = ? AND id = ?
"""
_LOOKED = """
    DELETE FROM policy_due WHERE entity = (SELECT key FROM entities WHERE type = ? AND id = ? AND revision = ?)
"""


def due(connection: sqlite3.Connection, until: str, limit: int) -> list[Due]:
    """As `Journal.due`."""
    rows = connection.execute(_DUE, (until, limit)).fetchall()
    return [Due(entity_of(type, id), note) for type, id, note in rows]


def look_again(
    connection: sqlite3.Connection, policy: EntityId, revision: int, at: str | None, note: bytes | None
) -> None:
    """As `Journal.look_again`."""
    named = (policy.type.value, policy.id)
    if at is None:
        connection.execute(_LOOKED, (*named, revision))
    else:
        connection.execute(_LOOK_AGAIN, (note, revision, at, *named))

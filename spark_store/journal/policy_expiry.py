"""Which policies have subjects that expire, and when each is due to be checked.

Each change of a policy makes it due at once, by a trigger of the schema.
"""

from __future__ import annotations

import sqlite3

from mappings.ids import EntityId
from spark_store.records import PolicyDue, entity_of

_DUE = """
    SELECT type, id, revision, note FROM policy_due JOIN entities ON entities.key = policy_due.entity
    WHERE policy_due.due <= ? ORDER BY policy_due.due LIMIT ?
"""
_RESCHEDULE = """
    UPDATE policy_due SET note = ?, due = CASE entities.revision WHEN ? THEN ? ELSE due END
    FROM entities WHERE entities.key = policy_due.entity AND type = ? AND id = ?
"""
_REMOVE = """
    DELETE FROM policy_due WHERE entity = (SELECT key FROM entities WHERE type = ? AND id = ? AND revision = ?)
"""


def due(connection: sqlite3.Connection, until: str, limit: int) -> list[PolicyDue]:
    """Return policies that are due up to a time, the earliest first."""
    rows = connection.execute(_DUE, (until, limit)).fetchall()
    return [PolicyDue(entity_of(type, id), revision, note) for type, id, revision, note in rows]


def reschedule(
    connection: sqlite3.Connection, policy: EntityId, revision: int, at: str | None, note: bytes | None
) -> None:
    """Store the note of a check, and when the policy is due again.

    A policy that has changed since `revision` remains due at once.
    """
    named = (policy.type.value, policy.id)
    if at is None:
        connection.execute(_REMOVE, (*named, revision))
    else:
        connection.execute(_RESCHEDULE, (note, revision, at, *named))

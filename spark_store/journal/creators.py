"""Creators of things and policies, and the stored data of each namespace and creator, for quotas."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from mappings.ids import EntityId, EntityType
from spark_store.records import Change

_NOTE = """
    INSERT INTO creators (type, id, subject) VALUES (?, ?, ?)
    ON CONFLICT (type, id) DO UPDATE SET subject = excluded.subject
"""
_FORGET = "DELETE FROM creators WHERE type = ? AND id = ?"
_CREATOR = "SELECT subject FROM creators WHERE type = ? AND id = ?"
_SUMS = f"""
    sum(entities.type = '{EntityType.THING.value}'), sum(entities.type = '{EntityType.POLICY.value}'),
    sum(length(entities.state))
"""
_EXISTING = f"state IS NOT NULL AND entities.type IN ('{EntityType.THING.value}', '{EntityType.POLICY.value}')"
_NAMESPACES = f"""
    SELECT substr(id, 1, instr(id, ':') - 1) AS namespace, {_SUMS} FROM entities WHERE {_EXISTING} GROUP BY namespace
"""
_SUBJECTS = f"SELECT subject, {_SUMS} FROM creators JOIN entities USING (type, id) WHERE {_EXISTING} GROUP BY subject"


class StoredUse(NamedTuple):
    """The things and policies that exist in a namespace or of a creator, and the bytes of their states."""

    name: str
    things: int
    policies: int
    bytes: int


def store(connection: sqlite3.Connection, changes: Sequence[Change]) -> None:
    """Store the creators in a batch, and forget those of deleted entities."""
    for change in changes:
        for event in change.events:
            if event.path != "/":
                continue
            if event.is_deletion:
                forget(connection, event.entity.type.value, event.entity.id)
            elif event.is_creation and change.creator is not None:
                connection.execute(_NOTE, (event.entity.type.value, event.entity.id, change.creator))


def forget(connection: sqlite3.Connection, type: str, id: str) -> None:
    """Forget the creator of an entity."""
    connection.execute(_FORGET, (type, id))


def creator(connection: sqlite3.Connection, entity: EntityId) -> str | None:
    """Return who created an entity; None if that is not known."""
    row = connection.execute(_CREATOR, (entity.type.value, entity.id)).fetchone()
    return None if row is None else str(row[0])


def used_by_namespace(connection: sqlite3.Connection) -> list[StoredUse]:
    """Return the use of each namespace."""
    return [StoredUse._make(row) for row in connection.execute(_NAMESPACES)]


def used_by_creator(connection: sqlite3.Connection) -> list[StoredUse]:
    """Return the use of each creator."""
    return [StoredUse._make(row) for row in connection.execute(_SUBJECTS)]

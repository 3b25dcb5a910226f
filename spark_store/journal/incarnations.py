"""The lives of entities whose ids were used before, and the policies that living things name.

A deletion ends an incarnation: a row of `incarnations` has its revisions and the permissions of the policy at that moment,
imports included, so that nobody who takes the id over later decides who reads the past. Equal permissions are stored once
(`permissions`); `permission_sources` has the policies that they came from, for erasures. `named_policies` has the policy of
each living thing that keeps it from being deleted. Everything is written in the transaction of the events.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from mappings.ids import EntityId, EntityType
from spark_store.records import Change, Incarnation, PolicyReferences, Snapshot
from spark_store.search.index import COMPLETE

MOST = 100
"""How many incarnations of an entity are known. Earlier ones are nobody's."""

_NAMING_PATHS = frozenset({"/", "/policyId"})
"""The paths of events that may change which policy a thing names, or delete it."""

_PERMISSIONS = "SELECT key FROM permissions WHERE digest = ?"
_INSERT_PERMISSIONS = "INSERT INTO permissions (digest, text) VALUES (?, ?)"
_INSERT_SOURCE = "INSERT OR IGNORE INTO permission_sources (policy, permissions) VALUES (?, ?)"
_INSERT = """
    INSERT INTO incarnations (entity, last, first, permissions)
    VALUES (?1, ?2, coalesce((SELECT max(last) FROM incarnations WHERE entity = ?1), 0) + 1, ?3)
"""
_SURPLUS = "SELECT last, permissions FROM incarnations WHERE entity = ? ORDER BY last DESC LIMIT -1 OFFSET ?"
_DELETE = "DELETE FROM incarnations WHERE entity = ? AND last = ?"
_ENDED = """
    SELECT first, last, text FROM incarnations LEFT JOIN permissions ON key = permissions
    WHERE entity = (SELECT key FROM entities WHERE type = ? AND id = ?) ORDER BY last DESC
"""
_NAME = """
    INSERT INTO named_policies (thing, policy) VALUES (?, ?)
    ON CONFLICT (thing) DO UPDATE SET policy = excluded.policy WHERE policy != excluded.policy
"""
_NAME_OTHER = "UPDATE named_policies SET policy = ?2 WHERE thing = ?1 AND policy != ?2"
_NAME_NONE = "DELETE FROM named_policies WHERE thing = ?"
_KEY = "SELECT key FROM entities WHERE type = ? AND id = ?"
_UNKNOWN_DELETION = """
    SELECT key FROM entities WHERE type = ?1 AND id = ?2 AND erased < ?3
    AND NOT EXISTS (SELECT 1 FROM incarnations WHERE entity = key AND last >= ?3)
"""
_OF_SOURCE = "SELECT permissions FROM permission_sources WHERE policy = ?"
_FORGET_PERMISSIONS = "UPDATE incarnations SET permissions = NULL WHERE permissions = ?"
_DELETE_PERMISSIONS = "DELETE FROM permissions WHERE key = ?"
_DELETE_SOURCES = "DELETE FROM permission_sources WHERE permissions = ?"
_IS_USED = "SELECT 1 FROM incarnations WHERE permissions = ? LIMIT 1"
# Policies that the search index does not have yet are read: one too many is better than one too few.
_REFERENCES = f"""
    SELECT (SELECT count(*) FROM named_policies WHERE policy = ?1 AND thing NOT IN
            (SELECT entities.key FROM json_each(?3) AS other
             JOIN entities ON entities.type = 'thing' AND entities.id = other.value)),
           (SELECT count(*) FROM search_imports
            WHERE imported = ?1 AND importer NOT IN (SELECT value FROM json_each(?4)))
           + (SELECT count(*) FROM search_progress JOIN entities ON key > indexed
              WHERE indexed < {COMPLETE} AND type = 'policy' AND id != ?1 AND instr(state, ?2) > 0
              AND id NOT IN (SELECT value FROM json_each(?4)))
"""
_NAME_ALL = (
    "DELETE FROM named_policies",
    """
    INSERT INTO named_policies (thing, policy)
    SELECT key, policy FROM entities WHERE type = 'thing' AND state IS NOT NULL AND policy IS NOT NULL
    """,
)


class _Sources(msgspec.Struct):
    policies: list[str]


_sources = msgspec.json.Decoder(_Sources).decode


def store(
    connection: sqlite3.Connection,
    changes: Sequence[Change],
    states: Mapping[EntityId, Snapshot],
    keys: Mapping[EntityId, int],
) -> None:
    """Store the ends of incarnations in a batch, and the policies that its things name afterwards."""
    naming = [(event, change) for change in changes for event in change.events if event.path in _NAMING_PATHS]
    things: dict[EntityId, bool | None] = {}
    """Whether each refers to its policy; None as before."""
    for event, change in naming:
        if event.is_deletion:
            end(connection, keys[event.entity], event.revision, change.permissions)
        if event.entity.type is EntityType.THING:
            is_new = event.is_creation or event.path != "/"
            things[event.entity] = (
                (is_new or things.get(event.entity)) if change.is_reference is None else change.is_reference
            )
    for thing, is_reference in things.items():
        snapshot = states[thing]
        if snapshot.state is None or snapshot.policy is None or is_reference is False:
            connection.execute(_NAME_NONE, (keys[thing],))
        else:
            connection.execute(_NAME if is_reference else _NAME_OTHER, (keys[thing], snapshot.policy))


def end(connection: sqlite3.Connection, key: int, last: int, permissions: bytes | None) -> None:
    """Write down that the entity with this key was deleted by the revision `last`."""
    stored = None if permissions is None else _stored(connection, permissions)
    connection.execute(_INSERT, (key, last, stored))
    _delete(connection, key, connection.execute(_SURPLUS, (key, MOST)).fetchall())


def _stored(connection: sqlite3.Connection, permissions: bytes) -> int:
    digest = hashlib.blake2b(permissions, digest_size=16).digest()
    row = connection.execute(_PERMISSIONS, (digest,)).fetchone()
    if row is not None:
        return int(row[0])
    key = connection.execute(_INSERT_PERMISSIONS, (digest, permissions)).lastrowid
    assert key is not None
    connection.executemany(_INSERT_SOURCE, [(policy, key) for policy in _sources(permissions).policies])
    return key


def _delete(connection: sqlite3.Connection, key: int, rows: Iterable[tuple[int, int | None]]) -> None:
    for last, permissions in rows:
        connection.execute(_DELETE, (key, last))
        if permissions is not None and connection.execute(_IS_USED, (permissions,)).fetchone() is None:
            _delete_permissions(connection, permissions)


def _delete_permissions(connection: sqlite3.Connection, permissions: int) -> None:
    connection.execute(_DELETE_SOURCES, (permissions,))
    connection.execute(_DELETE_PERMISSIONS, (permissions,))


def name_all(connection: sqlite3.Connection) -> None:
    """Write down again which policies all things name, after their states were written without `store`.

    Which of them are no references is not known any more.
    """
    for statement in _NAME_ALL:
        connection.execute(statement)


def forget(connection: sqlite3.Connection, type: str, id: str) -> None:
    """Delete everything about an erased entity: of a policy also the permissions that came from it."""
    row = connection.execute(_KEY, (type, id)).fetchone()
    if row is not None:
        (key,) = row
        connection.execute(_NAME_NONE, (key,))
        _delete(connection, key, connection.execute(_SURPLUS, (key, 0)).fetchall())
    if type == EntityType.POLICY.value:
        for (permissions,) in connection.execute(_OF_SOURCE, (id,)).fetchall():
            connection.execute(_FORGET_PERMISSIONS, (permissions,))
            _delete_permissions(connection, permissions)


def add_deletion(connection: sqlite3.Connection, type: str, id: str, revision: int) -> None:
    """Store a deletion that the journal does not know; nobody's permissions are known."""
    row = connection.execute(_UNKNOWN_DELETION, (type, id, revision)).fetchone()
    if row is not None:
        end(connection, row[0], revision, None)


def ended(connection: sqlite3.Connection, type: str, id: str) -> list[Incarnation]:
    """Return the committed incarnations that have ended, the newest first."""
    return [Incarnation._make(row) for row in connection.execute(_ENDED, (type, id))]


def references(
    connection: sqlite3.Connection, policy: str, other_things: Sequence[str] = (), other_policies: Sequence[str] = ()
) -> PolicyReferences:
    """Return how many committed things refer to a policy, and how many policies import it.

    The other things and policies are left out. It is one statement, so that no commit comes between.
    """
    quoted, things, policies = map(msgspec.json.encode, (policy, other_things, other_policies))
    row = connection.execute(_REFERENCES, (policy, quoted, things.decode(), policies.decode())).fetchone()
    return PolicyReferences._make(row)

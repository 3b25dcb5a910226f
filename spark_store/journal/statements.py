"""Statements on events in order of their numbers, on cursors of targets, and on due policies.

They run on the reading connection, or inside the transaction. Numbers of trimmed or erased events are missing. A target's
position (`places`) outlives the service: the number of the event up to which it needs none. A new one is after the newest
event. Positions do not prevent trimming: a target skips trimmed events, and counts them.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from mappings.ids import EntityId
from mappings.model.signals import Event
from mappings.timestamps import utc_text
from spark_store.errors import Unstorable
from spark_store.records import CursorPosition, EventCause, PolicyDue, PublishedEvent, entity_of, published_size

_COLUMNS = """
    SELECT entries.seq, type, id, entries.revision, timestamp, action, path, value, headers, origin, cause
"""
_FOLLOW_ON = f"""{_COLUMNS}
    FROM entries JOIN entities ON entities.key = entries.entity WHERE entries.seq > ? ORDER BY entries.seq LIMIT ?
"""
_FOLLOWED = f"""{_COLUMNS}
    FROM entities JOIN entries ON entries.entity = entities.key WHERE type = ? AND id = ? AND entries.revision >= ?
    ORDER BY entries.revision LIMIT 1
"""
_ALL = "SELECT connection, target, seq, skipped, parked FROM places ORDER BY connection, target"
_TARGETS = "SELECT target FROM places WHERE connection = ?"
_BEGIN = "INSERT INTO places (connection, target, seq, skipped) SELECT ?, ?, value, 0 FROM counters WHERE name = 'seq'"
_MOVE = "UPDATE places SET seq = ?, skipped = ?, parked = ? WHERE connection = ? AND target = ? AND seq <= ?"
_REMOVE = "DELETE FROM places WHERE connection = ? AND target = ?"


_with_last_state = msgspec.json.Decoder(tuple[dict[str, Any], msgspec.Raw]).decode
_parked_things = msgspec.json.Decoder(tuple[tuple[str, int], ...]).decode


def columns(cause: EventCause) -> tuple[str, bytes]:
    """The columns `origin` and `cause` of an entry. Raises Unstorable."""
    try:
        told = cause.headers if cause.last is None else (cause.headers, msgspec.Raw(cause.last))
        return cause.origin, msgspec.json.encode(told)
    except (TypeError, ValueError, RecursionError) as error:
        raise Unstorable(f"expected headers that are JSON: {error}") from error


def follow_on(connection: sqlite3.Connection, after: int, limit: int, max_bytes: int) -> list[PublishedEvent]:
    """Return events with numbers above `after`, `limit` at most and about `max_bytes`."""
    found: list[PublishedEvent] = []
    with contextlib.closing(connection.execute(_FOLLOW_ON, (after, max(limit, 0)))) as rows:
        for row in rows:
            found.append(one := _published_event(row))
            max_bytes -= published_size(one)
            if max_bytes <= 0:
                break
    return found


def next_event(connection: sqlite3.Connection, entity: EntityId, revision: int) -> PublishedEvent | None:
    """Return the first event of an entity from this revision on; None if there is none."""
    row = connection.execute(_FOLLOWED, (entity.type.value, entity.id, revision)).fetchone()
    return None if row is None else _published_event(row)


def _published_event(row: tuple[Any, ...]) -> PublishedEvent:
    seq, type, id, *event, origin, told = row
    cause = None
    if origin is not None and told[:1] == b"[":
        headers, last = _with_last_state(told)
        cause = EventCause(origin, headers, bytes(last))
    elif origin is not None:
        cause = EventCause(origin, msgspec.json.decode(told))
    return PublishedEvent(seq, Event(entity_of(type, id), *event), cause)


def everyone(connection: sqlite3.Connection) -> list[CursorPosition]:
    """Every place there is."""
    return [CursorPosition._make((*row[:-1], _parked_things(row[-1]))) for row in connection.execute(_ALL)]


def follow(connection: sqlite3.Connection, connection_id: str, targets: Sequence[str]) -> None:
    """Create and delete positions so that exactly these targets of a connection have one.

    A new one is after the newest event.
    """
    known = {target for (target,) in connection.execute(_TARGETS, (connection_id,))}
    gone = [(connection_id, target) for target in sorted(known.difference(targets))]
    if gone:
        connection.executemany(_REMOVE, gone)
    new = [(connection_id, target) for target in dict.fromkeys(targets) if target not in known]
    if new:
        connection.executemany(_BEGIN, new)


def move(connection: sqlite3.Connection, places: Sequence[CursorPosition]) -> None:
    """Store positions. A deleted one is not created again, and none goes back."""
    rows = [
        (place.seq, place.skipped, msgspec.json.encode(place.parked).decode(), *place[:2], place.seq)
        for place in places
    ]
    connection.executemany(_MOVE, rows)


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


def due(connection: sqlite3.Connection, until: str, limit: int) -> list[PolicyDue]:
    """Return policies that are due up to a time, the earliest first."""
    rows = connection.execute(_DUE, (until, limit)).fetchall()
    return [PolicyDue(entity_of(type, id), note) for type, id, note in rows]


def look_again(
    connection: sqlite3.Connection, policy: EntityId, revision: int, at: str | None, note: bytes | None
) -> None:
    """Store when a policy is due again; no effect if it has changed since `revision`."""
    named = (policy.type.value, policy.id)
    if at is None:
        connection.execute(_LOOKED, (*named, revision))
    else:
        connection.execute(_LOOK_AGAIN, (note, revision, at, *named))


TS = "ts"
"""The header with the publisher's time."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = f"""
    SELECT revision FROM entries
    WHERE entity = (SELECT key FROM entities WHERE type = ? AND id = ?) AND revision BETWEEN ? AND ?
    AND CASE WHEN headers = CAST('{{}}' AS BLOB) THEN timestamp >= ?5
        ELSE coalesce(json_extract(CAST(headers AS TEXT), '$.{TS}') >= ?6, timestamp >= ?5) END
    ORDER BY revision LIMIT 1
"""


def first(connection: sqlite3.Connection, entity: EntityId, first: int, last: int, instant: int) -> int:
    """Return the first of these revisions that was published at an instant or later; 0 for none.

    The instant is in milliseconds.
    """
    parameters = (entity.type.value, entity.id, first, last, as_timestamp(instant), instant)
    row = connection.execute(_FIRST, parameters).fetchone()
    return 0 if row is None else int(row[0])


def as_timestamp(instant: int) -> str:
    """Milliseconds since 1970 as events write times, or a text that is below or above all of them."""
    try:
        return utc_text(_EPOCH + timedelta(milliseconds=instant))
    except OverflowError:
        return "" if instant < 0 else "A"

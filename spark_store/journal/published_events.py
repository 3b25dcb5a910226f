"""Reads events in the order of their numbers, with the causes that targets need.

The functions run on the reading connection, or inside the transaction. Numbers of trimmed or erased events are missing.
"""

from __future__ import annotations

import contextlib
import sqlite3
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from mappings.ids import EntityId
from mappings.model.signals import Event
from mappings.timestamps import utc_text
from spark_store.errors import Unstorable
from spark_store.records import EventCause, PublishedEvent, entity_of, published_size

_COLUMNS = """
    SELECT entries.seq, type, id, entries.revision, timestamp, action, path, value, headers, origin, cause
"""
_EVENTS_AFTER = f"""{_COLUMNS}
    FROM entries JOIN entities ON entities.key = entries.entity WHERE entries.seq > ? ORDER BY entries.seq LIMIT ?
"""
_NEXT_EVENT = f"""{_COLUMNS}
    FROM entities JOIN entries ON entries.entity = entities.key WHERE type = ? AND id = ? AND entries.revision >= ?
    ORDER BY entries.revision LIMIT 1
"""
_with_last_state = msgspec.json.Decoder(tuple[dict[str, Any], msgspec.Raw]).decode


def cause_columns(cause: EventCause) -> tuple[str, bytes]:
    """The columns `origin` and `cause` of an entry. Raises Unstorable."""
    try:
        stored = cause.headers if cause.last is None else (cause.headers, msgspec.Raw(cause.last))
        return cause.origin, msgspec.json.encode(stored)
    except (TypeError, ValueError, RecursionError) as error:
        raise Unstorable(f"expected headers that are JSON: {error}") from error


def events_after(connection: sqlite3.Connection, after: int, limit: int, max_bytes: int) -> list[PublishedEvent]:
    """Return events with numbers above `after`, `limit` at most and about `max_bytes`."""
    found: list[PublishedEvent] = []
    with contextlib.closing(connection.execute(_EVENTS_AFTER, (after, max(limit, 0)))) as rows:
        for row in rows:
            found.append(event := _published_event(row))
            max_bytes -= published_size(event)
            if max_bytes <= 0:
                break
    return found


def next_event(connection: sqlite3.Connection, entity: EntityId, revision: int) -> PublishedEvent | None:
    """Return the first event of an entity from this revision on; None if there is none."""
    row = connection.execute(_NEXT_EVENT, (entity.type.value, entity.id, revision)).fetchone()
    return None if row is None else _published_event(row)


def _published_event(row: tuple[Any, ...]) -> PublishedEvent:
    seq, type, id, *event, origin, stored = row
    cause = None
    if origin is not None and stored[:1] == b"[":
        headers, last = _with_last_state(stored)
        cause = EventCause(origin, headers, bytes(last))
    elif origin is not None:
        cause = EventCause(origin, msgspec.json.decode(stored))
    return PublishedEvent(seq, Event(entity_of(type, id), *event), cause)


TS = "ts"
"""The header with the publisher's time."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_PUBLISHED = f"""
    SELECT revision FROM entries
    WHERE entity = (SELECT key FROM entities WHERE type = ? AND id = ?) AND revision BETWEEN ? AND ?
    AND CASE WHEN headers = CAST('{{}}' AS BLOB) THEN timestamp >= ?5
        ELSE coalesce(json_extract(CAST(headers AS TEXT), '$.{TS}') >= ?6, timestamp >= ?5) END
    ORDER BY revision LIMIT 1
"""


def first_published(connection: sqlite3.Connection, entity: EntityId, first: int, last: int, instant: int) -> int:
    """Return the first of these revisions that was published at an instant or later; 0 for none.

    The instant is in milliseconds.
    """
    parameters = (entity.type.value, entity.id, first, last, timestamp_of(instant), instant)
    row = connection.execute(_FIRST_PUBLISHED, parameters).fetchone()
    return 0 if row is None else int(row[0])


def timestamp_of(instant: int) -> str:
    """Milliseconds since 1970 as events write times, or a text that is below or above all of them."""
    try:
        return utc_text(_EPOCH + timedelta(milliseconds=instant))
    except OverflowError:
        return "" if instant < 0 else "A"

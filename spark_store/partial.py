"""What a filter sees: the partial thing that one event carries, and the whole thing as it is.

A history filter judges every event alone (Ditto protocol, streaming subscriptions, filter). It sees the thing's id, the
event's revision and time, and what the event changed at its place; no earlier state. So a filter on a field matches the
events that bring the field along, and `ne` and `not` match those that do not.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mappings.signals import Event
from spark_store.errors import StoreError
from spark_store.records import Snapshot
from spark_store.replay import merge, state_path

_decode = msgspec.json.Decoder().decode


def partial_thing(event: Event) -> dict[str, Any]:
    """The thing as far as this event of a thing tells it, with `_revision` and `_modified`.

    A merge tells what it leaves behind: its nulls are removed. A deletion tells nothing. Raises StoreError for an event
    whose value is no JSON, which no journal should hold.
    """
    document = _changed(event)
    document["thingId"] = event.entity.id
    document["_revision"] = event.revision
    document["_modified"] = event.timestamp
    return document


def whole_thing(snapshot: Snapshot) -> dict[str, Any]:
    """The thing of a snapshot with the fields beside it, as a `condition` sees it."""
    return {
        **(snapshot.state or {}),
        "thingId": snapshot.entity.id,
        "_revision": snapshot.revision,
        "_created": snapshot.created,
        "_modified": snapshot.modified,
    }


def _changed(event: Event) -> dict[str, Any]:
    """A fresh document with what the event changed at its place."""
    if event.value is None:
        return {}  # a deletion
    value = _parse(event, event.value)
    if event.action == "merged":
        if value is None:
            return {}
        value = merge(None, value)
    for key in reversed(state_path(event.entity.type, event.path)):
        value = {key: value}
    return value if isinstance(value, dict) else {}


def _parse(event: Event, value: bytes) -> Any:
    try:
        return _decode(value)
    except msgspec.DecodeError as error:
        raise StoreError(f"{event.entity} at revision {event.revision}: expected JSON, found {value[:80]!r}") from error

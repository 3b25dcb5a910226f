"""The document that a filter sees: the partial thing of one event, or the whole present thing.

A history filter judges every event alone (Ditto protocol, streaming subscriptions, filter). It sees the thing's ID, the
event's revision and time, and the changed value at its place, but no earlier state. So a filter on a field matches the
events with that field, and `ne` and `not` match those without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from mappings.ids import EntityType
from mappings.json_values import parse_json
from mappings.model.json_pointer import MISSING
from mappings.model.signals import Event
from spark_store import rql
from spark_store.errors import FilterTooExpensive, StoreError
from spark_store.history.replay import STATE_PATHS
from spark_store.records import Snapshot, event_size


def partial_thing(event: Event) -> dict[str, Any]:
    """Return the thing as far as this event describes it, with `_revision` and `_modified`.

    A merge is shown without its nulls, a deletion is empty. Raises StoreError for an event whose value is no JSON, which no
    journal should contain.
    """
    value = MISSING if event.value is None else _parse(event, event.value)
    document = changed_part(event.entity.type, event.action, event.path, value)
    document["thingId"] = event.entity.id
    document["_revision"] = event.revision
    document["_modified"] = event.timestamp
    return document


def matches(predicate: rql.Predicate, weight: int, event: Event) -> bool:
    """Whether an event matches a filter of this `rql.weight`. Raises FilterTooExpensive."""
    thing = partial_thing(event)
    if weight * event_size(event) > rql.MOST_BYTES:
        try:
            rql.require_quick([predicate], thing)
        except FilterTooExpensive as error:
            raise FilterTooExpensive(error.found, error.allowed, event.revision) from error
    return rql.evaluate(predicate, thing)


def changed_part(type: EntityType, action: str, path: str, value: Any) -> dict[str, Any]:
    """Return a new document with the changed value at its place.

    `value` is parsed; MISSING for a deletion.
    """
    if value is MISSING or (action == "merged" and value is None):
        return {}
    if action == "merged":
        value = _without_nulls(value)
    for key in reversed(STATE_PATHS[type](path)):
        value = {key: value}
    return dict(value) if isinstance(value, Mapping) else {}


def _without_nulls(patch: Any) -> Any:
    """Return a patch without the members that it deletes. The patterns of a live merge may be invalid."""
    if not isinstance(patch, Mapping):
        return patch
    return {key: _without_nulls(member) for key, member in patch.items() if member is not None}


def whole_thing(snapshot: Snapshot) -> dict[str, Any]:
    """The thing of a snapshot with the fields beside it, as a `condition` sees it."""
    return thing_document(
        snapshot.entity.id, snapshot.revision, snapshot.created, snapshot.modified, snapshot.state or {}
    )


def thing_document(id: str, revision: int, created: str, modified: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """A thing with the fields beside the document."""
    return {**state, "thingId": id, "_revision": revision, "_created": created, "_modified": modified}


def _parse(event: Event, value: bytes) -> Any:
    try:
        return parse_json(value)
    except msgspec.DecodeError as error:
        raise StoreError(f"{event.entity} at revision {event.revision}: expected JSON, found {value[:80]!r}") from error

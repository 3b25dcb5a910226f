"""The state that events lead to, for tests that need an entity with a history."""

from __future__ import annotations

from collections.abc import Iterable

from mappings.model.signals import Event
from spark_store.history.replay import evolve
from spark_store.records import Snapshot


def fold(events: Iterable[Event]) -> Snapshot:
    """Return the state after all events of one entity, oldest first."""
    snapshot: Snapshot | None = None
    for event in events:
        snapshot = evolve(snapshot, event)
    assert snapshot is not None, "no event"
    return snapshot

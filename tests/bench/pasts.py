"""Journals with a long past, as a service leaves them: the entities' events lie between each other, each with a state.

They are written with the journal's own calls, so that they are what the pipeline will find; many events share a commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from mappings.ids import EntityId
from mappings.signals import Event
from spark_store.journal import SqliteJournal
from spark_store.records import Change, Snapshot
from tests.bench.site import thing

EVENTS_EACH = 1_000
"""Events of each entity, however many there are in all."""

COMMIT = 5_000
PATH = "/features/sensor/properties/reading"
BEGUN = datetime(2030, 1, 15, 7, 30, tzinfo=UTC)


def write_past(path: Path, events: int, first: int = 0, each: int = EVENTS_EACH) -> int:
    """Write so many events, from the one numbered `first` on; how many entities there are now."""
    path.parent.mkdir(parents=True, exist_ok=True)
    entities = max(1, events // each)
    journal = SqliteJournal.open(path)
    try:
        for start in range(first, first + events, COMMIT):
            journal.append(list(changes(start, min(COMMIT, first + events - start), entities)))
    finally:
        journal.close()
    return entities


def changes(first: int, count: int, entities: int) -> Iterator[Change]:
    """The events numbered `first` and on: the entities take turns."""
    for number in range(first, first + count):
        revision, which = divmod(number, entities)
        yield change(thing(which), revision + 1, number)


def change(entity: EntityId, revision: int, number: int) -> Change:
    """One report of a sensor, some hundred bytes, which no other resembles closely; and the thing after it."""
    at = _stamp(number)
    reading = {"celsius": (number * 7919 % 100_003) / 1000, "n": number, "note": f"{number * 2654435761 % 2**32:08x}"}
    if revision == 1:
        event = Event(entity, 1, at, "created", "/", json.dumps(_thing(entity, reading)).encode(), b"{}")
    else:
        event = Event(entity, revision, at, "modified", PATH, json.dumps(reading).encode(), b"{}")
    state = Snapshot(entity, revision, _stamp(0), at, _thing(entity, reading), str(entity))
    return Change((event,), (state,))


def _thing(entity: EntityId, reading: dict[str, object]) -> dict[str, object]:
    features = {"sensor": {"properties": {"reading": reading}}}
    return {"thingId": str(entity), "policyId": str(entity), "attributes": {"maker": "acme"}, "features": features}


def _stamp(number: int) -> str:
    """A hundred events in each second."""
    at = BEGUN + timedelta(milliseconds=10 * number)
    return f"{at.isoformat(timespec='microseconds')[:-6]}Z"

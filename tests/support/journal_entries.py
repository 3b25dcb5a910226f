"""Entities, changes and events for tests of journal, store and lake."""

from __future__ import annotations

from typing import Any

from mappings.ids import EntityId, EntityType, partition_entity
from mappings.model.signals import Event
from spark_store.records import Change, DeliveryName, Snapshot, StoredAnswer

LAMP = EntityId(EntityType.THING, "acme.site", "lamp-7")
POLICY = EntityId(EntityType.POLICY, "acme.site", "lamp-7")
TANK = partition_entity("acme.site:hall/tank/0")
ALL = 2**62
MUCH = 1 << 20
LATER = "9999-12-31T23:59:59.000000Z"


def timestamp(revision: int) -> str:
    """Return a timestamp with one second for each revision."""
    return f"2030-01-15T{revision // 3600:02}:{revision // 60 % 60:02}:{revision % 60:02}.250000Z"


def event(entity: EntityId, revision: int, value: bytes | None = None, path: str = "/attributes/counter") -> Event:
    """Return a modification whose value is the revision minus one, or `value`."""
    value = str(revision - 1).encode() if value is None else value
    return Event(entity, revision, timestamp(revision), "modified", path, value, b"{}")


def snapshot(entity: EntityId, revision: int, state: dict[str, Any] | None = None) -> Snapshot:
    state = {"attributes": {"counter": revision - 1}} if state is None else state
    return Snapshot(entity, revision, timestamp(1), timestamp(revision), state, "acme.site:policy")


def change(entity: EntityId, revision: int, value: bytes | None = None, answer: StoredAnswer | None = None) -> Change:
    """Return one event and the state after it."""
    return Change((event(entity, revision, value),), (snapshot(entity, revision),), answer)


def published(entity: EntityId, revision: int, content: bytes | None = None, headers: bytes = b"{}") -> Change:
    """Return a message of a stream, and the state of its partition, which has no content."""
    value = b'"%d"' % revision if content is None else content
    message = Event(entity, revision, timestamp(revision), "published", "/", value, headers)
    return Change((message,), (Snapshot(entity, revision, timestamp(1), timestamp(revision), {}, None),))


def history(entity: EntityId, last: int, first: int = 1) -> list[Change]:
    return [change(entity, revision) for revision in range(first, last + 1)]


def delivery(number: int, digest: bytes = b"digest") -> DeliveryName:
    return DeliveryName("conn-1", 0, str(number), digest)


def recorded(number: int, partition: str = "topic/0") -> StoredAnswer:
    """Return the stored response to a record with this offset."""
    name = delivery(number)._replace(name=f"{partition}/{number}", partition=partition, offset=number)
    return StoredAnswer(name, b"done")


def answered(number: int, text: bytes = b"done") -> StoredAnswer:
    return StoredAnswer(delivery(number), text)


def revisions(events: list[Event]) -> list[int]:
    return [found.revision for found in events]


class NanoClock:
    """A clock of nanoseconds since 1970 that tests move."""

    def __init__(self) -> None:
        self.now = 1_900_000_000_000_000_000

    def __call__(self) -> int:
        return self.now

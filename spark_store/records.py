"""The rows of the journal, as Python values.

An `Event` (from `mappings.model.signals`) is one entry; a `Snapshot` is an entity after its newest entry; an `StoredAnswer`
is what a delivery was answered, kept in the same transaction so that a redelivery is answered again and not carried out
again.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from mappings.ids import EntityId, EntityType, namespace_of, partition_entity
from mappings.model.signals import Event
from mappings.texts import utc_text


def entity_of(type: str, id: str) -> EntityId:
    """The entity with this whole id, as journal and lake name it."""
    if type == EntityType.STREAM.value:
        return partition_entity(id)
    namespace = namespace_of(id)
    return EntityId(EntityType(type), namespace, id[len(namespace) + 1 :] if ":" in id else id)


def event_size(event: Event) -> int:
    """What an event counts towards a bound in bytes."""
    return len(event.headers) + (len(event.value) if event.value is not None else 0)


class Snapshot(msgspec.Struct, frozen=True):
    """An entity at a revision.

    `state` is its parsed JSON without the `_…` fields, or None once it is deleted.

    A deleted entity keeps its last `policy` and its revision, because a re-creation goes on counting. A stream's partition
    has no more to it than its revision: its state is empty. Times are UTC text as in `Event.timestamp`. `state` must not be
    changed: `spark_store.history.replay.evolve` makes a new one.
    """

    entity: EntityId
    revision: int
    created: str
    modified: str
    state: Mapping[str, Any] | None
    policy: str | None

    @property
    def is_deleted(self) -> bool:
        return self.state is None


class NumberedEvent(NamedTuple):
    """An event, and its running number within the journal (`seq`)."""

    seq: int
    event: Event


class OldestEvent(NamedTuple):
    """Number and timestamp of the oldest event that a journal has."""

    seq: int
    timestamp: str


class HistoryStart(NamedTuple):
    """Where an entity's events begin: up to which revision they were erased (0: not at all), and the first one behind that
    which the journal has, or will have next where it has none."""

    erased: int
    first: int

    @property
    def is_here(self) -> bool:
        """Whether the journal has everything that was not erased."""
        return self.first == self.erased + 1


class EventCause(NamedTuple):
    """What an event goes to targets with: the connection that its command came by, and the headers that it has there."""

    origin: str
    headers: Mapping[str, Any]


class PublishedEvent(NamedTuple):
    """An event as those see it who follow all of them in order.

    `cause` is None where nobody followed when it was stored.
    """

    seq: int
    event: Event
    cause: EventCause | None


class CursorPosition(NamedTuple):
    """How far a target of a connection has come: it needs no event up to the number `seq` any more.

    `skipped` counts those that the journal had let go before it could have them.
    """

    connection: str
    target: str
    seq: int
    skipped: int = 0


class PolicyDue(NamedTuple):
    """A policy that has to be looked at because something in it expires, and what was noted when it was last looked at."""

    entity: EntityId
    note: bytes | None


class Times(NamedTuple):
    """Timestamps as events write them, both exclusive: only events between them are meant.

    None is no bound.
    """

    after: str | None = None
    before: str | None = None


class PastQuery(NamedTuple):
    """An entity as it was right after revision `last`, or after the last event up to it that happened before an instant.

    The instant is in nanoseconds since 1970.
    """

    entity: EntityId
    last: int
    before: int | None


class PastState(msgspec.Struct, frozen=True):
    """An entity as it was, and the headers that its last event was kept with, as a JSON object."""

    snapshot: Snapshot
    headers: bytes


class DeliveryName(NamedTuple):
    """What names a delivery across redeliveries: connection, source index, the broker's own name and the bytes' hash.

    For MQTT the name is the packet identifier; with an `idempotency-key` header it is that key, on every broker. Brokers
    use their names again: only what was last delivered under a name can come again under it.
    """

    connection: str
    source: int
    name: str
    digest: bytes

    @property
    def place(self) -> tuple[str, int, str]:
        """The name without the bytes: the next delivery under it takes the place of the last one."""
        return self.connection, self.source, self.name


class StoredAnswer(msgspec.Struct, frozen=True):
    """What a delivery was answered: opaque bytes of the caller's own making."""

    delivery: DeliveryName
    answer: bytes


class Change(msgspec.Struct, frozen=True):
    """One command's effect, stored as a whole or not at all: its events, the states after them, what was answered.

    `cause` is kept with each of the events, for those who follow them.
    """

    events: tuple[Event, ...]
    snapshots: tuple[Snapshot, ...]
    answer: StoredAnswer | None = None
    cause: EventCause | None = None


class StoredRevision(NamedTuple):
    """One revision of a connection of the API: its sealed document as JSON, None where it was deleted."""

    id: str
    revision: int
    document: str | None
    modified: str
    by: str
    action: str


class FileNote(NamedTuple):
    """What is kept of a connection that a file owns: how its document looked last, and what an operator wants instead.

    `digest` is empty once the file is gone.
    """

    id: str
    revision: int
    digest: str
    modified: str
    override: str | None


class SessionKey(NamedTuple):
    """Names something that a session keeps: the connection and the mapper that it speaks through, the address that it is
    sent to, and a key of the protocol's own."""

    connection: str
    mapper: str
    address: str
    key: str


class SessionRow(NamedTuple):
    """Something of a session that outlives the service.

    `source`: the index of the one by whose reply-target the session is spoken to; `row` is the protocol's own. `last`: up to
    which element it has been sent what it follows, None where it follows nothing.
    """

    at: SessionKey
    source: int
    row: bytes
    last: int | None = None


class AuditEntry(NamedTuple):
    """Somebody did something with a connection, which made this revision of it."""

    at: str
    by: str
    action: str
    connection: str
    revision: int | None
    details: str | None = None


SPARK_FORMAT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"
"""The same for Spark's `date_format`, in a session whose time zone is UTC."""


def now_text() -> str:
    """What the clock says."""
    return utc_text(datetime.now(UTC))

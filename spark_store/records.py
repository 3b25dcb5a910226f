"""The rows of the journal as Python values.

An `Event` (from `mappings.model.signals`) is one entry; a `Snapshot` is an entity after its newest entry; a `StoredAnswer`
is the answer to a delivery, stored in the same transaction so that a redelivery is answered and not executed again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from mappings.ids import EntityId, EntityType, namespace_of, partition_entity
from mappings.model.signals import Event
from mappings.timestamps import utc_text

LOCAL_MASTER = re.compile(r"local(?:\[(?P<cores>[0-9]+|\*)\])?")
"""The Spark masters whose workers can open the journal."""

JAVA_MEMORY: Final = "832m"
"""The default memory of Spark's Java process, whose own needs are 0.7 GB more."""

EXPECTED_MASTER = (
    "local, local[N] or local[*]: the journal is an SQLite file, which only processes on this host can open safely"
)


def entity_of(type: str, id: str) -> EntityId:
    """The entity with this whole id, as journal and lake name it."""
    if type == EntityType.STREAM.value:
        return partition_entity(id)
    namespace = namespace_of(id)
    return EntityId(EntityType(type), namespace, id[len(namespace) + 1 :] if ":" in id else id)


def event_size(event: Event) -> int:
    """Return the size of an event for bounds in bytes."""
    return len(event.headers) + (len(event.value) if event.value is not None else 0)


def read_events(entity: EntityId, rows: Iterable[tuple[Any, ...]], max_bytes: int) -> list[Event]:
    """Return rows as events of an entity, up to the one with which their sizes come to `max_bytes`."""
    found: list[Event] = []
    add, new = found.append, tuple.__new__
    for revision, timestamp, action, path, value, headers in rows:
        # `Event(…)` without its Python function: this line runs for every event that is sent.
        add(new(Event, (entity, revision, timestamp, action, path, value, headers)))
        max_bytes -= len(headers) if value is None else len(headers) + len(value)
        if max_bytes <= 0:
            break
    return found


def published_size(published: PublishedEvent) -> int:
    """As `event_size`, with the last state that the event's cause may have."""
    cause = published.cause
    return event_size(published.event) + (len(cause.last) if cause is not None and cause.last is not None else 0)


class Snapshot(msgspec.Struct, frozen=True):
    """An entity at a revision.

    `state` is its parsed JSON without the `_…` fields, or None once it is deleted. A deleted entity keeps its last `policy`
    and its revision, because a new one continues counting. A stream's partition has only a revision: its state is empty.
    Times are UTC text as in `Event.timestamp`. `state` must not be changed: `spark_store.history.replay.evolve` returns a
    new one.
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
    """Where an entity's events begin in the journal.

    The revision up to which they were erased (0: none), and the first existing or next one after it.
    """

    erased: int
    first: int

    @property
    def is_here(self) -> bool:
        """Whether the journal has all events that were not erased."""
        return self.first == self.erased + 1


class Incarnation(NamedTuple):
    """The life of a deleted entity: its first and last revision, and who could read it then.

    `permissions` are those of its policy at the deletion, imports included, as JSON; None if they are not known.
    """

    first: int
    last: int
    permissions: bytes | None


class StateGuard(NamedTuple):
    """The policy that decides about a state, or the permissions at the end of its incarnation.

    The namespace is that of the entity; the permissions are those of `Incarnation`, None for the present incarnation. The
    policy is empty for others.
    """

    policy: str
    namespace: str
    permissions: bytes | None = None


class PolicyReferences(NamedTuple):
    """How many things name a policy, and how many policies import it."""

    things: int
    policies: int


class EventCause(NamedTuple):
    """The cause of an event for targets: the connection of its command, and its headers there.

    `last` is the state of a thing before the event that deletes it, as JSON.
    """

    origin: str
    headers: Mapping[str, Any]
    last: bytes | None = None


class PublishedEvent(NamedTuple):
    """An event with its number and cause. `cause` is None if no target existed when it was stored."""

    seq: int
    event: Event
    cause: EventCause | None


class CursorPosition(NamedTuple):
    """The position of a target: it needs no event up to the number `seq`.

    `skipped` counts events that were missed. Of each parked thing it still needs the events from a revision on: `parked` has
    the thing's ID and this revision.
    """

    connection: str
    target: str
    seq: int
    skipped: int = 0
    parked: tuple[tuple[str, int], ...] = ()


class PolicyDue(NamedTuple):
    """A policy with an expiry that is due, its committed revision, and the note of the last check."""

    entity: EntityId
    revision: int
    note: bytes | None


class Times(NamedTuple):
    """Exclusive timestamps, as events write them. None is no bound."""

    after: str | None = None
    before: str | None = None


class PastQuery(NamedTuple):
    """An entity after revision `last`, or after the last event up to it before an instant.

    The instant is in nanoseconds since 1970.
    """

    entity: EntityId
    last: int
    before: int | None


class PastState(msgspec.Struct, frozen=True):
    """A past state, and the stored headers of its last event as a JSON object."""

    snapshot: Snapshot
    headers: bytes


class DeliveryName(NamedTuple):
    """The identity of a delivery across redeliveries.

    Connection, source index, the broker's name and the hash of the payload. For MQTT the name is the packet identifier; with
    an `idempotency-key` header it is that key, on every broker, and the source is 0. Brokers reuse names: only the last
    delivery under a name can be redelivered. `partition` and `offset` are those of a delivery from a log, such as Kafka's;
    else empty. `digest` is empty for all names but the broker's own.
    """

    connection: str
    source: int
    name: str
    digest: bytes
    partition: str = ""
    offset: int = 0

    @property
    def is_position(self) -> bool:
        """Whether the name is the delivery's position in a log: no delivery at another offset has it."""
        return bool(self.partition and self.digest)

    @property
    def place(self) -> tuple[str, int, str]:
        """The name without the bytes: the next delivery under it takes the place of the last one."""
        return self.connection, self.source, self.name


class StoredAnswer(msgspec.Struct, frozen=True):
    """The answer to a delivery: bytes in the caller's format."""

    delivery: DeliveryName
    answer: bytes


class Change(msgspec.Struct, frozen=True):
    """The effect of one command, stored completely or not at all: events, states, answer.

    `cause` is stored with each of the events, for targets. `permissions`: see `Incarnation`, if an entity is deleted.
    `creator` is the subject that creates things or policies, if quotas need it. `is_reference`: whether the thing keeps the
    policy that it names from being deleted; None as before, or always for a new thing.
    """

    events: tuple[Event, ...]
    snapshots: tuple[Snapshot, ...]
    answer: StoredAnswer | None = None
    cause: EventCause | None = None
    permissions: bytes | None = None
    creator: str | None = None
    is_reference: bool | None = None


class StoredRevision(NamedTuple):
    """One revision of a connection of the API: its sealed document as JSON, None if it was deleted."""

    id: str
    revision: int
    document: str | None
    modified: str
    by: str
    action: str


class FileNote(NamedTuple):
    """The note on a connection that a file owns: its document's digest, and an operator's override.

    `digest` is empty once the file is gone.
    """

    id: str
    revision: int
    digest: str
    modified: str
    override: str | None


class SessionKey(NamedTuple):
    """The key of a session's row: connection, mapper, reply address, and the protocol's own key."""

    connection: str
    mapper: str
    address: str
    key: str


class SessionRow(NamedTuple):
    """A row of a session that outlives the service.

    `source`: the index of the source with the session's reply-target; `row` is in the protocol's format. `last`: the
    position up to which elements were sent, None if it has none.
    """

    at: SessionKey
    source: int
    row: bytes
    last: int | None = None


class AuditEntry(NamedTuple):
    """An entry of the audit log: an operation on a connection that created this revision."""

    at: str
    by: str
    action: str
    connection: str
    revision: int | None
    details: str | None = None


SPARK_FORMAT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"
"""The same format for Spark's `date_format`, in a session with time zone UTC."""


def now_text() -> str:
    """Return the present time as text."""
    return utc_text(datetime.now(UTC))

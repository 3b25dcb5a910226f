"""Signals: what the parties say to each other, whatever the wire protocol.

Twin signals (`Command`, `Response`, `TwinEvent`, `ErrorResponse`), and `Event`, which rests in a history; the signals of the
live channel, which go from one party to another and rest nowhere (`Message`, `LiveCommand`, `LiveEvent`, and their answers);
acknowledgements, which tell a requester what became of its signal elsewhere; announcements of policies and connections; and
the seven signals of a subscription (`Subscribe`, `Request`, `Cancel` from the client; `Created`, `Next`, `Complete`,
`Failed` to it). What a client of a protocol with sessions of its own says comes in as `SessionMessage`. A codec reads and
writes them; the rest of the service knows nothing else.

JSON values travel as text: `value` holds the bytes that came in, white space removed, numbers and strings untouched.
`None` means that there is no value; JSON null is `b"null"`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

import msgspec

from mappings.errors import Fault
from mappings.ids import EntityId

Headers: TypeAlias = Mapping[str, Any]
"""Headers of a signal: name → JSON value.

The specification's own names are in lower case, others as they were sent.
"""


@dataclass(frozen=True, slots=True)
class Command:
    """A request to change or to read an entity. `action`: create, modify, merge, delete or retrieve."""

    entity: EntityId
    action: str
    path: str
    value: bytes | None
    headers: Headers
    fields: str | None = None


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to a command that was carried out."""

    entity: EntityId
    action: str
    path: str
    status: int
    value: bytes | None
    headers: Headers


class Event(NamedTuple):
    """One change of one entity; also the item of a history.

    `timestamp` is UTC with six digits (`2030-01-15T07:30:00.250000Z`), so text order is time order. `headers` is a JSON
    object as text: the headers of the writing command that the operator chose to keep.
    """

    entity: EntityId
    revision: int
    timestamp: str
    action: str
    path: str
    value: bytes | None
    headers: bytes


class TwinEvent(msgspec.Struct, frozen=True):
    """One change of one entity, on its way to those who want to hear of it.

    `timestamp` is that of `Event`; `headers` are those of the command that brought the change about. `extra` is a JSON
    object as text: what a target wants to know of the entity besides, as it is after the event; None for nothing.
    """

    entity: EntityId
    revision: int
    timestamp: str
    action: str
    path: str
    value: bytes | None
    headers: Headers
    extra: bytes | None = None


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """The answer to a command that failed, or that could not be read (then the entity may be unknown).

    `channel` is that of what failed, `twin` or `live`; policies have none.
    """

    entity: EntityId | None
    group: str
    fault: Fault
    headers: Headers
    channel: str = "twin"


@dataclass(frozen=True, slots=True)
class Message:
    """A message to a thing or from it, or to or from one of its features.

    `direction`: `to` (its inbox) or `from`.

    `extra` is that of `TwinEvent`, here as in all live signals: none as long as the signal is on its way in.
    """

    entity: EntityId
    direction: str
    subject: str
    path: str
    value: bytes | None
    headers: Headers
    extra: bytes | None = None


@dataclass(frozen=True, slots=True)
class MessageResponse:
    """The answer to a message, given by whoever received it."""

    entity: EntityId
    direction: str
    subject: str
    path: str
    status: int
    value: bytes | None
    headers: Headers


@dataclass(frozen=True, slots=True)
class LiveCommand:
    """A command that a device is to carry out itself; actions and paths are those of `Command`."""

    entity: EntityId
    action: str
    path: str
    value: bytes | None
    headers: Headers
    fields: str | None = None
    extra: bytes | None = None


@dataclass(frozen=True, slots=True)
class LiveResponse:
    """What the device says to a live command."""

    entity: EntityId
    action: str
    path: str
    status: int
    value: bytes | None
    headers: Headers


@dataclass(frozen=True, slots=True)
class LiveEvent:
    """What a device tells of itself, and no twin keeps. `action`: created, modified, merged or deleted."""

    entity: EntityId
    action: str
    path: str
    value: bytes | None
    headers: Headers
    extra: bytes | None = None


@dataclass(frozen=True, slots=True)
class PolicyAnnouncement:
    """What a policy tells its `subjects`, once; `name` says what it is about, such as `subjectDeletion`."""

    entity: EntityId
    name: str
    subjects: tuple[str, ...]
    value: bytes
    headers: Headers
    path: str = "/"


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """What became of somebody's signal, by one label.

    The correlation id of `headers` says which signal that was.
    """

    entity: EntityId
    label: str
    status: int
    value: bytes | None
    headers: Headers
    channel: str = "twin"


@dataclass(frozen=True, slots=True)
class Acknowledgements:
    """All acknowledgements that one signal asked for, as its requester is told.

    A label may stand here several times.
    """

    entity: EntityId
    acks: tuple[Acknowledgement, ...]
    status: int
    headers: Headers
    channel: str = "twin"


@dataclass(frozen=True, slots=True)
class ConnectionAnnouncement:
    """What becomes of a connection, as its own targets are told.

    `name`: opened or closed. It is about no entity.
    """

    connection_id: str
    name: str
    value: bytes
    headers: Headers
    path: str = "/"
    entity: None = None


class SubscriptionKind(str, Enum):
    """What a subscription delivers. Ids of different kinds never meet."""

    HISTORY = "history"
    SEARCH = "search"
    LIVE = "live"


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """Which events of one entity are wanted.

    Revisions are inclusive, 0 and negative ones relative to the newest (`to` of None: no upper bound). `after` and
    `before` are exclusive instants in nanoseconds since 1970. `filter` is RQL.
    """

    entity: EntityId
    from_revision: int = 0
    to_revision: int | None = None
    after: int | None = None
    before: int | None = None
    filter: str | None = None


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """Which things are wanted, as the client has written it; it is about no entity.

    `filter` is RQL, `options` say the order and the size of pages, `fields` is a field selector that can be read. No
    `namespaces` means all of them. `at` asks for the things as they were before an instant (nanoseconds since 1970),
    `aggregation` for what is made of them, as a JSON value.
    """

    filter: str | None = None
    options: str | None = None
    namespaces: tuple[str, ...] = ()
    fields: str | None = None
    at: int | None = None
    aggregation: bytes | None = None
    entity: ClassVar[None] = None


@dataclass(frozen=True, slots=True)
class LiveQuery:
    """Every event of one entity behind revision `after`, without an end; None: behind the newest one of this moment.

    `may_leap`: who does not keep up for long goes on with the newest event, and asks for what was left out if it is wanted.
    """

    entity: EntityId
    after: int | None = None
    may_leap: bool = False


@dataclass(frozen=True, slots=True)
class SessionQuery:
    """A question for which a desk knows the feed itself: `open` gives it, or the fault for which there is none.

    `entity` is the one that it is about, if there is one.
    """

    open: Callable[[], Any]
    entity: EntityId | None = None


Query: TypeAlias = HistoryQuery | SearchQuery | LiveQuery | SessionQuery


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Open a subscription.

    `key` is the client's own id, or None where the service chooses one; `demand` comes along in protocols that request with
    the subscribe itself.
    """

    kind: SubscriptionKind
    query: Query
    headers: Headers
    key: str | None = None
    demand: int = 0

    @property
    def entity(self) -> EntityId | None:
        """The entity that is asked about."""
        return self.query.entity


@dataclass(frozen=True, slots=True)
class Request:
    """Ask for `demand` more elements.

    `entity` is the one the client named, which need not be the subscription's.
    """

    kind: SubscriptionKind
    key: str
    demand: int
    headers: Headers
    entity: EntityId | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    kind: SubscriptionKind
    key: str
    headers: Headers
    entity: EntityId | None = None


@dataclass(frozen=True, slots=True)
class SessionMessage:
    """What a client of a protocol with sessions of its own said; its desk knows what it means (`connectivity.sessions`).

    `has_parts`: what it is about only its parts say. The desk has each of them judged.
    """

    request: Any
    headers: Headers
    entity: EntityId | None = None
    has_parts: bool = False


class EndReason(Enum):
    """Why a subscription ends for a reason of the subscription itself.

    Each wire protocol has its own words for it.
    """

    NOT_FOUND = "not found"
    INVALID_DEMAND = "invalid demand"
    CANCELLED = "considered cancelled"
    IDLE = "lack of interaction"
    ABORTED = "aborted by a restart"


@dataclass(frozen=True, slots=True)
class Created:
    kind: SubscriptionKind
    key: str
    entity: EntityId | None
    headers: Headers


@dataclass(frozen=True, slots=True)
class Next:
    """Elements in order: a protocol that sends them singly makes one message of each, one that packs may join them.

    An element of a history, or of what is followed live, is an `Event`; one of a search is a page: a JSON array of things,
    as text. `headers` are those of the client's latest command, `subscribed` those of its subscribe.
    """

    kind: SubscriptionKind
    key: str
    entity: EntityId | None
    headers: Headers
    elements: Sequence[Any]
    subscribed: Headers


@dataclass(frozen=True, slots=True)
class Complete:
    kind: SubscriptionKind
    key: str
    entity: EntityId | None
    headers: Headers


@dataclass(frozen=True, slots=True)
class Failed:
    kind: SubscriptionKind
    key: str
    entity: EntityId | None
    headers: Headers
    reason: Fault | EndReason


Live: TypeAlias = Message | LiveCommand | LiveEvent
"""What one party says to others by way of the service."""

LiveAnswer: TypeAlias = MessageResponse | LiveResponse

Inbound: TypeAlias = Command | Live | LiveAnswer | Acknowledgement | Subscribe | Request | Cancel | SessionMessage
Answer: TypeAlias = Response | LiveAnswer | ErrorResponse | Acknowledgements
"""What a requester is told once, at the end."""

Announcement: TypeAlias = ConnectionAnnouncement | PolicyAnnouncement

Outbound: TypeAlias = Answer | TwinEvent | Live | Announcement | Acknowledgement | Created | Next | Complete | Failed


LONGEST_TIMEOUT: Final = 60.0
"""Seconds; also how long is waited where a command does not say."""


def is_success(status: int) -> bool:
    return 200 <= status < 300

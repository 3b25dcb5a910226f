"""Signals: messages of all wire protocols in one form.

Twin signals (`Command`, `Response`, `TwinEvent`, `ErrorResponse`) and `Event`, the item of a history; signals of the live
channel, which are not stored (`Message`, `LiveCommand`, `LiveEvent`, and their responses); acknowledgements; announcements
of policies and connections; and the seven signals of a subscription (`Subscribe`, `Request`, `Cancel` from the client;
`Created`, `Next`, `Complete`, `Failed` to it). Messages of session protocols are `SessionMessage`. Codecs decode and encode
signals.

JSON values are text: `value` has the received bytes without white space. `None` is no value; JSON null is `b"null"`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

import msgspec

from mappings.errors import Fault
from mappings.ids import EntityId

Headers: TypeAlias = Mapping[str, Any]
"""Headers of a signal: name → JSON value.

The specification's own names are in lower case, others as they were sent.
"""

MAX_SIGNALS: Final = 10
"""The most signals of one message of the Ditto protocol."""


class Command(msgspec.Struct, frozen=True):
    """A request to change or to read an entity.

    `action`: create, modify, merge, delete, retrieve, or `checkPermissions` of several.
    """

    entity: EntityId
    action: str
    path: str
    value: bytes | None
    headers: Headers
    fields: str | None = None


class Response(msgspec.Struct, frozen=True):
    """The answer to a command that was carried out."""

    entity: EntityId
    action: str
    path: str
    status: int
    value: bytes | None
    headers: Headers


class Event(NamedTuple):
    """One change of one entity, and the item of a history.

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

    @property
    def is_creation(self) -> bool:
        """Whether the event creates a whole thing or policy."""
        return self.action == "created" and self.path == "/"

    @property
    def is_deletion(self) -> bool:
        """Whether the event deletes a whole thing or policy."""
        return self.action == "deleted" and self.path == "/"


class TwinEvent(msgspec.Struct, frozen=True):
    """One change of one entity, for its subscribers.

    `timestamp` is that of `Event`; `headers` are those of the causing command. `extra` is a JSON object as text: extra
    fields of the entity after the event; None for none.
    """

    entity: EntityId
    revision: int
    timestamp: str
    action: str
    path: str
    value: bytes | None
    headers: Headers
    extra: bytes | None = None


class ErrorResponse(msgspec.Struct, frozen=True):
    """The response to a failed or unreadable command, whose entity may be unknown.

    `channel` is that of the command, `twin` or `live`; policies have none.
    """

    entity: EntityId | None
    group: str
    fault: Fault
    headers: Headers
    channel: str = "twin"


class Message(msgspec.Struct, frozen=True):
    """A message to or from a thing or one of its features.

    `direction`: `to` (its inbox) or `from`. `extra` is that of `TwinEvent`, here as in all live signals: None while the
    signal is inbound.
    """

    entity: EntityId
    direction: str
    subject: str
    path: str
    value: bytes | None
    headers: Headers
    extra: bytes | None = None


class MessageResponse(msgspec.Struct, frozen=True):
    """The response to a message, sent by its receiver."""

    entity: EntityId
    direction: str
    subject: str
    path: str
    status: int
    value: bytes | None
    headers: Headers


class LiveCommand(msgspec.Struct, frozen=True):
    """A command that a device is to carry out itself; actions and paths are those of `Command`."""

    entity: EntityId
    action: str
    path: str
    value: bytes | None
    headers: Headers
    fields: str | None = None
    extra: bytes | None = None


class LiveResponse(msgspec.Struct, frozen=True):
    """The response of a device to a live command."""

    entity: EntityId
    action: str
    path: str
    status: int
    value: bytes | None
    headers: Headers


class LiveEvent(msgspec.Struct, frozen=True):
    """An event of a device that no twin stores. `action`: created, modified, merged or deleted."""

    entity: EntityId
    action: str
    path: str
    value: bytes | None
    headers: Headers
    extra: bytes | None = None


class PolicyAnnouncement(msgspec.Struct, frozen=True):
    """An announcement of a policy to its `subjects`; `name` is its kind, such as `subjectDeletion`."""

    entity: EntityId
    name: str
    subjects: tuple[str, ...]
    value: bytes
    headers: Headers
    path: str = "/"


class Acknowledgement(msgspec.Struct, frozen=True):
    """An acknowledgement of a signal under one label.

    The correlation ID in `headers` identifies the signal.
    """

    entity: EntityId
    label: str
    status: int
    value: bytes | None
    headers: Headers
    channel: str = "twin"


class Acknowledgements(msgspec.Struct, frozen=True):
    """All acknowledgements that one signal requested. Labels may be repeated."""

    entity: EntityId
    acks: tuple[Acknowledgement, ...]
    status: int
    headers: Headers
    channel: str = "twin"


class ConnectionAnnouncement(msgspec.Struct, frozen=True):
    """An announcement of a connection to its own targets. `name`: opened or closed. It has no entity."""

    connection_id: str
    name: str
    value: bytes
    headers: Headers
    path: str = "/"
    entity: None = None


class SubscriptionKind(str, Enum):
    """The kind of a subscription. Each kind has its own IDs."""

    HISTORY = "history"
    SEARCH = "search"
    LIVE = "live"


class HistoryQuery(msgspec.Struct, frozen=True):
    """A query for events of one entity.

    Revisions are inclusive, 0 and negative ones relative to the newest (`to` of None: no upper bound). `after` and `before`
    are exclusive instants in nanoseconds since 1970. `filter` is RQL.
    """

    entity: EntityId
    from_revision: int = 0
    to_revision: int | None = None
    after: int | None = None
    before: int | None = None
    filter: str | None = None


class SearchQuery(msgspec.Struct, frozen=True):
    """A query for things, as the client has written it; it has no entity.

    `filter` is RQL, `options` give order and page size, `fields` is a readable field selector. No `namespaces` means all.
    `at` selects the things as they were before an instant (nanoseconds since 1970), `aggregation` is a JSON value. `size`
    replaces the page size of the options.
    """

    filter: str | None = None
    options: str | None = None
    namespaces: tuple[str, ...] = ()
    fields: str | None = None
    at: int | None = None
    aggregation: bytes | None = None
    size: int | None = None
    entity: ClassVar[None] = None


class LiveQuery(msgspec.Struct, frozen=True):
    """A query for all future events of one entity after revision `after`.

    None: after the newest one. `may_skip`: a slow subscriber skips ahead to the newest event.
    """

    entity: EntityId
    after: int | None = None
    may_skip: bool = False


class SessionQuery(msgspec.Struct, frozen=True):
    """A query whose feed a session handler supplies: `open` returns it, or the fault.

    `entity` is its entity, if there is one; `length` that of the query's text.
    """

    open: Callable[[], Any]
    entity: EntityId | None = None
    length: int = 0


Query: TypeAlias = HistoryQuery | SearchQuery | LiveQuery | SessionQuery


class Subscribe(msgspec.Struct, frozen=True):
    """Opens a subscription.

    `key` is the client's own ID, or None if the service chooses one; `demand` is included in protocols that request with the
    subscribe itself.
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


class Request(msgspec.Struct, frozen=True):
    """Ask for `demand` more elements.

    `entity` is the one the client named, which need not be the subscription's.
    """

    kind: SubscriptionKind
    key: str
    demand: int
    headers: Headers
    entity: EntityId | None = None


class Cancel(msgspec.Struct, frozen=True):
    kind: SubscriptionKind
    key: str
    headers: Headers
    entity: EntityId | None = None


class SessionMessage(msgspec.Struct, frozen=True):
    """A message of a session protocol, for its session handler (`connectivity.sessions`).

    `has_parts`: only its parts say which entities it concerns, and the handler checks each of them.
    """

    request: Any
    headers: Headers
    entity: EntityId | None = None
    has_parts: bool = False


class EndReason(Enum):
    """Why a subscription ends. Each wire protocol has its own texts."""

    NOT_FOUND = "not found"
    INVALID_DEMAND = "invalid demand"
    CANCELLED = "ended before this message"
    IDLE = "the client sent no request in time"
    ABORTED = "aborted by a restart"


class Created(msgspec.Struct, frozen=True):
    kind: SubscriptionKind
    key: str
    entity: EntityId | None
    headers: Headers


class Next(msgspec.Struct, frozen=True):
    """Elements in order; protocols may send them in one message or in several.

    An element of a history, or of a live feed, is an `Event`; one of a search is a page: a JSON array of things, as text.
    `headers` are those of the client's latest command, `subscribed` those of its subscribe.
    """

    kind: SubscriptionKind
    key: str
    entity: EntityId | None
    headers: Headers
    elements: Sequence[Any]
    subscribed: Headers


class Complete(msgspec.Struct, frozen=True):
    kind: SubscriptionKind
    key: str
    entity: EntityId | None
    headers: Headers


class Failed(msgspec.Struct, frozen=True):
    kind: SubscriptionKind
    key: str
    entity: EntityId | None
    headers: Headers
    reason: Fault | EndReason


Live: TypeAlias = Message | LiveCommand | LiveEvent
"""Signals from one client to others."""

LiveAnswer: TypeAlias = MessageResponse | LiveResponse

Inbound: TypeAlias = Command | Live | LiveAnswer | Acknowledgement | Subscribe | Request | Cancel | SessionMessage
Answer: TypeAlias = Response | LiveAnswer | ErrorResponse | Acknowledgements
"""Responses, of which a requester gets one."""

Announcement: TypeAlias = ConnectionAnnouncement | PolicyAnnouncement

Outbound: TypeAlias = Answer | TwinEvent | Live | Announcement | Acknowledgement | Created | Next | Complete | Failed


MAX_TIMEOUT: Final = 60.0
"""Seconds; also how long is waited where a command does not say."""


def is_success(status: int) -> bool:
    return 200 <= status < 300

"""The interface between a broker and the rest of the service: connection types, links and deliveries.

Each connection type defines its options and checks (`ConnectionType.options`, `.check`) and creates links (`.connect`).
A `Link` is one live connection: it consumes, publishes and acknowledges until it ends, once. The supervisor reconnects
with a new link. Everything is called on the event loop; threads and types of a client library stay inside the broker's
package. `.examine` checks a connection's addresses for a connection test without affecting other clients of the broker.
"""

from __future__ import annotations

import asyncio
import operator
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import msgspec
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from connectivity.errors import ConnectivityError, LinkError, Problem
from mappings.model.envelope import Envelope

if TYPE_CHECKING:
    from connectivity.connections.model import Connection


class SpecificConfig(BaseModel):
    """The base of the options of a connection type: camelCase names, frozen, no unknown ones."""

    model_config = ConfigDict(alias_generator=to_camel, frozen=True, extra="forbid", hide_input_in_errors=True)


class Outcome(Enum):
    """How a delivery ends: acknowledged, or rejected with or without redelivery."""

    SETTLED = "settled"
    REDELIVER = "rejected, to be redelivered"
    DROPPED = "rejected, not to be redelivered"


UNKNOWN_SIZE: Final = 1 << 62
"""The size of a skipped payload if it is unknown: larger than every limit."""


@dataclass(slots=True, eq=False)
class Delivery:
    """One received envelope, and its settlement: `settle` takes effect once.

    `name` is the broker's identifier of the delivery, equal after a redelivery (None: there is no identifier);
    `redelivered` is the broker's own flag. `address` is the concrete address it arrived on. `ended` reports the outcome to
    the broker. `reader` is the address of the sender, which reads the replies there, if the link reports when the sender
    leaves (`ReaderStatus.GONE`). `skipped` is the size of a payload that was too large to keep (or `UNKNOWN_SIZE`); the
    envelope's is then empty. `position`: partition and offset of a delivery that comes again until its offset is
    committed. `arrived` is the time in monotonic seconds, `outcome` None until it is settled. The settle timeout does not
    run while any of its signals `waits` for others, and counts from `ours_since`, the end of a wait, if that is later. A
    redelivery that is `settled_with` another delivery waits as long as that one.

    A listener may report a new peer before it has sent anything, by a delivery with an empty payload.
    """

    envelope: Envelope
    address: str
    name: str | None
    redelivered: bool
    ended: Callable[[Delivery, Outcome], None]
    reader: str | None = None
    skipped: int = 0
    position: tuple[str, int] = "", 0
    arrived: float = field(default_factory=monotonic)
    outcome: Outcome | None = None
    waits: int = 0
    ours_since: float = 0.0
    settled_with: Delivery | None = None
    user: Hashable | None = None
    """The user of a link that several share; None if the link has one user."""

    def settle(self, outcome: Outcome = Outcome.SETTLED) -> None:
        """Acknowledge or reject the delivery, unless it is settled already."""
        if self.outcome is None:
            self.outcome = outcome
            self.ended(self, outcome)


AnyDelivery = TypeVar("AnyDelivery", bound=Delivery)


class ReaderStatus(Enum):
    """Whether anyone received a message that was published to an address."""

    HEARD = "at least one reader received it"
    UNDELIVERED = "no reader received it, although the broker accepted or returned it"
    REFUSED = "the broker refuses messages to this address"
    GONE = "the reader has disconnected and will not return"


Readers = Callable[[str, ReaderStatus], None]
"""A callback with an address and the status of the readers at this address."""


def ignore_reader_status(_address: str, _sign: ReaderStatus) -> None:
    """Ignore the status of readers; the value of `Link.readers` until a callback is set."""


class CloseReason(Enum):
    """Why the peer is disconnected after a message."""

    DONE = "done"
    MALFORMED = "the input violates the protocol"
    UNFIT = "the input is of an unsupported kind"


class OutboundMessage(msgspec.Struct, frozen=True):
    """One envelope to publish to `address`. `qos` is the quality of service of the source it replies to.

    Messages with the same `order` keep their order even if one address maps to several queues. After a message with a
    `parting`, a listener disconnects the peer, with the reason if the protocol can express it; an empty payload is then
    not sent. Brokers ignore `parting`.
    """

    address: str
    envelope: Envelope
    qos: int = 1
    order: str | None = None
    parting: CloseReason | None = None


Done = Callable[[ConnectivityError | None], None]
"""A callback, called once: with None after the broker's confirm, with PublishFailed after a refusal.

It never raises.
"""


def ignore_outcome(_error: Exception | None) -> None:
    """The `Done` of a message whose outcome makes no difference."""


class Link(Protocol):
    """One live connection to a broker."""

    window: int
    """The maximum number of published messages whose `Done` was not called yet."""

    lost: asyncio.Future[LinkError]
    """Resolved (never raising) when the link ends unexpectedly. After that no `Done` is called."""

    readers: Readers
    """A callback for the status of readers; `ignore_reader_status` until it is set.

    It is called before the `Done` of a message with the status that the broker reports, and when a reader
    leaves. Some brokers report nothing.
    """

    @property
    def condition(self) -> str | None:
        """Why the link cannot work at present, as a text for the status details; None: it works."""

    @property
    def target_faults(self) -> Mapping[int, str]:
        """Why targets cannot be published to, by their index, as far as connecting has shown it."""

    @property
    def throttled(self) -> int:
        """The number of minutes in which a rate limit, if there is one, has delayed the link."""

    def consume(self, source: int) -> AsyncIterator[list[Delivery]]:
        """Yield lists of deliveries for the source with this index: never empty, at most some hundreds.

        The link limits the number of unsettled deliveries; at the limit it stops consuming from the broker. Ends when
        the link ends.
        """

    def publish(self, message: OutboundMessage, done: Done) -> None:
        """Hand a message to the broker, in order; never blocks or raises, the outcome is passed to `done`."""

    async def close(self) -> None:
        """Disconnect from the broker in order; it keeps unsettled deliveries. Safe to call twice."""


@runtime_checkable
class SessionLink(Link, Protocol):
    """A link of a client that has a session: the broker keeps messages for it while it is away."""

    async def end_session(self) -> None:
        """Consume nothing new, and return when everything that the broker has kept is settled.

        The session ends when the link is closed. Raises NotConnected if the link is lost, or renewed because the broker
        has to redeliver something: the next link can end the session.
        """


class KnownNames(NamedTuple):
    """The names of deliveries that may come again: requeued ones, and those carried out lately."""

    requeued: Sequence[str] = ()
    carried_out: Sequence[str] = ()


async def _ignore_session(_prefix: str) -> None:
    """Do nothing when a session begins."""


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """Limits in bytes: of a payload that is kept, and of the unsettled deliveries of a client.

    `on_committed` is called with a partition and its committed offset. `names_of` returns the names with a prefix of a
    source's deliveries that may come again. `on_new_session` is awaited before the first delivery of a new session, with the
    prefix of its names: earlier deliveries of such names do not come again.
    """

    payload: int = 1 << 20
    unsettled_bytes: int = 16 << 20
    on_committed: Callable[[str, int], None] = lambda _partition, _offset: None
    names_of: Callable[[int, str], KnownNames] = lambda _source, _prefix: KnownNames()
    on_new_session: Callable[[str], Awaitable[None]] = _ignore_session


CONSUME_DEFAULTS: Final = ConsumeOptions()


class Connector(Protocol):
    """Creates links."""

    async def __call__(
        self, connection: Connection, client: int = 0, consume: ConsumeOptions = CONSUME_DEFAULTS, /
    ) -> Link:
        """Return a link with every source subscribed. Raises only NotConnected or ConnectionRefused.

        `client`: the index of the connection's client (`clientCount`) that the link is for, from 0. All clients consume
        the sources together; each message goes to one of them.
        """


class AddressCheck(NamedTuple):
    """The result of checking one address: valid, an error, or unknown.

    `note` is additional information; if `is_known` is False, it says what cannot be checked before the address is used.
    """

    address: str
    error: LinkError | None = None
    note: str = ""
    is_known: bool = True


class ProbeReport(NamedTuple):
    """The checks of all addresses of a connection: of sources, reply targets and targets.

    `sources` has one sequence for each source in the order of its addresses. `note`: how the broker differs from what
    the document may expect.
    """

    sources: Sequence[Sequence[AddressCheck]]
    replies: Sequence[AddressCheck]
    targets: Sequence[AddressCheck]
    note: str = ""


class Probe(Protocol):
    """Checks the addresses of a connection."""

    async def __call__(self, connection: Connection, name: str) -> ProbeReport:
        """Check the addresses with a client of this name. Raises NotConnected, ConnectionRefused."""


@dataclass(frozen=True, slots=True)
class AsyncApiNames:
    """How AsyncAPI documents name a protocol: without and with TLS, and its version.

    `wildcards` are the characters of a source's address that stand for other text, and their meaning; `bindings` are those
    of an operation with this quality of service.
    """

    protocol: str
    secure_protocol: str
    version: str | None = None
    wildcards: Mapping[str, str] = field(default_factory=dict)
    bindings: Callable[[int | None], Mapping[str, Any]] = lambda _qos: {}


@dataclass(frozen=True, slots=True)
class ConnectionType:
    """A connection type: the options of its documents, and how to connect."""

    name: str
    schemes: tuple[str, ...]
    secure_schemes: tuple[str, ...]
    options: type[SpecificConfig]
    check: Callable[[Connection], Sequence[Problem]]
    has_headers: bool
    connect: Connector
    asyncapi: AsyncApiNames
    examine: Probe
    """Checks addresses for a connection test."""
    confirmed_status: int = 200
    """The status of the acknowledgement that a target issues when the broker has confirmed."""
    matches: Callable[[str, str], bool] = operator.eq
    """Whether an address that a message arrived on (second) matches an address of a source (first)."""
    is_filter: Callable[[str], bool] = lambda _address: False
    """Whether an address of a source is a filter, so that no message arrives on an address of this name."""
    address_header: str | None = None
    """The header of a delivery that holds the address it arrived on."""
    key_mark: str | None = None
    """The text between an address to publish to and its key; None: addresses have no keys.

    Values in the key may have any characters.
    """
    keeps_key_order: bool = False
    """Whether several consumers of an address are assigned messages by key, so that keys keep their order."""
    session_names: Callable[[Connection], Sequence[str]] = lambda _connection: ()
    """The names of the sessions that the broker keeps for a connection, in the order of its clients."""
    open_session: Connector | None = None
    """Like `connect`, for a link that only makes the broker keep messages: it cannot publish."""
    is_listener: bool = False
    """Whether the service listens at the `uri` and peers connect to it, without a broker."""
    is_stream: bool = False
    """Whether deliveries are pieces of byte streams, one stream from each peer, instead of messages."""
    schema: Mapping[str, Any] = field(default_factory=dict)
    """The requirements of `check` that JSON Schema can express."""


RESOLVED_PER_MESSAGE = "its placeholders are filled for each message"
"""The note on an address that cannot be checked before there is a message."""

MAX_BATCH = 500
"""The maximum number of deliveries that a source takes at once."""


class Inbox:
    """The deliveries that have arrived for one source and were not taken yet."""

    __slots__ = ("_is_over", "_loop", "_waiter", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Delivery] = deque()
        """Callers that append to it call `wake` once after a batch."""
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._is_over = False

    async def lists(self) -> AsyncIterator[list[Delivery]]:
        """See `Link.consume`."""
        while not self._is_over:
            waiting = self.waiting
            if not waiting:
                self._waiter = self._loop.create_future()
                await self._waiter
            elif len(waiting) <= MAX_BATCH:
                ready = list(waiting)
                waiting.clear()
                yield ready
            else:
                yield [waiting.popleft() for _ in range(MAX_BATCH)]

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def end(self) -> None:
        """Stop yielding deliveries and discard those that are waiting."""
        self._is_over = True
        self.waiting.clear()
        self.wake()


MOST_COUNTS, MOST_BUDGETS = 20, 4
"""How many times its limits of number and bytes a link exceeds while it must read for confirms."""


class ReadLimit:
    """Decides when a link stops reading, by the number and the bytes of its unsettled deliveries.

    Confirms arrive on the same socket, and deliveries wait for them: while any is outstanding, the link reads on.
    """

    __slots__ = ("_most_bytes", "_most_count", "count", "is_reached", "size")

    def __init__(self, most_count: int, most_bytes: int) -> None:
        self._most_count, self._most_bytes = most_count, most_bytes
        self.count = self.size = 0
        """Of the unsettled deliveries; the link subtracts those that have ended."""
        self.is_reached = False
        """Whether a limit was reached at the last arrival."""

    def arrived(self, size: int) -> None:
        self.count += 1
        self.size += size
        self.is_reached = self.count >= self._most_count or self.size >= self._most_bytes

    def must_pause(self, *, is_paused: bool, waits_for_confirms: bool) -> bool:
        """Whether reading stops, or stays stopped until half of each limit is left."""
        if waits_for_confirms:
            return False
        if is_paused:
            return self.count >= self._most_count // 2 or self.size > self._most_bytes // 2
        return self.count >= self._most_count or self.size >= self._most_bytes

    @property
    def is_exceeded(self) -> bool:
        """Whether the link must not keep any more deliveries, although it reads on."""
        return self.count >= MOST_COUNTS * self._most_count or self.size >= MOST_BUDGETS * self._most_bytes


class SharedDelivery(Generic[AnyDelivery]):
    """A message shared by several sources; it ends when each source has ended its copy."""

    __slots__ = ("first", "open", "outcome")

    def __init__(self, first: AnyDelivery, count: int) -> None:
        self.first, self.open, self.outcome = first, count, Outcome.SETTLED

    def ended(self, outcome: Outcome) -> bool:
        """Record the outcome of one copy and return whether it was the last.

        The message is redelivered if any source rejects its copy for redelivery.
        """
        self.open -= 1
        if outcome is Outcome.REDELIVER:
            self.outcome = outcome
        return not self.open


MOST_WAITING = 20_000
"""How many deliveries of a link may be unsettled, or settled and wait for an earlier one."""

_NO_ENVELOPE = Envelope(b"")


class InOrderSettlement:
    """Reports outcomes in the order of arrival: each after those of all earlier deliveries.

    Brokers require acknowledgements in order (MQTT 4.6.0-2) or for several deliveries at once, and an offset can only
    move past processed records.
    """

    __slots__ = ("_outcomes", "arrived", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Delivery] = deque()
        """The unsettled deliveries, and those behind an unsettled one."""
        self._outcomes: dict[int, Outcome] = {}
        self.arrived: Callable[[Delivery], None] = self.waiting.append
        """Notes a delivery; call it in the order of arrival."""

    def __len__(self) -> int:
        return len(self.waiting)

    def ended(self, delivery: Delivery, outcome: Outcome) -> list[tuple[Delivery, Outcome]]:
        """Record an outcome and return what can be reported to the broker now, oldest first."""
        self._outcomes[id(delivery)] = outcome
        ready = []
        while self.waiting and (first := self._outcomes.pop(id(self.waiting[0]), None)) is not None:
            ready.append((self.waiting.popleft(), first))
        if not ready:
            # It may wait for long, and its payload no longer counts.
            delivery.envelope = _NO_ENVELOPE
        return ready

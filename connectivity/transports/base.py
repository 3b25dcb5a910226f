"""What a broker is to the rest of the service.

A broker file says how documents of its type look (`ConnectionType.options`, `.check`) and makes links (`.connect`). A `Link`
is one live connection: it consumes, publishes, settles, and dies once. Reconnecting is the supervisor's business; a dead
link is thrown away. Everything is called on the event loop; a client library's threads and types end in the broker's file.
`.examine` looks at a connection's addresses for a trial, in a way that nobody else who uses the broker notices.
"""

from __future__ import annotations

import asyncio
import operator
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

import msgspec
from pydantic import BaseModel

from connectivity.errors import ConnectivityError, LinkError, Problem
from mappings.model.envelope import Envelope

if TYPE_CHECKING:
    from connectivity.connections.model import Connection


class Outcome(Enum):
    """What becomes of a delivery."""

    SETTLED = "settled"
    REDELIVER = "rejected, again please"
    DROPPED = "rejected, never again"


@dataclass(slots=True, eq=False)
class Delivery:
    """One envelope as received, with the means to settle it. Exactly one of `settle` and `reject` is called, once.

    `name` is what the broker calls the delivery, the same when it comes again (None: nothing names it); `redelivered` is
    the broker's own mark. `address` is the concrete address it arrived on. `reader` is the address of who has sent it and
    reads the answers, where the link tells when that one has gone (`ReaderStatus.GONE`).

    A door may tell of a peer before that one has said anything: by a delivery without octets.
    """

    envelope: Envelope
    address: str
    name: str | None
    redelivered: bool
    ended: Callable[[Delivery, Outcome], None]
    reader: str | None = None

    def settle(self) -> None:
        self.ended(self, Outcome.SETTLED)

    def reject(self, redeliver: bool) -> None:
        self.ended(self, Outcome.REDELIVER if redeliver else Outcome.DROPPED)


AnyDelivery = TypeVar("AnyDelivery", bound=Delivery)


class ReaderStatus(Enum):
    """What is to be seen of those who read at an address that something was published to."""

    HEARD = "somebody received it"
    UNHEARD = "nobody received it, though the broker took it or sent it back"
    REFUSED = "the broker lets nothing be sent there"
    GONE = "whoever read there has left for good"


Readers = Callable[[str, ReaderStatus], None]
"""Told of an address, and of a sign of those who read there."""


def nobody_asks(_address: str, _sign: ReaderStatus) -> None:
    """What links tell whom before anybody wants to know."""


class CloseReason(Enum):
    """Why nothing follows a message."""

    DONE = "all is said"
    MALFORMED = "what was heard breaks the protocol"
    UNFIT = "what was heard is of a kind that is not taken here"


class OutboundMessage(msgspec.Struct, frozen=True):
    """One envelope on its way to `address`. `qos` is the quality of service of the source that it answers.

    Messages with the same `order` stay in their order also where one address is several queues. Behind a message with a
    `parting` a door lets go of the peer, and says why as far as it has words for that; one without octets is not sent
    there. To brokers it means nothing.
    """

    address: str
    envelope: Envelope
    qos: int = 1
    order: str | None = None
    parting: CloseReason | None = None


Done = Callable[[ConnectivityError | None], None]
"""Called once: with None when the broker has confirmed, with PublishFailed when it has refused."""


def unobserved(_error: Exception | None) -> None:
    """The `Done` of a message whose outcome makes no difference."""


class Link(Protocol):
    """One live connection to a broker."""

    window: int
    """The most messages that may be published and not yet done."""

    lost: asyncio.Future[LinkError]
    """Resolved (never raising) when the link has died by itself. After that no `Done` is called any more."""

    readers: Readers
    """Set by whoever wants to know who reads: told what the broker says with each message's end, before its `Done`, and of
    those who leave. A broker that does not know says nothing. `nobody_asks` until then."""

    @property
    def condition(self) -> str | None:
        """What keeps the living link from its work just now, as status details say it; None: nothing does."""

    @property
    def throttled(self) -> int:
        """In how many minutes a limit on its rate, if it has one, has held the link back."""

    def consume(self, source: int) -> AsyncIterator[list[Delivery]]:
        """What arrives for the source with this index: whatever is ready, never empty, at most some hundreds.

        Unsettled deliveries are bounded by the link; at the bound it stops taking from the broker. Ends when the link ends.
        """

    def publish(self, message: OutboundMessage, done: Done) -> None:
        """Hand a message to the broker, in order. Never blocks, never raises: the outcome comes to `done`."""

    async def close(self) -> None:
        """Leave the broker in an orderly way; unsettled deliveries stay the broker's. Safe to call twice."""


class Connector(Protocol):
    """Makes links."""

    async def __call__(self, connection: Connection, client: int = 0) -> Link:
        """A link with every source subscribed. Raises NotConnected or ConnectionRefused, nothing else.

        `client`: which of the connection's clients (`clientCount`) the link is for, from 0. The sources are consumed by all
        of them together, each message by one.
        """


class AddressCheck(NamedTuple):
    """What a broker says about one address: that it is fine, why it is not, or nothing.

    `note` is told besides; with `is_known` False it says what nobody can tell before the address is used.
    """

    address: str
    error: LinkError | None = None
    note: str = ""
    is_known: bool = True


class ProbeReport(NamedTuple):
    """What was found at the addresses of a connection: of each source in the order of its addresses, of each source's
    reply-target, of each target. `note`: what the broker does otherwise than the document may expect."""

    sources: Sequence[Sequence[AddressCheck]]
    replies: Sequence[AddressCheck]
    targets: Sequence[AddressCheck]
    note: str = ""


class Probe(Protocol):
    """Looks at the addresses of a connection."""

    async def __call__(self, connection: Connection, name: str) -> ProbeReport:
        """Log in, look, and leave. Raises NotConnected or ConnectionRefused where the broker does not let us in.

        The connection may run meanwhile, here or elsewhere: no delivery is taken from anybody or marked as redelivered,
        no session, group, offset, queue or topic is made or touched. `name` is what to go by, where a client has a name:
        nobody else has it.
        """


@dataclass(frozen=True, slots=True)
class ConnectionType:
    """A connection type: what its documents may say, and how to connect.

    `connect` is None where this version of the service checks the documents of a type but does not carry it yet.
    """

    name: str
    schemes: tuple[str, ...]
    secure_schemes: tuple[str, ...]
    options: type[BaseModel]
    check: Callable[[Connection], Sequence[Problem]]
    has_headers: bool
    connect: Connector | None
    examine: Probe | None = None
    """How addresses are looked at for a trial; None where `connect` is None."""
    confirmed_status: int = 200
    """The status of the acknowledgement that a target issues when the broker has confirmed."""
    matches: Callable[[str, str], bool] = operator.eq
    """Whether what arrives at the second address was asked for by the first, which is one of a source."""
    parts_by_key: bool = False
    """Whether several consumers of an address part it by the keys of messages, so that those of one key keep their order."""
    is_listener: bool = False
    """Whether the service listens at the `uri` and its peers connect, so that no broker stands in between."""
    is_stream: bool = False
    """Whether its deliveries are pieces of streams of octets, one stream from each peer, and no messages."""


FILLED_LATER = "its placeholders are filled for each message"
"""What can be said of an address before there is a message."""

LONGEST_LIST = 500
"""Deliveries that a source takes at once, at most."""


class Inbox:
    """What has arrived for one source and was not taken yet."""

    __slots__ = ("_is_over", "_loop", "_waiter", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Delivery] = deque()
        """Whoever adds to it calls `wake`, once for as many as are there."""
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
            elif len(waiting) <= LONGEST_LIST:
                ready = list(waiting)
                waiting.clear()
                yield ready
            else:
                yield [waiting.popleft() for _ in range(LONGEST_LIST)]

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def end(self) -> None:
        """Hand nothing over any more."""
        self._is_over = True
        self.waiting.clear()
        self.wake()


class SharedDelivery(Generic[AnyDelivery]):
    """One message in the hands of several sources: it has ended when each of them has ended its copy."""

    __slots__ = ("first", "open", "outcome")

    def __init__(self, first: AnyDelivery, count: int) -> None:
        self.first, self.open, self.outcome = first, count, Outcome.SETTLED

    def ended(self, outcome: Outcome) -> bool:
        """One copy has ended so; whether it was the last. The message comes again if any of them is to come again."""
        self.open -= 1
        if outcome is Outcome.REDELIVER:
            self.outcome = outcome
        return not self.open


class InOrderSettlement:
    """Settles in the order of arrival: an outcome is passed on once everything before it has one.

    Brokers want acknowledgements in order (MQTT 4.6.0-2) or in multiples, and an offset may only move over what is done.
    """

    __slots__ = ("_outcomes", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[Delivery] = deque()
        self._outcomes: dict[int, Outcome] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def arrived(self, delivery: Delivery) -> None:
        self._waiting.append(delivery)

    def ended(self, delivery: Delivery, outcome: Outcome) -> list[tuple[Delivery, Outcome]]:
        """Note an outcome; what may be passed to the broker now, oldest first."""
        self._outcomes[id(delivery)] = outcome
        ready = []
        while self._waiting and (first := self._outcomes.pop(id(self._waiting[0]), None)) is not None:
            ready.append((self._waiting.popleft(), first))
        return ready

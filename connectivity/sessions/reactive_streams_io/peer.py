"""One client at one address, as long as its connection lasts: the endpoint, what leaves by it, and what comes
(reactive-streams-io, brokers).

The endpoint decides what is said; here it is given messages and the time, and what it says is posted to the client's line.
At most `WINDOW` messages wait for the broker; what comes of the engine meanwhile waits with the engine. Frames of one tick
leave together. A message that the broker refuses leaves a gap: who numbers messages and can resume finds it and goes on,
everybody else is told that it is over.

At a door the client is a peer with a socket of its own: with the last word of its connection the door lets go of it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence

import structlog

from connectivity.errors import ConnectivityError
from connectivity.sessions.reactive_streams_io.publishers import PublisherResolver
from connectivity.sessions.reactive_streams_io.streams import SessionStreams
from connectivity.sessions.reply_channel import ReplyChannel
from connectivity.sources.delivery import digest
from connectivity.sources.reader import SenderCheck
from connectivity.transports.base import CloseReason, Delivery
from mappings.errors import INTERNAL_ERROR, Fault
from mappings.reactive_streams_io.endpoint import Endpoint, EndpointState
from mappings.reactive_streams_io.errors import ProtocolViolation
from mappings.reactive_streams_io.events import (
    Cancelled,
    Closed,
    Completed,
    DemandReceived,
    ElementsReceived,
    Event,
    Interrupted,
    Resumed,
    SessionOpened,
    StreamFailed,
    SubscribeReceived,
)
from mappings.reactive_streams_io.frames import Extension, envelope

log = structlog.get_logger(__name__)


WINDOW = 64
"""Messages of one client that the broker has not confirmed."""

WINDOW_OF_A_PEER = 8
"""The same at a door, which confirms what the socket has room for."""

REMEMBERED = 64
"""Messages of one client that are known when the broker brings them again."""

GAP = "503 rsio:message.lost A message could not be sent."


class PeerSession:
    """A client. `line` is the way by which it was answered last; `owners` are the subjects that its session is of."""

    def __init__(
        self,
        endpoint: Endpoint,
        offers: SessionStreams,
        opening: PublisherResolver,
        line: ReplyChannel,
        owners: frozenset[str],
        clock: Callable[[], float],
        resumed: Callable[[int, int], SessionStreams],
        name: str | None = None,
    ) -> None:
        """`clock` gives monotonic seconds, `name` is what the client calls its session, where it has a name for it.

        `resumed` hands over the streams of a session that goes on here: it is given the session until now, and that one.
        """
        self.endpoint = endpoint
        self.offers = offers
        self.line = line
        self.owners = owners
        self.unconfirmed = 0
        self._clock = clock
        self._opening = opening
        self._resumed = resumed
        self._name = name
        self._heard: OrderedDict[tuple[str | None, bytes], None] = OrderedDict()
        self._is_peer = line.route.is_listener
        """At a door nothing is missing unless the client has gone, which is told, too."""
        self._window = WINDOW_OF_A_PEER if self._is_peer else WINDOW
        self._parting: CloseReason | None = None
        """Why the client's connection is over, where that is still to be told to the door."""
        self._border: SenderCheck | None = None
        self._is_flushing = self._is_woken = self._is_gone = False
        offers.meet(self.wake)

    def __repr__(self) -> str:
        return f"<Counterpart at {self.line.address}, {self.endpoint!r}, {self.unconfirmed} unconfirmed>"

    def is_known(self, delivery: Delivery) -> bool:
        """Whether the broker brings something again that was taken already."""
        known = (delivery.name, digest(delivery))
        if delivery.name is None:
            return bool(self._heard) and next(reversed(self._heard)) == known
        return known in self._heard

    def hear(self, delivery: Delivery, border: SenderCheck | None = None) -> Sequence[Event]:
        """Take a message; the events that are not about streams. `border` knows whom its sender may speak for."""
        self._border = border
        if self._is_peer:
            return self._react(self.endpoint.receive(delivery.envelope.payload, self._clock()))
        known = (delivery.name, digest(delivery))
        self._heard[known] = None
        self._heard.move_to_end(known)
        if len(self._heard) > REMEMBERED:
            self._heard.popitem(last=False)
        return self._react(self.endpoint.receive(delivery.envelope.payload, self._clock()))

    def reject(self, mistake: ProtocolViolation) -> Sequence[Event]:
        """A message has come that holds no frames."""
        return self._react(self.endpoint.reject(mistake), CloseReason.UNFIT)

    def tick(self, *, is_taking: bool = True) -> Sequence[Event]:
        """Look whether something is due. `is_taking`: whether what comes is taken now."""
        now = self._clock()
        if not is_taking or (self._is_peer and self.unconfirmed):
            # A door reads nothing from whom it waits for, and lets go by itself of who takes nothing.
            self.endpoint.unread(now)
        events = self.endpoint.tick(now)
        self.offers.ingest.tick(now)
        return self._react(events)

    def settle_up(self) -> None:
        """Tell the client what of its elements is done, while that can be told."""
        if self.offers.ingest.settle_up():
            self.flush()

    def part(self, reason: str) -> Sequence[Event]:
        """Say goodbye."""
        return self._react(self.endpoint.close(self._clock(), reason))

    def lose(self) -> Sequence[Event]:
        """Whoever read has gone, and can be told nothing."""
        self._is_gone = True
        return self._react(self.endpoint.lose(self._clock()))

    def leave(self) -> None:
        """Nobody is told anything any more."""
        self._is_gone = True
        if self.offers.wake == self.wake:
            self.offers.stop()

    def _take_over(self, session: int) -> None:
        """Go on with the streams of a session that was held elsewhere."""
        self.offers = self._resumed(self.offers.session.key, session)
        self.offers.meet(self.wake)

    def _react(self, events: Sequence[Event], fault: CloseReason = CloseReason.MALFORMED) -> Sequence[Event]:
        """Carry out what the client wants of streams; the other events.

        `fault`: what it is if the client is at fault.
        """
        others: list[Event] = []
        for event in events:
            match event:
                case SubscribeReceived(stream, publisher, demand):
                    self._subscribe(stream, publisher, demand)
                case DemandReceived(stream, demand):
                    self.offers.request(stream, demand)
                case Cancelled(stream):
                    self.offers.cancel(stream)
                case Resumed(session):
                    # What comes behind it is about that session's streams, be it their end.
                    self._take_over(session)
                case ElementsReceived(stream, elements):
                    self.offers.ingest.arrived(stream, elements)
                case Completed() | StreamFailed():
                    self._ended(event)
                case SessionOpened():
                    self.offers.ingest.begin()
                    others.append(event)
                case Closed() | Interrupted():
                    self._end(event)
                    if self._is_peer:
                        is_fault = isinstance(event, Closed) and event.is_fault
                        self._parting = fault if is_fault else CloseReason.DONE
                    others.append(event)
                case _:
                    others.append(event)
        self.flush()
        return others

    def _subscribe(self, stream: int, publisher: str, demand: int) -> None:
        # A message is heard once: what goes wrong with a part of it is said there, and the rest of it counts.
        try:
            opened = self._opening.open(publisher, self.offers.subjects)
            if not isinstance(opened, Fault) and self._border is not None:
                opened = self._border.refusal(opened.entity) or opened
            if isinstance(opened, Fault):
                self.offers.refuse(stream, opened)
            else:
                self.offers.begin(stream, opened, demand)
        except Exception:
            log.exception("a publisher could not be opened", publisher=publisher, connection=self.line.connection_id)
            self.offers.fail(stream, INTERNAL_ERROR)

    def _ended(self, event: Completed | StreamFailed) -> None:
        """A stream of the client has ended: by itself, unless its session is over or has made room for another one."""
        if self.endpoint.state is EndpointState.OPEN and self.endpoint.session is self.offers.session:
            reason = event.reason if isinstance(event, StreamFailed) else None
            self.offers.ingest.ended(event.stream, reason, self._clock())

    def _end(self, event: Closed | Interrupted) -> None:
        if self.offers.wake == self.wake:
            self.offers.leave()
            if isinstance(event, Closed):
                self.offers.stop()
        # Whoever reaches a door can come and go as it likes: that fills no log.
        say = log.debug if self.line.route.is_listener else log.info
        say(
            "a session ended" if isinstance(event, Closed) else "a session was interrupted",
            connection=self.line.connection_id,
            address=self.line.address,
            reason=event.reason,
        )

    # what leaves

    def wake(self) -> None:
        """There is something to send: with whatever else comes in this tick."""
        if not self._is_woken:
            self._is_woken = True
            asyncio.get_running_loop().call_soon(self._woken)

    def _woken(self) -> None:
        self._is_woken = False
        self.flush()

    def flush(self) -> None:
        """Post what may leave."""
        # A link may confirm within the call; the outer one goes on then.
        if self._is_flushing or self._is_gone:
            return
        self._is_flushing = True
        try:
            while self.unconfirmed < self._window and (octets := self.endpoint.take()):
                elements, self.offers.elements = self.offers.elements, 0
                self._post(octets, elements)
                self.offers.taken()
            if self._parting is not None and self.endpoint.is_spent:
                # The last word was said before, or cannot be said.
                self._post(b"")
        finally:
            self._is_flushing = False

    def _post(self, octets: bytes, elements: int = 0) -> None:
        parting: CloseReason | None = None
        if self.endpoint.is_spent:
            parting, self._parting = self._parting, None
        self.unconfirmed += 1
        self.line.post([envelope(octets, self._name)], self._confirmed, elements=elements, parting=parting)

    def _confirmed(self, error: ConnectivityError | None) -> None:
        self.unconfirmed -= 1
        if (
            error is not None
            and self.endpoint.state is EndpointState.OPEN
            and not self.finds_gaps
            and not self._is_peer
        ):
            self.part(GAP)
        elif self.unconfirmed == self._window - 1:
            self.wake()

    @property
    def finds_gaps(self) -> bool:
        """Whether the client finds by itself that a message is missing, and can go on."""
        return {Extension.SEQUENCE.value, Extension.RESUME.value} <= self.endpoint.in_force

"""One client at one address while its connection lasts: its endpoint, and its messages.

The endpoint decides; this module passes it messages and the time, and posts its frames to the client's channel
(reactive-streams-io, brokers). At most `WINDOW` messages wait for the broker; the engine waits meanwhile. Frames of one tick
are sent together. A message that the broker refuses leaves a gap: clients that number messages and can resume detect it, all
others get a goodbye. At a listener the client is a peer with its own socket, which is closed after its last frame.
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
from connectivity.subscriptions.limits import length_of_lists
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
    EndpointEvent,
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
"""The window at a listener, which confirms what fits into the socket."""

REMEMBERED = 64
"""Messages of one client that are known when the broker brings them again."""

GAP = "503 rsio:message.lost A message could not be sent."


class PeerSession:
    """A client. `channel` is the channel of its last reply; `owners` are the subjects of its session."""

    def __init__(
        self,
        endpoint: Endpoint,
        offers: SessionStreams,
        opening: PublisherResolver,
        channel: ReplyChannel,
        owners: frozenset[str],
        clock: Callable[[], float],
        resumed: Callable[[int, int], SessionStreams],
        name: str | None = None,
    ) -> None:
        """`clock` returns monotonic seconds; `name` is the client's name for its session, if it has one.

        `resumed` transfers the streams of a resumed session: it receives the present session, and that one.
        """
        self.endpoint = endpoint
        self.offers = offers
        self.channel = channel
        self.owners = owners
        self.unconfirmed = 0
        self._clock = clock
        self._opening = opening
        self._resumed = resumed
        self._name = name
        self._recent: OrderedDict[tuple[str | None, bytes], None] = OrderedDict()
        self._is_peer = channel.route.is_listener
        """At a listener messages are lost only when the client disconnects, which is reported."""
        self._window = WINDOW_OF_A_PEER if self._is_peer else WINDOW
        self._parting: CloseReason | None = None
        """The reason of a goodbye that the listener must still get."""
        self._sender_check: SenderCheck | None = None
        self._is_flushing = self._is_woken = self._is_disconnected = False
        offers.meet(self.wake)

    def is_known(self, delivery: Delivery) -> bool:
        """Whether the broker redelivers a processed message."""
        known = (delivery.name, digest(delivery))
        if delivery.name is None:
            return bool(self._recent) and next(reversed(self._recent)) == known
        return known in self._recent

    def forget_names(self, prefix: str) -> None:
        """Forget the messages whose deliveries have names with a prefix."""
        for known in [it for it in self._recent if it[0] is not None and it[0].startswith(prefix)]:
            del self._recent[known]

    def accept(self, delivery: Delivery, sender_check: SenderCheck | None = None) -> Sequence[EndpointEvent]:
        """Process a message; return the events that are not about streams.

        `sender_check` knows the subjects of its sender.
        """
        self._sender_check = sender_check
        if not self._is_peer:
            known = (delivery.name, digest(delivery))
            self._recent[known] = None
            self._recent.move_to_end(known)
            if len(self._recent) > REMEMBERED:
                self._recent.popitem(last=False)
        return self._react(self.endpoint.receive(delivery.envelope.payload, self._clock()))

    def reject(self, mistake: ProtocolViolation) -> Sequence[EndpointEvent]:
        """A message has come that holds no frames."""
        return self._react(self.endpoint.reject(mistake), CloseReason.UNFIT)

    def tick(self, *, is_taking: bool = True) -> Sequence[EndpointEvent]:
        """Do what is due. `is_taking`: whether deliveries are accepted now."""
        now = self._clock()
        if not is_taking or (self._is_peer and self.unconfirmed):
            # A listener pauses reading from peers, and disconnects slow ones by itself.
            self.endpoint.unread(now)
        events = self.endpoint.tick(now)
        self.offers.ingest.tick(now)
        return self._react(events)

    def acknowledge_done(self) -> None:
        """Acknowledge the client's elements that are done, while it is connected."""
        if self.offers.ingest.acknowledge_done():
            self.flush()

    def part(self, reason: str) -> Sequence[EndpointEvent]:
        """Say goodbye."""
        return self._react(self.endpoint.close(self._clock(), reason))

    def lose(self) -> Sequence[EndpointEvent]:
        """End the connection: the reader has disconnected."""
        self._is_disconnected = True
        return self._react(self.endpoint.lose(self._clock()))

    def leave(self) -> None:
        """End the connection without a goodbye."""
        self._is_disconnected = True
        if self.offers.wake == self.wake:
            self.offers.stop()

    def _take_over(self, session: int) -> None:
        """Take over the streams of a resumed session."""
        self.offers = self._resumed(self.offers.session.key, session)
        self.offers.meet(self.wake)

    def _react(
        self, events: Sequence[EndpointEvent], fault: CloseReason = CloseReason.MALFORMED
    ) -> Sequence[EndpointEvent]:
        """Carry out events about streams; return the others. `fault`: the fault for client errors."""
        others: list[EndpointEvent] = []
        for event in events:
            match event:
                case SubscribeReceived(stream, publisher, demand):
                    self._subscribe(stream, publisher, demand)
                case DemandReceived(stream, demand):
                    self.offers.request(stream, demand)
                case Cancelled(stream):
                    self.offers.cancel(stream)
                case Resumed(session):
                    # Later events are about that session's streams.
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
        # A message is processed once: an error in a part of it is reported there, and the rest applies.
        try:
            opened = self._opening.open(publisher, self.offers.subjects)
            if not isinstance(opened, Fault) and self._sender_check is not None:
                opened = self._sender_check.refusal(opened.entity) or opened
            if isinstance(opened, Fault):
                self.offers.refuse(stream, opened)
            else:
                self.offers.begin(stream, opened, demand, length_of_lists(publisher))
        except Exception:
            log.exception("publisher not opened", publisher=publisher, connection=self.channel.connection_id)
            self.offers.fail(stream, INTERNAL_ERROR)

    def _ended(self, event: Completed | StreamFailed) -> None:
        """End a stream of the client, unless its session has ended or was replaced."""
        if self.endpoint.state is EndpointState.OPEN and self.endpoint.session is self.offers.session:
            reason = event.reason if isinstance(event, StreamFailed) else None
            self.offers.ingest.ended(event.stream, reason, self._clock())

    def _end(self, event: Closed | Interrupted) -> None:
        if self.offers.wake == self.wake:
            self.offers.leave()
            if isinstance(event, Closed):
                self.offers.stop()
        # Peers of a listener may come and go often: not logged as warnings.
        say = log.debug if self.channel.route.is_listener else log.info
        say(
            "session ended" if isinstance(event, Closed) else "session interrupted",
            connection=self.channel.connection_id,
            address=self.channel.address,
            reason=event.reason,
        )

    def wake(self) -> None:
        """There is something to send: with whatever else comes in this tick."""
        if not self._is_woken:
            self._is_woken = True
            asyncio.get_running_loop().call_soon(self._woken)

    def _woken(self) -> None:
        self._is_woken = False
        self.flush()

    def flush(self) -> None:
        """Send pending frames."""
        # A link may confirm within the call; the outer call continues then.
        if self._is_flushing or self._is_disconnected:
            return
        self._is_flushing = True
        try:
            while self.unconfirmed < self._window and (raw := self.endpoint.take()):
                elements, self.offers.elements = self.offers.elements, 0
                self._post(raw, elements)
                self.offers.resume_reading()
            if self._parting is not None and self.endpoint.is_drained:
                # The last word was said before, or cannot be said.
                self._post(b"")
        finally:
            self._is_flushing = False

    def _post(self, raw: bytes, elements: int = 0) -> None:
        parting: CloseReason | None = None
        if self.endpoint.is_drained:
            parting, self._parting = self._parting, None
        self.unconfirmed += 1
        self.channel.post([envelope(raw, self._name)], self._confirmed, elements=elements, parting=parting)

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
        """Whether the client detects lost messages by itself, and can resume."""
        return {Extension.SEQUENCE.value, Extension.RESUME.value} <= self.endpoint.in_force

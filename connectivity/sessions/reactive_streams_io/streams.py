"""The streams that one session has subscribed to (reactive-streams-io, engine).

Each is a subscription on the engine with the client's demand. Elements wait in the session until the transport takes them;
then the engine reads on, within the session's budget. Streams outlive a transport as their session does: without client they
read ahead one small page.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import takewhile

from connectivity.sessions.reactive_streams_io.access import ReaderRevalidation
from connectivity.sessions.reactive_streams_io.ingest import Ingest
from connectivity.sessions.reactive_streams_io.publishers import ResolvedPublisher
from connectivity.sessions.stream_source import fault_of
from connectivity.subscriptions.feed import Feed
from connectivity.subscriptions.manager import Subscriber, SubscriptionManager
from connectivity.subscriptions.read_ahead import ReadAheadBudget
from connectivity.targets.outbox import PendingPublish
from connectivity.transports.base import Done
from mappings.errors import Fault
from mappings.ids import EntityId
from mappings.model.signals import (
    Cancel,
    Complete,
    Created,
    Next,
    Outbound,
    Request,
    SessionQuery,
    Subscribe,
)
from mappings.reactive_streams_io import errors
from mappings.reactive_streams_io.options import RsioOptions
from mappings.reactive_streams_io.session import RsioSession

AT_ONCE = 500
"""Elements of one stream that are offered before others have their turn: many of them are one message."""

PACKED_AT_ONCE = 60 << 10
"""The bytes of fixed-size elements in one small page: together about a whole message."""

_NOT_READ = Fault(503, "rsio:subscription.ended", "The subscription has ended.")


class SessionStreams:
    """The streams of one session. `wake` is called when there is something for the transport."""

    def __init__(
        self,
        session: RsioSession,
        connection_id: str,
        subjects: tuple[str, ...],
        options: RsioOptions,
        streams: SubscriptionManager,
        reader_access: ReaderRevalidation,
    ) -> None:
        self.session = session
        self.connection_id = connection_id
        self.subjects = subjects
        self.streams_there = options.streams
        self.largest = options.limits.element
        self.ingest = Ingest(session, options.ingest, connection_id)
        """The streams that the service subscribes to in the same session."""
        self.wake: Callable[[], None] = no_transport
        self.elements = 0
        """How many streams have begun since this was set to 0."""
        self.budget = ReadAheadBudget(streams.budgets[connection_id])
        self._streams = streams
        self._reader_access = reader_access
        self._offers: dict[int, PublishedStream] = {}
        self._waiting: dict[int, PublishedStream] = {}

    def meet(self, wake: Callable[[], None]) -> None:
        """A client is connected and reads."""
        self.wake = wake
        self.budget.meet()

    def leave(self) -> None:
        """No client is connected."""
        self.wake = no_transport
        self.budget.leave_alone()

    def entity(self, stream: int) -> EntityId | None:
        """Return the entity of a stream; None if it has ended."""
        offer = self._offers.get(stream)
        return offer.entity if offer is not None else None

    def begin(self, stream: int, opened: ResolvedPublisher, demand: int, length: int) -> None:
        """Subscribe on the engine. `length`: of the publisher's text, with its lists. Raises StoreUnavailable."""
        offer = self._offers[stream] = PublishedStream(self, stream, opened)
        if opened.entity is not None and opened.is_revocable:
            self._reader_access.note((self, stream))
        query = SessionQuery(offer.open, opened.entity, length)
        self._streams.subscribe(Subscribe(opened.kind, query, {}, offer.key, demand), offer.peer)

    def refuse(self, stream: int, fault: Fault) -> None:
        self.session.end(stream, errors.write(fault))

    def request(self, stream: int, demand: int) -> None:
        if (offer := self._offers.get(stream)) is not None:
            self._streams.request(Request(offer.kind, offer.key, demand, {}), offer.peer)

    def cancel(self, stream: int) -> None:
        """End a stream silently: the client has canceled it, or has disconnected."""
        if (offer := self._offers.pop(stream, None)) is not None:
            self._waiting.pop(stream, None)
            self._reader_access.forget((self, stream))
            offer.is_over = True
            self._streams.cancel(Cancel(offer.kind, offer.key, {}), offer.peer)
            offer.let_go()

    def fail(self, stream: int, fault: Fault) -> None:
        """End a stream, and send the client the error."""
        self.cancel(stream)
        self.refuse(stream, fault)
        self.wake()

    def stop(self) -> None:
        """The session is over."""
        self.ingest.stop()
        for stream in list(self._offers):
            self.cancel(stream)
        # Streams that have failed are no longer offered, but their elements may wait.
        for offer in self._waiting.values():
            offer.let_go()
        self._waiting.clear()

    def resume_reading(self) -> None:
        """Read on for streams whose elements the transport has taken."""
        for stream, offer in list(self._waiting.items()):
            if not self.session.waiting(stream):
                del self._waiting[stream]
                offer.let_go()

    def wait(self, offer: PublishedStream) -> None:
        self._waiting[offer.stream] = offer

    def forget(self, offer: PublishedStream) -> None:
        """An offer has come to its end, which waits behind its elements."""
        self._offers.pop(offer.stream, None)
        self._reader_access.forget((self, offer.stream))


class PublishedStream:
    """One stream, which receives the elements of its subscription."""

    terminal_needs_request = False

    def __init__(self, offers: SessionStreams, stream: int, opened: ResolvedPublisher) -> None:
        self.stream = stream
        self.key = str(stream)
        self.kind = opened.kind
        self.entity: EntityId | None = opened.entity
        self.connection_id = offers.connection_id
        self.is_over = False
        scope = (offers.connection_id, "rsio", offers.session.key)
        at_once = max(AT_ONCE, PACKED_AT_ONCE // opened.element_size) if opened.element_size else AT_ONCE
        self.peer = Subscriber(
            self,
            offers.subjects,
            scope,
            has_session=True,
            budget=offers.budget,
            at_once=at_once,
            page_items=at_once,
            fails_once=True,
        )
        self._offers = offers
        self.open: Callable[[], Feed | Fault] = opened.open
        self._element_size = opened.element_size
        self._postings: deque[PendingPublish] = deque()

    def post(self, signal: Outbound, ended: Done | None = None) -> PendingPublish | None:
        """Pass elements and signals of the engine to the session."""
        if self.is_over:
            return None
        offers, session = self._offers, self._offers.session
        posting: PendingPublish | None = None
        if isinstance(signal, Created):
            session.accept(self.stream, self._element_size)
        elif isinstance(signal, Next):
            posting = self._offer(signal, ended)
        else:
            self.is_over = True
            session.end(
                self.stream, None if isinstance(signal, Complete) else errors.write(fault_of(signal, _NOT_READ))
            )
            offers.forget(self)
        offers.wake()
        return posting

    def _offer(self, signal: Next, ended: Done | None) -> PendingPublish:
        """Offer elements. Behind one that is too large there are no others."""
        session, largest = self._offers.session, self._offers.largest
        fit = signal.elements
        if (self._element_size or max(map(len, fit))) > largest:
            fit = list(takewhile(lambda element: len(element) <= largest, fit))
        session.offer(self.stream, fit)
        self._offers.elements += len(fit)
        posting = PendingPublish(1, ended)
        if len(fit) < len(signal.elements):
            size = len(signal.elements[len(fit)])
            text = f"An element has {size} bytes, expected at most {largest}."
            self._offers.fail(self.stream, Fault(413, "rsio:element.toolarge", text))
            _let_go(posting)
            return posting
        self._postings.append(posting)
        self._offers.wait(self)
        return posting

    def let_go(self) -> None:
        """Release the elements that the transport has taken, or that are no longer needed."""
        while self._postings:
            _let_go(self._postings.popleft())


def _let_go(posting: PendingPublish) -> None:
    posting.take()
    posting.confirm(None)


def no_transport() -> None:
    """Do nothing, while there is no transport to wake."""

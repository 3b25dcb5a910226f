"""What the service subscribes to at one client: streams of commands, and how far they have come (reactive-streams-io,
both directions).

Each name is a stream that the service asks for as soon as both have said hello. A window of elements is wanted at first;
more is wanted only when those before are done, which is to say that what they have changed is durable and their answers are
with the broker. So what a client is asked for is also how it learns what cannot be lost any more.

A stream that the client fails with a fault of its own is asked for again, by another id, after a pause that grows. One that
it completes, or refuses with a status that says that asking again would end the same way, is not asked for again in this
session. What elements say is read in `commanding`.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import structlog

from connectivity.sessions.base import SessionCommand, SessionReply
from mappings.errors import EncodeError
from mappings.reactive_streams_io import errors, publisher_names
from mappings.reactive_streams_io.session import RsioSession

log = structlog.get_logger(__name__)


WINDOW = 256
"""Elements of one stream that a client may have sent and that are not done."""

HALF = WINDOW // 2
"""So many have to be done before more are wanted."""

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
"""Seconds before a stream that has failed is asked for again."""

_TOO_MANY = 429


class Element:
    """One element that has come: `position` is its place among all of its session. It is told of once."""

    __slots__ = ("inlet", "is_told", "octets", "position", "stream", "work")

    def __init__(self, inlet: CommandStream, stream: int, position: str, octets: bytes) -> None:
        self.inlet = inlet
        self.stream = stream
        self.position = position
        self.octets = octets
        self.is_told = False
        self.work: SessionReply | SessionCommand | None = None
        """What is to be done for it, once it was read."""

    def __repr__(self) -> str:
        return f"<Element {self.position}, {len(self.octets)} octets>"


class CommandStream:
    """One stream that the service wants of its client."""

    __slots__ = ("done", "due", "id", "name", "pause", "publisher", "stream")

    def __init__(self, name: str) -> None:
        self.name = name
        self.publisher = publisher_names.write(publisher_names.IngestName(name))
        self.stream: int | None = None
        self.id = 0
        self.done = 0
        """Elements that are done and were not wanted anew."""
        self.pause = FIRST_PAUSE
        self.due: float | None = None
        """When it is asked for again."""

    def __repr__(self) -> str:
        return f"<Inlet {self.publisher} as {self.id}, {self.done} done>"


class Ingest:
    """All that is ingested in one session.

    `session` says what there is to say; whoever calls wakes the transport.
    """

    def __init__(self, session: RsioSession, wanted: Sequence[str], connection_id: str) -> None:
        self._session = session
        self._connection_id = connection_id
        self._inlets = [CommandStream(name) for name in wanted]
        self._by_stream: dict[int, CommandStream] = {}
        self._prefix = f"ingest:{secrets.token_hex(8)}"
        """What no other session has, in this life of the service or another."""
        self._count = 0
        self._fresh: list[Element] = []
        self._untold: dict[Element, None] = {}
        self._is_over = False

    def __repr__(self) -> str:
        return f"<Ingest {self._inlets!r}, {len(self._untold)} untold>"

    def begin(self) -> None:
        """Both have said hello."""
        for inlet in self._inlets:
            self._subscribe(inlet)

    def stop(self) -> None:
        """The session is over. What has come is carried out all the same."""
        self._is_over = True
        self._by_stream.clear()

    # what comes

    def arrived(self, stream: int, elements: Sequence[bytes]) -> None:
        """Elements of a stream have come."""
        if (inlet := self._by_stream.get(stream)) is None:
            return
        for octets in elements:
            self._count += 1
            element = Element(inlet, stream, f"{self._prefix}:{self._count}", octets)
            self._fresh.append(element)
            self._untold[element] = None

    def take(self) -> Sequence[Element]:
        """What has come since this was asked last, in order."""
        fresh, self._fresh = self._fresh, []
        return fresh

    @property
    def untold(self) -> Sequence[Element]:
        """What has come and was not told of, in order: on its way to the store, or handed back and given up there."""
        return list(self._untold)

    def ended(self, stream: int, reason: str | None, now: float) -> None:
        """A stream has come to its end: completed, or failed for this reason."""
        if (inlet := self._by_stream.pop(stream, None)) is None:
            return
        inlet.stream = None
        fault = errors.read(reason) if reason is not None else None
        is_final = fault is None or (400 <= fault.status < 500 and fault.status != _TOO_MANY)
        # Who has nothing to bring says so at each hello.
        tell = log.debug if is_final else log.info
        tell(
            "a client has ended what is ingested",
            connection=self._connection_id,
            publisher=inlet.publisher,
            reason=reason,
            again_in=None if is_final else inlet.pause,
        )
        if not is_final:
            inlet.due = now + inlet.pause
            inlet.pause = min(inlet.pause * 2, LONGEST_PAUSE)

    # what becomes of it

    def told(self, element: Element) -> bool:
        """Somebody tells what came of an element. False where that was told before."""
        if element.is_told:
            return False
        element.is_told = True
        self._untold.pop(element, None)
        return True

    def done(self, element: Element) -> bool:
        """An element is done. Whether there is something to say because of it."""
        inlet = element.inlet
        if self._is_over or inlet.stream != element.stream:
            return False
        inlet.done += 1
        inlet.pause = FIRST_PAUSE
        return inlet.done >= HALF and self._want_again(inlet)

    def settle_up(self) -> bool:
        """The session is about to end: let its client know of all that is done.

        Whether there is something to say.
        """
        wanted = [self._want_again(inlet) for inlet in self._inlets if inlet.done]
        return any(wanted)

    def tick(self, now: float) -> bool:
        """Ask again for what is due. Whether there is something to say because of it."""
        due = [inlet for inlet in self._inlets if inlet.due is not None and inlet.due <= now]
        for inlet in due:
            inlet.due = None
            if not self._is_over:
                self._subscribe(inlet)
        return bool(due)

    def _want_again(self, inlet: CommandStream) -> bool:
        done, inlet.done = inlet.done, 0
        return inlet.stream is not None and self._session.request(inlet.stream, done)

    def _subscribe(self, inlet: CommandStream) -> None:
        try:
            stream = self._session.subscribe(inlet.publisher, WINDOW, above=inlet.id)
        except EncodeError as error:
            log.error(
                "a name cannot be ingested",
                connection=self._connection_id,
                publisher=inlet.publisher,
                error=error.fault.message,
            )
            return
        inlet.stream, inlet.id, inlet.done = stream, self._session.id_of(stream) or 0, 0
        self._by_stream[stream] = inlet

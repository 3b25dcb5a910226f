"""Streams of commands that the service subscribes to at a client, and their progress.

See reactive-streams-io, both directions. The service subscribes to each configured name after both hellos, and requests a
window of elements. It requests more when earlier ones are done: their changes durable, and their responses confirmed by the
broker. So demand acknowledges elements. A stream that fails with a client error is subscribed to again under another ID,
after a growing pause. A completed stream, or one refused with a permanent status, is not subscribed to again in this
session. `commands` decodes the elements.
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
"""How many elements are done before more are requested."""

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
"""Seconds before a stream that has failed is asked for again."""

_TOO_MANY = 429


class Element:
    """A received element; `position` counts all elements of its session. It is acknowledged once."""

    __slots__ = ("inlet", "is_acknowledged", "position", "raw", "stream", "work")

    def __init__(self, inlet: CommandStream, stream: int, position: str, raw: bytes) -> None:
        self.inlet = inlet
        self.stream = stream
        self.position = position
        self.raw = raw
        self.is_acknowledged = False
        self.work: SessionReply | SessionCommand | None = None
        """The commands of the element, once it was decoded."""


class CommandStream:
    """One stream that the service subscribes to at its client."""

    __slots__ = ("done", "due", "id", "name", "pause", "publisher", "stream")

    def __init__(self, name: str) -> None:
        self.name = name
        self.publisher = publisher_names.write(publisher_names.IngestName(name))
        self.stream: int | None = None
        self.id = 0
        self.done = 0
        """Elements that are done and not requested again."""
        self.pause = FIRST_PAUSE
        self.due: float | None = None
        """When it is asked for again."""


class Ingest:
    """All ingested streams of one session. `session` sends frames; callers wake the transport."""

    def __init__(self, session: RsioSession, wanted: Sequence[str], connection_id: str) -> None:
        self._session = session
        self._connection_id = connection_id
        self._inlets = [CommandStream(name) for name in wanted]
        self._by_stream: dict[int, CommandStream] = {}
        self._prefix = f"ingest:{secrets.token_hex(8)}"
        """A unique prefix, for this and other lives of the service."""
        self._count = 0
        self._fresh: list[Element] = []
        self._untold: dict[Element, None] = {}
        self._is_over = False

    def begin(self) -> None:
        """Both have said hello."""
        for inlet in self._inlets:
            self._subscribe(inlet)

    def stop(self) -> None:
        """Stop at the end of the session. Received elements are still processed."""
        self._is_over = True
        self._by_stream.clear()

    def arrived(self, stream: int, elements: Sequence[bytes]) -> None:
        """Elements of a stream have come."""
        if (inlet := self._by_stream.get(stream)) is None:
            return
        for raw in elements:
            self._count += 1
            element = Element(inlet, stream, f"{self._prefix}:{self._count}", raw)
            self._fresh.append(element)
            self._untold[element] = None

    def take(self) -> Sequence[Element]:
        """Return the elements received since the last call, in order."""
        fresh, self._fresh = self._fresh, []
        return fresh

    @property
    def unacknowledged(self) -> Sequence[Element]:
        """Return the unacknowledged elements, in order: being stored, or given up after a retry."""
        return list(self._untold)

    def ended(self, stream: int, reason: str | None, now: float) -> None:
        """A stream has come to its end: completed, or failed for this reason."""
        if (inlet := self._by_stream.pop(stream, None)) is None:
            return
        inlet.stream = None
        fault = errors.read(reason) if reason is not None else None
        is_final = fault is None or (400 <= fault.status < 500 and fault.status != _TOO_MANY)
        # A client without a publisher refuses at each hello.
        tell = log.debug if is_final else log.info
        tell(
            "ingested stream ended by client",
            connection=self._connection_id,
            publisher=inlet.publisher,
            reason=reason,
            retry_in_seconds=None if is_final else inlet.pause,
        )
        if not is_final:
            inlet.due = now + inlet.pause
            inlet.pause = min(inlet.pause * 2, LONGEST_PAUSE)

    def acknowledge(self, element: Element) -> bool:
        """Acknowledge an element. False if it was acknowledged before."""
        if element.is_acknowledged:
            return False
        element.is_acknowledged = True
        self._untold.pop(element, None)
        return True

    def done(self, element: Element) -> bool:
        """Note that an element is done; return whether there is a frame to send."""
        inlet = element.inlet
        if self._is_over or inlet.stream != element.stream:
            return False
        inlet.done += 1
        inlet.pause = FIRST_PAUSE
        return inlet.done >= HALF and self._request_more(inlet)

    def acknowledge_done(self) -> bool:
        """Acknowledge all elements that are done; return whether there is a frame to send."""
        wanted = [self._request_more(inlet) for inlet in self._inlets if inlet.done]
        return any(wanted)

    def tick(self, now: float) -> bool:
        """Subscribe again where it is due. Return whether there are frames to send."""
        due = [inlet for inlet in self._inlets if inlet.due is not None and inlet.due <= now]
        for inlet in due:
            inlet.due = None
            if not self._is_over:
                self._subscribe(inlet)
        return bool(due)

    def _request_more(self, inlet: CommandStream) -> bool:
        done, inlet.done = inlet.done, 0
        return inlet.stream is not None and self._session.request(inlet.stream, done)

    def _subscribe(self, inlet: CommandStream) -> None:
        try:
            stream = self._session.subscribe(inlet.publisher, WINDOW, above=inlet.id)
        except EncodeError as error:
            log.error(
                "publisher name not encoded",
                connection=self._connection_id,
                publisher=inlet.publisher,
                error=error.fault.message,
            )
            return
        inlet.stream, inlet.id, inlet.done = stream, self._session.id_of(stream) or 0, 0
        self._by_stream[stream] = inlet

"""How a session is sent its frames: one line for each reply address, in order (Streamr protocol, frames to messages).

All frames of one address go through the same lane of the connection's outbox, whatever link that uses. A line belongs to
one request: it has the headers that the reply-target maps from it, so that what is sent because of a request can be told by
them. Broadcasts answer nobody; they carry no correlation id, and all of one line share their headers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import structlog

from connectivity.brokers.base import Outgoing
from connectivity.errors import ConnectivityError
from connectivity.lanes import Ended, Posting
from connectivity.outbound import Route
from connectivity.publication import Resolved
from mappings.envelope import Envelope
from mappings.streamr.frames import Frame, FrameType, Style, envelope, type_of, write_frame

log = structlog.get_logger(__name__)

CORRELATION_ID = "correlation-id"


class Line:
    """The way to one reply address, as one request has it."""

    __slots__ = ("_headers", "_route", "address", "correlation_id", "mapped", "style")

    def __init__(self, route: Route, resolved: Resolved, style: Style, correlation_id: str | None) -> None:
        self.address = resolved.address
        self.mapped = resolved.headers
        """What the reply-target has mapped."""
        self.style = style
        self.correlation_id = correlation_id
        self._route = route
        self._headers: dict[FrameType, Mapping[str, str]] = {}
        """Those of each type of frame that was sent: most lines send none, since publishing is not answered."""

    def __repr__(self) -> str:
        return f"<Line to {self.address} of {self._route.connection_id}>"

    @property
    def connection_id(self) -> str:
        return self._route.connection_id

    @property
    def source(self) -> int:
        """The index of the source by whose reply-target it leads."""
        return self._route.index

    def say(self, frame: Frame, ended: Ended | None = None) -> Posting:
        """Send one frame."""
        return self.send([(type_of(frame), write_frame(frame, self.style))], ended)

    def send(
        self, frames: Sequence[tuple[FrameType, bytes]], ended: Ended | None = None, *, elements: int = 0
    ) -> Posting:
        """Send frames that are written already, `elements` of them messages of streams."""
        route, headers, address, qos = self._route, self._headers, self.address, self._route.qos
        messages = [
            Outgoing(address, Envelope(payload, headers.get(type) or self._headers_of(type)), qos, address)
            for type, payload in frames
        ]
        facts = route.facts
        facts.dispatched.note(None, len(messages))
        facts.mapped.note(None, len(messages))
        told = partial(self._ended, len(messages), elements, ended)
        return route.outbox.post(messages, told, address, route.place)

    def _headers_of(self, type: FrameType) -> Mapping[str, str]:
        """What a reply-target maps counts more, apart from what tells of a request where none is answered."""
        own = envelope(b"", type, session=self.address, correlation_id=self.correlation_id).headers
        mapped = self.mapped
        if type is FrameType.BROADCAST:
            mapped = {name: value for name, value in mapped.items() if name != CORRELATION_ID}
        found = self._headers[type] = {**own, **mapped}
        return found

    def _ended(self, messages: int, elements: int, ended: Ended | None, error: ConnectivityError | None) -> None:
        route = self._route
        if error is not None:
            route.facts.not_published.note(None, words=str(error))
            log.warning(
                "a frame was not taken",
                connection=route.connection_id,
                source=route.index,
                address=self.address,
                error=str(error),
            )
        else:
            route.facts.published.note(None, messages)
            route.meter.events += elements
        if ended is not None:
            ended(error)

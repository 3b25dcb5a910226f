"""Sends frames to sessions, one channel for each reply address (Streamr protocol, frames).

A channel belongs to one request and has the headers that the reply-target maps from it. Broadcasts answer no request: they
have no correlation ID, and share their headers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from connectivity.sessions import reply_channel
from connectivity.subscriptions.manager import Subscriber, SubscriberSink, SubscriptionManager
from connectivity.targets.destination import Destination
from connectivity.targets.outbox import PendingPublish
from connectivity.targets.reply_target import ReplyTargetPublisher
from connectivity.transports.base import Done
from mappings.model.envelope import Envelope
from mappings.streamr.frames import FrameStyle, FrameType, StreamrFrame, envelope, type_of, write_frame

CORRELATION_ID = "correlation-id"


class StreamrReplyChannel(reply_channel.ReplyChannel):
    """The way to one reply address, as one request has it."""

    __slots__ = ("_headers", "correlation_id", "style")

    def __init__(
        self, route: ReplyTargetPublisher, resolved: Destination, style: FrameStyle, correlation_id: str | None
    ) -> None:
        super().__init__(route, resolved)
        self.style = style
        self.correlation_id = correlation_id
        self._headers: dict[FrameType, Mapping[str, str]] = {}
        """The headers by type of frame: most channels send none."""

    def subscriber(self, sink: SubscriberSink, subjects: tuple[str, ...], streams: SubscriptionManager) -> Subscriber:
        """Return a subscriber of the session at this address, with the budget of the peer or of the broker.

        Each mapping has sessions of its own.
        """
        scope = self.connection_id, self.route.mapper.name, self.address
        budget = streams.budgets[self.connection_id].receiver(self.address if self.route.is_listener else None)
        return Subscriber(sink, subjects, scope, has_session=True, budget=budget)

    def send_frame(self, frame: StreamrFrame, ended: Done | None = None) -> PendingPublish:
        """Send one frame."""
        return self.send_frames([frame], ended)

    def send_frames(
        self, frames: Sequence[StreamrFrame], ended: Done | None = None, *, elements: int = 0
    ) -> PendingPublish:
        """Send frames, `elements` of them messages of streams."""
        written = [(type_of(frame), write_frame(frame, self.style)) for frame in frames]
        return self.send(written, ended, elements=elements)

    def send(
        self, frames: Sequence[tuple[FrameType, bytes]], ended: Done | None = None, *, elements: int = 0
    ) -> PendingPublish:
        """Send frames that are written already."""
        headers = self._headers
        envelopes = [Envelope(payload, headers.get(type) or self._headers_of(type)) for type, payload in frames]
        return self.deliver(envelopes, ended, elements=elements)

    def send_notice(self, frame: StreamrFrame) -> PendingPublish:
        """Send a frame that no request has caused: without the correlation ID of this one's."""
        type = type_of(frame)
        headers = {**envelope(b"", type, session=self.address).headers, **_without_correlation_id(self.mapped)}
        return self.deliver([Envelope(write_frame(frame, self.style), headers)])

    def _headers_of(self, type: FrameType) -> Mapping[str, str]:
        """Return the headers of a frame.

        Mapped headers override its own, except request headers in broadcasts.
        """
        own = envelope(b"", type, session=self.address, correlation_id=self.correlation_id).headers
        mapped = _without_correlation_id(self.mapped) if type is FrameType.BROADCAST else self.mapped
        found = self._headers[type] = {**own, **mapped}
        return found


def _without_correlation_id(headers: Mapping[str, str]) -> Mapping[str, str]:
    return {name: value for name, value in headers.items() if name != CORRELATION_ID}

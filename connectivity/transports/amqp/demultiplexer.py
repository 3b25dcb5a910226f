"""Splits a link's received frames between the service's own handlers and aio-pika.

aio-pika reads each frame with several awaits and creates tasks for each delivery, which is fast enough only for login,
channels and consumers. Deliveries, returns and confirms go straight to the handler of their channel. Heartbeats
are left out: a flood of them would occupy aio-pika, which ignores them, without a turn for other tasks. Frames for aio-pika
are inspected for close reasons, blocked notifications, and the offered frame size and channel number.
"""

from __future__ import annotations

import asyncio
import select
import struct
from collections.abc import Callable
from typing import Any, Protocol

from connectivity.transports.amqp.frames import (
    BLOCKED,
    BODY,
    CHANNEL_CLOSE,
    CONNECTION_CLOSE,
    END,
    FRAME,
    HEADER,
    HEARTBEAT,
    METHOD,
    METHOD_ID,
    OVERHEAD,
    TUNE,
    TUNING,
    UNBLOCKED,
    Reason,
    frame,
    read_reason,
    read_short,
)

KINDS = frozenset({METHOD, HEADER, BODY, HEARTBEAT})
MIN_FRAME_MAX = 4096
MAX_CONTROL_FRAME = 1 << 20
"""The size limit of a frame, unless a larger one was agreed; a larger frame is not AMQP."""

_ENDED = getattr(select, "POLLRDHUP", select.POLLHUP)
"""The poll event for a closed input, even if bytes are unread.

Elsewhere than on Linux it only reports that both directions are closed.
"""


class FrameHandler(Protocol):
    """A handler of the frames of a channel."""

    def take(self, kind: int, payload: bytes) -> bool:
        """Handle a frame; return False to pass it to the library. Raises struct.error if it ends too early."""

    def closed(self, reason: Reason) -> None:
        """Called when the broker closes the channel."""


class FrameDemultiplexer(asyncio.StreamReaderProtocol):
    """The protocol of the transport; the library reads from `reader`.

    All callbacks are called on the event loop.
    """

    def __init__(self, *, channel_max: int, frame_max: int) -> None:
        """`channel_max`, `frame_max`: the limits to ask for; 0 accepts the broker's offer."""
        self.loop = asyncio.get_running_loop()
        self.reader = asyncio.StreamReader(loop=self.loop)
        super().__init__(self.reader, loop=self.loop)
        self.takers: dict[int, FrameHandler] = {}
        self.on_lost: Callable[[Exception | None], None] = no_op
        self.on_blocked: Callable[[str | None], None] = no_op
        """Called with the broker's reason when it blocks publishing, and with None when it unblocks it."""
        self.closed: Reason | None = None
        """The broker's reason for closing the link, if it sent one."""
        self.fault: str | None = None
        """Why the received bytes are not AMQP 0.9.1, or None."""
        self.last_received = self.loop.time()
        """When bytes were last received, or reading was last resumed."""
        self.channel_max, self.frame_max = channel_max, frame_max
        self._carrier: asyncio.BaseTransport | None = None
        self._is_lost = False
        """Whether the transport has ended. Before Python 3.11.4, that of TLS can do nothing afterwards."""
        self._ends = select.poll()
        self._tail = bytearray()
        self._needed = 0

    @property
    def peer_has_closed(self) -> bool:
        """Whether the broker has closed its side, even if earlier bytes are unread."""
        return self._is_lost or (self._carrier is not None and (self._carrier.is_closing() or bool(self._ends.poll(0))))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._carrier = transport
        if (own := transport.get_extra_info("socket")) is not None:
            self._ends.register(own.fileno(), _ENDED)
        super().connection_made(transport)

    def eof_received(self) -> bool:
        """Let the transport close itself: the broker has closed its side."""
        super().eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        super().connection_lost(exc)
        self.on_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.last_received = self.loop.time()
        if self._tail:
            # Joined only when a frame is complete, so that a large frame does not take quadratic time.
            self._tail += data
            if len(self._tail) < self._needed:
                return
            data, self._tail = bytes(self._tail), bytearray()
        passed: list[bytes] = []
        at, end = 0, len(data)
        while end - at >= OVERHEAD:
            kind, channel, size = FRAME.unpack_from(data, at)
            stop = at + OVERHEAD + size
            if kind not in KINDS or size > max(MAX_CONTROL_FRAME, self.frame_max):
                self._reject(data[at:])
                return
            if stop > end:
                self._needed = stop - at
                break
            if data[stop - 1] != END:
                self._reject(data[at:])
                return
            payload = data[at + FRAME.size : stop - 1]
            try:
                if (frame_handler := self.takers.get(channel)) is None:
                    if kind != HEARTBEAT:
                        passed.append(self._inspect(kind, channel, payload))
                elif not frame_handler.take(kind, payload):
                    if kind == METHOD and METHOD_ID.unpack_from(payload) == CHANNEL_CLOSE:
                        frame_handler.closed(read_reason(payload, METHOD_ID.size))
                    passed.append(data[at:stop])
            except struct.error:
                self._reject(data[at:])
                return
            at = stop
        else:
            self._needed = OVERHEAD
        if at < end:
            self._tail = bytearray(memoryview(data)[at:])
        if passed:
            super().data_received(b"".join(passed))

    def pause(self, is_paused: bool) -> None:
        """Stop or resume reading."""
        self.last_received = self.loop.time()
        if isinstance(self._carrier, asyncio.ReadTransport) and not (self._is_lost or self._carrier.is_closing()):
            (self._carrier.pause_reading if is_paused else self._carrier.resume_reading)()

    def _inspect(self, kind: int, channel: int, payload: bytes) -> bytes:
        """Inspect a frame and return the frame for the library."""
        if channel == 0 and kind == METHOD:
            method = METHOD_ID.unpack_from(payload)
            if method == TUNE:
                payload = payload[: METHOD_ID.size] + self._tune(*TUNING.unpack_from(payload, METHOD_ID.size))
            elif method == CONNECTION_CLOSE:
                self.closed = read_reason(payload, METHOD_ID.size)
            elif method == BLOCKED:
                self.on_blocked(read_short(payload, METHOD_ID.size)[0].decode(errors="replace"))
            elif method == UNBLOCKED:
                self.on_blocked(None)
        return frame(kind, channel, payload)

    def _tune(self, channels: int, frame_max: int, heartbeat: int) -> bytes:
        """Return the broker's offer narrowed to the requested limits; 0 is no limit on either side."""
        self.channel_max = _lower_limit(self.channel_max, channels)
        self.frame_max = max(MIN_FRAME_MAX, _lower_limit(self.frame_max, frame_max) or MAX_CONTROL_FRAME)
        return TUNING.pack(self.channel_max, self.frame_max, heartbeat)

    def _reject(self, data: bytes) -> None:
        """Record that the bytes are not a frame: another protocol, or the version the broker requires."""
        shown = data[:40].decode("ascii", errors="backslashreplace")
        self.fault = f"the response is not AMQP 0.9.1: {shown!r}"
        self.abort()

    def abort(self) -> None:
        """Close the transport without a closing handshake."""
        if isinstance(self._carrier, asyncio.WriteTransport) and not self._is_lost:
            self._carrier.abort()


def _lower_limit(one: int, other: int) -> int:
    return min(one, other) if one and other else one or other


def no_op(*_: Any) -> None:
    """Do nothing: the callback until another one is set."""

"""One peer's socket on the event loop: buffered output, and when reading stops.

Reading continues while the peer has fewer unsettled messages than the maximum and reads its own input. Received bytes
beyond that are kept unparsed. Output is written in the loop's next turn, so that many messages take one system call; a
message is confirmed when no more than the socket's small buffer waits, so that a sender that waits for confirms keeps
the peer's pace.

Each listener implements parsing (`Socket.advance`) and closing.
"""

from __future__ import annotations

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections import deque
from typing import Any, Protocol, cast

from connectivity.errors import PublishFailed
from connectivity.fair_share import PeerShare
from connectivity.transports.base import Delivery, Done, SharedDelivery
from connectivity.transports.listener.timeouts import SocketTimes

HIGH_WATER = 64 * 1024
"""Bytes in a socket's buffer from which on confirms are delayed."""

WRITE_SIZE = 32 * 1024
"""Bytes that are written at once, without waiting for the next turn of the event loop."""

FIRST_ANSWER = 16 * 1024
"""Bytes that the first answer to a peer is expected to take."""

_GONE = 410


class SocketOwner(Protocol):
    """The owner of a socket: the link. Each kind of listener has its own kind of peers."""

    max_unsettled: int

    def has_room_for(self, peer: Any, /) -> bool:
        """Whether another message of a peer is accepted now; otherwise it is moved later."""

    def turned_away(self, reason: str, /) -> None:
        """Called when a client is refused for this reason."""

    def left(self, peer: Any, /) -> None:
        """Called once for each socket after it is closed and all of its input is processed."""


class PeerDelivery(Delivery):
    """A delivery with its peer and, if several sources share it, the shared delivery."""

    __slots__ = ("answers", "bytes", "peer", "shared")

    answers: int
    """How many answers its peer had been sent when it came."""
    bytes: int
    """Its share of the listener's memory: its payload, and what its answer is expected to take."""
    peer: Socket
    shared: SharedDelivery[PeerDelivery] | None


class Socket(asyncio.Protocol, ABC):
    """One accepted socket."""

    def __init__(self, keeper: SocketOwner) -> None:
        self.id = f"peer-{secrets.token_urlsafe(16)}"
        """Its address while it is connected; random, so that it cannot be guessed."""
        self.network = ""
        """The IP address or network of the client."""
        self.was_connected = False
        """Whether its socket was connected at some time, after the TLS handshake."""
        self.user: tuple[str, str] | None = None
        """The kind and the name of its token or certificate, if there is one."""
        self.share: PeerShare | None = None
        self.bytes_share: PeerShare | None = None
        """Its shares of the unsettled messages of all peers, and of their bytes, once it is admitted."""
        self.unsettled = 0
        self.answer_bytes = FIRST_ANSWER
        """The expected size of the next answer in bytes."""
        self.answers = 0
        """How many answers it has been sent."""
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self.times = SocketTimes(now, now, now)
        self._socket_owner = keeper
        self._transport: asyncio.Transport | None = None
        self._unread = b""
        self._unconfirmed: deque[Done] = deque()
        self._is_full = False
        self._written = self._received = 0
        self._output: list[bytes] = []
        self._output_bytes = 0
        self._is_moving = self._has_left = False

    @property
    def waiting_output(self) -> int:
        """The number of bytes that the socket has not taken yet."""
        return self._transport.get_write_buffer_size() + self._output_bytes if self._transport is not None else 0

    # ── implemented by each listener ──────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def advance(self) -> None:
        """Process the received bytes as far as there is room."""

    @abstractmethod
    def farewell(self) -> None:
        """Start the closing handshake because the listener is being closed."""

    def ping(self) -> None:
        """Send a ping, if the protocol has one."""

    def idle(self) -> None:
        """Close because the peer has sent no message for too long, if the listener has such a timeout."""

    @property
    def has_unprocessed_input(self) -> bool:
        """Whether received bytes are not processed yet."""
        return bool(self._unread)

    def ended(self) -> None:
        """Called when the socket is closed and all of its input is processed."""

    # ── the socket ────────────────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(HIGH_WATER)
        self.was_connected = True

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - however it ended, it is gone
        self._transport = None
        self._is_full = False
        gone, self._unconfirmed = self._unconfirmed, deque()
        for done in gone:
            done(disconnected_error())
        # Input that was received before the close is still processed, and may have to wait for room.
        self.move()

    def pause_writing(self) -> None:
        self._is_full = True
        self.times.stuck = self._loop.time()
        self._received = self._written - self.waiting_output
        self.move()

    def resume_writing(self) -> None:
        self._is_full = False
        self.times.stuck = None
        while self._unconfirmed and not self._is_full:
            # The callback may send the next message, which may fill the socket again.
            self._unconfirmed.popleft()(None)
        self.move()

    # ── in ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def may_take(self) -> bool:
        owner = self._socket_owner
        return not self._is_full and self.unsettled < owner.max_unsettled and owner.has_room_for(self)

    @property
    def can_exchange_messages(self) -> bool:
        """Whether received bytes may be messages: neither the opening nor the closing handshake."""
        return self.times.is_open and self.times.closing is None

    def move(self) -> None:
        """Process the received bytes as far as there is room; then resume or pause reading."""
        if self._is_moving or self._has_left:
            return
        self._is_moving = True
        try:
            self.advance()
        finally:
            self._is_moving = False
        if self._transport is not None:
            self._update_reading(self._transport)
        elif not self.has_unprocessed_input:
            self._has_left = True
            self.ended()
            self._socket_owner.left(self)

    def _update_reading(self, transport: asyncio.Transport) -> None:
        if transport.is_closing():
            return
        # Once the socket is being closed, only its end can follow.
        is_closing = self.times.closing is not None
        is_wanted = not self._unread if is_closing else not self.has_unprocessed_input and self.may_take
        if is_wanted and not self.times.is_reading:
            transport.resume_reading()
            # A peer is not blamed for a pong or a message that was not read while reading was paused.
            self.times.last_received = self.times.spoke = self._loop.time()
            self.times.pinged = None
        elif not is_wanted and self.times.is_reading:
            transport.pause_reading()
        self.times.is_reading = is_wanted

    # ── out ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def send(self, data: bytes, done: Done | None) -> None:
        """Write a message; `done` is called when little output waits, or with an error if the peer is gone."""
        if self._transport is None or not self.can_exchange_messages:
            if done is not None:
                done(disconnected_error())
            return
        self.write(data)
        if done is None:
            return
        self.answers += 1
        self.expect_answer(len(data))
        if self._is_full:
            self._unconfirmed.append(done)
        else:
            done(None)

    def expect_answer(self, size: int) -> None:
        """Estimate the size of the next answer by that of the last one, 0 for a message that got none.

        A larger answer raises the estimate at once, and a smaller one lowers it by an eighth of the difference.
        """
        self.answer_bytes = max(size, self.answer_bytes - (self.answer_bytes - size) // 8)

    def write(self, data: bytes) -> None:
        self._written += len(data)
        self._output.append(data)
        self._output_bytes += len(data)
        if self._output_bytes >= WRITE_SIZE:
            self.flush_output()
        elif len(self._output) == 1:
            self._loop.call_soon(self.flush_output)

    def flush_output(self) -> None:
        if not self._output:
            return
        data, self._output, self._output_bytes = b"".join(self._output), [], 0
        if self._transport is not None:
            self._transport.write(data)

    def write_end(self) -> None:
        """Close the output side, so that the peer can close its own."""
        self.flush_output()
        if self._transport is None or self._transport.is_closing():
            return
        try:
            self._transport.write_eof()
        except OSError:
            # The peer has reset the connection; the loop has not noticed yet.
            self.abort()

    def look(self) -> None:
        """Record whether the peer has taken any waiting output since the last check."""
        if self.times.stuck is not None and (taken := self._written - self.waiting_output) > self._received:
            self._received, self.times.stuck = taken, self._loop.time()

    def abort(self) -> None:
        """Close without a closing handshake."""
        if self._transport is not None:
            self._transport.abort()


def disconnected_error() -> PublishFailed:
    return PublishFailed("the peer has disconnected", status=_GONE)


def common_name(certificate: object) -> str | None:
    """Return the common name in a verified certificate, in the format of `ssl.SSLSocket.getpeercert`."""
    subject = certificate.get("subject", ()) if isinstance(certificate, dict) else ()
    return next((value for part in subject for name, value in part if name == "commonName"), None)

"""One peer's socket on our loop: what waits on its way out, and when nothing more is read.

Reading goes on as long as the peer may have more messages unsettled and takes what is sent to it. Bytes that the socket has
brought beyond that rest as they are. What is sent goes to the socket in the loop's next turn, so that a hundred messages
are one call of the system; it is confirmed when no more than the socket's small buffer waits, so whoever waits for confirms
goes at the peer's pace.

What is made of bytes that come is for each door to say (`Socket.advance`), and so is how a peer is told goodbye.
"""

from __future__ import annotations

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections import deque
from typing import Any, Protocol, cast

from connectivity.errors import PublishFailed
from connectivity.transports.base import Delivery, Done, SharedDelivery
from connectivity.transports.listener.timeouts import SocketTimes

HIGH_WATER = 64 * 1024
"""Bytes in a socket's buffer from which on what is sent is confirmed later."""

GATHERED = 32 * 1024
"""Bytes that go to the socket without waiting for the loop's next turn."""

_GONE = 410


class SocketOwner(Protocol):
    """What a socket belongs to. Each kind has peers of its own kind."""

    max_unsettled: int

    @property
    def has_room(self) -> bool:
        """Whether messages may come in at all."""

    @property
    def is_overrun(self) -> bool:
        """Whether there are more sockets than could be peers, so that nothing of this one is read."""

    def made(self, peer: Any, /) -> None:
        """There is a socket."""

    def turned_away(self, reason: str, /) -> None:
        """Somebody is hung up on for this reason."""

    def left(self, peer: Any, /) -> None:
        """The socket is gone, and all that it has brought was taken. Told once of each, let in or not."""


class PeerDelivery(Delivery):
    """A delivery that knows its peer and, if several sources share it, the others' part."""

    __slots__ = ("peer", "shared")

    peer: Socket
    shared: SharedDelivery[PeerDelivery] | None


class Socket(asyncio.Protocol, ABC):
    """One socket that was accepted."""

    def __init__(self, keeper: SocketOwner) -> None:
        self.id = f"peer-{secrets.token_urlsafe(16)}"
        """Its address while it is connected. Nobody can guess it."""
        self.unsettled = 0
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self.times = SocketTimes(now, now, now)
        self._keeper = keeper
        self._transport: asyncio.Transport | None = None
        self._unread = b""
        self._unconfirmed: deque[Done] = deque()
        self._is_full = False
        self._written = self._taken = 0
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._is_moving = self._has_left = False

    @property
    def waiting_output(self) -> int:
        """Bytes that the socket has not taken yet."""
        return self._transport.get_write_buffer_size() + self._gathered_bytes if self._transport is not None else 0

    # ── what each door does in its own way ────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def advance(self) -> None:
        """Take what has come, as far as there is room."""

    @abstractmethod
    def farewell(self) -> None:
        """The door is being closed: say goodbye, and let the other side end it."""

    def ping(self) -> None:
        """Ask the peer whether it is there, where it can be asked."""

    @property
    def rests(self) -> bool:
        """Whether something has come and was not taken."""
        return bool(self._unread)

    def ended(self) -> None:
        """The socket is gone, and nothing rests."""

    # ── the socket ────────────────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(HIGH_WATER)
        self._keeper.made(self)
        if self._keeper.is_overrun:
            self._keeper.turned_away("there are as many sockets as there may be")
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - however it ended, it is gone
        self._transport = None
        self._is_full = False
        gone, self._unconfirmed = self._unconfirmed, deque()
        for done in gone:
            done(gone_error())
        # What it has said before it left counts, and may have to wait for room.
        self.move()

    def pause_writing(self) -> None:
        self._is_full = True
        self.times.stuck = self._loop.time()
        self._taken = self._written - self.waiting_output
        self.move()

    def resume_writing(self) -> None:
        self._is_full = False
        self.times.stuck = None
        while self._unconfirmed and not self._is_full:
            # Whoever hears it may send the next, which may fill the socket again.
            self._unconfirmed.popleft()(None)
        self.move()

    # ── in ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def may_take(self) -> bool:
        return not self._is_full and self.unsettled < self._keeper.max_unsettled and self._keeper.has_room

    @property
    def is_talking(self) -> bool:
        """Whether what comes may be messages: it is neither the beginning nor the end."""
        return self.times.is_open and self.times.closing is None

    def move(self) -> None:
        """Take what has come, as far as there is room, and read on or stop reading accordingly."""
        if self._is_moving or self._has_left:
            return
        self._is_moving = True
        try:
            self.advance()
        finally:
            self._is_moving = False
        if self._transport is not None:
            self._balance(self._transport)
        elif not self.rests:
            self._has_left = True
            self.ended()
            self._keeper.left(self)

    def _balance(self, transport: asyncio.Transport) -> None:
        if transport.is_closing():
            return
        # Once the socket is being closed, all that comes is its end.
        is_wanted = self.times.closing is not None or not (self.rests or not self.may_take)
        if is_wanted and not self.times.is_reading:
            transport.resume_reading()
            # What was missed while nobody read cannot be held against the peer.
            self.times.heard, self.times.pinged = self._loop.time(), None
        elif not is_wanted and self.times.is_reading:
            transport.pause_reading()
        self.times.is_reading = is_wanted

    # ── out ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def send(self, octets: bytes, done: Done | None) -> None:
        """Write what a message looks like here. `done` is told when little enough waits, or that the peer is gone."""
        if self._transport is None or not self.is_talking:
            if done is not None:
                done(gone_error())
            return
        self.write(octets)
        if done is None:
            return
        if self._is_full:
            self._unconfirmed.append(done)
        else:
            done(None)

    def write(self, data: bytes) -> None:
        self._written += len(data)
        self._gathered.append(data)
        self._gathered_bytes += len(data)
        if self._gathered_bytes >= GATHERED:
            self.write_gathered()
        elif len(self._gathered) == 1:
            self._loop.call_soon(self.write_gathered)

    def write_gathered(self) -> None:
        if not self._gathered:
            return
        data, self._gathered, self._gathered_bytes = b"".join(self._gathered), [], 0
        if self._transport is not None:
            self._transport.write(data)

    def write_end(self) -> None:
        """Nothing more is written. The other side may hear that, and end it."""
        self.write_gathered()
        # TLS in Python 3.11.2 cannot be cut off any more once it was closed twice.
        if self._transport is None or self._transport.is_closing():
            return
        if not self._transport.can_write_eof():
            self._transport.close()
            return
        try:
            self._transport.write_eof()
        except OSError:
            # The other side has reset the connection, which the loop is about to find out.
            self.abort()

    def look(self) -> None:
        """Note whether the peer has taken anything of what waits since the last look."""
        if self.times.stuck is not None and (taken := self._written - self.waiting_output) > self._taken:
            self._taken, self.times.stuck = taken, self._loop.time()

    def abort(self) -> None:
        """End it without a word."""
        if self._transport is not None:
            self._transport.abort()


def gone_error() -> PublishFailed:
    return PublishFailed("the peer is gone", status=_GONE)


def common_name(certificate: object) -> str | None:
    """The common name in a certificate, as the standard library shows one that it has verified."""
    subject = certificate.get("subject", ()) if isinstance(certificate, dict) else ()
    return next((value for part in subject for name, value in part if name == "commonName"), None)

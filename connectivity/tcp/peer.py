"""One peer of a TCP door: what its socket brings is handed on in pieces, in order.

Pieces are as the socket has brought them, up to `PIECE`; what comes while there is no room rests, and comes together when
there is. When nothing more is read, and what becomes of what is sent, is as at every door (`connectivity.doors.sockets`).

Behind the last word to a peer only its end is waited for: what it still sends is read and dropped. A socket that is closed
with something unread would tell the other side's system to forget what was sent last.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol

from connectivity.brokers.base import Done
from connectivity.doors.sockets import Keeper, Socket, common_name

PIECE = 64 * 1024
"""Octets that are handed on together, at most."""


class Door(Keeper, Protocol):
    """What a peer belongs to."""

    def entered(self, peer: Peer, /) -> None:
        """The peer is there."""

    def took(self, peer: Peer, octets: bytes, /) -> None:
        """A piece has come."""


class Peer(Socket):
    """One socket that was accepted."""

    def __init__(self, door: Door) -> None:
        super().__init__(door)
        self.user: str | None = None
        """The common name in its certificate, if it has shown one."""
        self._door = door

    def __repr__(self) -> str:
        state = "gone" if self._transport is None else "parting" if self.times.closing is not None else "open"
        return f"<Peer {self.id[:11]}…, {state}, {self.unsettled} unsettled>"

    # ── in ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if transport.is_closing():
            return
        self.times.is_open = True
        self.user = common_name(transport.get_extra_info("peercert"))
        if (own := transport.get_extra_info("socket")) is not None:
            # A peer may be silent for as long as it likes: the system finds out whether its machine is still there.
            own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._door.entered(self)
        self._door.took(self, b"")

    def data_received(self, data: bytes) -> None:
        if self.is_talking:
            self.times.heard = self._loop.time()
            self._unread = self._unread + data if self._unread else data
            self.move()

    def advance(self) -> None:
        while self._unread and self.may_take:
            piece, self._unread = self._unread[:PIECE], self._unread[PIECE:]
            self._door.took(self, piece)

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def part(self, octets: bytes, done: Done) -> None:
        """Say the last word, unless it is empty, and hear nothing more."""
        if octets:
            self.send(octets, done)
        else:
            done(None)
        if self.times.closing is None:
            self.times.closing = self._loop.time()
            self._unread = b""
            self.write_end()
            self.move()

    def farewell(self) -> None:
        self.part(b"", _nobody)


def _nobody(_error: Exception | None) -> None:
    """Nobody waits for it."""

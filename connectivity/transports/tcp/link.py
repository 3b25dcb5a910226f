"""The link of a TCP door: pieces of its peers' streams are delivered, and octets are sent to one peer.

A peer is told of as soon as it is there, by a delivery without octets: who has said nothing yet can be spoken to. How the
link holds its peers is as at every door (`connectivity.transports.listener.link`).
"""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol

from connectivity.transports.base import Done, OutboundMessage, unobserved
from connectivity.transports.listener.link import REPLY_TO, ListenerLink
from connectivity.transports.listener.socket import Socket, SocketOwner, common_name
from connectivity.transports.listener.timeouts import TimeoutOptions
from mappings.model.envelope import Envelope

PIECE = 64 * 1024
"""Octets that are handed on together, at most."""


class PeerRegistry(SocketOwner, Protocol):
    """What a peer belongs to."""

    def entered(self, peer: TcpPeer, /) -> None:
        """The peer is there."""

    def took(self, peer: TcpPeer, octets: bytes, /) -> None:
        """A piece has come."""


class TcpPeer(Socket):
    """One socket that was accepted."""

    def __init__(self, door: PeerRegistry) -> None:
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
        self.part(b"", unobserved)


USER = "tcp.user"


class TcpLink(ListenerLink[TcpPeer]):
    """See `connectivity.transports.base.Link`. There is one source; `address` is what it is called."""

    def __init__(
        self, connection_id: str, address: str, *, output_timeout: float, max_peers: int, max_unsettled: int
    ) -> None:
        # Whether a silent peer is still there, and for how long it may be silent, the wire protocol says.
        bounds = TimeoutOptions(ping=float("inf"), output=output_timeout)
        super().__init__(connection_id, 1, bounds, max_peers=max_peers, max_unsettled=max_unsettled)
        self._address = address
        self._headers: dict[str, dict[str, str]] = {}

    def make_peer(self) -> TcpPeer:
        return TcpPeer(self)

    @property
    def is_overrun(self) -> bool:
        return len(self._sockets) > self._max_peers

    def entered(self, peer: TcpPeer) -> None:
        self._headers[peer.id] = {REPLY_TO: peer.id} | ({USER: peer.user} if peer.user is not None else {})
        super().entered(peer)

    def gone(self, peer: TcpPeer) -> None:
        del self._headers[peer.id]

    def idle(self, peer: TcpPeer) -> None:
        peer.farewell()

    def took(self, peer: TcpPeer, octets: bytes) -> None:
        """A piece has come, or the peer itself."""
        self.deliver(peer, Envelope(octets, self._headers[peer.id]), self._address, (0,))

    def publish(self, message: OutboundMessage, done: Done) -> None:
        if self.is_over:
            return
        if (peer := self.peers.get(message.address)) is None:
            self.nobody_there(message.address, done)
        elif message.parting is not None:
            peer.part(message.envelope.payload, done)
        else:
            peer.send(message.envelope.payload, done)

"""The link of a TCP listener: delivers pieces of the peers' byte streams and sends bytes to one peer.

A new peer is reported at once by a delivery with an empty payload, so that the service can send first. The handling of
peers is shared by all listeners (`connectivity.transports.listener.link`).
"""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol

from connectivity.transports.base import Done, OutboundMessage, ignore_outcome
from connectivity.transports.listener.admission import AdmissionLimits
from connectivity.transports.listener.link import REPLY_TO, ListenerLink
from connectivity.transports.listener.socket import Socket, SocketOwner, common_name
from connectivity.transports.listener.timeouts import TimeoutOptions
from mappings.model.envelope import Envelope

MAX_PIECE = 4096
"""The most bytes that are delivered together: processing the smallest frames takes milliseconds."""


CERTIFICATE = "tcp.certificate"
"""The header with the common name in a peer's certificate."""


class TcpPeerOwner(SocketOwner, Protocol):
    """The owner of the peers: the link, as the peers see it."""

    def entered(self, peer: TcpPeer, /) -> None:
        """Called when a peer is connected."""

    def took(self, peer: TcpPeer, data: bytes, /) -> None:
        """Called when a piece of the stream has arrived."""


class TcpPeer(Socket):
    """One accepted socket."""

    def __init__(self, owner: TcpPeerOwner) -> None:
        super().__init__(owner)
        self.headers = {REPLY_TO: self.id}
        """The headers of each piece of its stream."""
        self._owner = owner

    # ── in ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.times.is_open = True
        if (certified := common_name(transport.get_extra_info("peercert"))) is not None:
            self.user = CERTIFICATE, certified
            self.headers[CERTIFICATE] = certified
        if (own := transport.get_extra_info("socket")) is not None:
            # A peer may be silent for any time: TCP keep-alive detects a dead host.
            own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._owner.entered(self)
        self._owner.took(self, b"")

    def data_received(self, data: bytes) -> None:
        if self.can_exchange_messages:
            self.times.last_received = self._loop.time()
            self._unread = self._unread + data if self._unread else data
            self.move()

    def advance(self) -> None:
        taken = 0
        while taken < len(self._unread) and self.may_take:
            self._owner.took(self, self._unread[taken : taken + MAX_PIECE])
            taken += MAX_PIECE
        self._unread = self._unread[taken:]

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def part(self, data: bytes, done: Done) -> None:
        """Send the last bytes, unless they are empty, and close without reading more."""
        if data:
            self.send(data, done)
        else:
            done(None)
        if self.times.closing is None:
            self.times.closing = self._loop.time()
            self._unread = b""
            self.write_end()
            self.move()

    def farewell(self) -> None:
        self.part(b"", ignore_outcome)


class TcpLink(ListenerLink[TcpPeer]):
    """A `connectivity.transports.base.Link` for TCP peers. There is one source, named by `address`."""

    def __init__(
        self,
        connection_id: str,
        address: str,
        limits: AdmissionLimits,
        *,
        output_timeout: float,
        max_unsettled: int,
        held_bytes: int,
    ) -> None:
        # Pings and idle timeouts are left to the wire protocol.
        bounds = TimeoutOptions(ping=float("inf"), output=output_timeout)
        super().__init__(connection_id, 1, bounds, limits, max_unsettled=max_unsettled, held_bytes=held_bytes)
        self._address = address

    def make_peer(self) -> TcpPeer:
        return TcpPeer(self)

    def took(self, peer: TcpPeer, data: bytes) -> None:
        """Deliver a piece of the stream; an empty one reports the new peer."""
        self.deliver(peer, Envelope(data, peer.headers), self._address, (0,))

    def publish(self, message: OutboundMessage, done: Done) -> None:
        if self.is_over:
            return
        if (peer := self.peers.get(message.address)) is None:
            self.reject_absent(message.address, done)
        elif message.parting is not None:
            peer.part(message.envelope.payload, done)
        else:
            peer.send(message.envelope.payload, done)

"""The link of a TCP door: pieces of its peers' streams are delivered, and octets are sent to one peer.

A peer is told of as soon as it is there, by a delivery without octets: who has said nothing yet can be spoken to. How the
link holds its peers is as at every door (`connectivity.doors.link`).
"""

from __future__ import annotations

from connectivity.brokers.base import Done, Outgoing
from connectivity.doors.lifetime import Bounds
from connectivity.doors.link import REPLY_TO, DoorLink
from connectivity.tcp.peer import Peer
from mappings.envelope import Envelope

USER = "tcp.user"


class TcpLink(DoorLink[Peer]):
    """See `connectivity.brokers.base.Link`. There is one source; `address` is what it is called."""

    def __init__(
        self, connection_id: str, address: str, *, output_timeout: float, max_peers: int, max_unsettled: int
    ) -> None:
        # Whether a silent peer is still there, and for how long it may be silent, the wire protocol says.
        bounds = Bounds(ping=float("inf"), output=output_timeout)
        super().__init__(connection_id, 1, bounds, max_peers=max_peers, max_unsettled=max_unsettled)
        self._address = address
        self._headers: dict[str, dict[str, str]] = {}

    def make_peer(self) -> Peer:
        return Peer(self)

    @property
    def is_overrun(self) -> bool:
        return len(self._sockets) > self._max_peers

    def entered(self, peer: Peer) -> None:
        self._headers[peer.id] = {REPLY_TO: peer.id} | ({USER: peer.user} if peer.user is not None else {})
        super().entered(peer)

    def gone(self, peer: Peer) -> None:
        del self._headers[peer.id]

    def idle(self, peer: Peer) -> None:
        peer.farewell()

    def took(self, peer: Peer, octets: bytes) -> None:
        """A piece has come, or the peer itself."""
        self.deliver(peer, Envelope(octets, self._headers[peer.id]), self._address, (0,))

    def publish(self, message: Outgoing, done: Done) -> None:
        if self.is_over:
            return
        if (peer := self.peers.get(message.address)) is None:
            self.nobody_there(message.address, done)
        elif message.parting is not None:
            peer.part(message.envelope.payload, done)
        else:
            peer.send(message.envelope.payload, done)

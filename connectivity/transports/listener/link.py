"""The link of a listener: its port, its peers, their messages, and closing.

There is no broker. An acknowledged delivery sends nothing, and a rejected one cannot be redelivered: the peer has to
repeat a failed request. A peer that leaves is reported to `readers` after its last message.

**Bounds.** At most `MAX_HELD` messages of all peers may be unsettled, and so many bytes of them and of their expected
answers, which users and their peers share (`connectivity.fair_share`), and one more of each peer, up to twice the bytes:
nothing more is read from peers with the most of them, while the others go on. A slow peer does not delay the others: the
ordering key is the address.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from types import MappingProxyType
from typing import Generic, TypeVar

import structlog

from connectivity.errors import LinkError, PublishFailed
from connectivity.fair_share import FairShare
from connectivity.transports.base import (
    Delivery,
    Done,
    Inbox,
    OutboundMessage,
    Outcome,
    Readers,
    ReaderStatus,
    SharedDelivery,
    ignore_reader_status,
)
from connectivity.transports.listener.acceptor import Acceptor
from connectivity.transports.listener.admission import Admission, AdmissionLimits
from connectivity.transports.listener.socket import PeerDelivery, Socket
from connectivity.transports.listener.timeouts import TimeoutDecision, TimeoutOptions, next_timeout
from mappings.model.envelope import Envelope

log = structlog.get_logger(__name__)

REPLY_TO = "reply-to"
"""The header with the address of the sender, to which replies are sent."""

WINDOW = 16
"""The maximum number of unconfirmed messages for one address."""

MAX_HELD = 5000
MAX_REFUSED = 4
"""How many peers without room are tried when a delivery has ended."""

CHECK_INTERVAL = 1.0
FAREWELL = 2.0
"""Seconds that peers have to finish the closing handshake when the listener is closed."""

_NOT_FOUND = 404

AnyPeer = TypeVar("AnyPeer", bound=Socket)


class ListenerLink(ABC, Generic[AnyPeer]):
    """A `connectivity.transports.base.Link`; the server calls `make_peer` for each accepted socket."""

    condition: str | None = None
    throttled = 0
    target_faults: Mapping[int, str] = MappingProxyType({})

    def __init__(
        self,
        connection_id: str,
        sources: int,
        bounds: TimeoutOptions,
        limits: AdmissionLimits,
        *,
        max_unsettled: int,
        held_bytes: int,
    ) -> None:
        """`sources`: the number of sources; `held_bytes`: the bytes of unsettled messages that peers share."""
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[LinkError] = self._loop.create_future()
        self.window = WINDOW
        self.readers: Readers = ignore_reader_status
        self.max_unsettled = max_unsettled
        self.peers: dict[str, AnyPeer] = {}
        """The connected peers by their IDs."""
        self.is_over = False
        self._connection_id = connection_id
        self._bounds = bounds
        self._admission = Admission(limits)
        self._inboxes = [Inbox() for _ in range(sources)]
        self._sockets: set[AnyPeer] = set()
        """All accepted sockets, including those that are in a handshake."""
        self._leaving: set[Socket] = set()
        """Peers that have left while some of their deliveries are unsettled."""
        self._shares = FairShare(MAX_HELD)
        self._bytes = FairShare(held_bytes)
        self._crowded: dict[Socket, None] = {}
        """Peers from which no more is read because they have no room; the first is tried next."""
        self._refusals: defaultdict[str, int] = defaultdict(int)
        self._acceptor: Acceptor | None = None
        self._sweep = self._loop.call_later(CHECK_INTERVAL, self._look)
        self._empty: asyncio.Future[None] | None = None
        self._close_task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "over" if self.is_over else "open"
        return f"<{type(self).__name__} {state}, {len(self.peers)} peers, {self._shares.used} deliveries held>"

    @abstractmethod
    def make_peer(self) -> AnyPeer:
        """Create the peer for a socket that is being accepted."""

    def listen(self, listening: Sequence[socket.socket], context: ssl.SSLContext | None) -> None:
        """Accept peers at these sockets, which the link closes."""
        self._acceptor = Acceptor(listening, self, context)

    # ── peers ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def has_room_for(self, peer: Socket) -> bool:
        # A socket that is not admitted sends no messages; a peer without unsettled messages always goes on.
        if (share := peer.share) is None or (held := peer.bytes_share) is None:
            return True
        if not share.used:
            if self._bytes.used < 2 * self._bytes.most:
                return True
        elif share.has_room and held.has_room:
            return True
        self._crowded[peer] = None
        return False

    def accepted(self, address: str) -> AnyPeer | None:
        """Return the peer for a socket of this address; None if it is refused."""
        if (reason := self._admission.enter(address, self._loop.time())) is not None:
            self.turned_away(reason)
            return None
        peer = self.make_peer()
        peer.network = address
        self._sockets.add(peer)
        return peer

    def turned_away(self, reason: str) -> None:
        self._refusals[reason] += 1

    def entered(self, peer: AnyPeer) -> None:
        """Register an admitted peer. Those without a name are one user for each network address."""
        self.peers[peer.id] = peer
        user = peer.user or ("network", peer.network)
        peer.share, peer.bytes_share = self._shares.peer(user, peer.id), self._bytes.peer(user, peer.id)
        log.debug("peer connected", connection=self._connection_id, peer=peer.id)

    def left(self, peer: AnyPeer) -> None:
        if peer in self._sockets:
            self._sockets.remove(peer)
            self._admission.leave(peer.network)
        self._crowded.pop(peer, None)
        if self.peers.pop(peer.id, None) is not None:
            self.gone(peer)
            log.debug("peer disconnected", connection=self._connection_id, peer=peer.id)
            if peer.unsettled and not self.is_over:
                self._leaving.add(peer)
            else:
                self.readers(peer.id, ReaderStatus.GONE)
        if not self._sockets and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    def gone(self, peer: AnyPeer) -> None:
        """Handle the end of a peer that was admitted."""

    # ── consuming ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def consume(self, source: int) -> AsyncIterator[list[Delivery]]:
        return self._inboxes[source].lists()

    def deliver(self, peer: AnyPeer, envelope: Envelope, address: str, sources: Sequence[int]) -> None:
        """Deliver a message of a peer to each of these sources."""
        if self.is_over or not sources:
            return
        assert peer.share is not None, "peers are admitted before they send messages"
        assert peer.bytes_share is not None
        shared: SharedDelivery[PeerDelivery] | None = None
        size = len(envelope.payload) + peer.answer_bytes
        for number, source in enumerate(sources):
            copy = PeerDelivery(envelope, address, None, False, self._ended, peer.id)
            copy.peer, copy.user, copy.bytes, copy.answers = peer, peer.share.user, size, peer.answers
            if len(sources) > 1:
                shared = SharedDelivery(copy, len(sources)) if number == 0 else shared
            copy.shared = shared
            self._inboxes[source].waiting.append(copy)
            self._inboxes[source].wake()
        peer.unsettled += 1
        peer.share.take()
        peer.bytes_share.take(size)

    def _ended(self, delivery: Delivery, outcome: Outcome) -> None:
        assert isinstance(delivery, PeerDelivery)
        if self.is_over or (delivery.shared is not None and not delivery.shared.ended(outcome)):
            return
        peer = delivery.peer
        assert peer.share is not None, "only admitted peers have deliveries"
        assert peer.bytes_share is not None
        peer.unsettled -= 1
        peer.share.give_back()
        peer.bytes_share.give_back(delivery.bytes)
        if peer.answers == delivery.answers:
            peer.expect_answer(0)
        if not peer.unsettled and peer in self._leaving:
            self._leaving.discard(peer)
            self.readers(peer.id, ReaderStatus.GONE)
        peer.move()
        if self._crowded:
            self._move_crowded()

    def _move_crowded(self) -> None:
        """Read on from peers that have room again, until a few have none."""
        refused = 0
        while self._crowded and refused < MAX_REFUSED:
            peer = next(iter(self._crowded))
            del self._crowded[peer]
            peer.move()
            refused += peer in self._crowded

    # ── publishing ────────────────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def publish(self, message: OutboundMessage, done: Done) -> None: ...

    def reject_absent(self, address: str, done: Done) -> None:
        """Fail a message whose peer is not connected."""
        self.readers(address, ReaderStatus.GONE)
        done(PublishFailed(f"peer {address[:100]!r} is not connected", status=_NOT_FOUND))

    # ── lifetimes ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _look(self) -> None:
        """Check once a second which peers to ping, close or abort, and log how many were refused."""
        self._sweep = self._loop.call_later(CHECK_INTERVAL, self._look)
        now = self._loop.time()
        crowded, self._crowded = self._crowded, {}
        for peer in crowded:
            peer.move()
        for peer in list(self._sockets):
            peer.look()
            decision = next_timeout(peer.times, self._bounds, now)
            if decision is TimeoutDecision.PING:
                peer.ping()
            elif decision is TimeoutDecision.IDLE:
                peer.idle()
            elif decision is not TimeoutDecision.FINE:
                log.debug(
                    "peer connection aborted", connection=self._connection_id, peer=peer.id, reason=decision.value
                )
                peer.abort()
        for reason, count in self._refusals.items():
            log.warning("peers refused", connection=self._connection_id, reason=reason, count=count)
        self._refusals.clear()

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def close(self) -> None:
        if self._close_task is None:
            self.is_over = True
            self._close_task = self._loop.create_task(self._leave())
        await asyncio.shield(self._close_task)

    async def _leave(self) -> None:
        self._sweep.cancel()
        # The end of their deliveries is no longer reported to this link.
        leaving, self._leaving = self._leaving, set()
        for each in leaving:
            self.readers(each.id, ReaderStatus.GONE)
        if self._acceptor is not None:
            await self._acceptor.close()
        for inbox in self._inboxes:
            inbox.end()
        for peer in list(self._sockets):
            peer.farewell()
        if self._sockets:
            self._empty = self._loop.create_future()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FAREWELL):
                    await asyncio.shield(self._empty)
        for peer in list(self._sockets):
            peer.abort()

"""The link of a door as far as doors are alike: its port, its peers, what they bring, and their end.

There is no broker behind it. A delivery is settled by saying nothing, and cannot come again: a peer that was told of a
failure asks once more. A peer that is gone is told to whoever has asked (`readers`), behind what it has said: that counts.

**Bounds.** Messages of all peers that wait for their end are at most about `MOST_HELD`; then no peer is read from until half
of them have ended. What waits for one peer holds up nobody else: the lanes of a door go by address.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from typing import Generic, TypeVar

import structlog

from connectivity.errors import LinkError, PublishFailed
from connectivity.transports.base import (
    Delivery,
    Done,
    Inbox,
    OutboundMessage,
    Outcome,
    Readers,
    ReaderStatus,
    SharedDelivery,
    nobody_asks,
)
from connectivity.transports.listener.socket import PeerDelivery, Socket
from connectivity.transports.listener.timeouts import TimeoutDecision, TimeoutOptions, judge
from mappings.model.envelope import Envelope

log = structlog.get_logger(__name__)


REPLY_TO = "reply-to"
"""The header that says who has sent a message, and is answered."""

WINDOW = 16
"""Messages for one address that may be published and not yet confirmed."""

MOST_HELD = 5000
SPARE = 100
"""Sockets beyond the most peers, for those who are told that there is no room."""

SWEEP = 1.0
FAREWELL = 2.0
"""Seconds for the peers' part of a closing, when the door closes."""

_NOBODY = 404

AnyPeer = TypeVar("AnyPeer", bound=Socket)


class ListenerLink(ABC, Generic[AnyPeer]):
    """See `connectivity.transports.base.Link`. A server that calls `make_peer` belongs to it."""

    condition: str | None = None
    throttled = 0

    def __init__(
        self, connection_id: str, sources: int, bounds: TimeoutOptions, *, max_peers: int, max_unsettled: int
    ) -> None:
        """`sources`: how many there are."""
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[LinkError] = self._loop.create_future()
        self.window = WINDOW
        self.readers: Readers = nobody_asks
        self.max_unsettled = max_unsettled
        self.peers: dict[str, AnyPeer] = {}
        """Those who are in, by their ids."""
        self.is_over = False
        self._connection_id = connection_id
        self._bounds, self._max_peers = bounds, max_peers
        self._inboxes = [Inbox() for _ in range(sources)]
        self._sockets: set[AnyPeer] = set()
        """All that were accepted, let in or not."""
        self._leaving: set[Socket] = set()
        """Those who have left, and something of whom has not ended yet."""
        self._held = 0
        self._is_crowded = False
        self._refusals: defaultdict[str, int] = defaultdict(int)
        self._server: asyncio.Server | None = None
        self._sweep = self._loop.call_later(SWEEP, self._look)
        self._empty: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        state = "over" if self.is_over else "open"
        return f"<{type(self).__name__} {state}, {len(self.peers)} peers, {self._held} deliveries held>"

    @abstractmethod
    def make_peer(self) -> AnyPeer:
        """A socket is being accepted."""

    @abstractmethod
    def idle(self, peer: AnyPeer) -> None:
        """A peer has said nothing for too long: tell it goodbye."""

    def listening(self, server: asyncio.Server) -> None:
        """The sockets of this server come here; it is the link's to close."""
        self._server = server

    # ── peers ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def has_room(self) -> bool:
        return not self._is_crowded

    @property
    def is_overrun(self) -> bool:
        return len(self._sockets) > self._max_peers + SPARE

    def made(self, peer: AnyPeer) -> None:
        self._sockets.add(peer)

    def turned_away(self, reason: str) -> None:
        self._refusals[reason] += 1

    def entered(self, peer: AnyPeer) -> None:
        """A peer is in."""
        self.peers[peer.id] = peer
        log.debug("a peer came", connection=self._connection_id, peer=peer.id)

    def left(self, peer: AnyPeer) -> None:
        self._sockets.discard(peer)
        if self.peers.pop(peer.id, None) is not None:
            self.gone(peer)
            log.debug("a peer left", connection=self._connection_id, peer=peer.id)
            if peer.unsettled and not self.is_over:
                self._leaving.add(peer)
            else:
                self.readers(peer.id, ReaderStatus.GONE)
        if not self._sockets and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    def gone(self, peer: AnyPeer) -> None:
        """Somebody who was in has left."""

    # ── consuming ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def consume(self, source: int) -> AsyncIterator[list[Delivery]]:
        return self._inboxes[source].lists()

    def deliver(self, peer: AnyPeer, envelope: Envelope, address: str, sources: Sequence[int]) -> None:
        """A message of a peer, for each of these sources."""
        if self.is_over or not sources:
            return
        shared: SharedDelivery[PeerDelivery] | None = None
        for number, source in enumerate(sources):
            copy = PeerDelivery(envelope, address, None, False, self._ended, peer.id)
            copy.peer = peer
            if len(sources) > 1:
                shared = SharedDelivery(copy, len(sources)) if number == 0 else shared
            copy.shared = shared
            self._inboxes[source].waiting.append(copy)
            self._inboxes[source].wake()
        peer.unsettled += 1
        self._held += 1
        self._is_crowded = self._is_crowded or self._held >= MOST_HELD

    def _ended(self, delivery: Delivery, outcome: Outcome) -> None:
        assert isinstance(delivery, PeerDelivery)
        if self.is_over or (delivery.shared is not None and not delivery.shared.ended(outcome)):
            return
        peer = delivery.peer
        peer.unsettled -= 1
        self._held -= 1
        if not peer.unsettled and peer in self._leaving:
            self._leaving.discard(peer)
            self.readers(peer.id, ReaderStatus.GONE)
        if self._is_crowded and self._held <= MOST_HELD // 2:
            self._is_crowded = False
            for each in list(self._sockets):
                each.move()
        else:
            peer.move()

    # ── publishing ────────────────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def publish(self, message: OutboundMessage, done: Done) -> None: ...

    def nobody_there(self, address: str, done: Done) -> None:
        """A message is for somebody who is not there."""
        self.readers(address, ReaderStatus.GONE)
        done(PublishFailed(f"no peer is connected by the name {address[:100]!r}", status=_NOBODY))

    # ── lifetimes ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _look(self) -> None:
        """Once a second: who is to be asked, closed, or cut off; and what was refused meanwhile."""
        self._sweep = self._loop.call_later(SWEEP, self._look)
        now = self._loop.time()
        for peer in list(self._sockets):
            peer.look()
            verdict = judge(peer.times, self._bounds, now)
            if verdict is TimeoutDecision.PING:
                peer.ping()
            elif verdict is TimeoutDecision.IDLE:
                self.idle(peer)
            elif verdict is not TimeoutDecision.FINE:
                log.debug("a peer was cut off", connection=self._connection_id, peer=peer.id, reason=verdict.value)
                peer.abort()
        for reason, count in self._refusals.items():
            log.warning("peers were not let in", connection=self._connection_id, reason=reason, count=count)
        self._refusals.clear()

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def close(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        self._sweep.cancel()
        # The end of what they have said is not told to this link any more.
        leaving, self._leaving = self._leaving, set()
        for each in leaving:
            self.readers(each.id, ReaderStatus.GONE)
        if self._server is not None:
            self._server.close()
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

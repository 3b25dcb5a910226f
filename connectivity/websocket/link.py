"""The link of a door: it listens, and holds its peers. What they send is delivered, what is sent to them is published.

There is no broker behind it. A delivery is settled by saying nothing, and cannot come again: a peer that was told of a
failure asks once more. A message goes to one peer, by its id, or to all at a path. A peer that is gone is told to whoever
has asked (`readers`).

**Bounds.** Messages of all peers that wait for their end are at most about `MOST_HELD`; then no peer is read from until half
of them have ended. What waits for one peer holds up nobody else: the lanes of a door go by address.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from functools import lru_cache
from http import HTTPStatus

import structlog
from websockets.extensions.base import ServerExtensionFactory
from websockets.frames import CloseCode

from connectivity.brokers.base import Delivery, Done, Inbox, Outcome, Outgoing, Readers, Shared, Sign, nobody_asks
from connectivity.errors import LinkError, PublishFailed
from connectivity.websocket.admission import FRAME, REPLY_TO, Admitted, Asked, Refused, Rules, admit
from connectivity.websocket.lifetime import Bounds, Verdict, judge
from connectivity.websocket.peer import Peer, Taken, is_utf8
from mappings.content_types import parse_content_type
from mappings.envelope import Envelope

log = structlog.get_logger(__name__)

WINDOW = 16
"""Messages for one address that may be published and not yet confirmed."""

MOST_HELD = 5000
SPARE = 100
"""Sockets beyond the most peers, for those who are told that there is no room."""

SWEEP = 1.0
FAREWELL = 2.0
"""Seconds for the peers' part of a closing, when the door closes."""

_NOBODY = 404


class DoorLink:
    """See `connectivity.brokers.base.Link`."""

    condition: str | None = None
    throttled = 0

    def __init__(
        self,
        connection_id: str,
        sources: Sequence[Sequence[str]],
        rules: Rules,
        bounds: Bounds,
        *,
        max_frame: int,
        max_unsettled: int,
        max_output: int,
        extensions: Sequence[ServerExtensionFactory] = (),
    ) -> None:
        """`sources`: the paths of each source."""
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[LinkError] = self._loop.create_future()
        self.window = WINDOW
        self.readers: Readers = nobody_asks
        self.max_frame, self.max_unsettled, self.max_output = max_frame, max_unsettled, max_output
        self.extensions = list(extensions)
        self._connection_id = connection_id
        self._rules, self._bounds = rules, bounds
        self._inboxes = [Inbox() for _ in sources]
        self._by_path: dict[str, tuple[int, ...]] = {}
        for index, paths in enumerate(sources):
            for path in paths:
                self._by_path[path] = (*self._by_path.get(path, ()), index)
        self._sockets: set[Peer] = set()
        """All that were accepted, let in or not."""
        self._peers: dict[str, Peer] = {}
        self._at: defaultdict[str, set[Peer]] = defaultdict(set)
        self._held = 0
        self._is_crowded = self._is_over = False
        self._refusals: defaultdict[str, int] = defaultdict(int)
        self._server: asyncio.Server | None = None
        self._sweep = self._loop.call_later(SWEEP, self._look)
        self._empty: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return (
            f"<DoorLink {'over' if self._is_over else 'open'}, {len(self._peers)} peers, {self._held} deliveries held>"
        )

    def make_peer(self) -> Peer:
        """A socket is being accepted."""
        return Peer(self)

    def listening(self, server: asyncio.Server) -> None:
        """The sockets of this server come here; it is the link's to close."""
        self._server = server

    # ── peers ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def has_room(self) -> bool:
        return not self._is_crowded

    @property
    def is_overrun(self) -> bool:
        return len(self._sockets) > self._rules.max_peers + SPARE

    def made(self, peer: Peer) -> None:
        self._sockets.add(peer)

    def turned_away(self, reason: str) -> None:
        self._refusals[reason] += 1

    def admit(self, asked: Asked) -> Admitted | Refused:
        if self._is_over:
            return Refused(HTTPStatus.SERVICE_UNAVAILABLE, "The door is being closed.")
        decided = admit(asked, self._rules, len(self._peers))
        if isinstance(decided, Refused):
            self.turned_away(f"{decided.status.value} {decided.text}")
        return decided

    def entered(self, peer: Peer) -> None:
        own = {REPLY_TO: peer.id}
        peer.text_headers |= own | {FRAME: "text"}
        peer.binary_headers |= own | {FRAME: "binary"}
        self._peers[peer.id] = peer
        self._at[peer.path].add(peer)
        log.debug("a peer came", connection=self._connection_id, peer=peer.id, path=peer.path)

    def left(self, peer: Peer) -> None:
        self._sockets.discard(peer)
        if self._peers.pop(peer.id, None) is not None:
            at = self._at[peer.path]
            at.discard(peer)
            if not at:
                del self._at[peer.path]
            log.debug("a peer left", connection=self._connection_id, peer=peer.id, path=peer.path)
            self.readers(peer.id, Sign.GONE)
        if not self._sockets and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    # ── consuming ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def consume(self, source: int) -> AsyncIterator[list[Delivery]]:
        return self._inboxes[source].lists()

    def took(self, peer: Peer, payload: bytes, *, is_text: bool) -> None:
        sources = self._by_path.get(peer.path, ())
        if self._is_over or not sources:
            # At a path of targets alone there is nobody to listen.
            return
        envelope = Envelope(payload, peer.text_headers if is_text else peer.binary_headers)
        shared: Shared[Taken] | None = None
        for number, source in enumerate(sources):
            copy = Taken(envelope, peer.path, None, False, self._ended, peer.id)
            copy.peer = peer
            if len(sources) > 1:
                shared = Shared(copy, len(sources)) if number == 0 else shared
            copy.shared = shared
            self._inboxes[source].waiting.append(copy)
            self._inboxes[source].wake()
        peer.unsettled += 1
        self._held += 1
        self._is_crowded = self._is_crowded or self._held >= MOST_HELD

    def _ended(self, delivery: Delivery, outcome: Outcome) -> None:
        assert isinstance(delivery, Taken)
        if self._is_over or (delivery.shared is not None and not delivery.shared.ended(outcome)):
            return
        peer = delivery.peer
        peer.unsettled -= 1
        self._held -= 1
        if self._is_crowded and self._held <= MOST_HELD // 2:
            self._is_crowded = False
            for each in list(self._sockets):
                each.move()
        else:
            peer.move()

    # ── publishing ────────────────────────────────────────────────────────────────────────────────────────────────────

    def publish(self, message: Outgoing, done: Done) -> None:
        if self._is_over:
            return
        payload, is_text = message.envelope.payload, is_text_message(message.envelope)
        if (peer := self._peers.get(message.address)) is not None:
            peer.send(peer.encode(payload, is_text=is_text), done)
        elif message.address.startswith("/"):
            self._tell_all(message.address, payload, is_text=is_text)
            done(None)
        else:
            self.readers(message.address, Sign.GONE)
            done(PublishFailed(f"no peer is connected by the name {message.address[:100]!r}", status=_NOBODY))

    def _tell_all(self, path: str, payload: bytes, *, is_text: bool) -> None:
        """Send a message to everybody at a path, encoded once. Who is too slow for it is let go."""
        plain: bytes | None = None
        for peer in list(self._at.get(path, ())):
            if peer.waiting_output > self.max_output:
                log.info(
                    "a peer was let go", connection=self._connection_id, peer=peer.id, reason="it reads too slowly"
                )
                peer.close(CloseCode.TRY_AGAIN_LATER, "you read too slowly")
                continue
            if not peer.is_plain:
                peer.send(peer.encode(payload, is_text=is_text), None)
                continue
            if plain is None:
                plain = peer.encode(payload, is_text=is_text)
            peer.send(plain, None)

    # ── lifetimes ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _look(self) -> None:
        """Once a second: who is to be asked, closed, or cut off; and what was refused meanwhile."""
        self._sweep = self._loop.call_later(SWEEP, self._look)
        now = self._loop.time()
        for peer in list(self._sockets):
            peer.look()
            verdict = judge(peer.times, self._bounds, now)
            if verdict is Verdict.PING:
                peer.ping()
            elif verdict is Verdict.IDLE:
                peer.close(CloseCode.NORMAL_CLOSURE, "nothing was said for too long")
            elif verdict is not Verdict.FINE:
                log.debug("a peer was cut off", connection=self._connection_id, peer=peer.id, reason=verdict.value)
                peer.abort()
        for reason, count in self._refusals.items():
            log.warning("peers were not let in", connection=self._connection_id, reason=reason, count=count)
        self._refusals.clear()

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def close(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._sweep.cancel()
        if self._server is not None:
            self._server.close()
        for inbox in self._inboxes:
            inbox.end()
        for peer in list(self._sockets):
            peer.close(CloseCode.GOING_AWAY, "the door is being closed")
        if self._sockets:
            self._empty = self._loop.create_future()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FAREWELL):
                    await asyncio.shield(self._empty)
        for peer in list(self._sockets):
            peer.abort()


def is_text_message(envelope: Envelope) -> bool:
    """Whether a message is sent as text: JSON and other text is, unless its bytes are no UTF-8; so is what does not say."""
    content_type = envelope.header("content-type")
    return (content_type is None or _is_textual(content_type)) and is_utf8(envelope.payload)


@lru_cache(maxsize=256)
def _is_textual(content_type: str) -> bool:
    kind = parse_content_type(content_type)
    return kind.is_json or kind.is_text

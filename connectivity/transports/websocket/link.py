"""The link of a WebSocket listener: sends messages to one peer by ID or to all peers at a path.

The handling of peers is shared by all listeners (`connectivity.transports.listener.link`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from http import HTTPStatus

import structlog
from websockets.extensions.base import ServerExtensionFactory
from websockets.frames import CloseCode

from connectivity.security.logins import FailedLoginDelays
from connectivity.transports.base import CloseReason, Done, OutboundMessage
from connectivity.transports.listener.admission import AdmissionLimits
from connectivity.transports.listener.link import REPLY_TO, ListenerLink
from connectivity.transports.listener.timeouts import TimeoutOptions
from connectivity.transports.websocket.handshake import (
    BINARY,
    FRAME,
    TEXT,
    AcceptedHandshake,
    HandshakeRequest,
    RefusedHandshake,
    Rules,
    accept_handshake,
)
from connectivity.transports.websocket.peer import WebSocketPeer, is_utf8
from mappings.model.envelope import Envelope, parse_content_type

log = structlog.get_logger(__name__)

MOST_DELAYED = 64
"""How many responses to wrong tokens of one address may wait: many devices may be behind one address."""

_CODES = {
    CloseReason.DONE: CloseCode.NORMAL_CLOSURE,
    CloseReason.MALFORMED: CloseCode.PROTOCOL_ERROR,
    CloseReason.UNFIT: CloseCode.UNSUPPORTED_DATA,
}


class WebSocketLink(ListenerLink[WebSocketPeer]):
    """A `connectivity.transports.base.Link` for WebSocket peers."""

    def __init__(
        self,
        connection_id: str,
        sources: Sequence[Sequence[str]],
        rules: Rules,
        bounds: TimeoutOptions,
        limits: AdmissionLimits,
        *,
        max_frame: int,
        max_unsettled: int,
        held_bytes: int,
        max_output: int,
        extensions: Sequence[ServerExtensionFactory] = (),
    ) -> None:
        """`sources`: the paths of each source."""
        super().__init__(
            connection_id, len(sources), bounds, limits, max_unsettled=max_unsettled, held_bytes=held_bytes
        )
        self.max_frame, self.max_output = max_frame, max_output
        self.extensions = list(extensions)
        self._rules = rules
        self._delays = FailedLoginDelays(self._loop.time, most_delayed=MOST_DELAYED, connection=connection_id)
        self._by_path: dict[str, tuple[int, ...]] = {}
        for index, paths in enumerate(sources):
            for path in paths:
                self._by_path[path] = (*self._by_path.get(path, ()), index)
        self._peers_by_path: defaultdict[str, set[WebSocketPeer]] = defaultdict(set)

    def make_peer(self) -> WebSocketPeer:
        return WebSocketPeer(self)

    # ── peers ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def admit(self, peer: WebSocketPeer, asked: HandshakeRequest) -> AcceptedHandshake | RefusedHandshake:
        """Decide about an opening request (see `connectivity.transports.websocket.handshake`)."""
        if self.is_over:
            return RefusedHandshake(HTTPStatus.SERVICE_UNAVAILABLE, "The listener is closing.")
        is_guessing = self._delays.is_full(peer.network)
        decision = accept_handshake(asked, self._rules, len(self.peers), is_guessing=is_guessing)
        if isinstance(decision, RefusedHandshake):
            self.turned_away(f"{decision.status.value} {decision.text}")
            if decision.is_wrong_token:
                return decision._replace(delay=self._delays.record_failure(peer.network))
        return decision

    def answered(self, peer: WebSocketPeer) -> None:
        self._delays.record_answer(peer.network)

    def entered(self, peer: WebSocketPeer) -> None:
        own = {REPLY_TO: peer.id}
        peer.text_headers |= own | {FRAME: TEXT}
        peer.binary_headers |= own | {FRAME: BINARY}
        self._peers_by_path[peer.path].add(peer)
        super().entered(peer)
        if peer.subprotocol is not None:
            # The subprotocol is agreed: an empty message reports the peer to the session handler.
            self.took(peer, b"", is_text=False)

    def gone(self, peer: WebSocketPeer) -> None:
        at = self._peers_by_path[peer.path]
        at.discard(peer)
        if not at:
            del self._peers_by_path[peer.path]

    # ── consuming ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def took(self, peer: WebSocketPeer, payload: bytes, *, is_text: bool) -> None:
        """Deliver a message to the sources at its path; a path of targets alone has none."""
        headers = peer.text_headers if is_text else peer.binary_headers
        envelope = Envelope(payload, headers, has_own_id=False)
        self.deliver(peer, envelope, peer.path, self._by_path.get(peer.path, ()))

    # ── publishing ────────────────────────────────────────────────────────────────────────────────────────────────────

    def publish(self, message: OutboundMessage, done: Done) -> None:
        if self.is_over:
            return
        payload, is_text = message.envelope.payload, is_text_message(message.envelope)
        if (peer := self.peers.get(message.address)) is not None:
            if message.parting is not None:
                peer.part(payload, is_text=is_text, code=_CODES[message.parting], done=done)
            else:
                peer.send(peer.encode(payload, is_text=is_text), done)
        elif message.address.startswith("/"):
            self._send_to_all(message.address, payload, is_text=is_text)
            done(None)
        else:
            self.reject_absent(message.address, done)

    def _send_to_all(self, path: str, payload: bytes, *, is_text: bool) -> None:
        """Send a message, encoded once, to all peers at a path; peers that read too slowly are closed."""
        plain: bytes | None = None
        for peer in list(self._peers_by_path.get(path, ())):
            if peer.waiting_output > self.max_output:
                log.info("peer closed", connection=self._connection_id, peer=peer.id, reason="it reads too slowly")
                peer.close(CloseCode.TRY_AGAIN_LATER, "peer reads too slowly")
                continue
            if not peer.is_plain:
                peer.send(peer.encode(payload, is_text=is_text), None)
                continue
            if plain is None:
                plain = peer.encode(payload, is_text=is_text)
            peer.send(plain, None)


def is_text_message(envelope: Envelope) -> bool:
    """Decide whether a message is sent as text: JSON, other text or no content type, if it is UTF-8."""
    content_type = envelope.header("content-type")
    return (content_type is None or _is_textual(content_type)) and is_utf8(envelope.payload)


@lru_cache(maxsize=256)
def _is_textual(content_type: str) -> bool:
    kind = parse_content_type(content_type)
    return kind.is_json or kind.is_text

"""One peer of a WebSocket listener: reads frames into messages and writes messages as frames.

The engine of the library `websockets` parses and writes the opening request and frames, and answers pings and close
frames. This module passes bytes to it and joins fragments. Buffering and confirms are shared by all listeners
(`connectivity.transports.listener.socket`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol

from websockets.datastructures import Headers
from websockets.extensions.base import ServerExtensionFactory
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN, SEND_EOF
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from connectivity.transports.base import Done
from connectivity.transports.listener.socket import Socket, SocketOwner, common_name
from connectivity.transports.websocket.handshake import (
    CERTIFICATE,
    USER,
    AcceptedHandshake,
    HandshakeRequest,
    RefusedHandshake,
    decode_text,
)

PARSE_SIZE = 16 * 1024
"""Bytes that are parsed at once; messages in them beyond the peer's limit are kept."""

SMALL_SIZE = 512
"""The same after `MANY_FRAMES`: the smallest frames take milliseconds then."""

MANY_FRAMES = 32
"""How many parsed frames that are no messages, such as pings, end the peer's turn of the event loop."""

MAX_OPENING = 16 * 1024
"""Most bytes of an opening request."""

_TOO_LONG = RefusedHandshake(
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"The request is longer than {MAX_OPENING} bytes."
)

_INVALID = RefusedHandshake(
    HTTPStatus.BAD_REQUEST, "Expected a GET request of HTTP/1.1, with at most 128 headers and 8192 bytes in each line."
)

TLS_HELLO = 0x16
"""The first byte of a TLS ClientHello."""

# The library logs single sockets; the link logs what operators need.
_log = logging.getLogger("connectivity.transports.websocket.protocol")
_log.setLevel(logging.ERROR)


class WebSocketPeerOwner(SocketOwner, Protocol):
    """The owner of the peers: the link, as the peers see it."""

    max_frame: int
    extensions: list[ServerExtensionFactory]

    def admit(self, peer: WebSocketPeer, asked: HandshakeRequest, /) -> AcceptedHandshake | RefusedHandshake:
        """Decide about an opening request."""

    def answered(self, peer: WebSocketPeer, /) -> None:
        """Called when a delayed refusal was sent, or its client has gone."""

    def entered(self, peer: WebSocketPeer, /) -> None:
        """Called when the peer is admitted."""

    def took(self, peer: WebSocketPeer, payload: bytes, /, *, is_text: bool) -> None:
        """Called when a message has arrived."""


class WebSocketPeer(Socket):
    """One accepted socket."""

    def __init__(self, owner: WebSocketPeerOwner) -> None:
        super().__init__(owner)
        self.path = ""
        self.text_headers: dict[str, str] = {}
        self.binary_headers: dict[str, str] = {}
        self._owner = owner
        self._engine = ServerProtocol(
            extensions=owner.extensions or None,
            # The library binds a plain function as a method of its own, hence the lambda with `_engine`.
            select_subprotocol=lambda _engine, offered: self._select_subprotocol(offered),
            max_size=owner.max_frame,
            logger=_log,
        )
        self._subprotocols: frozenset[str] = frozenset()
        self._messages: deque[tuple[bytes, bool]] = deque()
        self._fragments: bytearray | None = None
        self._is_text = False
        self._has_received = False
        self._size = PARSE_SIZE
        """How many bytes are parsed next."""
        self._next_turn: asyncio.Handle | None = None
        """Goes on with bytes that end the turn before."""
        self._opening_left = MAX_OPENING
        """Bytes that may still come until the opening request is complete; 0 afterwards."""
        self._delayed: asyncio.TimerHandle | None = None
        """Sends the refusal of a wrong token later."""

    @property
    def subprotocol(self) -> str | None:
        """The wire protocol that both sides have agreed on, or None."""
        return self._engine.subprotocol

    # ── in ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def data_received(self, data: bytes) -> None:
        if not self._has_received and data[0] == TLS_HELLO:
            self._owner.turned_away("the client uses TLS, but the uri of the listener is ws and not wss")
            self.abort()
            return
        self._has_received = True
        self.times.last_received, self.times.pinged = self._loop.time(), None
        self._unread = self._unread + data if self._unread else data
        self.move()

    def connection_lost(self, error: Exception | None) -> None:
        if self._delayed is not None:
            self._end_delay(self._delayed)
            self._unread = b""
        super().connection_lost(error)

    def eof_received(self) -> None:
        if not self._unread:
            # Unprocessed bytes are parsed after the socket is closed.
            self._engine.receive_eof()
            self._flush()

    @property
    def has_unprocessed_input(self) -> bool:
        return bool(self._messages or self._unread)

    def advance(self) -> None:
        while self._delayed is None:
            while self._messages and self.may_take:
                payload, is_text = self._messages.popleft()
                self.times.spoke = self._loop.time()
                self._owner.took(self, payload, is_text=is_text)
            # After our close frame nothing more is processed, so nothing is kept until there is room.
            if not self._unread or (self.can_exchange_messages and (self._messages or not self.may_take)):
                break
            if self._next_turn is not None:
                break
            size = self._parse_size()
            part, self._unread = self._unread[:size], self._unread[size:]
            is_flood = self._parse(part) > MANY_FRAMES
            self._size = SMALL_SIZE if is_flood else PARSE_SIZE
            if self._unread and (is_flood or self.times.closing is not None):
                # Without messages no limit stops the peer: other tasks get their turn.
                self._next_turn = self._loop.call_soon(self._take_turn)
                break

    def _take_turn(self) -> None:
        self._next_turn = None
        self.move()

    def _parse_size(self) -> int:
        """Return how many bytes to parse next: of the opening request one line, as frames follow the response."""
        if not self._opening_left:
            return self._size
        return self._unread.find(b"\n", 0, self._opening_left) + 1 or self._opening_left

    def ended(self) -> None:
        self._engine.receive_eof()

    def _parse(self, part: bytes) -> int:
        """Parse bytes; return how many frames they have that are no messages."""
        engine = self._engine
        engine.receive_data(part)
        events = engine.events_received()
        if self._opening_left:
            if engine.handshake_exc is not None:
                # The engine cannot send a response any more.
                self.write(engine.reject(_INVALID.status, f"{_INVALID.text}\n").serialize())
            self._opening_left = 0 if events or engine.handshake_exc is not None else self._opening_left - len(part)
            if not events and not self._opening_left and engine.handshake_exc is None:
                self._refuse(_TOO_LONG)
        self._flush()
        messages = len(self._messages)
        for event in events:
            if isinstance(event, Request):
                self._opened(event)
            elif isinstance(event, Frame) and self.times.is_open:
                self._frame(event)
        # Only now: the messages in these bytes came before their end.
        if engine.close_expected() and self.times.closing is None:
            self.times.closing = self._loop.time()
        return len(events) - len(self._messages) + messages

    def _opened(self, request: Request) -> None:
        if self._transport is None:
            return
        certificate = self._transport.get_extra_info("peercert") or {}
        asked = HandshakeRequest(request.path, request.headers.raw_items(), common_name(certificate))
        decision = self._owner.admit(self, asked)
        if isinstance(decision, AcceptedHandshake):
            self._accept(request, decision)
        elif decision.delay:
            self._delayed = self._loop.call_later(decision.delay, self._refuse, decision)
        else:
            self._refuse(decision)

    def _accept(self, request: Request, decision: AcceptedHandshake) -> None:
        self._subprotocols = decision.subprotocols
        # A request that is not one of WebSocket gets an error all the same.
        self._engine.send_response(self._engine.accept(_decoded(request)))
        self._flush()
        if self._engine.state is not OPEN:
            self.times.closing = self._loop.time()
            return
        self.times.is_open = True
        self.path = decision.path
        named = [(kind, decision.headers[kind]) for kind in (USER, CERTIFICATE) if kind in decision.headers]
        self.user = named[0] if named else None
        self.text_headers, self.binary_headers = dict(decision.headers), dict(decision.headers)
        self._owner.entered(self)

    def _refuse(self, decision: RefusedHandshake) -> None:
        """Send an HTTP error; what has arrived after the request is ignored."""
        if self._delayed is not None:
            self._end_delay(self._delayed)
        response = self._engine.reject(decision.status, f"{decision.text}\n")
        if decision.status is HTTPStatus.UNAUTHORIZED:
            response.headers["WWW-Authenticate"] = "Bearer"
        self._engine.send_response(response)
        self._flush()
        self.times.closing = self._loop.time()
        self.move()

    def _end_delay(self, delayed: asyncio.TimerHandle) -> None:
        delayed.cancel()
        self._delayed = None
        self._owner.answered(self)

    def _select_subprotocol(self, offered: Sequence[Subprotocol]) -> Subprotocol | None:
        """Return the first offered subprotocol that is spoken at the peer's path."""
        return next((each for each in offered if each in self._subprotocols), None)

    def _frame(self, frame: Frame) -> None:
        """Join the fragments of a message; a text must be UTF-8."""
        if frame.opcode is Opcode.TEXT or frame.opcode is Opcode.BINARY:
            self._is_text = frame.opcode is Opcode.TEXT
            if frame.fin:
                self._complete(bytes(frame.data))
            else:
                self._fragments = bytearray(frame.data)
        elif frame.opcode is Opcode.CONT and self._fragments is not None:
            self._fragments += frame.data
            if frame.fin:
                whole, self._fragments = bytes(self._fragments), None
                self._complete(whole)

    def _complete(self, payload: bytes) -> None:
        if self._is_text and not is_utf8(payload):
            self.fail(CloseCode.INVALID_DATA, "text is not UTF-8")
        elif self.times.closing is None:
            self._messages.append((payload, self._is_text))

    # ── out ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def encode(self, payload: bytes, *, is_text: bool) -> bytes:
        """Return a message as one frame, compressed if this peer has agreed to it."""
        opcode = Opcode.TEXT if is_text else Opcode.BINARY
        if self.is_plain:
            return _head(opcode, len(payload)) + payload
        return bytes(Frame(opcode, payload).serialize(mask=False, extensions=self._engine.extensions))

    def part(self, payload: bytes, *, is_text: bool, code: CloseCode, done: Done) -> None:
        """Send the last message, unless it is empty, and a close frame."""
        if payload:
            self.send(self.encode(payload, is_text=is_text), done)
        else:
            done(None)
        self._unread = b""
        self._messages.clear()
        self.close(code, "")

    @property
    def is_plain(self) -> bool:
        """Whether its frames are the same as those of every other peer without compression."""
        return not self._engine.extensions

    def ping(self) -> None:
        if self._engine.state is OPEN:
            self._engine.send_ping(b"")
            self.times.pinged = self._loop.time()
            self._flush()

    def _flush(self) -> None:
        for data in self._engine.data_to_send():
            if self._transport is None:
                return
            if data != SEND_EOF:
                self.write(data)
            else:
                self.write_end()

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self, code: CloseCode, reason: str) -> None:
        """Send a close frame; the peer closes the connection."""
        if self._engine.state is OPEN:
            self._engine.send_close(code, reason)
            self.times.closing = self._loop.time()
            self._flush()
            self.move()
        elif self.times.closing is None:
            self.abort()

    def fail(self, code: CloseCode, reason: str) -> None:
        """Send a close frame with the reason and read nothing more."""
        self._engine.fail(code, reason)
        self.times.closing = self._loop.time()
        self._unread = b""
        self._flush()
        self.move()

    def idle(self) -> None:
        self.close(CloseCode.NORMAL_CLOSURE, "no message for too long")

    def farewell(self) -> None:
        self.close(CloseCode.GOING_AWAY, "the listener is closing")


def _decoded(request: Request) -> Request:
    """Return the request with headers that can be encoded, since the library quotes those that it refuses."""
    return Request(request.path, Headers((name, decode_text(value)) for name, value in request.headers.raw_items()))


@lru_cache(maxsize=1024)
def _head(opcode: Opcode, length: int) -> bytes:
    """Return the head of a frame of this length, cached because messages have few lengths."""
    frame = Frame(opcode, bytes(length)).serialize(mask=False)
    return bytes(frame[: len(frame) - length])


def is_utf8(payload: bytes) -> bool:
    if payload.isascii():
        return True
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True

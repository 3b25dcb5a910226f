"""One peer: a socket on our loop, the protocol's engine, and what waits on its way in and out.

The engine of the library `websockets` reads the opening request and frames, and writes them; it answers pings and closings
by itself. Here bytes are moved, fragments put together, and reading is stopped and taken up again.

**Bounds.** What comes is read on as long as the peer may have more messages unsettled and takes what is sent to it. Bytes
that the socket has brought beyond that rest as they are. What is sent goes to the socket in the loop's next turn, so that a
hundred messages are one call of the system; it is confirmed when no more than the socket's small buffer waits, so whoever
waits for confirms goes at the peer's pace.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol, cast

from websockets.extensions.base import ServerExtensionFactory
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN, SEND_EOF
from websockets.server import ServerProtocol

from connectivity.brokers.base import Delivery, Done, Shared
from connectivity.errors import PublishFailed
from connectivity.websocket.admission import Admitted, Asked, Refused
from connectivity.websocket.lifetime import Times

HIGH_WATER = 64 * 1024
"""Bytes in a socket's buffer from which on what is sent is confirmed later."""

GATHERED = 32 * 1024
"""Bytes that go to the socket without waiting for the loop's next turn."""

SLICE = 16 * 1024
"""Bytes that are parsed at once: what they hold may be more messages than a peer may have, and is kept."""

TLS_HELLO = 0x16
"""The first byte of whoever begins to speak TLS."""

_GONE = 410

# Its own words are about single sockets; what operators are to know is told by the link.
_log = logging.getLogger("connectivity.websocket.protocol")
_log.setLevel(logging.ERROR)


class Door(Protocol):
    """What a peer belongs to."""

    max_frame: int
    max_unsettled: int
    extensions: list[ServerExtensionFactory]

    @property
    def has_room(self) -> bool:
        """Whether messages may come in at all."""

    @property
    def is_overrun(self) -> bool:
        """Whether there are more sockets than could be peers, so that not even a request is read."""

    def made(self, peer: Peer) -> None:
        """There is a socket."""

    def turned_away(self, reason: str) -> None:
        """Somebody is hung up on for this reason."""

    def admit(self, asked: Asked) -> Admitted | Refused:
        """Decide about an opening request."""

    def entered(self, peer: Peer) -> None:
        """The peer is in."""

    def took(self, peer: Peer, payload: bytes, *, is_text: bool) -> None:
        """A message has come."""

    def left(self, peer: Peer) -> None:
        """The socket is gone, and all that it has brought was taken. Told once of each peer, let in or not."""


class Taken(Delivery):
    """A delivery that knows its peer and, if several sources share it, the others' part."""

    __slots__ = ("peer", "shared")

    peer: Peer
    shared: Shared[Taken] | None


class Peer(asyncio.Protocol):
    """One socket that was accepted."""

    def __init__(self, door: Door) -> None:
        self.id = f"peer-{secrets.token_urlsafe(16)}"
        """Its address while it is connected. Nobody can guess it."""
        self.path = ""
        self.text_headers: dict[str, str] = {}
        self.binary_headers: dict[str, str] = {}
        self.unsettled = 0
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self.times = Times(now, now, now)
        self._door = door
        self._engine = ServerProtocol(extensions=door.extensions or None, max_size=door.max_frame, logger=_log)
        self._transport: asyncio.Transport | None = None
        self._unread = b""
        self._messages: deque[tuple[bytes, bool]] = deque()
        self._fragments: bytearray | None = None
        self._is_text = False
        self._unconfirmed: deque[Done] = deque()
        self._is_full = False
        self._written = self._taken = 0
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._has_begun = self._is_moving = self._has_left = False

    def __repr__(self) -> str:
        state = self._engine.state.name.lower()
        return f"<Peer {self.id[:11]}… at {self.path or '?'}, {state}, {self.unsettled} unsettled>"

    @property
    def waiting_output(self) -> int:
        """Bytes that the socket has not taken yet."""
        return self._transport.get_write_buffer_size() + self._gathered_bytes if self._transport is not None else 0

    # ── the socket ────────────────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(HIGH_WATER)
        self._door.made(self)
        if self._door.is_overrun:
            self.abort()

    def data_received(self, data: bytes) -> None:
        if not self._has_begun and data[0] == TLS_HELLO:
            self._door.turned_away("they speak TLS, and the door does not: its uri is ws and not wss")
            self.abort()
            return
        self._has_begun = True
        self.times.heard, self.times.pinged = self._loop.time(), None
        self._unread = self._unread + data if self._unread else data
        self.move()

    def eof_received(self) -> None:
        if not self._unread:
            # What rests is still to be parsed, which is done when the socket is gone.
            self._engine.receive_eof()
            self._flush()

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
    def _may_take(self) -> bool:
        return not self._is_full and self.unsettled < self._door.max_unsettled and self._door.has_room

    @property
    def _is_talking(self) -> bool:
        """Whether what comes may be messages. Otherwise it is parsed in any case: it is the beginning, or the end."""
        return self.times.is_open and self.times.closing is None

    def move(self) -> None:
        """Take what has come, as far as there is room, and read on or stop reading accordingly."""
        if self._is_moving or self._has_left:
            return
        self._is_moving = True
        try:
            while True:
                while self._messages and self._may_take:
                    payload, is_text = self._messages.popleft()
                    self.times.spoke = self._loop.time()
                    self._door.took(self, payload, is_text=is_text)
                # Behind our goodbye nothing counts any more: it is not kept until there is room for what came before.
                if not self._unread or (self._is_talking and (self._messages or not self._may_take)):
                    break
                part, self._unread = self._unread[:SLICE], self._unread[SLICE:]
                self._parse(part)
        finally:
            self._is_moving = False
        if self._transport is not None:
            self._balance(self._transport)
        elif not (self._messages or self._unread):
            self._has_left = True
            self._engine.receive_eof()
            self._door.left(self)

    def _balance(self, transport: asyncio.Transport) -> None:
        if transport.is_closing():
            return
        # Once the socket is being closed, all that comes is its end.
        is_wanted = self.times.closing is not None or not (self._unread or self._messages or not self._may_take)
        if is_wanted and not self.times.is_reading:
            transport.resume_reading()
            # What was missed while nobody read cannot be held against the peer.
            self.times.heard, self.times.pinged = self._loop.time(), None
        elif not is_wanted and self.times.is_reading:
            transport.pause_reading()
        self.times.is_reading = is_wanted

    def _parse(self, part: bytes) -> None:
        engine = self._engine
        engine.receive_data(part)
        events = engine.events_received()
        if engine.close_expected() and self.times.closing is None:
            self.times.closing = self._loop.time()
        self._flush()
        for event in events:
            if isinstance(event, Request):
                self._opened(event)
            elif isinstance(event, Frame) and self.times.is_open:
                self._frame(event)

    def _opened(self, request: Request) -> None:
        if self._transport is None:
            return
        certificate = self._transport.get_extra_info("peercert") or {}
        asked = Asked(request.path, request.headers.raw_items(), common_name(certificate))
        decided = self._door.admit(asked)
        if isinstance(decided, Refused):
            response = self._engine.reject(decided.status, f"{decided.text}\n")
            if decided.status is HTTPStatus.UNAUTHORIZED:
                response.headers["WWW-Authenticate"] = "Bearer"
        else:
            response = self._engine.accept(request)
        self._engine.send_response(response)
        self._flush()
        if self._engine.state is not OPEN:
            self.times.closing = self._loop.time()
        elif isinstance(decided, Admitted):
            self.times.is_open = True
            self.path = decided.path
            self.text_headers, self.binary_headers = dict(decided.headers), dict(decided.headers)
            self._door.entered(self)

    def _frame(self, frame: Frame) -> None:
        """Put the parts of a message together; a text is UTF-8."""
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
            self.fail(CloseCode.INVALID_DATA, "a text that is no UTF-8")
        elif self.times.closing is None or self._engine.close_rcvd is not None:
            # What was said before goodbye counts.
            self._messages.append((payload, self._is_text))

    # ── out ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def send(self, frame: bytes, done: Done | None) -> None:
        """Write a frame that `encode` has made. `done` is told when little enough waits, or that the peer is gone."""
        if self._transport is None or not self._is_talking:
            if done is not None:
                done(gone_error())
            return
        self._write(frame)
        if done is None:
            return
        if self._is_full:
            self._unconfirmed.append(done)
        else:
            done(None)

    def encode(self, payload: bytes, *, is_text: bool) -> bytes:
        """A message as one frame, as this peer wants it."""
        opcode = Opcode.TEXT if is_text else Opcode.BINARY
        if self.is_plain:
            return _head(opcode, len(payload)) + payload
        return bytes(Frame(opcode, payload).serialize(mask=False, extensions=self._engine.extensions))

    @property
    def is_plain(self) -> bool:
        """Whether its frames look like those of every other such peer."""
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
                self._write(data)
                continue
            self._write_gathered()
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:
                self._transport.close()

    def _write(self, data: bytes) -> None:
        self._written += len(data)
        self._gathered.append(data)
        self._gathered_bytes += len(data)
        if self._gathered_bytes >= GATHERED:
            self._write_gathered()
        elif len(self._gathered) == 1:
            self._loop.call_soon(self._write_gathered)

    def _write_gathered(self) -> None:
        if not self._gathered:
            return
        data, self._gathered, self._gathered_bytes = b"".join(self._gathered), [], 0
        if self._transport is not None:
            self._transport.write(data)

    def look(self) -> None:
        """Note whether the peer has taken anything of what waits since the last look."""
        if self.times.stuck is not None and (taken := self._written - self.waiting_output) > self._taken:
            self._taken, self.times.stuck = taken, self._loop.time()

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self, code: CloseCode, reason: str) -> None:
        """Say goodbye; the other side ends it."""
        if self._engine.state is OPEN:
            self._engine.send_close(code, reason)
            self.times.closing = self._loop.time()
            self._flush()
            self.move()
        elif self.times.closing is None:
            self.abort()

    def fail(self, code: CloseCode, reason: str) -> None:
        """Say why it is over, and hear nothing more."""
        self._engine.fail(code, reason)
        self.times.closing = self._loop.time()
        self._unread = b""
        self._messages.clear()
        self._flush()
        self.move()

    def abort(self) -> None:
        """End it without a word."""
        if self._transport is not None:
            self._transport.abort()


@lru_cache(maxsize=1024)
def _head(opcode: Opcode, length: int) -> bytes:
    """What a frame of so many bytes begins with. Messages are of few lengths, so that it is seldom made anew."""
    frame = Frame(opcode, bytes(length)).serialize(mask=False)
    return bytes(frame[: len(frame) - length])


def gone_error() -> PublishFailed:
    return PublishFailed("the peer is gone", status=_GONE)


def is_utf8(payload: bytes) -> bool:
    if payload.isascii():
        return True
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def common_name(certificate: object) -> str | None:
    """The common name in a certificate, as the standard library shows one that it has verified."""
    subject = certificate.get("subject", ()) if isinstance(certificate, dict) else ()
    return next((value for part in subject for name, value in part if name == "commonName"), None)

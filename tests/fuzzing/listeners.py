"""The listeners: the upgrade request and the frames of a WebSocket, and the byte stream over TCP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory
from websockets.frames import Opcode

from connectivity.transports.listener.admission import AdmissionLimits
from connectivity.transports.listener.link import REPLY_TO
from connectivity.transports.listener.timeouts import TimeoutOptions
from connectivity.transports.tcp.link import MAX_PIECE, TcpLink, TcpPeer
from connectivity.transports.websocket.handshake import USER, Rules
from connectivity.transports.websocket.link import WebSocketLink
from connectivity.transports.websocket.peer import WebSocketPeer
from mappings.errors import ProtocolError
from mappings.mappers import load_codec
from mappings.model.envelope import Envelope
from mappings.reactive_streams_io.endpoint import EndpointRole
from mappings.reactive_streams_io.frames import Frame
from tests.fuzzing.target import target
from tests.support.in_process.wire import Wire
from tests.support.reactive_streams_io.conversation import EndpointClient
from tests.support.reactive_streams_io.examples import EXAMPLES, decoder
from tests.support.reactive_streams_io.faulty_wire import pieces
from tests.support.reactive_streams_io.mutated_conversation import LIMITS, frames_of
from tests.support.websocket_request import upgrade_request

SIZES = ([1], [7, 2], [40], [5000])
UNSETTLED = 3
TOKEN = "s3cret-of-tablet"
PATHS = ("/twins", "/streams", "/rsio")
_CODECS = {"/streams": (load_codec("Streamr"),), "/rsio": (load_codec("ReactiveStreamsIO"),)}
_OPEN = Rules(frozenset(PATHS), {}, frozenset({"https://acme.example"}), 10, codecs=_CODECS)
_GUARDED = Rules(frozenset(PATHS), {sha256(TOKEN.encode()).hexdigest(): "tablet"}, frozenset({"*"}), 10, codecs=_CODECS)


# ── WebSocket ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class _WebSocketLink(WebSocketLink):
    """A link without a port that records its deliveries."""

    def __init__(self, rules: Rules, *, compresses: bool) -> None:
        factories = [ServerPerMessageDeflateFactory()] if compresses else []
        super().__init__(
            "listener",
            [[path] for path in PATHS],
            rules,
            TimeoutOptions(),
            AdmissionLimits(10),
            max_frame=1 << 16,
            max_unsettled=UNSETTLED,
            held_bytes=1 << 20,
            max_output=1 << 16,
            extensions=factories,
        )
        self.taken: list[tuple[bytes, str, dict[str, str]]] = []
        self.waiting: list[WebSocketPeer] = []
        self._sweep.cancel()

    def deliver(self, peer: WebSocketPeer, envelope: Envelope, address: str, sources: Sequence[int]) -> None:
        headers = {name: value for name, value in envelope.headers.items() if name != REPLY_TO}
        for text in (*headers, *headers.values()):
            text.encode()
        assert not any(name.startswith("sec-") or name in ("authorization", "cookie") for name in headers)
        assert (headers.get(USER) is not None) == bool(self._rules.tokens)
        assert address in PATHS
        assert sources
        assert len(envelope.payload) <= 1 << 16
        self.taken.append((envelope.payload, address, headers))
        peer.unsettled += 1
        assert peer.unsettled <= UNSETTLED


class _NoErrors(logging.Handler):
    """Raises an AssertionError for each error that the library logs."""

    def emit(self, record: logging.LogRecord) -> None:
        raise AssertionError(record.getMessage())


@contextmanager
def _without_errors() -> Iterator[None]:
    handler, logger = _NoErrors(logging.ERROR), logging.getLogger("connectivity.transports.websocket.protocol")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


async def _spoken(data: bytes, sizes: list[int], rules: Rules, *, compresses: bool) -> tuple[Any, ...]:
    link, wire = _WebSocketLink(rules, compresses=compresses), Wire()
    peer = link.make_peer()
    peer.connection_made(wire)
    for piece in pieces(data, sizes):
        if wire.is_aborted:
            break
        peer.data_received(piece)
        while peer.unsettled:
            peer.unsettled -= 1
            peer.move()
    peer.flush_output()
    status = wire.written[:12]
    assert not status or status.startswith(b"HTTP/1.1 "), status
    peer.connection_lost(None)
    assert not link.peers
    assert not link._sockets
    return link.taken, status, wire.is_aborted


def open_websocket(data: bytes) -> None:
    """A WebSocket gives the same messages, whatever the sizes of the pieces in which its bytes arrive.

    The first byte selects the sizes and the rules of the listener.
    """
    how, received = data[0] if data else 0, data[1:]
    rules, compresses = (_GUARDED if how & 4 else _OPEN), bool(how & 8)
    with _without_errors():
        whole = asyncio.run(_spoken(received, [len(received) or 1], rules, compresses=compresses))
        cut = asyncio.run(_spoken(received, SIZES[how & 3], rules, compresses=compresses))
    # After a close frame or a violation, bytes in the same piece may still be read.
    shared = min(len(whole[0]), len(cut[0]))
    assert whole[0][:shared] == cut[0][:shared]
    assert whole[1:] == cut[1:]


def _request(target: str, *headers: str) -> bytes:
    return upgrade_request(target).replace(
        b"\r\n\r\n", "".join(f"\r\n{header}" for header in headers).encode() + b"\r\n\r\n"
    )


def _masked(opcode: Opcode, payload: bytes, *, fin: bool = True) -> bytes:
    return bytes([0x80 * fin | opcode, 0x80 | len(payload)]) + bytes(4) + payload


_MESSAGES = (
    _masked(Opcode.TEXT, b'{"a":1}')
    + _masked(Opcode.BINARY, b"\x01\x00\x00", fin=False)
    + _masked(Opcode.PING, b"p")
    + _masked(Opcode.CONT, b"end")
    + _masked(Opcode.CLOSE, b"\x03\xe8bye")
)
_REQUESTS = [
    b"\x00" + _request("/twins") + _MESSAGES,
    b"\x05" + _request(f"/twins?access_token={TOKEN}") + _MESSAGES,
    b"\x06" + _request("/twins", f"Authorization: Bearer {TOKEN}", "X-Line: 7", "Cookie: a=b"),
    b"\x04" + _request("/twins?access_token=\xff".encode("latin-1").decode("latin-1")),
    b"\x01" + _request("/streams?controlLayerVersion=0&messageLayerVersion=29") + _MESSAGES,
    b"\x01" + _request("/streams?controlLayerVersion=1&messageLayerVersion=31"),
    b"\x02" + _request("/rsio", "Sec-WebSocket-Protocol: chat, rsio.v0") + _MESSAGES,
    b"\x08" + _request("/twins", "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits") + _MESSAGES,
    b"\x00" + _request("/twins", "Origin: https://evil.example"),
    b"\x00" + _request("/nowhere%2F"),
    b"\x00GET / HTTP/1.0\r\n\r\n",
    b"\x00\x16\x03\x01",
    b"\x00" + _request("/twins") + _masked(Opcode.TEXT, b"\xff"),
]
_HTTP_WORDS = (
    *(
        "GET /twins",
        " HTTP/1.1\r\n",
        "Host: listener\r\n",
        "Connection: Upgrade\r\n",
        "Upgrade: websocket\r\n",
        "\r\n\r\n",
    ),
    *(
        "Sec-WebSocket-Version: 13\r\n",
        "Sec-WebSocket-Key: ",
        "Sec-WebSocket-Protocol: ",
        "Origin: ",
        "Authorization: ",
    ),
    *("Bearer ", TOKEN, "access_token=", "controlLayerVersion=", "messageLayerVersion=", "%2F", "permessage-deflate"),
    *(b"\xff", b"\x81\x80\0\0\0\0", b"\x00\x80\0\0\0\0", b"\x88\x82\0\0\0\0\x03\xe8", b"\x81\xfe\x00\x80", b"\xc1\x81"),
)


# ── TCP ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


class _TcpLink(TcpLink):
    """A link without a port that records the pieces of a stream."""

    def __init__(self) -> None:
        super().__init__(
            "landing", "rsio", AdmissionLimits(10), output_timeout=30, max_unsettled=UNSETTLED, held_bytes=1 << 20
        )
        self.pieces: list[bytes] = []
        self._sweep.cancel()

    def deliver(self, peer: TcpPeer, envelope: Envelope, address: str, sources: Sequence[int]) -> None:
        assert (address, sources) == ("rsio", (0,))
        assert bool(self.pieces) == bool(envelope.payload)
        assert len(envelope.payload) <= MAX_PIECE
        self.pieces.append(envelope.payload)
        peer.unsettled += 1
        assert peer.unsettled <= UNSETTLED


async def _streamed(data: bytes, sizes: list[int], settles: int) -> list[bytes]:
    link, wire = _TcpLink(), Wire()
    peer = link.make_peer()
    peer.connection_made(wire)
    for number, piece in enumerate(pieces(data, sizes)):
        while not wire.is_read or (peer.unsettled and settles >> number % 4 & 1):
            peer.unsettled -= 1
            peer.move()
        peer.data_received(piece)
    peer.connection_lost(None)
    while peer.unsettled:
        peer.unsettled -= 1
        peer.move()
    assert not link.peers
    return link.pieces


def open_tcp(data: bytes) -> None:
    """A TCP stream is delivered unchanged with the same frames, and a session reads or refuses them."""
    how, received = data[0] if data else 0, data[1:]
    found = asyncio.run(_streamed(received, SIZES[how & 3], how >> 2))
    assert b"".join(found) == received
    assert _frames(found) == _frames([received])
    client = EndpointClient(EndpointRole.SERVER, pages=20, limits=LIMITS)
    frames_of(b"".join(client.expect(piece) for piece in found[1:]))


def _frames(stream: Sequence[bytes]) -> list[Frame | str]:
    """Return the frames of a stream, and the error that ends it."""
    reader, found = decoder(limits=LIMITS), list[Frame | str]()
    try:
        for piece in stream:
            for frame in reader.feed(piece):
                found.append(frame)
    except ProtocolError as error:
        found.append(error.fault.message)
    return found


_STREAMS = [
    bytes([number & 0x3F]) + bytes.fromhex("01 00 00") + bytes.fromhex(each.raw) for number, each in enumerate(EXAMPLES)
]

TARGETS = {
    "websocket": target(open_websocket, _REQUESTS, _HTTP_WORDS),
    "tcp": target(open_tcp, [*_STREAMS, b"\x00\x16\x03\x01\x00", b"\x01GET / HTTP/1.1\r\n\r\n"]),
}

"""A WebSocket peer delivers the same messages however the network splits its bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory
from websockets.frames import Frame, Opcode

from connectivity.transports.websocket.handshake import AcceptedHandshake, HandshakeRequest, RefusedHandshake
from connectivity.transports.websocket.peer import WebSocketPeer
from tests.support.dice import examples
from tests.support.in_process.wire import Wire
from tests.support.websocket_request import upgrade_request

REQUEST = upgrade_request("/twins")
MOST = 3


class StoringListener:
    """A listener that keeps the received messages. At most MOST of them are unsettled."""

    max_frame, max_unsettled = 1 << 16, MOST
    extensions: Sequence[ServerPerMessageDeflateFactory] = ()

    def __init__(self) -> None:
        self.taken: list[tuple[bytes, bool]] = []
        self.has_left = False

    def has_room_for(self, peer: WebSocketPeer) -> bool:
        return True

    def turned_away(self, reason: str) -> None:
        pass

    def answered(self, peer: WebSocketPeer) -> None:
        pass

    def admit(self, peer: WebSocketPeer, asked: HandshakeRequest) -> AcceptedHandshake | RefusedHandshake:
        return AcceptedHandshake(asked.target, {})

    def entered(self, peer: WebSocketPeer) -> None:
        pass

    def took(self, peer: WebSocketPeer, payload: bytes, *, is_text: bool) -> None:
        peer.unsettled += 1
        assert peer.unsettled <= MOST
        self.taken.append((payload, is_text))

    def left(self, peer: WebSocketPeer) -> None:
        assert not self.has_left
        self.has_left = True


class ClosedListener(StoringListener):
    """A listener that refuses every handshake."""

    def admit(self, peer: WebSocketPeer, asked: HandshakeRequest) -> AcceptedHandshake | RefusedHandshake:
        return RefusedHandshake(HTTPStatus.NOT_FOUND, "Unknown path.")


@pytest.mark.parametrize("cut", [0, len(REQUEST) - 1, len(REQUEST)])
@pytest.mark.parametrize("opcode", [Opcode.PING, Opcode.CLOSE, Opcode.CONT])
async def test_frames_that_do_not_wait_for_the_response_are_read_after_it(opcode: Opcode, cut: int) -> None:
    """A refused client's frames are not read: the library would fail at the second end of the stream."""
    stream = REQUEST + Frame(opcode, b"").serialize(mask=True)
    for listener, status in ((StoringListener(), b"HTTP/1.1 101 "), (ClosedListener(), b"HTTP/1.1 404 ")):
        wire, peer = Wire(), WebSocketPeer(listener)  # type: ignore[arg-type]
        peer.connection_made(wire)
        for piece in filter(None, (stream[:cut], stream[cut:])):
            peer.data_received(piece)
        peer.flush_output()
        assert wire.written.startswith(status)
        peer.connection_lost(None)
        await asyncio.sleep(0)
        assert listener.has_left


@pytest.mark.parametrize(
    "header", [b"Connection: Upgrad\xdde", b"Sec-WebSocket-Key: \xff", b"Sec-WebSocket-Extensions: \xff"]
)
async def test_a_handshake_header_that_is_not_ascii_is_refused(header: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """The library would quote it or encode it as it came: an error of its own, or an exception."""
    name = header.partition(b":")[0]
    lines = [line for line in REQUEST.split(b"\r\n") if line and not line.startswith(name)]
    listener, wire = StoringListener(), Wire()
    listener.extensions = [ServerPerMessageDeflateFactory()]
    peer = WebSocketPeer(listener)  # type: ignore[arg-type]
    peer.connection_made(wire)
    peer.data_received(b"\r\n".join((*lines, header, b"", b"")))
    peer.flush_output()
    assert wire.written[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 426")
    assert not caplog.records


messages = st.lists(st.tuples(st.binary(max_size=300), st.booleans(), st.integers(1, 4)), max_size=12)


def frames_of(payload: bytes, is_text: bool, parts: int) -> bytes:
    size = max(1, -(-len(payload) // parts))
    cut = [payload[start : start + size] for start in range(0, len(payload), size)] or [b""]
    first = Opcode.TEXT if is_text else Opcode.BINARY
    return b"".join(
        Frame(Opcode.CONT if number else first, part, fin=number == len(cut) - 1).serialize(mask=True)
        for number, part in enumerate(cut)
    )


async def listener_after(
    payloads: Sequence[tuple[bytes, bool, int]], cuts: Sequence[int], settles: Sequence[bool]
) -> StoringListener:
    """Return a listener after a peer sent these messages, split at `cuts`, and left.

    Some messages were settled meanwhile.
    """
    stream = REQUEST + b"".join(frames_of(*each) for each in payloads)
    listener, wire = StoringListener(), Wire()
    peer = WebSocketPeer(listener)  # type: ignore[arg-type]
    peer.connection_made(wire)
    places = sorted({0, len(stream), *(cut % len(stream) for cut in cuts)})
    for number, (start, end) in enumerate(pairwise(places)):
        peer.data_received(stream[start:end])
        if peer.unsettled and settles and settles[number % len(settles)]:
            peer.unsettled -= 1
            peer.move()
    peer.connection_lost(None)
    while peer.unsettled:
        peer.unsettled -= 1
        peer.move()
    return listener


@settings(max_examples=examples(60), deadline=None)
@given(messages, st.lists(st.integers(0, 10_000), max_size=20), st.lists(st.booleans(), max_size=7))
def test_the_same_bytes_decode_to_the_same_messages_for_any_split(
    payloads: list[tuple[bytes, bool, int]], cuts: list[int], settles: list[bool]
) -> None:
    readable = [
        (payload.hex().encode() if is_text else payload, is_text, parts) for payload, is_text, parts in payloads
    ]
    listener = asyncio.run(listener_after(readable, cuts, settles))
    assert listener.taken == [(payload, is_text) for payload, is_text, _ in readable]
    assert listener.has_left


@settings(max_examples=examples(60), deadline=None)
@given(st.binary(max_size=2000), st.lists(st.integers(0, 10_000), max_size=10))
def test_no_bytes_do_more_than_end_their_own_socket(noise: bytes, cuts: list[int]) -> None:
    async def run() -> StoringListener:
        listener, wire = StoringListener(), Wire()
        peer = WebSocketPeer(listener)  # type: ignore[arg-type]
        peer.connection_made(wire)
        stream = REQUEST + noise
        places = sorted({0, len(stream), *(cut % len(stream) for cut in cuts)})
        for start, end in pairwise(places):
            peer.data_received(stream[start:end])
        peer.connection_lost(None)
        while peer.unsettled:
            peer.unsettled -= 1
            peer.move()
        return listener

    assert asyncio.run(run()).has_left

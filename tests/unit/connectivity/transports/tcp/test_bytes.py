"""A TCP peer delivers the same byte stream however the network splits it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from connectivity.transports.base import Done
from connectivity.transports.tcp.link import MAX_PIECE, TcpPeer
from tests.support.dice import examples
from tests.support.in_process.wire import Wire

MOST = 3


class StoringListener:
    """A listener that keeps the received pieces. At most MOST of them are unsettled."""

    max_unsettled = MOST

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.has_left = False

    def has_room_for(self, peer: TcpPeer) -> bool:
        return True

    def turned_away(self, reason: str) -> None: ...

    def entered(self, peer: TcpPeer) -> None: ...

    def took(self, peer: TcpPeer, raw: bytes) -> None:
        assert raw or not self.pieces, "only the first piece is empty"
        assert len(raw) <= MAX_PIECE
        peer.unsettled += 1
        assert peer.unsettled <= MOST
        self.pieces.append(raw)

    def left(self, peer: TcpPeer) -> None:
        assert not self.has_left
        self.has_left = True


def settle(peer: TcpPeer) -> None:
    peer.unsettled -= 1
    peer.move()


async def listener_after(chunks: Sequence[bytes], settles: Sequence[bool]) -> StoringListener:
    """Return a listener after a peer sent these chunks and left; some pieces were settled on the way."""
    listener, wire = StoringListener(), Wire()
    peer = TcpPeer(listener)
    peer.connection_made(wire)
    for number, chunk in enumerate(chunks):
        # A socket delivers at most one more chunk after reading was paused.
        while not wire.is_read:
            settle(peer)
        peer.data_received(chunk)
        if peer.unsettled and settles and settles[number % len(settles)]:
            settle(peer)
    peer.connection_lost(None)
    while peer.unsettled:
        settle(peer)
    return listener


chunks_of = st.lists(
    st.one_of(st.binary(min_size=1, max_size=9), st.integers(1, 3 * MAX_PIECE).map(bytes)), max_size=12
)


@settings(max_examples=examples(60), deadline=None)
@given(chunks_of, st.lists(st.booleans(), max_size=7))
def test_a_byte_stream_has_the_same_frames_for_any_split(chunks: list[bytes], settles: list[bool]) -> None:
    listener = asyncio.run(listener_after(chunks, settles))
    assert listener.pieces[0] == b""
    assert b"".join(listener.pieces) == b"".join(chunks)
    assert listener.has_left


@settings(max_examples=examples(40), deadline=None)
@given(chunks_of, st.integers(0, 12))
def test_bytes_after_the_last_message_are_read_and_dropped(chunks: list[bytes], place: int) -> None:
    async def run() -> None:
        listener, wire, results = StoringListener(), Wire(), list[object]()
        done: Done = results.append
        peer = TcpPeer(listener)
        peer.connection_made(wire)
        for number, chunk in enumerate(chunks):
            if number == place:
                peer.part(b"bye", done)
                taken = list(listener.pieces)
            if wire.is_read:
                peer.data_received(chunk)
        if place < len(chunks):
            assert wire.is_read
            assert (wire.written, wire.has_ended) == (b"bye", True)
            assert (results, listener.pieces) == ([None], taken)
        peer.connection_lost(None)
        while peer.unsettled:
            settle(peer)
        assert listener.has_left

    asyncio.run(run())

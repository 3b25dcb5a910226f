"""What is sent to a peer within a turn of the event loop is written together; what it sends may take many turns."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from websockets.frames import CloseCode, Frame, Opcode

from connectivity.transports.listener.socket import WRITE_SIZE
from connectivity.transports.websocket.handshake import AcceptedHandshake
from connectivity.transports.websocket.peer import PARSE_SIZE, SMALL_SIZE, WebSocketPeer
from tests.support.websocket_request import upgrade_request

LEFT: list[WebSocketPeer] = []
"""The peers that were reported as gone."""

TAKEN: list[tuple[WebSocketPeer, bytes]] = []
"""The messages of peers."""


class Socket(asyncio.Transport):
    """Records the written bytes of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.is_read = True

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.written.append(b"the end")


class Listener:
    """A listener that admits every peer."""

    max_frame, max_unsettled = 1 << 20, 10
    extensions: tuple[Any, ...] = ()

    def admit(self, _peer: WebSocketPeer, _asked: Any) -> AcceptedHandshake:
        return AcceptedHandshake("/twins", {})

    def has_room_for(self, peer: WebSocketPeer) -> bool:
        return True

    def entered(self, peer: WebSocketPeer) -> None: ...

    def took(self, peer: WebSocketPeer, payload: bytes, *, is_text: bool) -> None:
        TAKEN.append((peer, payload))

    def left(self, peer: WebSocketPeer) -> None:
        LEFT.append(peer)


async def inside() -> tuple[WebSocketPeer, Socket]:
    peer, socket = WebSocketPeer(cast(Any, Listener())), Socket()
    peer.connection_made(socket)
    peer.data_received(upgrade_request("/twins"))
    await asyncio.sleep(0)
    assert b"".join(socket.written).startswith(b"HTTP/1.1 101 ")
    socket.written.clear()
    return peer, socket


async def test_many_messages_are_one_call_of_the_system_in_their_order() -> None:
    peer, socket = await inside()
    results: list[Exception | None] = []
    for number in range(100):
        peer.send(b"%03d" % number, results.append)
    assert (socket.written, peer.waiting_output, results) == ([], 300, [None] * 100)
    await asyncio.sleep(0)
    assert socket.written == [b"".join(b"%03d" % number for number in range(100))]
    assert peer.waiting_output == 0
    peer.send(b"more", None)
    await asyncio.sleep(0)
    assert socket.written[1:] == [b"more"]


async def test_much_does_not_wait() -> None:
    peer, socket = await inside()
    peer.send(b"little", None)
    peer.send(b"x" * WRITE_SIZE, None)
    assert socket.written == [b"little" + b"x" * WRITE_SIZE]
    await asyncio.sleep(0)
    assert len(socket.written) == 1


async def test_queued_messages_are_sent_before_the_goodbye() -> None:
    peer, socket = await inside()
    peer.send(b"last words", None)
    peer.eof_received()
    assert socket.written[0].startswith(b"last words")
    assert socket.written[-1] == b"the end"


async def test_nothing_is_written_to_a_socket_that_is_gone() -> None:
    peer, socket = await inside()
    peer.send(b"too late", None)
    peer.connection_lost(None)
    await asyncio.sleep(0)
    assert socket.written == []


FLOOD = 20_000
"""Frames that take about a second to process."""


@pytest.mark.parametrize("is_closing", [False, True])
@pytest.mark.parametrize("opcode", [Opcode.PING, Opcode.PONG, Opcode.CONT])
async def test_frames_that_are_no_messages_leave_turns_to_other_tasks(opcode: Opcode, is_closing: bool) -> None:
    peer, socket = await inside()
    if opcode is Opcode.CONT:
        peer.data_received(Frame(Opcode.TEXT, b"", fin=False).serialize(mask=True))
    if is_closing:
        peer.farewell()
    socket.written.clear()
    peer.data_received(Frame(opcode, b"", fin=opcode is not Opcode.CONT).serialize(mask=True) * FLOOD)
    turns = 0
    while peer._unread:
        left = len(peer._unread)
        assert not socket.is_read
        # As after each delivery that ends.
        peer.move()
        await asyncio.sleep(0)
        turns += left - len(peer._unread) <= SMALL_SIZE
    assert turns > 100, "after a while few frames are processed in each turn"
    await asyncio.sleep(0)
    assert socket.is_read
    pongs = b"".join(socket.written).count(Frame(Opcode.PONG, b"").serialize(mask=False))
    assert pongs == (FLOOD if opcode is Opcode.PING else 0)


async def test_input_after_a_protocol_violation_leaves_turns_to_other_tasks() -> None:
    peer, socket = await inside()
    peer.fail(CloseCode.PROTOCOL_ERROR, "violation")
    peer.data_received(bytes(20 * PARSE_SIZE))
    turns = 0
    while peer._unread:
        assert not socket.is_read
        await asyncio.sleep(0)
        turns += 1
    assert (turns, socket.is_read) == (19, True)


async def test_a_socket_that_is_lost_during_a_flood_is_reported_when_its_frames_are_processed() -> None:
    peer, _ = await inside()
    peer.data_received(Frame(Opcode.PONG, b"").serialize(mask=True) * FLOOD)
    peer.connection_lost(None)
    while peer._unread:
        assert peer not in LEFT
        await asyncio.sleep(0)
    assert peer in LEFT


@pytest.mark.parametrize("is_closing", [False, True], ids=["the peer closes", "the service closes first"])
async def test_a_message_together_with_a_close_frame_is_processed_unless_the_service_has_closed_before(
    is_closing: bool,
) -> None:
    """The answer to a later one could not be sent."""
    peer, _ = await inside()
    if is_closing:
        peer.close(CloseCode.PROTOCOL_ERROR, "")
    frames = Frame(Opcode.TEXT, b"{}"), Frame(Opcode.CLOSE, b"\x03\xe8")
    peer.data_received(b"".join(frame.serialize(mask=True) for frame in frames))
    assert [payload for taker, payload in TAKEN if taker is peer] == ([] if is_closing else [b"{}"])


@pytest.mark.parametrize("unfit", [bytes(Listener.max_frame + 1), b"\xff"], ids=["too large", "no UTF-8"])
async def test_messages_in_front_of_a_frame_that_closes_the_socket_are_processed_even_if_they_come_together(
    unfit: bytes,
) -> None:
    peer, _ = await inside()
    closing = Frame(Opcode.TEXT, unfit).serialize(mask=True)
    peer.data_received(Frame(Opcode.TEXT, b"{}").serialize(mask=True) + closing[: PARSE_SIZE // 2])
    assert [payload for taker, payload in TAKEN if taker is peer] == [b"{}"]
    peer.data_received(Frame(Opcode.TEXT, b"later").serialize(mask=True))
    assert [payload for taker, payload in TAKEN if taker is peer] == [b"{}"]

"""The demultiplexer splits any byte stream into frames; invalid frames end the link."""

from __future__ import annotations

import asyncio
import socket
from struct import pack
from types import SimpleNamespace
from typing import Any

import pytest

from connectivity.connections.model import Source
from connectivity.transports.amqp.consumer import AmqpConsumer
from connectivity.transports.amqp.demultiplexer import FrameDemultiplexer
from connectivity.transports.amqp.frames import (
    BODY,
    HEADER,
    HEARTBEAT,
    METHOD,
    Reason,
    frame,
    pack_ack,
    pack_content,
    pack_nack,
    pack_publish,
    read_confirm,
    read_return,
)
from connectivity.transports.amqp.publisher import AmqpPublisher
from tests.support.table import each_row
from tests.support.wait import PATIENCE

HEARTBEAT_FRAME = frame(HEARTBEAT, 0, b"")


class Carrier(asyncio.WriteTransport):
    """A transport that only notes that it was aborted."""

    aborted = False

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted


class FrameRecorder:
    """Takes everything but channel methods."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, bytes]] = []
        self.reasons: list[Reason] = []

    def take(self, kind: int, payload: bytes) -> bool:
        if kind == METHOD and payload[:2] == b"\x00\x14":
            return False
        self.taken.append((kind, payload))
        return True

    def closed(self, reason: Reason) -> None:
        self.reasons.append(reason)


def short(text: bytes) -> bytes:
    return bytes((len(text),)) + text


def method(channel: int, class_id: int, number: int, arguments: bytes = b"") -> bytes:
    return frame(METHOD, channel, pack(">HH", class_id, number) + arguments)


@pytest.fixture
async def traffic() -> FrameDemultiplexer:
    made = FrameDemultiplexer(channel_max=0, frame_max=0)
    made.connection_made(Carrier())
    return made


async def passed(traffic: FrameDemultiplexer, size: int) -> bytes:
    async with asyncio.timeout(PATIENCE):
        return await traffic.reader.readexactly(size)


@pytest.mark.parametrize("step", [1, 3, 7, 8, 100, 10_000])
async def test_frames_are_split_for_any_pieces_of_bytes(traffic: FrameDemultiplexer, step: int) -> None:
    """The library, which is slow, gets no heartbeats: a broker can send very many at once."""
    recorder = traffic.takers[2] = FrameRecorder()
    ours = [pack_ack(2, 7), pack_content(2, b"\x00\x00", b"x" * 300, 100), frame(BODY, 2, b"")]
    theirs = [method(1, 20, 11), HEARTBEAT_FRAME, method(2, 20, 41)]
    stream = b"".join(part for pair in zip(ours, theirs, strict=True) for part in pair)
    for at in range(0, len(stream), step):
        traffic.data_received(stream[at : at + step])
    expected = theirs[0] + theirs[2]
    assert await passed(traffic, len(expected)) == expected
    assert [kind for kind, _ in recorder.taken] == [METHOD, HEADER, BODY, BODY, BODY, BODY, BODY]
    assert b"".join(payload for kind, payload in recorder.taken if kind == BODY) == b"x" * 300


async def test_a_closed_channel_is_reported_to_its_handler_and_to_the_library(traffic: FrameDemultiplexer) -> None:
    recorder = traffic.takers[2] = FrameRecorder()
    close = method(2, 20, 40, pack(">H", 404) + short(b"NOT_FOUND - no such thing") + bytes(4))
    traffic.data_received(close)
    assert recorder.reasons == [Reason(404, "NOT_FOUND - no such thing")]
    assert await passed(traffic, len(close)) == close


async def test_the_reason_of_a_closed_link_is_kept(traffic: FrameDemultiplexer) -> None:
    traffic.data_received(method(0, 10, 50, pack(">H", 320) + short(b"CONNECTION_FORCED - bye") + bytes(4)))
    assert traffic.closed == Reason(320, "CONNECTION_FORCED - bye")


async def test_alarms_are_reported(traffic: FrameDemultiplexer) -> None:
    reasons: list[str | None] = []
    traffic.on_blocked = reasons.append
    traffic.data_received(method(0, 10, 60, short(b"low on memory")) + method(0, 10, 61))
    assert reasons == ["low on memory", None]


@pytest.mark.parametrize(
    ("asked", "offered", "agreed"),
    [
        ((0, 0), (2047, 131_072), (2047, 131_072)),
        ((100, 8192), (2047, 131_072), (100, 8192)),
        ((5000, 500_000), (2047, 131_072), (2047, 131_072)),
        ((100, 8192), (0, 0), (100, 8192)),
        ((0, 100), (0, 0), (0, 4096)),
    ],
)
async def test_the_offer_of_the_broker_is_narrowed(
    asked: tuple[int, int], offered: tuple[int, int], agreed: tuple[int, int]
) -> None:
    traffic = FrameDemultiplexer(channel_max=asked[0], frame_max=asked[1])
    traffic.connection_made(Carrier())
    traffic.data_received(method(0, 10, 30, pack(">HIH", *offered, 60)))
    expected = method(0, 10, 30, pack(">HIH", *agreed, 60))
    assert await passed(traffic, len(expected)) == expected
    assert (traffic.channel_max, traffic.frame_max) == agreed


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP/1.1 400"),
        (b"AMQP\x00\x01\x00\x00", "AMQP"),
        (frame(METHOD, 1, b"xx")[:-1] + b"!", "xx!"),
        (b"\x01\x00\x01\x7f\xff\xff\xff" + b"too large", "too large"),
    ],
)
async def test_invalid_frames_end_the_link_with_the_received_text(
    traffic: FrameDemultiplexer, sent: bytes, words: str
) -> None:
    carrier = traffic._carrier
    assert isinstance(carrier, Carrier)
    traffic.data_received(sent)
    assert carrier.aborted
    assert traffic.fault is not None
    assert words in traffic.fault


DELIVERED = pack(">HH", 60, 60) + b"\x010"
"""A delivery without its tag."""


@each_row(
    "sent",
    [
        frame(METHOD, 0, b"\x00"),
        method(0, 10, 30, b"\x07"),
        method(0, 10, 50, b"\x01\x40"),
        method(0, 10, 60),
        method(1, 20, 40, b"\x01"),
        frame(METHOD, 1, b""),
        frame(METHOD, 1, DELIVERED),
        frame(METHOD, 1, DELIVERED + bytes(9)) + frame(HEADER, 1, b"\x00\x3c"),
        method(1, 60, 30),
        frame(METHOD, 2, b"\x00\x3c"),
        method(2, 60, 80, bytes(8)),
        method(2, 60, 50, b"\x01\x38\x07NO"),
        method(2, 60, 50, b"\x01\x38\x00\x00\x00") + frame(HEADER, 2, b""),
    ],
)
async def test_frames_that_end_too_early_end_the_link(sent: bytes) -> None:
    """Also frames of the service's own channels: no other exception leaves the event loop's call."""
    traffic, carrier = FrameDemultiplexer(channel_max=0, frame_max=0), Carrier()
    traffic.connection_made(carrier)
    client: Any = SimpleNamespace(frame_demultiplexer=traffic)
    source = Source(addresses=["commands"], authorizationContext=["acme:line"])
    reading = SimpleNamespace(arrived=lambda _size: True, ended=lambda _size: None)
    traffic.takers[1] = AmqpConsumer(client, source, lambda _: None, reading, 1 << 20)
    traffic.takers[2] = AmqpPublisher(client, "site", lambda _address, _status: None)
    traffic.data_received(sent)
    assert carrier.aborted
    assert traffic.fault is not None
    assert traffic.fault.startswith("the response is not AMQP 0.9.1")


async def test_the_time_without_reading_is_no_silence_of_the_broker(traffic: FrameDemultiplexer) -> None:
    traffic.pause(True)
    traffic.last_received -= 3600
    traffic.pause(False)
    assert asyncio.get_running_loop().time() - traffic.last_received < 60


async def test_a_link_closed_by_the_broker_is_detected_before_its_data_is_read() -> None:
    ours, theirs = socket.socketpair()
    traffic = FrameDemultiplexer(channel_max=0, frame_max=0)
    assert not traffic.peer_has_closed
    transport, _ = await asyncio.get_running_loop().create_connection(lambda: traffic, sock=ours)
    assert not traffic.peer_has_closed
    theirs.sendall(HEARTBEAT_FRAME)
    assert not traffic.peer_has_closed
    theirs.close()
    assert traffic.peer_has_closed, "nothing of it has been read yet"
    transport.close()
    assert traffic.peer_has_closed


async def test_the_end_of_the_stream_ends_the_library_too(traffic: FrameDemultiplexer) -> None:
    lost: list[Exception | None] = []
    traffic.on_lost = lost.append
    assert not traffic.eof_received(), "a transport that nobody writes to any more may close itself"
    traffic.connection_lost(None)
    assert lost == [None]
    assert await traffic.reader.read() == b""


def test_outcomes_are_one_frame_for_all_up_to_a_delivery() -> None:
    assert read_confirm(pack_ack(3, 500), 11) == (500, True)
    assert read_confirm(pack_nack(3, 500, requeue=True), 11) == (500, True)
    assert pack_nack(3, 500, requeue=True) != pack_nack(3, 500, requeue=False)


def test_a_returned_message_has_its_reason_and_address() -> None:
    payload = pack(">H", 312) + short(b"NO_ROUTE") + short(b"ex") + short(b"a.b")
    assert read_return(payload, 0) == (Reason(312, "NO_ROUTE"), b"ex", b"a.b")


@pytest.mark.parametrize(("exchange", "key"), [("x" * 256, "k"), ("x", "ö" * 128), ("\ud800", "k")])
def test_names_that_amqp_cannot_carry_are_refused(exchange: str, key: str) -> None:
    with pytest.raises(ValueError, match=r"bytes, expected at most 255|an unpaired surrogate"):
        pack_publish(1, exchange, key)


def test_headers_that_fill_more_than_a_frame_are_refused() -> None:
    with pytest.raises(ValueError, match="the headers have 5000 bytes"):
        pack_content(1, bytes(5000), b"", 4096)

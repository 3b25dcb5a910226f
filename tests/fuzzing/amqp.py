"""The readers of AMQP 0.9.1: frames of a broker, and the properties and tables of publishers."""

from __future__ import annotations

import asyncio
import struct
from types import SimpleNamespace
from typing import Any

from pamqp import commands, header
from pamqp.exceptions import PAMQPException

from connectivity.connections.model import Source
from connectivity.transports.amqp.consumer import AmqpConsumer
from connectivity.transports.amqp.demultiplexer import FrameDemultiplexer
from connectivity.transports.amqp.frames import (
    ACK,
    BODY,
    CONTENT,
    DELIVER,
    HEADER,
    HEARTBEAT,
    METHOD,
    METHOD_ID,
    RETURN,
    Reason,
    frame,
    pack_ack,
    pack_content,
    pack_publish,
    read_confirm,
    read_delivery,
    read_return,
)
from connectivity.transports.amqp.properties import (
    CONTENT_TYPE,
    CORRELATION,
    MESSAGE_ID,
    REPLY_TO,
    pack_properties,
    read_properties,
)
from connectivity.transports.amqp.publisher import AmqpPublisher, UnconfirmedMessage
from connectivity.transports.base import Delivery, OutboundMessage
from mappings.model.envelope import Envelope
from tests.fuzzing.byte_reader import ByteReader
from tests.fuzzing.target import target
from tests.support.reactive_streams_io.faulty_wire import pieces

SIZES = ([1], [3, 30], [9], [5000])
CONSUMING, PUBLISHING = 1, 2
"""The channels of a consumer and of a publisher; all other frames go to the library."""


class _Link:
    """A demultiplexer with a consumer and a publisher, on a transport that can only be aborted."""

    def __init__(self) -> None:
        self.frames = FrameDemultiplexer(channel_max=2047, frame_max=131_072)
        self.is_aborted = False
        self.frames.connection_made(_Carrier(self))
        self.frames.on_blocked = lambda reason: None
        client: Any = SimpleNamespace(
            call_before_send=lambda _: None, frame_demultiplexer=self.frames, send=lambda _: None
        )
        source = Source(addresses=["commands"], authorizationContext=["acme:line"])
        reading = SimpleNamespace(arrived=lambda _size: True, ended=lambda _size: None)
        self.consumer = AmqpConsumer(client, source, lambda _: None, reading, 4096)
        self.publisher = _Publisher(client, "site", lambda _address, _status: None)
        for number in range(1, 4):
            message = OutboundMessage("out", Envelope(b"%d" % number, {}))
            self.publisher._unconfirmed[number] = UnconfirmedMessage(message, self.publisher.outcome, "", "out", b"")
        self.frames.takers = {CONSUMING: self.consumer, PUBLISHING: self.publisher}

    def receive(self, data: bytes) -> None:
        if not self.is_aborted:
            self.frames.data_received(data)

    @property
    def deliveries(self) -> list[tuple[bytes, dict[str, str], bool, int]]:
        held: list[Delivery] = [*self.consumer._inbox.waiting, *self.consumer._held]
        return [(each.envelope.payload, dict(each.envelope.headers), each.redelivered, each.skipped) for each in held]

    def end(self) -> None:
        self.consumer.end()
        self.publisher.end()


class _Carrier(asyncio.WriteTransport):
    def __init__(self, link: _Link) -> None:
        super().__init__()
        self._link = link

    def abort(self) -> None:
        self._link.is_aborted = True

    def is_closing(self) -> bool:
        return self._link.is_aborted


class _Publisher(AmqpPublisher):
    """A publisher that does not open its channel again."""

    def outcome(self, _error: Exception | None) -> None:
        """Ignore the outcome of a message."""

    def closed(self, reason: Reason) -> None:
        assert isinstance(reason.text, str)


async def _received(data: bytes, sizes: list[int]) -> tuple[Any, ...]:
    link = _Link()
    for piece in pieces(data, sizes):
        link.receive(piece)
    waiting = len(link.frames._tail)
    assert link.is_aborted == (link.frames.fault is not None)
    assert waiting <= 131_072 + (1 << 20)
    found = link.deliveries, len(link.publisher), link.is_aborted, link.frames.closed, link.frames.frame_max
    link.end()
    return found


def read_frames(data: bytes) -> None:
    """Frames give the same deliveries, whatever the sizes of the pieces in which they arrive.

    The first byte selects the sizes.
    """
    how, received = data[0] if data else 0, data[1:]
    whole = asyncio.run(_received(received, [len(received) or 1]))
    if not whole[2]:
        assert asyncio.run(_received(received, SIZES[how & 3])) == whole
    _compare_arguments(received)


def _compare_arguments(data: bytes) -> None:
    """The service and pamqp read arguments equally, if pamqp writes them unchanged.

    pamqp takes delivery tags as signed numbers.
    """
    for method, read in (
        (commands.Basic.Deliver, read_delivery),
        (commands.Basic.Return, read_return),
        (commands.Basic.Ack, read_confirm),
    ):
        try:
            found = read(data, 0)
        except struct.error:
            found = None
        theirs: Any = method()
        try:
            theirs.unmarshal(data)
            if theirs.marshal() != data:
                continue
        except (PAMQPException, ValueError, IndexError, struct.error):
            continue
        assert found is not None
        match found:
            case Reason(code, text), exchange, key:
                expected = (theirs.reply_code, theirs.reply_text, theirs.exchange, theirs.routing_key)
                assert (code, text, exchange.decode(), key.decode()) == expected
            case bytes(consumer), tag, redelivered:
                assert (consumer.decode(), tag, redelivered) == (
                    theirs.consumer_tag,
                    theirs.delivery_tag % (1 << 64),
                    theirs.redelivered,
                )
            case tag, multiple:
                assert (tag, multiple) == (theirs.delivery_tag % (1 << 64), theirs.multiple)


def _short(text: bytes) -> bytes:
    return bytes((len(text),)) + text


def _method(channel: int, method: tuple[int, int], arguments: bytes = b"") -> bytes:
    return frame(METHOD, channel, METHOD_ID.pack(*method) + arguments)


_DELIVERY = _short(b"0") + bytes(7) + b"\x01" + b"\x01" + _short(b"amq.topic") + _short(b"a.b")
_DELIVERED = _method(CONSUMING, DELIVER, _DELIVERY) + pack_content(
    CONSUMING, pack_properties({"correlation-id": "c"}), b"body", 4096
)
_RETURNED = b"\x01\x38" + _short(b"NO_ROUTE") + _short(b"") + _short(b"out")
_FRAMES = [
    _DELIVERED,
    _DELIVERED * 3,
    _method(CONSUMING, DELIVER, _DELIVERY)
    + frame(HEADER, CONSUMING, CONTENT.pack(60, 0, 9000) + bytes(2))
    + frame(BODY, CONSUMING, b"x" * 500),
    _method(CONSUMING, (60, 30), _short(b"0") + b"\0"),
    _method(CONSUMING, (20, 40), b"\x01\x94" + _short(b"NOT_FOUND") + bytes(4)),
    _method(PUBLISHING, ACK, bytes(7) + b"\x02\x01"),
    _method(PUBLISHING, RETURN, _RETURNED) + pack_content(PUBLISHING, b"", b"1", 4096),
    pack_ack(PUBLISHING, 3),
    pack_publish(0, "exchange", "key"),
    _method(0, (10, 30), b"\x07\xff\x00\x02\x00\x00\x00\x3c"),
    _method(0, (10, 50), b"\x01\x40" + _short(b"CONNECTION_FORCED") + bytes(4)),
    _method(0, (10, 60), _short(b"low on memory")) + _method(0, (10, 61)),
    frame(HEARTBEAT, 0, b""),
    b"AMQP\x00\x00\x09\x01",
]

# ── properties ────────────────────────────────────────────────────────────────────────────────────────────────────────

_NAMES = (CONTENT_TYPE, CORRELATION, REPLY_TO, MESSAGE_ID, "a", "x-y", "ä", "", "n" * 300)
_TEXTS = ("", "application/json", "c-1", "ä💡", "v" * 300, "\0", "1")


def read_content_properties(data: bytes) -> None:
    """Any bytes give text headers, the same as those of pamqp if pamqp writes them unchanged."""
    headers = read_properties(data)
    for text in (*headers, *headers.values()):
        text.encode()
    assert sum(len(value) for value in headers.values()) <= 64 * len(data) + 100
    _compare_properties(data, headers)
    _pack_and_read(ByteReader(data))


def _compare_properties(data: bytes, headers: dict[str, str]) -> None:
    if len(data) < 2 or data[1] & 1:
        return  # pamqp reads further flags differently
    theirs: Any = commands.Basic.Properties()
    try:
        theirs.unmarshal(int.from_bytes(data[:2], "big"), data[2:])
        known = {
            CONTENT_TYPE: theirs.content_type,
            CORRELATION: theirs.correlation_id,
            REPLY_TO: theirs.reply_to,
            MESSAGE_ID: theirs.message_id,
        }
        table = theirs.headers or {}
        if theirs.marshal() != data:
            return
    except Exception:  # pamqp raises many kinds of errors for invalid bytes
        return
    for property_name, value in known.items():
        if value is not None:
            assert headers[property_name] == value
    for field, value in table.items():
        if isinstance(value, str) and field not in known:
            assert headers.get(field) == value, (field, value)


def _pack_and_read(reader: ByteReader) -> None:
    headers = {reader.text(_NAMES): reader.text(_TEXTS) for _ in range(reader.below(6))}
    try:
        packed = pack_properties(headers)
    except ValueError:
        assert any(not name or len(name.encode()) > 255 or len(value.encode()) > 255 for name, value in headers.items())
        return
    assert read_properties(packed) == headers
    header.ContentHeader().unmarshal(bytes(12) + packed)


def _long(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


_TABLE = b"".join(
    _short(name) + value
    for name, value in (
        *(
            (b"t", b"t\x01"),
            (b"b", b"b\xff"),
            (b"B", b"B\xff"),
            (b"s", b"s\xfe\xd4"),
            (b"u", b"u\xea\x60"),
            (b"I", b"I\xff\xff\xff\xff"),
        ),
        *(
            (b"i", b"i\xff\xff\xff\xff"),
            (b"l", b"l" + bytes(8)),
            (b"L", b"L" + bytes(8)),
            (b"f", b"f?\x00\x00\x00"),
            (b"d", b"d" + bytes(8)),
        ),
        *(
            (b"D", b"D\x02\x00\x00\x04\xd2"),
            (b"S", b"S" + _long(b"text")),
            (b"x", b"x" + _long(b"\xff")),
            (b"T", b"T" + bytes(8)),
            (b"V", b"V"),
        ),
        *((b"A", b"A" + _long(b"t\x01V")), (b"F", b"F" + _long(_short(b"n") + b"b\x07"))),
    )
)
_PROPERTIES = [
    pack_properties({}),
    pack_properties({CONTENT_TYPE: "application/json", CORRELATION: "c", REPLY_TO: "r", MESSAGE_ID: "m", "a": "b"}),
    b"\x20\x00" + _long(_TABLE),
    b"\xff\xfc"
    + _short(b"text/plain")
    + _short(b"gzip")
    + _long(_TABLE)
    + b"\x02\x05"
    + _short(b"c") * 4
    + bytes(8)
    + _short(b"x") * 4,
    b"\x20\x01\x00\x00" + _long(b""),
]
_FIELD_WORDS = [
    *(bytes((each,)) for each in b"tbBsUuIilLfdDSxAFTV"),
    bytes(4),
    b"\x00\x00\x00\x04",
    b"\x20\x00",
    b"\xff\xff\xff\xff",
]

TARGETS = {
    "amqp-frames": target(
        read_frames,
        [bytes([number & 3]) + each for number, each in enumerate(_FRAMES)],
        (
            *(METHOD_ID.pack(*each) for each in (DELIVER, ACK, RETURN, (20, 40), (60, 30), (10, 30), (10, 50))),
            b"\xce",
            b"\x01\x00\x01",
        ),
    ),
    "amqp-properties": target(read_content_properties, _PROPERTIES, _FIELD_WORDS),
}

"""Reads and writes the frequent frames: publish, deliver, return, ack, nack and their content.

AMQP 0.9.1 §4.2.3 (frames), §1.8 (the methods of `basic`). A frame is a type, a channel, a length, a payload and an end
mark; a message is a method frame, a content header and as many body frames as needed. The readers raise `struct.error` for
a payload that ends too early.
"""

from __future__ import annotations

from struct import Struct, error
from typing import Final, NamedTuple

from connectivity.transports.amqp.options import DIRECT_REPLY, MOST_BYTES

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
END = 0xCE
FRAME = Struct(">BHI")
"""Type, channel, length of the payload."""

OVERHEAD = FRAME.size + 1
END_MARK = bytes((END,))

TUNE: Final = (10, 30)
CONNECTION_CLOSE: Final = (10, 50)
BLOCKED: Final = (10, 60)
UNBLOCKED: Final = (10, 61)
CHANNEL_CLOSE: Final = (20, 40)
CANCEL: Final = (60, 30)
RETURN: Final = (60, 50)
DELIVER: Final = (60, 60)
ACK: Final = (60, 80)
NACK: Final = (60, 120)

METHOD_ID = Struct(">HH")
CONTENT = Struct(">HHQ")
"""Class, weight, size of the body; the properties follow."""

TUNING = Struct(">HIH")
"""Maximum number of channels, bytes of a frame, seconds between heartbeats."""

_CODE = Struct(">H")
_TAG_AND_BITS = Struct(">QB")
_SETTLEMENT = Struct(">BHIHHQBB")
_PUBLISH = Struct(">HHH")
_BASIC = 60
_PUBLISH_METHOD = 40
_MANDATORY, _NOT_MANDATORY = b"\x01", b"\x00"
_MULTIPLE, _REQUEUE = 1, 2
_SETTLEMENT_SIZE = 13


class Reason(NamedTuple):
    """The broker's reply code and text for a closed channel or link, or a returned message."""

    code: int
    text: str


def read_short(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the short string at this position and the next position."""
    try:
        end = at + 1 + data[at]
    except IndexError:
        raise error("a short string without its length byte") from None
    return data[at + 1 : end], end


def read_reason(data: bytes, at: int) -> Reason:
    """Return the code and text at the beginning of a close or a return."""
    words, _ = read_short(data, at + 2)
    return Reason(_CODE.unpack_from(data, at)[0], words.decode(errors="replace"))


def read_confirm(data: bytes, at: int) -> tuple[int, bool]:
    """Return the delivery tag and the `multiple` flag of an ack or nack."""
    tag, bits = _TAG_AND_BITS.unpack_from(data, at)
    return tag, bool(bits & _MULTIPLE)


def read_delivery(data: bytes, at: int) -> tuple[bytes, int, bool]:
    """Return consumer tag, delivery tag and redelivered flag; exchange and routing key are not needed."""
    consumer, at = read_short(data, at)
    tag, bits = _TAG_AND_BITS.unpack_from(data, at)
    return consumer, tag, bool(bits & 1)


def read_return(data: bytes, at: int) -> tuple[Reason, bytes, bytes]:
    """Return why a message is returned, and its exchange and routing key."""
    reason = read_reason(data, at)
    _, at = read_short(data, at + 2)
    exchange, at = read_short(data, at)
    key, _ = read_short(data, at)
    return reason, exchange, key


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return b"".join((FRAME.pack(kind, channel, len(payload)), payload, END_MARK))


def pack_publish(channel: int, exchange: str, key: str) -> bytes:
    """Pack the method frame of a message, mandatory if possible. Raises ValueError for invalid names."""
    parts = [_PUBLISH.pack(_BASIC, _PUBLISH_METHOD, 0)]
    for what, text in (("exchange", exchange), ("routing key", key)):
        try:
            encoded = text.encode()
        except UnicodeEncodeError as fault:
            raise ValueError(f"the {what} has an unpaired surrogate at position {fault.start}") from fault
        if len(encoded) > MOST_BYTES:
            raise ValueError(f"the {what} has {len(encoded)} bytes, expected at most {MOST_BYTES}")
        parts += (bytes((len(encoded),)), encoded)
    is_direct = not exchange and key.startswith(DIRECT_REPLY)
    return frame(METHOD, channel, b"".join((*parts, _NOT_MANDATORY if is_direct else _MANDATORY)))


def pack_content(channel: int, properties: bytes, body: bytes, frame_max: int) -> bytes:
    """Pack content header and body frames. Raises ValueError for properties too large for one frame."""
    size, most = len(body), frame_max - OVERHEAD
    if CONTENT.size + len(properties) > most:
        raise ValueError(f"the headers have {len(properties)} bytes, expected at most {most - CONTENT.size}")
    head = FRAME.pack(HEADER, channel, CONTENT.size + len(properties)) + CONTENT.pack(_BASIC, 0, size) + properties
    if size == 0:
        return head + END_MARK
    if size <= most:
        return b"".join((head, END_MARK, FRAME.pack(BODY, channel, size), body, END_MARK))
    bodies = (frame(BODY, channel, body[start : start + most]) for start in range(0, size, most))
    return b"".join((head, END_MARK, *bodies))


def pack_ack(channel: int, tag: int) -> bytes:
    """Pack an acknowledgement of all deliveries up to this one."""
    return _SETTLEMENT.pack(METHOD, channel, _SETTLEMENT_SIZE, *ACK, tag, _MULTIPLE, END)


def pack_nack(channel: int, tag: int, *, requeue: bool) -> bytes:
    """Pack a rejection of all deliveries up to this one."""
    bits = _MULTIPLE | (_REQUEUE if requeue else 0)
    return _SETTLEMENT.pack(METHOD, channel, _SETTLEMENT_SIZE, *NACK, tag, bits, END)

"""The frames of reactive-streams-io and their encoding, as one table, `LAYOUTS`.

A frame is its code and all its fields. Frames delimit themselves, so they have no length; only for an element without length
in a stream of fixed size, reader and writer need to know the size. Codes with bit 7 go from publisher to subscriber (and to
extensions). No code begins a JSON text or UTF-8, so that frames and JSON on one address are distinguished by their first
byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from mappings.model.envelope import Envelope
from mappings.reactive_streams_io.errors import ProtocolViolation, broken
from mappings.reactive_streams_io.limits import UNBOUNDED

MAX_VARINT_BYTES = 9
_SMALL = [bytes([value]) if value < 128 else bytes([value & 127 | 128, value >> 7]) for value in range(2048)]
"""Cached encodings of frequent numbers: IDs, and lengths of elements."""


class IncompleteFrame(Exception):
    """The bytes end inside a frame. `needed` is the least end that it must have."""

    def __init__(self, needed: int) -> None:
        super().__init__(needed)
        self.needed = needed


def varint(value: int) -> bytes:
    """A number as a varint. Raises ValueError below 0 and above 2^63−1."""
    if 0 <= value < 2048:
        return _SMALL[value]
    if not 0 <= value <= UNBOUNDED:
        raise ValueError(f"found {value}, expected 0 to {UNBOUNDED}")
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    written.append(value)
    return bytes(written)


def read_varint(raw: bytes, at: int) -> tuple[int, int]:
    """Return the number at a position, and the position after it. Raises IncompleteFrame, ProtocolError."""
    value = shift = 0
    for index in range(at, at + MAX_VARINT_BYTES):
        if index >= len(raw):
            raise IncompleteFrame(index + 1)
        byte = raw[index]
        if byte < 128:
            if not byte and shift:
                raise broken(ProtocolViolation.VARINT_NOT_MINIMAL)
            return value | byte << shift, index + 1
        value |= (byte & 127) << shift
        shift += 7
    raise broken(ProtocolViolation.VARINT_TOO_LONG)


class Frame(msgspec.Struct, frozen=True):
    """The root of all frames. Their members are in the order of the encoding."""


class ClientHello(Frame, frozen=True):
    version: int
    extensions: tuple[int, ...] = ()


class ServerHello(Frame, frozen=True):
    version: int
    extensions: tuple[int, ...] = ()


class Goodbye(Frame, frozen=True):
    reason: str


class SubscribeFrame(Frame, frozen=True):
    publisher: str
    subscriber: int
    demand: int


class RequestFrame(Frame, frozen=True):
    subscriber: int
    demand: int


class CancelFrame(Frame, frozen=True):
    subscriber: int


class OnSubscribe(Frame, frozen=True):
    subscriber: int
    element_size: int


class OnNext(Frame, frozen=True):
    subscriber: int
    element: bytes


class OnNextPacked(Frame, frozen=True):
    subscriber: int
    elements: Sequence[bytes]


class OnNextPart(Frame, frozen=True):
    subscriber: int
    element: int
    data: bytes


class OnNextLastPart(Frame, frozen=True):
    subscriber: int
    element: int
    data: bytes


class OnComplete(Frame, frozen=True):
    subscriber: int


class OnError(Frame, frozen=True):
    subscriber: int
    error: str


class ResumeGrant(Frame, frozen=True):
    """`lifetime` in milliseconds, `window` in frames."""

    token: bytes
    lifetime: int
    window: int


class Resume(Frame, frozen=True):
    token: bytes
    received: int
    first_available: int


class ResumeOk(Frame, frozen=True):
    received: int


class ResumeFail(Frame, frozen=True):
    reason: str


class ResumeAck(Frame, frozen=True):
    received: int


class Ping(Frame, frozen=True):
    data: bytes


class Pong(Frame, frozen=True):
    data: bytes


class Seq(Frame, frozen=True):
    number: int


class Extension(Enum):
    """The extensions that are spoken here, by their ids."""

    RESUME = 1
    KEEPALIVE = 2
    SEQUENCE = 3


class FieldEncoding(Enum):
    """The encoding of a field."""

    VERSION = "one byte"
    LONG = "a varint up to 2^63−1"
    ID = "a varint up to 2^32−1"
    IDS = "their number, then that many ids"
    SIZE = "a varint up to 65535"
    NAME = "a string, bounded by the frame alone"
    TEXT = "a string for people, bounded"
    PART = "bytes of a split element"
    TOKEN = "unguessable bytes"
    DATA = "a few bytes to send back"
    ELEMENT = "bytes with their length; without it in a stream with an element size"
    PACK = "a number, then that many elements of the stream's size"


class FrameLayout(NamedTuple):
    """The layout of a code: the frame's type, its fields in order, and its extension, if it has one."""

    kind: type[Frame]
    fields: tuple[FieldEncoding, ...]
    extension: Extension | None = None


_ID, _LONG, _TEXT = FieldEncoding.ID, FieldEncoding.LONG, FieldEncoding.TEXT

LAYOUTS: dict[int, FrameLayout] = {
    0x01: FrameLayout(ClientHello, (FieldEncoding.VERSION, FieldEncoding.IDS)),
    0x02: FrameLayout(ServerHello, (FieldEncoding.VERSION, FieldEncoding.IDS)),
    0x03: FrameLayout(Goodbye, (_TEXT,)),
    0x11: FrameLayout(SubscribeFrame, (FieldEncoding.NAME, _ID, _LONG)),
    0x12: FrameLayout(RequestFrame, (_ID, _LONG)),
    0x13: FrameLayout(CancelFrame, (_ID,)),
    0x81: FrameLayout(OnSubscribe, (_ID, FieldEncoding.SIZE)),
    0x82: FrameLayout(OnNext, (_ID, FieldEncoding.ELEMENT)),
    0x83: FrameLayout(OnNextPacked, (_ID, FieldEncoding.PACK)),
    0x84: FrameLayout(OnNextPart, (_ID, _ID, FieldEncoding.PART)),
    0x85: FrameLayout(OnNextLastPart, (_ID, _ID, FieldEncoding.PART)),
    0x86: FrameLayout(OnComplete, (_ID,)),
    0x87: FrameLayout(OnError, (_ID, _TEXT)),
    0xA0: FrameLayout(ResumeGrant, (FieldEncoding.TOKEN, _LONG, _LONG), Extension.RESUME),
    0xA1: FrameLayout(Resume, (FieldEncoding.TOKEN, _LONG, _LONG), Extension.RESUME),
    0xA2: FrameLayout(ResumeOk, (_LONG,), Extension.RESUME),
    0xA3: FrameLayout(ResumeFail, (_TEXT,), Extension.RESUME),
    0xA4: FrameLayout(ResumeAck, (_LONG,), Extension.RESUME),
    0xA8: FrameLayout(Ping, (FieldEncoding.DATA,), Extension.KEEPALIVE),
    0xA9: FrameLayout(Pong, (FieldEncoding.DATA,), Extension.KEEPALIVE),
    0xB0: FrameLayout(Seq, (_LONG,), Extension.SEQUENCE),
}
"""The protocol's table of frames."""

CODES: dict[type[Frame], int] = {layout.kind: code for code, layout in LAYOUTS.items()}

HELLOS = (CODES[ClientHello], CODES[ServerHello])

CORE = frozenset(code for code, layout in LAYOUTS.items() if layout.extension is None and code not in HELLOS)
"""The codes that every connection may use once the hellos are said."""

TRACKED = tuple(layout.kind for code, layout in LAYOUTS.items() if code in CORE and layout.kind is not Goodbye)
"""The frames with positions for resume: those of subscriptions."""


def encode(frame: Frame, element_size: int = 0) -> bytes:
    """Return the bytes of a frame; `element_size` is that of its stream, if it has elements.

    Raises ValueError for what the protocol cannot express, such as an element of another size.
    """
    code = CODES[type(frame)]
    written = [bytes([code])]
    for name, shape in zip(frame.__struct_fields__, LAYOUTS[code].fields, strict=True):
        written.append(_encode_value(shape, getattr(frame, name), element_size))
    return b"".join(written)


def _encode_value(shape: FieldEncoding, value: Any, element_size: int) -> bytes:
    match shape:
        case FieldEncoding.VERSION:
            return bytes([value])
        case FieldEncoding.ID | FieldEncoding.LONG | FieldEncoding.SIZE:
            return varint(value)
        case FieldEncoding.IDS:
            return varint(len(value)) + b"".join(map(varint, value))
        case FieldEncoding.NAME | FieldEncoding.TEXT:
            return length_prefixed(value.encode())
        case FieldEncoding.PART | FieldEncoding.TOKEN | FieldEncoding.DATA:
            return length_prefixed(value)
        case FieldEncoding.ELEMENT:
            return _of_size(value, element_size) if element_size else length_prefixed(value)
        case FieldEncoding.PACK:
            if not value or not element_size:
                raise ValueError(
                    f"found {len(value)} elements of {element_size} bytes to pack, expected at least 1 element of 1 byte"
                )
            return varint(len(value)) + b"".join([_of_size(element, element_size) for element in value])


def length_prefixed(raw: bytes) -> bytes:
    """Return bytes after their length."""
    return varint(len(raw)) + raw


def _of_size(element: bytes, size: int) -> bytes:
    if len(element) != size:
        raise ValueError(f"found an element of {len(element)} bytes, expected {size}")
    return element


CONTENT_TYPE = "application/vnd.rsio.v0"

SUBPROTOCOL = "rsio.v0"
"""The name of the WebSocket subprotocol."""

ALPN = "rsio/0"
"""The name in TLS application-layer protocol negotiation."""

SESSION = "rsio-session"
"""The header that distinguishes clients at one address.

16 to 64 hexadecimal digits, new at each start.
"""

_HELLO = bytes([CODES[ClientHello]])
_GOODBYE = CODES[Goodbye]
_SEQ = CODES[Seq]


def envelope(raw: bytes, session: str | None = None) -> Envelope:
    """A message of frames."""
    headers = {"content-type": CONTENT_TYPE}
    if session is not None:
        headers[SESSION] = session
    return Envelope(raw, headers)


def begins_session(raw: bytes) -> bool:
    """Whether this message is a client's hello."""
    return raw.startswith(_HELLO)


def is_parting(raw: bytes) -> bool:
    """Whether a message begins with a goodbye, after its number if it has one."""
    position = 0
    if raw[:1] == bytes([_SEQ]):
        position = 1
        while position < len(raw) and raw[position] & 0x80:
            position += 1
        position += 1
    return raw[position : position + 1] == bytes([_GOODBYE])


def is_session(text: str) -> bool:
    """Whether this is a valid name of a session."""
    return 16 <= len(text) <= 64 and all(each in "0123456789abcdefABCDEF" for each in text)

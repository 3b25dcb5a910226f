"""The frames of reactive-streams-io, and how they are written: one table, `LAYOUTS`.

A frame is its code and then its fields, all of them always there. Frames delimit themselves, so there is no length around
them; the one thing that a table cannot say is an element without a length in a stream of fixed size, for which reader and
writer are told the size.

Codes with bit 7 go from publisher to subscriber (and to extensions). None begins a JSON text, and none begins UTF-8, so
that frames and JSON on one address can be told apart by their first octet.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from mappings.reactive_streams_io.octets import varint


class Frame(msgspec.Struct, frozen=True):
    """The root of all frames. Their members stand in the order of the wire."""


class ClientHello(Frame, frozen=True):
    version: int
    extensions: tuple[int, ...] = ()


class ServerHello(Frame, frozen=True):
    version: int
    extensions: tuple[int, ...] = ()


class Goodbye(Frame, frozen=True):
    reason: str


class Subscribe(Frame, frozen=True):
    publisher: str
    subscriber: int
    demand: int


class Request(Frame, frozen=True):
    subscriber: int
    demand: int


class Cancel(Frame, frozen=True):
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


class Shape(Enum):
    """How a field lies on the wire."""

    VERSION = "one octet"
    LONG = "a varint up to 2^63−1"
    ID = "a varint up to 2^32−1"
    IDS = "their number, then that many ids"
    SIZE = "a varint up to 65535"
    NAME = "a string, bounded by the frame alone"
    TEXT = "a string for people, bounded"
    PART = "bytes of a split element"
    TOKEN = "bytes that nobody can guess"
    DATA = "a few bytes to send back"
    ELEMENT = "bytes, or exactly as many octets as the stream's element size"
    PACK = "a number, then that many elements of the stream's size"


class Layout(NamedTuple):
    """What stands behind a code: the frame's type, its fields in order, and the extension that brings it, if one does."""

    kind: type[Frame]
    fields: tuple[Shape, ...]
    extension: Extension | None = None


_ID, _LONG, _TEXT = Shape.ID, Shape.LONG, Shape.TEXT

LAYOUTS: dict[int, Layout] = {
    0x01: Layout(ClientHello, (Shape.VERSION, Shape.IDS)),
    0x02: Layout(ServerHello, (Shape.VERSION, Shape.IDS)),
    0x03: Layout(Goodbye, (_TEXT,)),
    0x11: Layout(Subscribe, (Shape.NAME, _ID, _LONG)),
    0x12: Layout(Request, (_ID, _LONG)),
    0x13: Layout(Cancel, (_ID,)),
    0x81: Layout(OnSubscribe, (_ID, Shape.SIZE)),
    0x82: Layout(OnNext, (_ID, Shape.ELEMENT)),
    0x83: Layout(OnNextPacked, (_ID, Shape.PACK)),
    0x84: Layout(OnNextPart, (_ID, _ID, Shape.PART)),
    0x85: Layout(OnNextLastPart, (_ID, _ID, Shape.PART)),
    0x86: Layout(OnComplete, (_ID,)),
    0x87: Layout(OnError, (_ID, _TEXT)),
    0xA0: Layout(ResumeGrant, (Shape.TOKEN, _LONG, _LONG), Extension.RESUME),
    0xA1: Layout(Resume, (Shape.TOKEN, _LONG, _LONG), Extension.RESUME),
    0xA2: Layout(ResumeOk, (_LONG,), Extension.RESUME),
    0xA3: Layout(ResumeFail, (_TEXT,), Extension.RESUME),
    0xA4: Layout(ResumeAck, (_LONG,), Extension.RESUME),
    0xA8: Layout(Ping, (Shape.DATA,), Extension.KEEPALIVE),
    0xA9: Layout(Pong, (Shape.DATA,), Extension.KEEPALIVE),
    0xB0: Layout(Seq, (_LONG,), Extension.SEQUENCE),
}
"""The protocol's table of frames."""

CODES: dict[type[Frame], int] = {layout.kind: code for code, layout in LAYOUTS.items()}

HELLOS = (CODES[ClientHello], CODES[ServerHello])

CORE = frozenset(code for code, layout in LAYOUTS.items() if layout.extension is None and code not in HELLOS)
"""The codes that every connection may use once the hellos are said."""

TRACKED = tuple(layout.kind for code, layout in LAYOUTS.items() if code in CORE and layout.kind is not Goodbye)
"""The frames that count in the positions of resume: those of subscriptions."""


def encode(frame: Frame, element_size: int = 0) -> bytes:
    """The octets of a frame; `element_size` is that of its stream, where it carries elements.

    Raises ValueError for what the protocol cannot say, such as an element of another size.
    """
    code = CODES[type(frame)]
    written = [bytes([code])]
    for name, shape in zip(frame.__struct_fields__, LAYOUTS[code].fields, strict=True):
        written.append(_written(shape, getattr(frame, name), element_size))
    return b"".join(written)


def _written(shape: Shape, value: Any, element_size: int) -> bytes:
    match shape:
        case Shape.VERSION:
            return bytes([value])
        case Shape.ID | Shape.LONG | Shape.SIZE:
            return varint(value)
        case Shape.IDS:
            return varint(len(value)) + b"".join(map(varint, value))
        case Shape.NAME | Shape.TEXT:
            return prefixed(value.encode())
        case Shape.PART | Shape.TOKEN | Shape.DATA:
            return prefixed(value)
        case Shape.ELEMENT:
            return _of_size(value, element_size) if element_size else prefixed(value)
        case Shape.PACK:
            if not value or not element_size:
                raise ValueError(
                    f"found {len(value)} elements of size {element_size} to pack, expected at least 1 each"
                )
            return varint(len(value)) + b"".join([_of_size(element, element_size) for element in value])


def prefixed(octets: bytes) -> bytes:
    """Octets behind their number."""
    return varint(len(octets)) + octets


def _of_size(element: bytes, size: int) -> bytes:
    if len(element) != size:
        raise ValueError(f"found an element of {len(element)} octets, expected {size}")
    return element

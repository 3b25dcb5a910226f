"""A wire with faults: bytes are changed, lost, repeated, delayed or split differently.

Both ends are correct, so a session over such a wire gets far before it fails, and it fails in a realistic state: tokens
are valid, streams are open, parts wait to be joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from mappings.reactive_streams_io.frames import (
    CancelFrame,
    ClientHello,
    Goodbye,
    OnComplete,
    OnError,
    OnNext,
    OnNextLastPart,
    OnNextPart,
    OnSubscribe,
    Ping,
    Pong,
    RequestFrame,
    Resume,
    ResumeAck,
    ResumeFail,
    ResumeGrant,
    ResumeOk,
    Seq,
    ServerHello,
    SubscribeFrame,
    encode,
)
from mappings.reactive_streams_io.limits import UNBOUNDED
from tests.support.reactive_streams_io.examples import raw

OF_OCTETS = ("set", "cut", "double", "insert")
OF_PIECES = ("lost", "twice", "late", "put in")

OF_EITHER = [
    Goodbye(""),
    Ping(b"\x01"),
    Pong(b""),
    ResumeAck(1),
    ResumeAck(300),
    ResumeGrant(bytes(16), 1, 2),
    Resume(bytes(16), 0, 1),
    ResumeOk(0),
    ResumeFail("no"),
    Seq(1),
    Seq(2),
    Seq(3),
    ClientHello(0),
    ServerHello(0, (1, 2)),
]
OF_STREAMS = [
    SubscribeFrame("tck/never", 1, 9),
    SubscribeFrame("tck/range?n=1", 300, 1),
    SubscribeFrame("tck/range?n=3", 2, UNBOUNDED),
    RequestFrame(1, 0),
    RequestFrame(1, 1),
    RequestFrame(2, UNBOUNDED),
    CancelFrame(1),
    CancelFrame(300),
    OnSubscribe(1, 0),
    OnSubscribe(2, 2),
    OnNext(1, b"ab"),
    OnNext(2, b""),
    OnNextPart(1, 0, bytes(2000)),
    OnNextPart(1, 1, b""),
    OnNextPart(2, 0, b"a"),
    OnNextLastPart(1, 0, b"ab"),
    OnNextLastPart(2, 0, b"ab"),
    OnComplete(1),
    OnComplete(2),
    OnError(1, "500 x"),
]
STRAY = [
    *(encode(frame) for frame in (*OF_EITHER, *OF_STREAMS)),
    raw("83 01 02 61 62 63 64"),
    raw("83 02 00"),
    raw("55"),
    b"",
]
"""Bytes that neither end has sent, some of them valid frames."""


class WireFault(NamedTuple):
    """A fault at piece `number` of the wire, counted from 0."""

    number: int
    kind: str
    place: int
    value: int


slips = st.lists(
    st.builds(
        WireFault,
        st.integers(0, 40),
        st.sampled_from(OF_OCTETS + OF_PIECES),
        st.integers(0, 1 << 16),
        st.integers(0, 255),
    ),
    max_size=3,
)
sizes = st.lists(st.sampled_from([1, 2, 7, 40, 5000]), min_size=1, max_size=4)
"""The sizes of the pieces of a byte stream, repeated cyclically."""


def changed(content: bytes, changes: Iterable[tuple[str, int, int]]) -> bytes:
    """Return bytes with changed, lost, repeated or inserted parts: kind, position and value."""
    found = bytearray(content)
    for kind, place, value in changes:
        at = place % (len(found) + 1)
        match kind:
            case "set":
                found[at : at + 1] = bytes([value])
            case "cut":
                del found[at : at + value % 16]
            case "double":
                found[at:at] = found[at : at + value % 32]
            case "insert":
                found[at:at] = bytes([value])
    return bytes(found)


def pieces(content: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Split bytes into pieces of these sizes, repeated cyclically."""
    found, at, turn = [], 0, 0
    while at < len(content):
        size = sizes[turn % len(sizes)]
        found.append(content[at : at + size])
        at += size
        turn += 1
    return found


class Wire:
    """One direction of a transport: a byte stream with pieces of `sizes`, or messages without sizes."""

    def __init__(self, slips: Iterable[WireFault], sizes: Sequence[int] = ()) -> None:
        self._slips = sorted(slips, key=lambda slip: slip.number)
        self._sizes = sizes
        self._carried = 0
        self._late: list[bytes] = []

    def __repr__(self) -> str:
        return f"<Wire, {self._carried} carried, {self._slips} to come>"

    def carry(self, messages: Iterable[bytes]) -> list[bytes]:
        """Return the bytes that arrive at the other end."""
        arrived: list[bytes] = []
        for message in messages:
            for piece in pieces(message, self._sizes) if self._sizes else [message]:
                arrived += self._one(piece)
        return arrived

    def _one(self, piece: bytes) -> list[bytes]:
        before, self._late = self._late, []
        found = [piece]
        while self._slips and self._slips[0].number <= self._carried:
            _, kind, place, value = self._slips.pop(0)
            match kind:
                case "lost":
                    found = []
                case "twice":
                    found = [*found, *found]
                case "late":
                    self._late, found = found, []
                case "put in":
                    found.insert(place % (len(found) + 1), STRAY[value % len(STRAY)])
                case _:
                    found = [changed(each, [(kind, place, value)]) for each in found]
        self._carried += 1
        return [*found, *before]

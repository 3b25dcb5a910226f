"""The worked examples of reactive-streams-io, and common parts of its tests."""

from __future__ import annotations

import struct
from typing import NamedTuple

from hypothesis import strategies as st

from mappings.reactive_streams_io.decoder import Decoder
from mappings.reactive_streams_io.frames import (
    LAYOUTS,
    CancelFrame,
    ClientHello,
    FieldEncoding,
    Frame,
    Goodbye,
    OnComplete,
    OnError,
    OnNext,
    OnNextLastPart,
    OnNextPacked,
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
)
from mappings.reactive_streams_io.limits import MAX_ID, UNBOUNDED, EndpointLimits

TOKEN = bytes.fromhex("5a b1 e0 c4 7f 2d 99 13 a6 c8 00 4e 71 b3 d5 2f")
TOKEN_HEX = TOKEN.hex(" ")


class Example(NamedTuple):
    frame: Frame
    raw: str
    element_size: int = 0

    def __str__(self) -> str:
        return str(self.frame)[:60]


EXAMPLES = [
    Example(ClientHello(0), "01 00 00"),
    Example(ClientHello(0, (1, 3)), "01 00 02 01 03"),
    Example(ServerHello(0, (1, 2, 3)), "02 00 03 01 02 03"),
    Example(Goodbye("bye"), "03 03 62 79 65"),
    Example(Goodbye(""), "03 00"),
    Example(SubscribeFrame("streams/st1/0", 5, 0), "11 0d 73 74 72 65 61 6d 73 2f 73 74 31 2f 30 05 00"),
    Example(SubscribeFrame("tck/range?n=3", 300, 16), "11 0d 74 63 6b 2f 72 61 6e 67 65 3f 6e 3d 33 ac 02 10"),
    Example(RequestFrame(5, 10), "12 05 0a"),
    Example(RequestFrame(300, UNBOUNDED), "12 ac 02 ff ff ff ff ff ff ff ff 7f"),
    Example(CancelFrame(5), "13 05"),
    Example(OnSubscribe(5, 0), "81 05 00"),
    Example(OnSubscribe(6, 8), "81 06 08"),
    Example(OnNext(5, b'{"v":1}'), "82 05 07 7b 22 76 22 3a 31 7d"),
    Example(OnNext(5, b""), "82 05 00"),
    Example(OnNext(6, struct.pack(">d", 21.5)), "82 06 40 35 80 00 00 00 00 00", 8),
    Example(
        OnNextPacked(6, [struct.pack(">d", value) for value in (21.5, 22.0, -1.0)]),
        "83 06 03 40 35 80 00 00 00 00 00 40 36 00 00 00 00 00 00 bf f0 00 00 00 00 00 00",
        8,
    ),
    Example(OnNextPart(5, 0, b'{"big":'), "84 05 00 07 7b 22 62 69 67 22 3a"),
    Example(OnNextLastPart(5, 0, b"true}"), "85 05 00 05 74 72 75 65 7d"),
    Example(OnComplete(5), "86 05"),
    Example(OnError(5, "404 no such stream"), "87 05 12 34 30 34 20 6e 6f 20 73 75 63 68 20 73 74 72 65 61 6d"),
    Example(ResumeGrant(TOKEN, 60_000, 1024), f"a0 10 {TOKEN_HEX} e0 d4 03 80 08"),
    Example(Resume(TOKEN, 130, 3), f"a1 10 {TOKEN_HEX} 82 01 03"),
    Example(ResumeOk(4), "a2 04"),
    Example(ResumeFail("expired"), "a3 07 65 78 70 69 72 65 64"),
    Example(ResumeAck(128), "a4 80 01"),
    Example(Ping(b"\x07"), "a8 01 07"),
    Example(Pong(b"\x07"), "a9 01 07"),
    Example(Seq(1), "b0 01"),
]
"""Each kind of frame at least once, with its bytes."""


def raw(text: str) -> bytes:
    """Return the bytes of hexadecimal digits."""
    return bytes.fromhex(text)


def decoder(sizes: dict[int, int] | None = None, limits: EndpointLimits | None = None) -> Decoder:
    """Return a decoder that accepts all frames, including hellos."""
    return Decoder(limits or EndpointLimits(), frozenset(LAYOUTS), 0, sizes)


ids = st.one_of(st.integers(0, 300), st.integers(0, MAX_ID))
longs = st.one_of(st.integers(0, 300), st.integers(0, UNBOUNDED))
texts = st.text(st.characters(codec="utf-8"), max_size=40)

_FIELDS = {
    FieldEncoding.VERSION: st.just(0),
    FieldEncoding.LONG: longs,
    FieldEncoding.ID: ids,
    FieldEncoding.IDS: st.lists(ids, max_size=64).map(tuple),
    FieldEncoding.SIZE: st.integers(0, 65_535),
    FieldEncoding.NAME: texts,
    FieldEncoding.TEXT: texts,
    FieldEncoding.PART: st.binary(max_size=300),
    FieldEncoding.TOKEN: st.binary(min_size=16, max_size=64),
    FieldEncoding.DATA: st.binary(max_size=64),
}


@st.composite
def frames(draw: st.DrawFn, element_size: int = 0) -> Frame:
    """Draw a frame that is valid in a stream with elements of this size."""
    layout = draw(st.sampled_from([each for each in LAYOUTS.values() if element_size or each.kind is not OnNextPacked]))
    element = st.binary(min_size=element_size, max_size=element_size) if element_size else st.binary(max_size=300)
    fields = {**_FIELDS, FieldEncoding.ELEMENT: element, FieldEncoding.PACK: st.lists(element, min_size=1, max_size=9)}
    return layout.kind(*(draw(fields[shape]) for shape in layout.fields))

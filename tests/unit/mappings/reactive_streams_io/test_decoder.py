"""Bytes in, frames out: reactive-streams-io, frames, packing, limits and malformed input."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappings.errors import ProtocolError, UnsupportedVersion
from mappings.reactive_streams_io.frames import (
    CORE,
    CancelFrame,
    ClientHello,
    Frame,
    OnNext,
    OnNextPacked,
    OnSubscribe,
    RequestFrame,
    SubscribeFrame,
    encode,
    varint,
)
from mappings.reactive_streams_io.limits import EndpointLimits
from tests.support.cpu_budget import at_most
from tests.support.reactive_streams_io.examples import EXAMPLES, Example, decoder, frames, raw
from tests.support.table import each_row

SIZE = 4


def subscriber_of(frame: Frame) -> int:
    return getattr(frame, "subscriber", 0)


def sizes_for(example: Example) -> dict[int, int]:
    return {subscriber_of(example.frame): example.element_size}


@each_row("example", EXAMPLES, ids=str)
def test_a_frame_is_read_from_its_worked_example(example: Example) -> None:
    assert list(decoder(sizes_for(example)).feed(raw(example.raw))) == [example.frame]


@each_row("example", EXAMPLES, ids=str)
def test_a_frame_is_read_byte_by_byte(example: Example) -> None:
    reader = decoder(sizes_for(example))
    found = [list(reader.feed(bytes([byte]))) for byte in raw(example.raw)]
    assert found == [[]] * (len(found) - 1) + [[example.frame]]
    assert reader.waiting == 0


@given(st.lists(st.sampled_from([0, SIZE]).flatmap(lambda size: st.tuples(st.just(size), frames(size)))), st.data())
def test_frames_are_decoded_as_encoded_for_any_split(sent: list[tuple[int, Frame]], data: st.DataObject) -> None:
    # Each frame's stream has its own ID and a known size, as if set by an onSubscribe.
    written, expected = b"", []
    sizes: dict[int, int] = {}
    for size, frame in sent:
        subscriber = subscriber_of(frame)
        if sizes.setdefault(subscriber, size) != size:
            continue
        if isinstance(frame, OnSubscribe):
            sizes[subscriber] = frame.element_size
        written += encode(frame, size)
        expected.append(frame)
    reader = decoder()
    reader.sizes.update({subscriber_of(frame): size for size, frame in reversed(sent)})
    cuts = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=8)))
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(written)], strict=True):
        found += list(reader.feed(written[start:end]))
    assert found == expected
    assert reader.waiting == 0


def test_the_element_size_is_remembered_until_the_next_on_subscribe_of_that_id() -> None:
    """Section 7.2: it outlives cancel and completion."""
    sent = raw("81 06 02  82 06 00 07  86 06  82 06 00 08  81 06 00  82 06 01 62")
    assert [frame.element for frame in decoder().feed(sent) if isinstance(frame, OnNext)] == [
        b"\x00\x07",
        b"\x00\x08",
        b"b",
    ]


def test_the_allowed_frame_codes_can_change_between_two_frames() -> None:
    reader = decoder()
    reader.allowed = {0x01}
    reader.expected_hello = 0x01
    coming = reader.feed(raw("01 00 00  13 05  01 00 00"))
    assert next(coming) == ClientHello(0)
    reader.allowed = CORE
    assert next(coming) == CancelFrame(5)
    with pytest.raises(ProtocolError, match="second hello"):
        next(coming)


FATAL = [
    ("V02", "12 05 8a 00", "shortest form"),
    ("V03", "12 05 80 80 80 80 80 80 80 80 80", "more than 9 bytes"),
    ("V05", "13 80 80 80 80 10", "expected at most 4294967295"),
    ("V07", "55", "unknown frame code: found code 0x55"),
    ("V08", "00", "unknown frame code"),
    ("V10", "7b", "unknown frame code"),
    ("V11", "11 ff ff ff ff 07", "too large"),
    ("V11 with its length", "11 ff ff 3f", "too large"),
    ("V12", "11 02 c3 28", "UTF-8"),
    ("H12", "01 00 41", "found 65, expected at most 64"),
    ("F03", "81 06 00 83 06", "without an element size"),
    ("F04", "81 06 02 83 06 00", "without elements"),
    ("F08", "81 06 80 80 04", "found 65536"),
    ("D19", "82 01", "before the onSubscribe"),
    ("K02", "a8 41", "found 65 bytes"),
    ("part", "84 05 00 80 80 04", "found 65536 bytes"),
    ("reason", "03 80 80 04", "found 65536 bytes"),
    ("error", "87 05 80 80 04", "found 65536 bytes"),
    ("token", "a0 0f", "found 15 bytes"),
    ("long element", "81 05 00 82 05 ff ff 7f", "too large"),
    ("long pack", "81 06 02 83 06 ff ff 7f", "too large"),
    ("surrogate", "03 03 ed a0 80", "UTF-8"),
]


@each_row(("case", "text", "reason"), FATAL, ids=[case for case, *_ in FATAL])
def test_malformed_bytes_are_noticed_as_soon_as_they_arrive(case: str, text: str, reason: str) -> None:
    """At the earliest byte: without it the message is incomplete. A case of the conformance suite."""
    wrong = raw(text)
    with pytest.raises(ProtocolError, match=reason):
        list(decoder().feed(wrong))
    reader = decoder()
    for byte in wrong[:-1]:
        list(reader.feed(bytes([byte])))
    with pytest.raises(ProtocolError, match=reason):
        list(reader.feed(wrong[-1:]))


def test_another_version_is_recognized_before_the_rest_of_its_hello() -> None:
    with pytest.raises(UnsupportedVersion, match="unsupported version 1; supported: 0"):
        list(decoder().feed(raw("01 01")))


def test_a_length_beyond_its_limit_allocates_no_memory() -> None:
    tracemalloc.start()
    try:
        for text in ("11 ff ff ff ff 07", "82 05 ff ff ff ff 07", "83 06 ff ff ff ff 07", "84 05 00 ff ff ff ff 07"):
            with pytest.raises(ProtocolError):
                list(decoder({5: 0, 6: 8}).feed(raw(text)))
        assert tracemalloc.get_traced_memory()[1] < 1 << 18
    finally:
        tracemalloc.stop()


def test_a_large_frame_in_pieces_of_one_byte_is_decoded_in_linear_time() -> None:
    element = bytes(300_000)
    written = (
        encode(OnNext(5, element)) + encode(SubscribeFrame("x" * 200_000, 1, 2**63 - 1)) + encode(RequestFrame(1, 2))
    )
    reader = decoder({5: 0})
    with at_most(30):
        found = [frame for byte in written for frame in reader.feed(bytes([byte]))]
    assert found == [OnNext(5, element), SubscribeFrame("x" * 200_000, 1, 2**63 - 1), RequestFrame(1, 2)]


def test_limits_can_be_set() -> None:
    reader = decoder({6: 2}, EndpointLimits(frame=10))
    assert list(reader.feed(raw("83 06 03 00 01 00 02 00 03"))) == [
        OnNextPacked(6, [b"\x00\x01", b"\x00\x02", b"\x00\x03"])
    ]
    with pytest.raises(ProtocolError, match="found 11 bytes, expected at most 10"):
        list(reader.feed(raw("83 06 04")))


def test_a_frame_at_its_largest_is_read() -> None:
    limit = EndpointLimits().frame
    room = limit - 2 - len(varint(limit))
    assert list(decoder({5: 0}).feed(encode(OnNext(5, bytes(room))))) == [OnNext(5, bytes(room))]
    with pytest.raises(ProtocolError, match="too large"):
        list(decoder({5: 0}).feed(encode(OnNext(5, bytes(room + 1)))))

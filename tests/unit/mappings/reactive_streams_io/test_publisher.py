"""The publisher's side of one stream: reactive-streams-io, packing and splitting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappings.errors import EncodeError
from mappings.reactive_streams_io.frames import (
    OnComplete,
    OnNext,
    OnNextLastPart,
    OnNextPacked,
    OnNextPart,
    SubscribeFrame,
    encode,
)
from mappings.reactive_streams_io.limits import UNBOUNDED, EndpointLimits
from mappings.reactive_streams_io.publisher import PublisherSide
from tests.support.reactive_streams_io.examples import decoder

SMALL = EndpointLimits(split_above=50, part=20, batch=64, element=200)


def publishing(size: int = 0, demand: int = UNBOUNDED, limits: EndpointLimits = SMALL) -> PublisherSide:
    stream = PublisherSide(1, SubscribeFrame("x", 300, demand), limits)
    stream.begin(size)
    return stream


def drained(stream: PublisherSide) -> list[bytes]:
    sent = []
    while (frame := stream.next_frame()) is not None:
        sent.append(frame)
    return sent


@given(st.lists(st.lists(st.binary(max_size=120), max_size=5), max_size=5))
def test_elements_come_out_as_they_went_in(offered: list[list[bytes]]) -> None:
    stream = publishing()
    whole: list[bytes] = []
    parts = b""
    for elements in offered:
        stream.offer(elements)
    assert stream.waiting_bytes == sum(len(element) for elements in offered for element in elements)
    for frame in decoder({300: 0}).feed(b"".join(drained(stream))):
        if isinstance(frame, OnNext):
            whole.append(frame.element)
        elif isinstance(frame, OnNextPart | OnNextLastPart):
            assert len(frame.data) <= SMALL.part
            parts += frame.data
            if isinstance(frame, OnNextLastPart):
                whole.append(parts)
                parts = b""
    assert whole == [element for elements in offered for element in elements]
    assert stream.waiting_bytes == 0


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=20), st.integers(0, 200))
def test_batched_frames_equal_the_frames_sent_one_by_one(elements: list[bytes], room: int) -> None:
    one, other = publishing(), publishing()
    one.offer(elements)
    other.offer(elements)
    together = one.whole_elements(room)
    assert sum(map(len, together)) <= room
    assert [*together, *drained(one)] == drained(other)
    assert one.waiting_bytes == 0


@given(st.lists(st.lists(st.binary(min_size=3, max_size=3), max_size=50), max_size=5), st.booleans())
def test_available_elements_of_one_size_are_packed(offered: list[list[bytes]], in_between: bool) -> None:
    stream = publishing(3)
    sent = []
    for elements in offered:
        stream.offer(elements)
        sent += drained(stream) if in_between else []
    sent += drained(stream)
    found: list[bytes] = []
    for frame in decoder({300: 3}).feed(b"".join(sent)):
        found += [frame.element] if isinstance(frame, OnNext) else []
        found += frame.elements if isinstance(frame, OnNextPacked) else []
    assert found == [element for elements in offered for element in elements]
    assert max(map(len, sent), default=0) <= SMALL.batch
    assert stream.waiting_bytes == 0


def test_demand_is_used_up_and_adds_up_to_endless() -> None:
    stream = publishing(demand=2)
    stream.offer([b"a", b"b"])
    with pytest.raises(ValueError, match="found 1 elements, expected at most 0"):
        stream.offer([b"c"])
    stream.request(UNBOUNDED - 1)
    stream.request(5)
    assert stream.demand == UNBOUNDED
    stream.offer([b"c"])
    assert stream.demand == UNBOUNDED


@pytest.mark.parametrize("elements", [[b"ab", b"abcd"], [b"ab"], [b""]])
def test_an_element_of_another_size_is_an_internal_error(elements: list[bytes]) -> None:
    stream = publishing(3)
    with pytest.raises(ValueError, match="other sizes, expected 3"):
        stream.offer(elements)
    assert drained(stream) == []
    assert stream.demand == UNBOUNDED


def test_an_element_that_is_too_large_is_not_taken() -> None:
    stream = publishing(demand=3)
    stream.offer([bytes(150), bytes(150)])
    with pytest.raises(EncodeError) as error:
        stream.offer([bytes(201)])
    assert error.value.status == 413
    assert stream.demand == 1


def test_nothing_is_offered_before_the_beginning_or_after_the_end() -> None:
    stream = PublisherSide(1, SubscribeFrame("x", 1, 5), SMALL)
    with pytest.raises(ValueError, match="not begun"):
        stream.offer([b"a"])
    with pytest.raises(ValueError, match="expected 0 to 65535"):
        stream.begin(65_536)
    stream.begin(0)
    stream.offer([b"a"])
    stream.end(encode(OnComplete(1)))
    stream.end(b"other")
    with pytest.raises(ValueError, match="ended"):
        stream.offer([b"a"])
    assert stream.next_frame() == encode(OnNext(1, b"a"))
    assert stream.ends_next
    assert stream.next_frame() == encode(OnComplete(1))


def test_a_long_run_is_cut_now_and_then() -> None:
    stream = publishing(8, limits=EndpointLimits(backlog=1000, batch=100))
    stream.offer([bytes(8)] * 1000)
    sent = 0
    while (frame := stream.next_frame()) is not None:
        sent += len(frame)
        assert stream.waiting_bytes <= 8000 - sent + 5 * 100
    assert sent > 8000
    assert stream.waiting_bytes == 0

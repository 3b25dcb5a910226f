"""The streams of a subscriber: reactive-streams-io, reuse of IDs, and demand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappings.errors import EncodeError, ProtocolError
from mappings.reactive_streams_io.events import Completed, ElementsReceived, StreamAccepted, StreamFailed
from mappings.reactive_streams_io.frames import OnComplete, OnError, OnNext, OnNextPacked, OnNextPart
from mappings.reactive_streams_io.limits import UNBOUNDED, EndpointLimits
from mappings.reactive_streams_io.subscriber import SubscriberSide


def subscribing(count: int = 1, demand: int = 5, limits: EndpointLimits | None = None) -> SubscriberSide:
    streams = SubscriberSide(limits or EndpointLimits())
    for stream in range(1, count + 1):
        streams.subscribe(stream, demand)
    return streams


def test_the_smallest_free_id_is_taken() -> None:
    streams = subscribing(3)
    streams.cancel(2)
    assert [streams.subscribe(stream, 0).subscriber for stream in (4, 5)] == [2, 4]
    streams.begins(1, 0)
    streams.comes(OnError(1, "gone"))
    assert streams.subscribe(6, 0).subscriber == 1
    assert streams.streams == [3, 4, 5, 6]


def test_the_smallest_free_id_above_another_is_taken_where_that_is_wanted() -> None:
    streams = subscribing(3)
    streams.cancel(1)
    assert streams.subscribe(4, 0, above=1).subscriber == 4
    assert (streams.id_of(4), streams.id_of(1)) == (4, None)


def test_no_more_than_the_limit_live_at_a_time() -> None:
    streams = subscribing(2, limits=EndpointLimits(subscriptions=2))
    with pytest.raises(EncodeError) as error:
        streams.subscribe(3, 0)
    assert error.value.status == 429
    streams.cancel(1)
    assert streams.subscribe(3, 0).subscriber == 1


def test_request_and_cancel_on_a_finished_stream_do_nothing() -> None:
    streams = subscribing()
    assert streams.cancel(1) is not None
    assert streams.cancel(1) is None
    assert streams.request(1, 5) is None
    with pytest.raises(ValueError, match="expected at least 1"):
        streams.request(1, 0)


def test_demand_saturates() -> None:
    streams = subscribing(demand=UNBOUNDED)
    streams.request(1, 5)
    streams.begins(1, 0)
    for _ in range(3):
        streams.comes(OnNext(1, b"x"))
    generation = streams.request(1, 1)
    assert generation is not None
    assert generation.demand == UNBOUNDED


def test_the_end_of_the_connection_ends_every_stream_and_frees_every_id() -> None:
    streams = subscribing(2)
    streams.begins(1, 0)
    streams.comes(OnNextPart(1, 0, b"abc"))
    assert streams.open_bytes == 3
    assert streams.end_all("gone") == [StreamFailed(1, "gone"), StreamFailed(2, "gone")]
    assert streams.open_bytes == 0
    with pytest.raises(ProtocolError, match="without a subscribe"):
        streams.begins(2, 0)
    assert streams.subscribe(3, 0).subscriber == 1


@pytest.mark.parametrize("size", [0, 4])
def test_an_element_over_the_limit_ends_its_stream_in_one_frame_too(size: int) -> None:
    streams = subscribing(limits=EndpointLimits(element=3))
    streams.begins(1, size)
    frame = OnNextPacked(1, [b"four", b"next"]) if size else OnNext(1, b"four")
    before = [] if size else streams.comes(OnNext(1, b"one"))
    assert before == ([] if size else [ElementsReceived(1, (b"one",))])
    (failed,) = streams.comes(frame)
    assert isinstance(failed, StreamFailed)
    assert "too large" in failed.reason
    assert streams.to_cancel == [1]


@given(st.data())
def test_each_stream_gets_exactly_its_own_elements_for_any_reuse_of_ids(data: st.DataObject) -> None:
    """A publisher is a few frames late: its frames reach their own stream, or none if that has ended."""
    streams = SubscriberSide(EndpointLimits(generations=3))
    behind: list[list[tuple[int, bytes | None]]] = []
    living: list[int] = []
    got: dict[int, list[bytes]] = {}
    ended: set[int] = set()
    cancelled: set[int] = set()
    for stream in range(1, data.draw(st.integers(1, 12)) + 1):
        generation = streams.subscribe(stream, UNBOUNDED)
        living.append(stream)
        mark = str(stream).encode()
        # The publisher's response to this subscribe, with the mark in each element and an optional end.
        sent: list[tuple[int, bytes | None]] = [
            (generation.subscriber, None),
            *[(generation.subscriber, mark)] * data.draw(st.integers(0, 3)),
        ]
        if data.draw(st.booleans()):
            sent.append((generation.subscriber, b"end"))
        behind.append(list(sent))
        if data.draw(st.booleans()):
            chosen = data.draw(st.sampled_from(living))
            if streams.cancel(chosen) is not None:
                cancelled.add(chosen)
        while behind:
            if not data.draw(st.booleans()):
                break
            for subscriber, element in behind.pop(0):
                if element is None:
                    events = streams.begins(subscriber, 0)
                elif element == b"end":
                    events = streams.comes(OnComplete(subscriber))
                else:
                    events = streams.comes(OnNext(subscriber, element))
                for event in events:
                    assert event.stream not in ended | cancelled
                    if isinstance(event, ElementsReceived):
                        got.setdefault(event.stream, []).extend(event.elements)
                    elif isinstance(event, Completed):
                        ended.add(event.stream)
                    else:
                        assert isinstance(event, StreamAccepted)
    assert all(set(elements) == {str(stream).encode()} for stream, elements in got.items())
    assert not ended & cancelled

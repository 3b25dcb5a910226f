"""State beyond a transport: reactive-streams-io, subscriptions, ordering and the positions of resume."""

from __future__ import annotations

from typing import Any

import pytest

from mappings.errors import EncodeError, ProtocolError
from mappings.reactive_streams_io.events import Cancelled, DemandReceived, StreamFailed, SubscribeReceived
from mappings.reactive_streams_io.frames import (
    CancelFrame,
    Goodbye,
    OnComplete,
    OnError,
    OnNext,
    OnSubscribe,
    RequestFrame,
    SubscribeFrame,
    encode,
)
from mappings.reactive_streams_io.limits import EndpointLimits
from mappings.reactive_streams_io.session import RsioSession
from tests.support.reactive_streams_io.examples import raw


def session(keeps_copies: bool = True, **limits: int) -> RsioSession:
    return RsioSession(EndpointLimits(**limits), keeps_copies=keeps_copies)


def drained(one: RsioSession) -> bytes:
    sent = b""
    while (frame := one.next_frame()) is not None:
        sent += frame
    return sent


def opened(one: RsioSession, subscriber: int = 1, demand: int = 5) -> int:
    (subscribed,) = one.receive(SubscribeFrame("x", subscriber, demand))
    assert isinstance(subscribed, SubscribeReceived)
    one.accept(subscribed.stream, 0)
    return subscribed.stream


def test_streams_have_their_turn_one_frame_each() -> None:
    one = session()
    first, second = opened(one, 1), opened(one, 2)
    drained(one)
    one.offer(first, [b"a", b"b", b"c"])
    one.offer(second, [b"x"])
    one.end(second, None)
    assert drained(one) == raw("82 01 01 61 82 02 01 78 82 01 01 62 86 02 82 01 01 63")


def test_a_single_stream_sends_as_many_frames_at_once_as_fit() -> None:
    one = session()
    stream = opened(one)
    one.offer(stream, [b"a", b"b", b"c"])
    assert one.more_frames(100) == ()
    assert one.next_frame() == encode(OnSubscribe(1, 0))
    assert one.more_frames(9) == [encode(OnNext(1, b"a")), encode(OnNext(1, b"b"))]
    assert (one.sent, one.first_available) == (3, 1)
    one.receive(RequestFrame(1, 5))
    one.receive(RequestFrame(2, 0))
    other = opened(one, 2)
    assert one.next_frame() == encode(OnSubscribe(2, 0))
    one.offer(other, [b"x"])
    assert one.more_frames(100) == ()
    assert drained(one) == raw("82 01 01 63 82 02 01 78")
    one.offer(stream, [b"d"])
    assert one.more_frames(100) == [encode(OnNext(1, b"d"))]
    assert one.next_frame() is None
    one.repeat(2)
    assert drained(one) == raw("82 01 01 62 81 02 00 82 01 01 63 82 02 01 78 82 01 01 64")


def test_a_cancelled_stream_sends_nothing_more() -> None:
    one = session()
    stream = opened(one)
    one.offer(stream, [b"a"])
    one.end(stream, None)
    assert one.receive(CancelFrame(1)) == []
    assert drained(one) == encode(OnSubscribe(1, 0))
    assert one.offer(stream, [b"b"]) is False
    assert one.end(stream, None) is False
    assert one.accept(stream, 0) is False
    assert one.capacity(stream) == one.waiting(stream) == 0


def test_a_stream_that_has_ended_takes_no_more_demand() -> None:
    one = session()
    stream = opened(one)
    assert one.receive(RequestFrame(1, 2)) == [DemandReceived(stream, 2)]
    assert one.capacity(stream) == 7
    one.end(stream, "500 x")
    assert one.capacity(stream) == 0
    assert one.receive(RequestFrame(1, 2)) == []
    assert one.receive(RequestFrame(1, 0)) == []
    assert drained(one) == encode(OnSubscribe(1, 0)) + encode(OnError(1, "500 x"))


def test_a_request_for_zero_elements_drops_the_waiting_elements() -> None:
    one = session()
    stream = opened(one)
    one.offer(stream, [b"a"])
    drained(one)
    one.offer(stream, [b"b"])
    assert one.receive(RequestFrame(1, 0)) == [Cancelled(stream)]
    sent = drained(one)
    assert sent.startswith(b"\x87\x01")
    assert b"400 " in sent


def test_a_stream_is_started_once_and_elements_come_after_it() -> None:
    one = session()
    stream = opened(one)
    with pytest.raises(ValueError, match="already begun"):
        one.accept(stream, 0)
    one.offer(stream, [b"a"])
    one.end(stream, "500 " + "é" * 4000)
    sent = drained(one)
    assert sent.startswith(encode(OnSubscribe(1, 0)) + encode(OnNext(1, b"a")) + b"\x87\x01")
    assert len(sent) < 4110


def test_a_string_that_no_peer_would_take_is_not_sent() -> None:
    with pytest.raises(EncodeError, match="8193 bytes"):
        session().subscribe("x" * 8193, 0)


def test_receiving_a_frame_without_a_stream_raises_a_type_error() -> None:
    with pytest.raises(TypeError, match="Goodbye"):
        session().receive(Goodbye(""))


def test_positions_count_frames_and_copies_are_kept_until_acknowledged() -> None:
    one = session()
    stream = opened(one)
    one.offer(stream, [b"a", b"b", b"c"])
    assert one.first_available == 1
    drained(one)
    assert (one.sent, one.received, one.first_available) == (4, 1, 1)
    one.acknowledge(2)
    one.acknowledge(1)
    assert one.first_available == 3
    assert not one.can_repeat(1)
    assert one.can_repeat(2)
    assert one.can_repeat(4)
    assert not one.can_repeat(5)
    with pytest.raises(ProtocolError, match="expected at most 4"):
        one.acknowledge(5)
    one.repeat(3)
    assert one.is_repeating
    assert one.first_available == 4
    one.offer(stream, [b"d"])
    assert drained(one) == raw("82 01 01 63 82 01 01 64")
    assert one.sent == 5


def test_copies_are_bounded_in_number_and_in_bytes() -> None:
    bounds: list[dict[str, Any]] = [{"window": 10}, {"copies": 250}]
    for limits in bounds:
        one = session(**limits)
        stream = opened(one, demand=1000)
        for number in range(500):
            one.offer(stream, [bytes(20)])
            drained(one)
            assert one.held_bytes <= 250, number
        assert one.first_available == 501 + 1 - 10


def test_a_session_that_cannot_resume_keeps_no_copies_of_sent_frames() -> None:
    one = session(keeps_copies=False)
    stream = opened(one)
    one.offer(stream, [b"a"])
    assert one.held_bytes > 0
    drained(one)
    assert one.held_bytes == 0
    assert one.first_available == one.sent + 1


def test_an_acknowledgement_is_due_every_quarter_of_the_window() -> None:
    one = session(window=8)
    due = []
    for _ in range(6):
        one.receive(CancelFrame(9))
        due.append(one.acknowledgement())
    assert due == [None, 2, None, 4, None, 6]
    one.receive(CancelFrame(9))
    one.receive(CancelFrame(9))
    # A resume states how much was received.
    one.repeat(0)
    assert one.acknowledgement() is None


def test_the_end_of_all_leaves_nothing() -> None:
    one = session()
    published = opened(one)
    one.offer(published, [b"a"])
    asked = one.subscribe("y", 1)
    over = opened(one, 2)
    one.end(over, None)
    assert one.end_all("gone") == [Cancelled(published), StreamFailed(asked, "gone")]
    assert drained(one) == b""
    assert one.held_bytes == 0
    assert one.end_all("gone") == []


def test_numbers_of_streams_are_never_used_again() -> None:
    one = session()
    seen = []
    for _ in range(3):
        seen += [opened(one), one.subscribe("y", 0)]
        one.cancel(seen[-1])
        one.receive(CancelFrame(1))
    assert len(set(seen)) == 6


def test_a_completed_stream_frees_its_id_when_its_end_has_been_sent() -> None:
    one = session()
    stream = opened(one)
    one.end(stream, None)
    with pytest.raises(ProtocolError, match="in use"):
        one.receive(SubscribeFrame("other", 1, 0))
    assert drained(one).endswith(encode(OnComplete(1)))
    assert opened(one) != stream

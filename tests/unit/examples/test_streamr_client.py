"""The example client of Streamr: each message once and in order, despite lost, repeated and late ones."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.streamr_client import OFFSET, RETRY_PAUSE, Client, Frame, Message, Reader, Request

PLACE = {"stream": "tanks", "partition": 0}
SUBSCRIBED = [0, 2, "", PLACE]
SUB = "tanks/0"


def message(offset: int, previous: int | None = None) -> Message:
    return [28, "tanks", 0, 1700000000000, 0, offset, previous, 27, "{}"]


def broadcast(offset: int, previous: int | None = None) -> Frame:
    return [0, 0, "", message(offset, previous)]


def unicast(offset: int, previous: int | None = None) -> Frame:
    return [0, 1, SUB, message(offset, previous)]


def end(kind: int) -> Frame:
    return [0, kind, "", {**PLACE, "sub": SUB}]


def resend_request(**selection: Any) -> Request:
    return {"type": "resend", **PLACE, "sub": SUB, **selection}


def course(reader: Reader, *frames: Frame) -> list[int | Request]:
    """Return the results of the frames in order: messages as offsets, and requests."""
    found: list[int | Request] = []
    for frame in frames:
        given, requests = reader.take(frame)
        found += [each[OFFSET] for each in given]
        found += requests
    return found


def test_a_reader_of_new_messages_only_requests_no_resend() -> None:
    reader = Reader("tanks")
    assert reader.subscribe() == {"type": "subscribe", **PLACE}
    assert course(reader, SUBSCRIBED, broadcast(7, 4), broadcast(10, 7)) == [7, 10]


def test_requested_past_messages_come_before_new_messages() -> None:
    reader = Reader("tanks", first_resend={"resend_last": 2})
    frames = (SUBSCRIBED, end(4), unicast(4, 1), broadcast(10, 7), unicast(7, 4), end(5), broadcast(13, 10))
    assert course(reader, *frames) == [resend_request(resend_last=2), 4, 7, 10, 13]


def test_a_gap_is_asked_for_and_nothing_overtakes_it() -> None:
    reader = Reader("tanks")
    frames = (SUBSCRIBED, broadcast(7), broadcast(16, 13), broadcast(19, 16), unicast(10, 7), unicast(13, 10), end(5))
    assert course(reader, *frames) == [7, resend_request(resend_from=8, resend_to=13), 10, 13, 16, 19]


@pytest.mark.parametrize("kind", [5, 6, 7])
def test_an_unavailable_gap_is_requested_once(kind: int) -> None:
    reader = Reader("tanks")
    frames = (SUBSCRIBED, broadcast(7), broadcast(16, 13), end(kind), broadcast(19, 16))
    assert course(reader, *frames) == [7, resend_request(resend_from=8, resend_to=13), 16, 19]


@pytest.mark.parametrize("status", [429, 503])
def test_a_resend_that_fails_for_a_time_is_requested_again(status: int) -> None:
    """503: the service was restarted; 429: a quota of subscriptions is used up."""
    reader = Reader("tanks", first_resend={"resend_last": 2})
    ended = [0, 7, "", {**PLACE, "sub": SUB, "status": status, "error": "try again"}]
    frames = (SUBSCRIBED, ended, unicast(7, 4), broadcast(13, 10), ended, unicast(10, 7), unicast(13, 10), end(5))
    again = [resend_request(resend_last=2), 7, resend_request(resend_from=8), 10, 13]
    assert course(reader, *frames) == [resend_request(resend_last=2), *again]


def test_a_resend_that_has_failed_is_requested_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the service cannot read the messages, it refuses each request at once."""
    client, calls = object.__new__(Client), []
    failed = [0, 7, "", {**PLACE, "sub": SUB, "status": 503, "error": "the store is unavailable"}]
    frames = iter([SUBSCRIBED, failed, failed, unicast(7, 4)])
    monkeypatch.setattr(Client, "_next_frame", lambda *_: next(frames))
    monkeypatch.setattr(Client, "_send", lambda _, request: calls.append(request["type"]))
    monkeypatch.setattr(time, "sleep", calls.append)
    messages = client.follow(Reader("tanks", first_resend={"resend_last": 2}))
    assert next(messages)[OFFSET] == 7
    assert calls == ["subscribe", "resend", RETRY_PAUSE, "resend", RETRY_PAUSE, "resend"]


def test_a_duplicate_message_is_delivered_once() -> None:
    assert course(Reader("tanks"), SUBSCRIBED, broadcast(7), broadcast(7), broadcast(10, 7), broadcast(7)) == [7, 10]


def test_a_repeated_subscribe_requests_the_messages_since_the_last_one() -> None:
    reader = Reader("tanks", first_resend={"resend_last": 5})
    assert course(reader, SUBSCRIBED, unicast(7), end(5)) == [resend_request(resend_last=5), 7]
    reader.subscribe()
    assert course(reader, SUBSCRIBED, unicast(10, 7), end(5)) == [resend_request(resend_from=8), 10]


def test_an_answer_that_was_lost_with_the_link_holds_nothing_up() -> None:
    reader = Reader("tanks", first_resend={"resend_last": 5})
    assert course(reader, SUBSCRIBED, unicast(4)) == [resend_request(resend_last=5), 4]
    reader.subscribe()
    assert course(reader, SUBSCRIBED, unicast(7, 4), end(5), broadcast(10, 7)) == [resend_request(resend_from=5), 7, 10]


def test_others_streams_partitions_and_resends_are_left_to_others() -> None:
    reader = Reader("tanks", 1)
    other = [0, 1, "another", message(7)]
    assert course(reader, SUBSCRIBED, broadcast(7), other, end(5), [0, 7, "", {"error": "no"}], [0, 7, "", "no"]) == []


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.data())
def test_every_message_is_delivered_once_and_in_order_even_if_broadcasts_are_lost(
    arrives: list[bool], data: st.DataObject
) -> None:
    """A service answers each resend from storage, while broadcasts continue; the newest message arrives."""
    reader, given_, stored = Reader("tanks"), list[int](), list[Message]()
    course(reader, SUBSCRIBED)
    pending: list[Frame] = []
    first: int | None = None
    for offset, comes in enumerate([*arrives, True], 1):
        stored.append(message(offset, offset - 1 or None))
        if comes:
            first = first or offset
            pending.append([0, 0, "", stored[-1]])
        while pending and (offset > len(arrives) or data.draw(st.booleans())):
            messages, requests = reader.take(pending.pop(0))
            given_ += [each[OFFSET] for each in messages]
            for request in requests:
                wanted = [m for m in stored if request["resend_from"] <= m[OFFSET] <= request["resend_to"]]
                pending += [[0, 1, SUB, each] for each in wanted] + [end(5 if wanted else 6)]
    assert first is not None
    assert given_ == list(range(first, len(arrives) + 2))

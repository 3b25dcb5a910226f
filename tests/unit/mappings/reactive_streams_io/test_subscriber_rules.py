"""The reactive-streams rules for a subscriber, by number, for an endpoint that subscribes at its peer.

The bytes of the publisher are written here. The rules for a publisher are tested for all wire protocols at once, in
`tests/unit/connectivity`.
"""

from __future__ import annotations

import re
from itertools import permutations

import pytest

from mappings.reactive_streams_io.events import Completed, ElementsReceived, StreamAccepted, StreamFailed
from mappings.reactive_streams_io.limits import UNBOUNDED
from tests.support.reactive_streams_io.conversation import EndpointClient, greeted, is_goodbye, subscriber
from tests.support.reactive_streams_io.examples import raw
from tests.support.table import each_row

RULES = {
    "2.01": "elements are sent only on request",
    "2.03": "nothing is sent to a publisher that has ended",
    "2.04": "an end is treated as a cancel",
    "2.05": "a second start of a stream is rejected",
    "2.06": "a stream is cancelled once",
    "2.07": "requests and cancels are sent in order",
    "2.08": "elements after a cancel are ignored",
    "2.09": "completion with a request before it and without",
    "2.10": "failure with a request before it and without",
    "2.11": "elements are reported in the order of arrival",
    "2.12": "the start of a stream is reported once",
    "2.13": "no input of a publisher raises an exception",
}

VOID = {
    "2.02": "whether a subscriber works synchronously cannot be observed",
}

ENDS = ["86 01", "87 01 08 35 30 30 20 67 6f 6e 65"]
"""onComplete(1) and onError(1, "500 gone")."""

ends = pytest.mark.parametrize("end", ENDS, ids=["complete", "failed"])


def is_over(peer: EndpointClient) -> bool:
    """Return whether the subscriber keeps no state of any stream."""
    subscribing = peer.endpoint.session.subscribing
    return not subscribing.streams and not subscribing.open_bytes


def test_spec_2_01_the_subscriber_rejects_elements_beyond_its_demand() -> None:
    peer, (stream,) = subscriber("a", demand=0)
    assert peer.expect("81 01 00") == b""
    assert peer.endpoint.session.request(stream, 2)
    assert peer.sends() == raw("12 01 02")
    peer.expect("82 01 01 31 82 01 01 32")
    assert peer.elements(stream) == [b"1", b"2"]
    assert peer.expect("82 01 01 33") == raw("13 01")
    assert peer.elements(stream) == [b"1", b"2"]
    assert peer.failure(stream) is not None


def test_spec_2_01_demand_may_come_with_the_subscribe_and_adds_up() -> None:
    peer, (stream,) = subscriber("a", demand=1)
    peer.expect("81 01 00")
    peer.endpoint.session.request(stream, 1)
    peer.endpoint.session.request(stream, 2)
    assert peer.sends() == raw("12 01 01 12 01 02")
    assert peer.expect("82 01 01 31 82 01 01 32 82 01 01 33 82 01 01 34") == b""
    assert len(peer.elements(stream)) == 4
    assert peer.expect("82 01 01 35") == raw("13 01")


@pytest.mark.parametrize("demand", [0, -1, -(2**63)])
def test_spec_2_01_nothing_or_less_cannot_be_requested(demand: int) -> None:
    peer, (stream,) = subscriber("a", demand=0)
    with pytest.raises(ValueError, match="expected at least 1"):
        peer.endpoint.session.request(stream, demand)
    assert peer.sends() == b""


def test_spec_2_01_demand_without_bound_is_not_counted_any_more() -> None:
    peer, (stream,) = subscriber("a", demand=UNBOUNDED)
    peer.expect("81 01 00 82 01 01 31")
    peer.endpoint.session.request(stream, UNBOUNDED)
    peer.sends()
    for _ in range(100):
        assert peer.expect("82 01 01 32") == b""
    assert len(peer.elements(stream)) == 101


@ends
def test_spec_2_03_nothing_is_sent_to_a_publisher_that_has_ended(end: str) -> None:
    peer, (stream,) = subscriber("a")
    peer.expect(f"81 01 00 {end}")
    assert peer.endpoint.session.request(stream, 5) is False
    assert peer.endpoint.session.cancel(stream) is False
    assert peer.sends() == b""


@ends
def test_spec_2_04_an_end_is_treated_as_a_cancel(end: str) -> None:
    peer, (stream,) = subscriber("a", demand=9)
    assert peer.expect(f"81 01 00 84 01 00 01 61 {end}") == b""
    assert is_over(peer)
    before = list(peer.events)
    assert peer.expect("82 01 01 31 85 01 00 01 61 86 01 87 01 00") == b""
    assert peer.events == before
    assert peer.elements(stream) == []


def test_spec_2_05_a_second_start_of_a_stream_is_rejected() -> None:
    """No second stream was requested, so the error concerns the whole connection and not one stream."""
    peer, (stream,) = subscriber("a", demand=9)
    peer.expect("81 01 00 82 01 01 31")
    assert is_goodbye(peer.expect("81 01 00"))
    assert peer.reported(StreamAccepted) == [StreamAccepted(stream, 0)]
    assert peer.failure(stream) is not None
    assert is_over(peer)


def test_spec_2_06_the_subscriber_cancels_a_stream_only_once() -> None:
    peer, (first, second) = subscriber("a", "b")
    peer.expect("81 01 00")
    for stream, sent in ((first, "13 01"), (second, "13 02")):
        assert peer.endpoint.session.cancel(stream)
        assert peer.sends() == raw(sent)
        assert peer.endpoint.session.cancel(stream) is False
        assert peer.sends() == b""
    assert is_over(peer)


def test_spec_2_07_requests_and_cancels_go_in_the_order_in_which_they_were_made() -> None:
    for order in permutations(range(3)):
        peer, streams = subscriber("a", "b", "c", demand=0)
        for place in order:
            peer.endpoint.session.request(streams[place], 1)
        peer.endpoint.session.cancel(streams[order[0]])
        assert peer.endpoint.session.request(streams[order[0]], 1) is False
        ids = [f"{place + 1:02x}" for place in order]
        assert peer.sends() == raw(" ".join(f"12 {each} 01" for each in ids) + f" 13 {ids[0]}")


def test_spec_2_08_elements_after_a_cancel_are_ignored() -> None:
    peer, (stream, other) = subscriber("a", "b", demand=5)
    peer.expect("81 01 00 82 01 01 31 84 01 00 01 61")
    peer.endpoint.session.cancel(stream)
    peer.sends()
    before = list(peer.events)
    assert peer.expect("82 01 01 32 85 01 00 01 62 85 01 01 01 63 84 01 02 01 64 82 01 01 33 82 01 01 34 86 01") == b""
    assert peer.events == before
    peer.expect("81 02 00 82 02 01 31")
    assert peer.elements(other) == [b"1"]


@pytest.mark.parametrize("demand", [0, 1], ids=["without a request", "with one"])
def test_spec_2_09_completion_comes_with_and_without_a_request(demand: int) -> None:
    peer, (stream,) = subscriber("a", demand=demand)
    assert peer.expect("81 01 00 86 01") == b""
    assert peer.reported(Completed) == [Completed(stream)]
    assert is_over(peer)


@pytest.mark.parametrize("demand", [0, 1], ids=["without a request", "with one"])
def test_spec_2_10_failure_comes_with_and_without_a_request(demand: int) -> None:
    peer, (stream,) = subscriber("a", demand=demand)
    assert peer.expect("81 01 00 87 01 08 35 30 30 20 67 6f 6e 65") == b""
    assert peer.reported(StreamFailed) == [StreamFailed(stream, "500 gone")]
    assert is_over(peer)


@pytest.mark.parametrize("piece", [1, 3, 1 << 20], ids=["byte by byte", "in threes", "at once"])
def test_spec_2_11_elements_are_reported_in_the_order_in_which_they_came(piece: int) -> None:
    peer, (first, second) = subscriber("a", "b", demand=100)
    sent = raw("81 01 00 81 02 01") + b"".join(
        raw(f"82 01 01 {number:02x} 83 02 02 {number:02x} {number:02x}") for number in range(40)
    )
    for place in range(0, len(sent), piece):
        peer.expect(sent[place : place + piece])
    assert peer.elements(first) == [bytes([number]) for number in range(40)]
    assert peer.elements(second) == [bytes([number]) for number in range(40) for _ in range(2)]
    turns = [event.stream for event in peer.reported(ElementsReceived)]
    assert turns == [first, second] * 40


def test_spec_2_12_a_beginning_is_notified_once_for_each_subscribe() -> None:
    peer, (first,) = subscriber("a")
    peer.expect("81 01 00 86 01")
    second = peer.endpoint.subscribe("a", 1)
    assert peer.sends() == raw("11 01 61 01 01")
    peer.expect("81 01 00 82 01 01 31 86 01")
    assert peer.reported(StreamAccepted) == [StreamAccepted(first, 0), StreamAccepted(second, 0)]


@each_row(
    "sent",
    [
        "82 01 00",
        "82 01 01 00",
        "82 09 01 00",
        "81 01 ff ff 03",
        "83 01 01 00",
        "84 01 00 00",
        "85 01 00 00",
        "86 01",
        "87 01 02 c3 28",
        "87 01 00",
        "12 01 00",
        "13 01",
    ],
)
def test_spec_2_13_no_input_of_a_publisher_raises_an_exception(sent: str) -> None:
    """A protocol error ends the stream or the connection, and is reported as an event."""
    for before in ("", "81 01 00", "81 01 01"):
        peer, (stream,) = subscriber("a", demand=3)
        peer.expect(before)
        peer.expect(sent)
        if peer.endpoint.is_closed:
            assert peer.failure(stream) is not None
            assert is_over(peer)


def test_spec_2_13_an_element_that_is_invalid_is_refused() -> None:
    """The protocol has no encoding for it; an empty element is an element."""
    peer = greeted()
    peer.expect("11 09 74 63 6b 2f 6e 65 76 65 72 01 05")
    (stream,) = peer.feeds
    with pytest.raises(TypeError):
        peer.endpoint.session.offer(stream, [None])  # type: ignore[list-item]
    assert peer.sends() == b""
    assert peer.endpoint.session.offer(stream, [b""])
    assert peer.sends() == raw("82 01 00")


def test_every_rule_is_a_test() -> None:
    tested = {f"{part}.{rule}" for name in globals() for part, rule in re.findall(r"spec_(\d)_(\d\d)_", name)}
    assert tested == RULES.keys()
    assert sorted([*RULES, *VOID]) == [f"2.{number:02}" for number in range(1, 14)]

"""The rules of reactive streams that bind a subscriber, by number, where this service is one: an endpoint that has
subscribed at its peer. The octets of the publisher are written here.

The rules that bind a publisher are told for all wire protocols at once, in `tests/connectivity`.
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
    "2.01": "elements come upon requests alone",
    "2.03": "nothing is said to a publisher that has come to its end",
    "2.04": "an end counts as a cancel",
    "2.05": "a second beginning is not taken",
    "2.06": "what is not needed any longer is cancelled",
    "2.07": "requests and cancels go one after the other",
    "2.08": "elements that come behind a cancel are borne",
    "2.09": "completion with a request before it and without",
    "2.10": "failure with a request before it and without",
    "2.11": "elements are told in the order in which they came",
    "2.12": "a beginning is told once",
    "2.13": "nothing that a publisher says is answered with an exception",
}

VOID = {
    "2.02": "whether a subscriber does its work at once or later is its own business, and cannot be seen",
}

ENDS = ["86 01", "87 01 08 35 30 30 20 67 6f 6e 65"]
"""onComplete(1) and onError(1, "500 gone")."""

ends = pytest.mark.parametrize("end", ENDS, ids=["complete", "failed"])


def is_over(party: EndpointClient) -> bool:
    """Whether nothing is kept of any stream."""
    subscribing = party.endpoint.session.subscribing
    return not subscribing.streams and not subscribing.open_bytes


def test_spec_2_01_the_subscriber_rejects_elements_beyond_its_demand() -> None:
    party, (stream,) = subscriber("a", demand=0)
    assert party.expect("81 01 00") == b""
    assert party.endpoint.session.request(stream, 2)
    assert party.sends() == raw("12 01 02")
    party.expect("82 01 01 31 82 01 01 32")
    assert party.elements(stream) == [b"1", b"2"]
    assert party.expect("82 01 01 33") == raw("13 01")
    assert party.elements(stream) == [b"1", b"2"]
    assert party.failure(stream) is not None


def test_spec_2_01_demand_may_come_with_the_subscribe_and_adds_up() -> None:
    party, (stream,) = subscriber("a", demand=1)
    party.expect("81 01 00")
    party.endpoint.session.request(stream, 1)
    party.endpoint.session.request(stream, 2)
    assert party.sends() == raw("12 01 01 12 01 02")
    assert party.expect("82 01 01 31 82 01 01 32 82 01 01 33 82 01 01 34") == b""
    assert len(party.elements(stream)) == 4
    assert party.expect("82 01 01 35") == raw("13 01")


@pytest.mark.parametrize("demand", [0, -1, -(2**63)])
def test_spec_2_01_nothing_or_less_cannot_be_requested(demand: int) -> None:
    party, (stream,) = subscriber("a", demand=0)
    with pytest.raises(ValueError, match="expected at least 1"):
        party.endpoint.session.request(stream, demand)
    assert party.sends() == b""


def test_spec_2_01_demand_without_bound_is_not_counted_any_more() -> None:
    party, (stream,) = subscriber("a", demand=UNBOUNDED)
    party.expect("81 01 00 82 01 01 31")
    party.endpoint.session.request(stream, UNBOUNDED)
    party.sends()
    for _ in range(100):
        assert party.expect("82 01 01 32") == b""
    assert len(party.elements(stream)) == 101


@ends
def test_spec_2_03_nothing_is_said_to_a_publisher_that_has_come_to_its_end(end: str) -> None:
    party, (stream,) = subscriber("a")
    party.expect(f"81 01 00 {end}")
    assert party.endpoint.session.request(stream, 5) is False
    assert party.endpoint.session.cancel(stream) is False
    assert party.sends() == b""


@ends
def test_spec_2_04_an_end_is_treated_as_a_cancel(end: str) -> None:
    party, (stream,) = subscriber("a", demand=9)
    assert party.expect(f"81 01 00 84 01 00 01 61 {end}") == b""
    assert is_over(party)
    told = list(party.events)
    assert party.expect("82 01 01 31 85 01 00 01 61 86 01 87 01 00") == b""
    assert party.events == told
    assert party.elements(stream) == []


def test_spec_2_05_a_second_beginning_is_not_taken() -> None:
    """It cannot be a second stream's, of which nobody has asked for one, so it is not a mistake of one stream alone."""
    party, (stream,) = subscriber("a", demand=9)
    party.expect("81 01 00 82 01 01 31")
    assert is_goodbye(party.expect("81 01 00"))
    assert party.reported(StreamAccepted) == [StreamAccepted(stream, 0)]
    assert party.failure(stream) is not None
    assert is_over(party)


def test_spec_2_06_the_subscriber_cancels_a_stream_only_once() -> None:
    party, (first, second) = subscriber("a", "b")
    party.expect("81 01 00")
    for stream, said in ((first, "13 01"), (second, "13 02")):
        assert party.endpoint.session.cancel(stream)
        assert party.sends() == raw(said)
        assert party.endpoint.session.cancel(stream) is False
        assert party.sends() == b""
    assert is_over(party)


def test_spec_2_07_requests_and_cancels_go_in_the_order_in_which_they_were_made() -> None:
    for order in permutations(range(3)):
        party, streams = subscriber("a", "b", "c", demand=0)
        for place in order:
            party.endpoint.session.request(streams[place], 1)
        party.endpoint.session.cancel(streams[order[0]])
        assert party.endpoint.session.request(streams[order[0]], 1) is False
        ids = [f"{place + 1:02x}" for place in order]
        assert party.sends() == raw(" ".join(f"12 {each} 01" for each in ids) + f" 13 {ids[0]}")


def test_spec_2_08_elements_that_come_after_a_cancel_are_borne() -> None:
    party, (stream, other) = subscriber("a", "b", demand=5)
    party.expect("81 01 00 82 01 01 31 84 01 00 01 61")
    party.endpoint.session.cancel(stream)
    party.sends()
    told = list(party.events)
    assert party.expect("82 01 01 32 85 01 00 01 62 85 01 01 01 63 84 01 02 01 64 82 01 01 33 82 01 01 34 86 01") == b""
    assert party.events == told
    party.expect("81 02 00 82 02 01 31")
    assert party.elements(other) == [b"1"]


@pytest.mark.parametrize("demand", [0, 1], ids=["without a request", "with one"])
def test_spec_2_09_completion_comes_with_and_without_a_request(demand: int) -> None:
    party, (stream,) = subscriber("a", demand=demand)
    assert party.expect("81 01 00 86 01") == b""
    assert party.reported(Completed) == [Completed(stream)]
    assert is_over(party)


@pytest.mark.parametrize("demand", [0, 1], ids=["without a request", "with one"])
def test_spec_2_10_failure_comes_with_and_without_a_request(demand: int) -> None:
    party, (stream,) = subscriber("a", demand=demand)
    assert party.expect("81 01 00 87 01 08 35 30 30 20 67 6f 6e 65") == b""
    assert party.reported(StreamFailed) == [StreamFailed(stream, "500 gone")]
    assert is_over(party)


@pytest.mark.parametrize("piece", [1, 3, 1 << 20], ids=["octet by octet", "in threes", "at once"])
def test_spec_2_11_elements_are_reported_in_the_order_in_which_they_came(piece: int) -> None:
    party, (first, second) = subscriber("a", "b", demand=100)
    said = raw("81 01 00 81 02 01") + b"".join(
        raw(f"82 01 01 {number:02x} 83 02 02 {number:02x} {number:02x}") for number in range(40)
    )
    for place in range(0, len(said), piece):
        party.expect(said[place : place + piece])
    assert party.elements(first) == [bytes([number]) for number in range(40)]
    assert party.elements(second) == [bytes([number]) for number in range(40) for _ in range(2)]
    turns = [event.stream for event in party.reported(ElementsReceived)]
    assert turns == [first, second] * 40


def test_spec_2_12_a_beginning_is_notified_once_for_each_subscribe() -> None:
    party, (first,) = subscriber("a")
    party.expect("81 01 00 86 01")
    second = party.endpoint.subscribe("a", 1)
    assert party.sends() == raw("11 01 61 01 01")
    party.expect("81 01 00 82 01 01 31 86 01")
    assert party.reported(StreamAccepted) == [StreamAccepted(first, 0), StreamAccepted(second, 0)]


@each_row(
    "said",
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
def test_spec_2_13_nothing_that_a_publisher_says_is_answered_with_an_exception(said: str) -> None:
    """What it says wrongly ends the stream, or the connection, and is told as an event."""
    for before in ("", "81 01 00", "81 01 01"):
        party, (stream,) = subscriber("a", demand=3)
        party.expect(before)
        party.expect(said)
        if party.endpoint.is_closed:
            assert party.failure(stream) is not None
            assert is_over(party)


def test_spec_2_13_an_element_that_is_invalid_is_refused() -> None:
    """There are no octets for it; an empty element is one."""
    party = greeted()
    party.expect("11 09 74 63 6b 2f 6e 65 76 65 72 01 05")
    (stream,) = party.feeds
    with pytest.raises(TypeError):
        party.endpoint.session.offer(stream, [None])  # type: ignore[list-item]
    assert party.sends() == b""
    assert party.endpoint.session.offer(stream, [b""])
    assert party.sends() == raw("82 01 00")


def test_every_rule_is_a_test() -> None:
    told = {f"{part}.{rule}" for name in globals() for part, rule in re.findall(r"spec_(\d)_(\d\d)_", name)}
    assert told == RULES.keys()
    assert sorted([*RULES, *VOID]) == [f"2.{number:02}" for number in range(1, 14)]

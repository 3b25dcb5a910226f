"""Goodbye, both directions, keepalive: the conformance suite of reactive-streams-io, 15.7, 15.8 and 15.10 (K)."""

from __future__ import annotations

import tracemalloc

import pytest

from mappings.errors import EncodeError
from mappings.reactive_streams_io.endpoint import EndpointRole
from mappings.reactive_streams_io.events import Closed, ElementsReceived, StreamAccepted, StreamFailed
from mappings.reactive_streams_io.frames import (
    CancelFrame,
    Extension,
    OnNext,
    Ping,
    RequestFrame,
    SubscribeFrame,
    encode,
)
from mappings.reactive_streams_io.limits import EndpointLimits
from tests.support.reactive_streams_io.conversation import EndpointClient, H, greeted, is_goodbye, pipe, subscriber
from tests.support.reactive_streams_io.examples import raw

RANGE = "11 0d 74 63 6b 2f 72 61 6e 67 65 3f 6e 3d"
NEVER = "11 09 74 63 6b 2f 6e 65 76 65 72"
INGEST = "11 10 69 6e 67 65 73 74 2f 74 65 6c 65 6d 65 74 72 79 01 80 02"
MODIFY = (
    "82 01 4c 7b 22 74 6f 70 69 63 22 3a 22 61 2f 62 2f 74 68 69 6e 67 73 2f 74 77 69 6e 2f 63 6f 6d 6d 61 6e 64 73 2f"
    "6d 6f 64 69 66 79 22 2c 22 70 61 74 68 22 3a 22 2f 61 74 74 72 69 62 75 74 65 73 2f 78 22 2c 22 76 61 6c 75 65 22"
    "3a 31 7d"
)


def begun() -> EndpointClient:
    party = greeted()
    party.expect(f"{RANGE} 33 01 00")
    return party


def test_the_complete_exchange_of_the_specification() -> None:
    party = EndpointClient(extensions=())
    assert party.expect(f"01 00 00 {RANGE} 33 01 02") == raw("02 00 00 81 01 00 82 01 01 31 82 01 01 32")
    assert party.expect("12 01 05") == raw("82 01 01 33 86 01")
    assert party.expect("03 00") == raw("03 02 6f 6b")
    assert party.endpoint.is_closed


def test_case_g01_a_goodbye_is_answered_and_ends_all_streams() -> None:
    party = begun()
    assert party.expect("03 04 64 6f 6e 65") == raw("03 02 6f 6b")
    assert len(party.cancelled) == 1
    assert party.events[-1] == Closed("done")
    assert party.endpoint.is_closed


def test_case_g02_we_wait_for_their_goodbye_but_not_forever() -> None:
    for answer in (True, False):
        party = begun()
        party.react(party.endpoint.close(party.clock.now(), "shutdown"))
        assert is_goodbye(party.sends(), "shutdown")
        assert len(party.cancelled) == 1
        assert not party.endpoint.is_closed
        assert (party.expect("03 00") if answer else party.waits(5)) == b""
        assert party.endpoint.is_closed


def test_case_g03_two_goodbyes_that_cross_are_each_others_answers() -> None:
    server = begun()
    client, _ = subscriber()
    for party in (server, client):
        party.react(party.endpoint.close(party.clock.now()))
    said = server.sends(), client.sends()
    assert said == (raw("03 02 6f 6b"), raw("03 02 6f 6b"))
    assert server.expect(said[1]) == client.expect(said[0]) == b""
    assert server.endpoint.is_closed
    assert client.endpoint.is_closed


def test_case_g04_frames_after_a_goodbye_are_ignored() -> None:
    party = greeted()
    assert party.expect(f"03 01 78 {NEVER} 01 00") == raw("03 02 6f 6b")
    assert not party.feeds


def test_case_g05_after_our_goodbye_theirs_alone_is_waited_for() -> None:
    party = begun()
    party.react(party.endpoint.close(party.clock.now()))
    party.sends()
    assert party.expect("12 01 01 03 00") == b""
    assert party.endpoint.is_closed


def test_case_g06_an_unreadable_goodbye_closes() -> None:
    party = greeted()
    assert is_goodbye(party.expect("03 02 c3 28"))
    assert party.endpoint.is_closed


def test_closing_before_the_hello_came_still_waits_for_the_goodbye() -> None:
    party = EndpointClient(EndpointRole.CLIENT)
    party.react(party.endpoint.close(party.clock.now()))
    party.sends()
    assert party.expect("02 00 03 01 02 03") == b""
    assert not party.endpoint.is_closed
    party.expect("a9 00 03 00")
    assert party.endpoint.is_closed


def test_nothing_is_asked_for_over_a_connection_that_is_over() -> None:
    party = greeted()
    party.expect("03 00")
    with pytest.raises(EncodeError, match="found a closed connection"):
        party.endpoint.subscribe("a")
    assert party.endpoint.session.offer(1, [b"x"]) is False


def test_cases_w01_to_w04_both_sides_subscribe_with_the_same_id() -> None:
    party = greeted()
    stream = party.endpoint.subscribe("ingest/telemetry", 256)
    assert party.sends() == raw(INGEST)
    assert party.expect("81 01 00") == b""
    assert party.reported(StreamAccepted) == [StreamAccepted(stream, 0)]
    assert party.expect(f"{RANGE} 31 01 01") == raw("81 01 00 82 01 01 31 86 01")
    party.expect(MODIFY)
    assert party.elements(stream) == [raw(MODIFY)[3:]]
    for _ in range(127):
        party.expect(MODIFY)
    assert party.endpoint.session.request(stream, 128)
    assert party.sends() == raw("12 01 80 01")


def test_elements_beyond_the_demand_cancel_the_stream() -> None:
    party = greeted()
    stream = party.endpoint.subscribe("ingest/telemetry", 256)
    party.expect("81 01 00")
    party.expect(encode(OnNext(1, b"x")) * 256)
    assert party.failure(stream) is None
    assert party.expect(encode(OnNext(1, b"x"))) == raw("13 01")
    assert len(party.elements(stream)) == 256


def test_case_w06_an_error_of_the_peer_frees_the_id() -> None:
    party = greeted()
    stream = party.endpoint.subscribe("ingest/telemetry", 256)
    party.sends()
    party.expect("81 01 00 87 01 08 35 30 30 20 67 6f 6e 65")
    assert party.reported(StreamFailed) == [StreamFailed(stream, "500 gone")]
    party.endpoint.subscribe("ingest/telemetry", 256)
    assert party.sends() == raw(INGEST)


def test_two_endpoints_talk_to_each_other_in_both_directions() -> None:
    client, server = EndpointClient(EndpointRole.CLIENT), EndpointClient()
    for piece in (1, 7, 1 << 20):
        first, second = (
            client.endpoint.subscribe("tck/range?n=30", 40),
            server.endpoint.subscribe("tck/fixed?n=9&size=2", 9),
        )
        pipe(client, server, piece=piece)
        assert client.elements(first) == [str(number).encode() for number in range(1, 31)]
        assert server.elements(second) == [number.to_bytes(2, "big") for number in range(1, 10)]


def alive(**options: object) -> EndpointClient:
    party = EndpointClient(**options)  # type: ignore[arg-type]
    party.expect("01 00 01 02")
    return party


def test_case_k01_a_ping_is_answered_with_its_data_before_anything_else() -> None:
    assert alive().expect("a8 02 ab cd") == raw("a9 02 ab cd")
    party = alive()
    assert party.expect(f"{RANGE} 31 01 01 a8 01 07")[:3] == raw("a9 01 07")


def test_case_k02_a_ping_with_too_much_data_is_fatal() -> None:
    assert is_goodbye(alive().expect(encode(Ping(bytes(65)))))


def test_silence_is_met_with_pings_and_at_last_with_a_goodbye() -> None:
    party = alive()
    assert party.waits(29) == b""
    assert party.waits(2) == raw("a8 00")
    assert party.expect("a9 00") == b""
    assert party.waits(59) == raw("a8 00")
    assert is_goodbye(party.waits(60), "idle")
    assert party.endpoint.is_closed


def test_a_peer_that_is_not_read_is_not_silent() -> None:
    party = alive()
    for now in range(1020, 1400, 20):
        party.endpoint.unread(now)
        assert party.endpoint.due == now + 30
    cut = EndpointClient(extensions=(Extension.SEQUENCE,))
    cut.expect(H)
    cut.expect("12")
    assert cut.endpoint.due == 1600
    cut.endpoint.unread(1500)
    assert cut.endpoint.due == 2100


def test_without_keepalive_a_silent_socket_stays_open() -> None:
    party = EndpointClient(extensions=(Extension.SEQUENCE,))
    party.expect(H)
    assert party.endpoint.due is None


def test_a_peer_that_asks_and_never_reads_is_dropped() -> None:
    party = alive(limits=EndpointLimits(backlog=10_000))
    for _ in range(20):
        party.react(party.endpoint.receive(encode(Ping(bytes(64))) * 10, 0))
    assert party.endpoint.is_closed
    assert is_goodbye(party.sends(), "protocol error: responses are not read")


@pytest.mark.parametrize(
    "said",
    [
        encode(Ping(b"")),
        encode(SubscribeFrame("x", 1, 0)) + encode(CancelFrame(1)),
        encode(SubscribeFrame("x", 1, 0)) + encode(RequestFrame(1, 1)) * 1000,
    ],
    ids=["pings", "subscribed and cancelled", "requests"],
)
def test_small_frames_that_are_not_read_are_bounded_in_the_middle_of_a_message(said: bytes) -> None:
    """A message of 128 KiB holds 65,000 frames whose answers are few octets, and each of them is an object."""
    endpoint = greeted(has_messages=True).endpoint
    message = said * ((1 << 17) // len(said))
    tracemalloc.start()
    events = endpoint.receive(message, 0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(events[-1], Closed)
    assert endpoint.is_closed
    assert peak < 2 << 20


def test_a_thousand_subscriptions_too_many_in_one_message_are_refused_one_by_one() -> None:
    party = greeted(has_messages=True)
    said = party.expect(b"".join(encode(SubscribeFrame("tck/never", number, 0)) for number in range(4024)))
    assert not party.endpoint.is_closed
    assert said.count(b"429 rsio:subscriptions.limit") == 3000


def test_a_peer_that_opens_ten_thousand_ids_is_answered_and_bounded() -> None:
    party = greeted()
    for subscriber_id in range(10_000):
        party.react(party.endpoint.receive(encode(SubscribeFrame("tck/never", subscriber_id, 0)), 0))
        party.sends()
    assert len(party.feeds) == 1024
    assert not party.endpoint.is_closed


def test_elements_wait_until_the_transport_takes_them() -> None:
    party, (stream,) = greeted(), (0,)
    party.react(party.endpoint.receive(encode(SubscribeFrame("tck/fixed?n=1000&size=8", 1, 1000)), 0))
    (stream,) = party.endpoint.session.by_stream
    assert party.endpoint.session.waiting(stream) == 8000
    party.sends()
    assert party.endpoint.session.waiting(stream) == 0
    assert party.reported(ElementsReceived) == []

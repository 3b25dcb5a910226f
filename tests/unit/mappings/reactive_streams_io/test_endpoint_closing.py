"""Goodbye, both directions, keepalive: reactive-streams-io conformance suite, 15.7, 15.8, 15.10 (K)."""

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


def subscribed_peer() -> EndpointClient:
    peer = greeted()
    peer.expect(f"{RANGE} 33 01 00")
    return peer


def test_the_complete_exchange_of_the_specification() -> None:
    peer = EndpointClient(extensions=())
    assert peer.expect(f"01 00 00 {RANGE} 33 01 02") == raw("02 00 00 81 01 00 82 01 01 31 82 01 01 32")
    assert peer.expect("12 01 05") == raw("82 01 01 33 86 01")
    assert peer.expect("03 00") == raw("03 02 6f 6b")
    assert peer.endpoint.is_closed


def test_case_g01_a_goodbye_is_answered_and_ends_all_streams() -> None:
    peer = subscribed_peer()
    assert peer.expect("03 04 64 6f 6e 65") == raw("03 02 6f 6b")
    assert len(peer.cancelled) == 1
    assert peer.events[-1] == Closed("done")
    assert peer.endpoint.is_closed


def test_case_g02_we_wait_for_their_goodbye_but_not_forever() -> None:
    for answer in (True, False):
        peer = subscribed_peer()
        peer.react(peer.endpoint.close(peer.clock.now(), "shutdown"))
        assert is_goodbye(peer.sends(), "shutdown")
        assert len(peer.cancelled) == 1
        assert not peer.endpoint.is_closed
        assert (peer.expect("03 00") if answer else peer.waits(5)) == b""
        assert peer.endpoint.is_closed


def test_case_g03_two_goodbyes_that_cross_are_each_others_answers() -> None:
    server = subscribed_peer()
    client, _ = subscriber()
    for peer in (server, client):
        peer.react(peer.endpoint.close(peer.clock.now()))
    sent = server.sends(), client.sends()
    assert sent == (raw("03 02 6f 6b"), raw("03 02 6f 6b"))
    assert server.expect(sent[1]) == client.expect(sent[0]) == b""
    assert server.endpoint.is_closed
    assert client.endpoint.is_closed


def test_case_g04_frames_after_a_goodbye_are_ignored() -> None:
    peer = greeted()
    assert peer.expect(f"03 01 78 {NEVER} 01 00") == raw("03 02 6f 6b")
    assert not peer.feeds


def test_case_g05_after_our_goodbye_theirs_alone_is_waited_for() -> None:
    peer = subscribed_peer()
    peer.react(peer.endpoint.close(peer.clock.now()))
    peer.sends()
    assert peer.expect("12 01 01 03 00") == b""
    assert peer.endpoint.is_closed


def test_case_g06_an_unreadable_goodbye_closes() -> None:
    peer = greeted()
    assert is_goodbye(peer.expect("03 02 c3 28"))
    assert peer.endpoint.is_closed


def test_closing_before_the_hello_came_still_waits_for_the_goodbye() -> None:
    peer = EndpointClient(EndpointRole.CLIENT)
    peer.react(peer.endpoint.close(peer.clock.now()))
    peer.sends()
    assert peer.expect("02 00 03 01 02 03") == b""
    assert not peer.endpoint.is_closed
    peer.expect("a9 00 03 00")
    assert peer.endpoint.is_closed


def test_nothing_is_asked_for_over_a_connection_that_is_over() -> None:
    peer = greeted()
    peer.expect("03 00")
    with pytest.raises(EncodeError, match="found a closed connection"):
        peer.endpoint.subscribe("a")
    assert peer.endpoint.session.offer(1, [b"x"]) is False


def test_cases_w01_to_w04_both_sides_subscribe_with_the_same_id() -> None:
    peer = greeted()
    stream = peer.endpoint.subscribe("ingest/telemetry", 256)
    assert peer.sends() == raw(INGEST)
    assert peer.expect("81 01 00") == b""
    assert peer.reported(StreamAccepted) == [StreamAccepted(stream, 0)]
    assert peer.expect(f"{RANGE} 31 01 01") == raw("81 01 00 82 01 01 31 86 01")
    peer.expect(MODIFY)
    assert peer.elements(stream) == [raw(MODIFY)[3:]]
    for _ in range(127):
        peer.expect(MODIFY)
    assert peer.endpoint.session.request(stream, 128)
    assert peer.sends() == raw("12 01 80 01")


def test_elements_beyond_the_demand_cancel_the_stream() -> None:
    peer = greeted()
    stream = peer.endpoint.subscribe("ingest/telemetry", 256)
    peer.expect("81 01 00")
    peer.expect(encode(OnNext(1, b"x")) * 256)
    assert peer.failure(stream) is None
    assert peer.expect(encode(OnNext(1, b"x"))) == raw("13 01")
    assert len(peer.elements(stream)) == 256


def test_case_w06_an_error_of_the_peer_frees_the_id() -> None:
    peer = greeted()
    stream = peer.endpoint.subscribe("ingest/telemetry", 256)
    peer.sends()
    peer.expect("81 01 00 87 01 08 35 30 30 20 67 6f 6e 65")
    assert peer.reported(StreamFailed) == [StreamFailed(stream, "500 gone")]
    peer.endpoint.subscribe("ingest/telemetry", 256)
    assert peer.sends() == raw(INGEST)


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
    peer = EndpointClient(**options)  # type: ignore[arg-type]
    peer.expect("01 00 01 02")
    return peer


def test_case_k01_a_ping_is_answered_with_its_data_before_anything_else() -> None:
    assert alive().expect("a8 02 ab cd") == raw("a9 02 ab cd")
    peer = alive()
    assert peer.expect(f"{RANGE} 31 01 01 a8 01 07")[:3] == raw("a9 01 07")


def test_case_k02_a_ping_with_too_much_data_is_fatal() -> None:
    assert is_goodbye(alive().expect(encode(Ping(bytes(65)))))


def test_a_goodbye_that_does_not_fit_into_a_batch_of_pongs_is_sent_with_the_next_one() -> None:
    """993 pongs leave one byte of a batch of 64 KiB."""
    pings = encode(Ping(bytes(64))) * 992 + encode(Ping(bytes(61)))
    peer = alive()
    sent = peer.expect(pings + raw("03 00"))
    assert len(sent) == (1 << 16) - 1 + 4
    assert sent.endswith(raw("03 02 6f 6b"))
    closing = alive()
    closing.react(closing.endpoint.receive(pings, closing.clock.now()))
    closing.react(closing.endpoint.close(closing.clock.now(), "shutdown"))
    assert is_goodbye(closing.sends()[(1 << 16) - 1 :], "shutdown")
    assert not closing.endpoint.is_closed


def test_silence_is_met_with_pings_and_at_last_with_a_goodbye() -> None:
    peer = alive()
    assert peer.waits(29) == b""
    assert peer.waits(2) == raw("a8 00")
    assert peer.expect("a9 00") == b""
    assert peer.waits(59) == raw("a8 00")
    assert is_goodbye(peer.waits(60), "idle")
    assert peer.endpoint.is_closed


def test_a_peer_that_is_not_read_is_not_silent() -> None:
    peer = alive()
    for now in range(1020, 1400, 20):
        peer.endpoint.unread(now)
        assert peer.endpoint.due == now + 30
    cut = EndpointClient(extensions=(Extension.SEQUENCE,))
    cut.expect(H)
    cut.expect("12")
    assert cut.endpoint.due == 1600
    cut.endpoint.unread(1500)
    assert cut.endpoint.due == 2100


def test_without_keepalive_a_silent_socket_stays_open() -> None:
    peer = EndpointClient(extensions=(Extension.SEQUENCE,))
    peer.expect(H)
    assert peer.endpoint.due is None


def test_a_peer_that_subscribes_and_never_reads_is_disconnected() -> None:
    peer = alive(limits=EndpointLimits(backlog=10_000))
    for _ in range(20):
        peer.react(peer.endpoint.receive(encode(Ping(bytes(64))) * 10, 0))
    assert peer.endpoint.is_closed
    assert is_goodbye(peer.sends(), "protocol error: responses are not read")


@pytest.mark.parametrize(
    "sent",
    [
        encode(Ping(b"")),
        encode(SubscribeFrame("x", 1, 0)) + encode(CancelFrame(1)),
        encode(SubscribeFrame("x", 1, 0)) + encode(RequestFrame(1, 1)) * 1000,
    ],
    ids=["pings", "subscribed and cancelled", "requests"],
)
def test_small_frames_that_are_not_read_are_bounded_in_the_middle_of_a_message(sent: bytes) -> None:
    """A message of 128 KiB holds 65,000 frames whose answers are few bytes, and each of them is an object."""
    endpoint = greeted(has_messages=True).endpoint
    message = sent * ((1 << 17) // len(sent))
    tracemalloc.start()
    events = endpoint.receive(message, 0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(events[-1], Closed)
    assert endpoint.is_closed
    assert peak < 2 << 20


def test_a_thousand_subscriptions_too_many_in_one_message_are_refused_one_by_one() -> None:
    peer = greeted(has_messages=True)
    sent = peer.expect(b"".join(encode(SubscribeFrame("tck/never", number, 0)) for number in range(4024)))
    assert not peer.endpoint.is_closed
    assert sent.count(b"429 rsio:subscriptions.limit") == 3000


def test_a_peer_that_opens_ten_thousand_ids_is_answered_and_bounded() -> None:
    peer = greeted()
    for subscriber_id in range(10_000):
        peer.react(peer.endpoint.receive(encode(SubscribeFrame("tck/never", subscriber_id, 0)), 0))
        peer.sends()
    assert len(peer.feeds) == 1024
    assert not peer.endpoint.is_closed


def test_elements_wait_until_the_transport_takes_them() -> None:
    peer, (stream,) = greeted(), (0,)
    peer.react(peer.endpoint.receive(encode(SubscribeFrame("tck/fixed?n=1000&size=8", 1, 1000)), 0))
    (stream,) = peer.endpoint.session.by_stream
    assert peer.endpoint.session.waiting(stream) == 8000
    peer.sends()
    assert peer.endpoint.session.waiting(stream) == 0
    assert peer.reported(ElementsReceived) == []

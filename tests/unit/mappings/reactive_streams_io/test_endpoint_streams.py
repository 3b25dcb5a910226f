"""Subscriptions, demand, reused IDs, packing and splitting: the conformance suite, 15.3 to 15.6."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappings.reactive_streams_io.endpoint import EndpointRole
from mappings.reactive_streams_io.events import (
    Cancelled,
    Completed,
    ElementsReceived,
    StreamAccepted,
    StreamFailed,
    SubscribeReceived,
)
from mappings.reactive_streams_io.frames import (
    Frame,
    OnComplete,
    OnError,
    OnNext,
    OnNextLastPart,
    OnNextPacked,
    OnNextPart,
    OnSubscribe,
    Ping,
    SubscribeFrame,
    encode,
)
from mappings.reactive_streams_io.limits import UNBOUNDED, EndpointLimits
from tests.support.dice import examples
from tests.support.reactive_streams_io.conversation import EndpointClient, greeted, is_goodbye, subscriber
from tests.support.reactive_streams_io.examples import decoder, raw

RANGE = "11 0d 74 63 6b 2f 72 61 6e 67 65 3f 6e 3d"
NEVER = "11 09 74 63 6b 2f 6e 65 76 65 72"
BIG = "11 14 74 63 6b 2f 62 69 67 3f 62 79 74 65 73 3d 32 30 30 30 30 30 05 01"
FIXED = "11 14 74 63 6b 2f 66 69 78 65 64 3f 6e 3d 33 26 73 69 7a 65 3d 32 06"
ENDLESS = "ff ff ff ff ff ff ff ff 7f"


def frames(sent: bytes) -> list[Frame]:
    reader = decoder()
    found = list(reader.feed(sent))
    assert not reader.waiting
    return found


def subscribed_peer() -> EndpointClient:
    """Return a peer in the state after case D03."""
    peer = greeted()
    assert peer.expect(f"{RANGE} 33 01 00") == raw("81 01 00")
    return peer


# 15.3: publishing.


def test_case_d01_no_more_than_was_requested() -> None:
    assert greeted().expect(f"{RANGE} 33 01 02") == raw("81 01 00 82 01 01 31 82 01 01 32")


def test_case_d02_the_rest_on_request() -> None:
    peer = greeted()
    peer.expect(f"{RANGE} 33 01 02")
    assert peer.expect("12 01 05") == raw("82 01 01 33 86 01")


def test_case_d03_nothing_without_demand() -> None:
    subscribed_peer()


def test_case_d04_demand_adds_up() -> None:
    assert subscribed_peer().expect("12 01 01 12 01 01") == raw("82 01 01 31 82 01 01 32")


def test_case_d05_an_empty_publisher_completes_without_demand() -> None:
    assert greeted().expect(f"{RANGE} 30 01 00") == raw("81 01 00 86 01")


def test_case_d06_a_request_for_nothing_fails_the_subscription() -> None:
    peer = subscribed_peer()
    (failed,) = frames(peer.expect("12 01 00"))
    assert isinstance(failed, OnError)
    assert failed.error.startswith("400 ")
    assert "RS 3.9" in failed.error
    assert len(peer.cancelled) == 1
    assert peer.expect("12 01 01") == b""


@pytest.mark.parametrize(
    ("case", "sent", "status"),
    [
        ("d07", "11 04 6e 6f 70 65 07 01", "404 "),
        ("d08", "11 0d 74 63 6b 2f 72 61 6e 67 65 3f 78 3d 31 07 01", "400 "),
    ],
)
def test_cases_d07_and_d08_a_name_that_is_refused_starts_and_fails(case: str, sent: str, status: str) -> None:
    first, second = frames(greeted().expect(sent))
    assert first == OnSubscribe(7, 0)
    assert isinstance(second, OnError)
    assert second.subscriber == 7
    assert second.error.startswith(status)


def test_case_d09_a_subscriber_without_permission_is_refused_in_the_same_way() -> None:
    peer = greeted()
    (subscribed,) = peer.endpoint.receive(encode(SubscribeFrame("things/a:b/history", 7, 1)), peer.clock.now())
    assert isinstance(subscribed, SubscribeReceived)
    assert peer.endpoint.session.end(subscribed.stream, "403 things:thing.forbidden No.")
    assert frames(peer.sends()) == [OnSubscribe(7, 0), OnError(7, "403 things:thing.forbidden No.")]


def test_case_d10_elements_before_a_failure_are_delivered() -> None:
    sent = frames(greeted().expect("11 10 74 63 6b 2f 66 61 69 6c 3f 61 66 74 65 72 3d 31 01 09"))
    assert sent[:2] == [OnSubscribe(1, 0), OnNext(1, b"1")]
    assert isinstance(sent[2], OnError)
    assert len(sent) == 3


def test_case_d11_nothing_after_a_cancel() -> None:
    peer = subscribed_peer()
    assert peer.expect("13 01 12 01 03") == b""
    assert not peer.feeds


def test_case_d12_requests_and_cancels_for_an_unknown_stream_are_ignored() -> None:
    peer = greeted()
    assert peer.expect("13 09") == b""
    assert peer.expect("12 09 01") == b""
    assert not peer.endpoint.is_closed


def test_case_d13_the_same_subscribe_again_is_ignored() -> None:
    peer = subscribed_peer()
    assert peer.expect(f"{RANGE} 33 01 00") == b""
    assert len(peer.reported(SubscribeReceived)) == 1


def test_case_d14_another_subscribe_with_an_active_id_is_fatal() -> None:
    peer = subscribed_peer()
    assert is_goodbye(peer.expect(f"{RANGE} 34 01 00"))
    assert len(peer.cancelled) == 1


def test_case_d15_two_subscriptions_do_not_meet() -> None:
    sent = greeted().expect(f"{RANGE} 32 01 00 {RANGE} 32 02 02")
    assert sent == raw("81 01 00 81 02 00 82 02 01 31 82 02 01 32 86 02")


def test_case_d16_demand_does_not_overflow() -> None:
    sent = subscribed_peer().expect(f"12 01 {ENDLESS} 12 01 {ENDLESS}")
    assert sent == raw("82 01 01 31 82 01 01 32 82 01 01 33 86 01")


def test_case_d16_unbounded_demand_stays_unbounded() -> None:
    peer = greeted()
    (subscribed,) = peer.endpoint.receive(encode(SubscribeFrame("x", 1, UNBOUNDED)), 0)
    assert isinstance(subscribed, SubscribeReceived)
    peer.endpoint.session.accept(subscribed.stream)
    peer.endpoint.session.offer(subscribed.stream, [b"a", b"b"])
    assert peer.endpoint.session.capacity(subscribed.stream) == UNBOUNDED


def test_case_d17_one_subscription_too_many_fails_alone() -> None:
    peer = greeted()
    for subscriber_id in range(1, 1025):
        assert peer.expect(encode(SubscribeFrame("tck/never", subscriber_id, 0))) == encode(
            OnSubscribe(subscriber_id, 0)
        )
    first, second = frames(peer.expect(encode(SubscribeFrame("tck/never", 1025, 0))))
    assert first == OnSubscribe(1025, 0)
    assert isinstance(second, OnError)
    assert second.error.startswith("429 ")
    assert len(peer.feeds) == 1024
    assert not peer.cancelled


def test_a_publisher_string_that_is_too_long_fails_its_subscription() -> None:
    first, second = frames(greeted().expect(encode(SubscribeFrame("x" * 8193, 1, 0))))
    assert first == OnSubscribe(1, 0)
    assert isinstance(second, OnError)
    assert second.error.startswith("400 ")


# 15.3: subscribing.


def test_case_d18_elements_beyond_the_demand_end_the_subscription() -> None:
    peer, (stream,) = subscriber("a")
    assert peer.expect("81 01 00 82 01 01 31 82 01 01 32") == raw("13 01")
    assert peer.events[1:3] == [StreamAccepted(stream, 0), ElementsReceived(stream, (b"1",))]
    assert "more elements than were requested" in str(peer.failure(stream))
    assert peer.expect("82 01 01 33 86 01") == b""
    assert len(peer.events) == 4


def test_case_d19_elements_before_the_beginning_are_fatal() -> None:
    peer, (stream,) = subscriber("a")
    assert is_goodbye(peer.expect("82 01 01 31"))
    assert peer.failure(stream) is not None


def test_case_d20_an_unrequested_on_subscribe_frame_is_fatal() -> None:
    peer, _ = subscriber("a")
    assert is_goodbye(peer.expect("81 04 00"))


def test_case_d21_completion_is_reported_once() -> None:
    peer, (stream,) = subscriber("a")
    assert peer.expect("81 01 00 86 01 82 01 01 31 86 01 87 01 00") == b""
    assert peer.events[1:] == [StreamAccepted(stream, 0), Completed(stream)]


def test_case_d22_a_lost_transport_cancels_every_subscription() -> None:
    peer = greeted()
    for subscriber_id in (1, 2, 3):
        peer.expect(encode(SubscribeFrame("tck/never", subscriber_id, 0)))
    peer.react(peer.endpoint.lose(peer.clock.now()))
    assert len(peer.reported(Cancelled)) == 3
    assert not peer.feeds


# 15.4.


def test_case_i01_an_id_is_free_after_its_stream() -> None:
    peer = greeted()
    peer.expect(f"{RANGE} 33 01 02")
    peer.expect("12 01 05")
    assert peer.expect(f"{RANGE} 31 01 01") == raw("81 01 00 82 01 01 31 86 01")


def test_case_i02_every_subscribe_is_answered_even_if_it_was_cancelled() -> None:
    peer = greeted()
    sent = peer.expect(f"{NEVER} 01 00 13 01 {RANGE} 31 01 01")
    assert sent == raw("81 01 00 81 01 00 82 01 01 31 86 01")
    assert peer.endpoint.session.accept(peer.cancelled[0]) is False


def reused() -> tuple[EndpointClient, int]:
    """A on id 1, cancelled, B on id 1; the number of B."""
    peer, (first,) = subscriber("a", demand=5)
    assert peer.endpoint.session.cancel(first)
    second = peer.endpoint.subscribe("b", 5)
    assert peer.sends() == raw("13 01 11 01 62 01 05")
    return peer, second


def test_case_i03_late_elements_of_the_old_stream_are_dropped() -> None:
    peer, second = reused()
    assert peer.expect("81 01 00 82 01 01 61 81 01 00 82 01 01 62") == b""
    assert peer.elements(second) == [b"b"]
    assert len(peer.reported(ElementsReceived)) == 1


def test_case_i04_a_late_end_of_the_old_stream_does_not_end_the_new_one() -> None:
    peer, second = reused()
    peer.expect("81 01 00 86 01 81 01 00 82 01 01 62")
    assert peer.elements(second) == [b"b"]
    assert peer.reported(Completed) == []


def test_case_i05_the_old_stream_may_have_had_another_size() -> None:
    peer, second = reused()
    peer.expect("81 01 08 82 01 3f f0 00 00 00 00 00 00 81 01 00 82 01 01 62")
    assert peer.elements(second) == [b"b"]


def test_an_id_with_too_many_unanswered_generations_is_left_alone() -> None:
    peer, _ = subscriber(limits=EndpointLimits(generations=2))
    asked = []
    for _ in range(5):
        peer.endpoint.session.cancel(peer.endpoint.subscribe("a", 0))
        asked += [frame.subscriber for frame in frames(peer.sends()) if isinstance(frame, SubscribeFrame)]
    assert asked == [1, 1, 2, 2, 3]


# 15.5.


def test_case_f01_elements_of_one_size_are_packed() -> None:
    assert greeted().expect(f"{FIXED} 03") == raw("81 06 02 83 06 03 00 01 00 02 00 03 86 06")


def test_case_f02_a_pack_holds_no_more_than_the_demand() -> None:
    peer = greeted()
    assert peer.expect(f"{FIXED} 02") == raw("81 06 02 83 06 02 00 01 00 02")
    assert peer.expect("12 06 01") == raw("82 06 00 03 86 06")


@pytest.mark.parametrize(
    ("case", "sent"),
    [("f03", "81 01 00 83 01 01 31"), ("f04", "81 01 02 83 01 00"), ("f08", "81 01 80 80 04")],
)
def test_cases_f03_f04_and_f08_packs_and_sizes_that_cannot_be_are_fatal(case: str, sent: str) -> None:
    peer, _ = subscriber("a")
    assert is_goodbye(peer.expect(sent))


def test_case_f05_a_pack_beyond_the_demand_is_taken_as_far_as_it_was_asked_for() -> None:
    peer, (stream,) = subscriber("a", demand=2)
    assert peer.expect("81 01 02 83 01 03 00 01 00 02 00 03") == raw("13 01")
    assert peer.elements(stream) == [b"\x00\x01", b"\x00\x02"]
    assert peer.failure(stream) is not None


def test_case_f06_elements_of_a_cancelled_stream_are_still_found_by_their_size() -> None:
    peer, (first, second) = subscriber("a", "b")
    peer.expect("81 01 02")
    peer.endpoint.session.cancel(first)
    peer.expect("82 01 00 07 81 02 00")
    assert peer.reported(StreamAccepted)[-1] == StreamAccepted(second, 0)
    assert peer.reported(ElementsReceived) == []


def test_case_f07_parts_that_join_to_another_size_end_the_subscription() -> None:
    peer, (stream,) = subscriber("a")
    assert peer.expect("81 01 08 84 01 00 03 61 62 63 85 01 00 04 64 65 66 67") == raw("13 01")
    assert peer.elements(stream) == []
    assert "size" in str(peer.failure(stream))


# 15.6.


def test_case_p01_parts_are_joined_and_count_once() -> None:
    peer, (stream,) = subscriber("a")
    assert peer.expect("81 01 00 84 01 00 02 61 62 84 01 00 02 63 64 85 01 00 01 65") == b""
    assert peer.elements(stream) == [b"abcde"]
    peer.expect("82 01 01 66")
    assert peer.failure(stream) is not None


def test_case_p02_other_streams_come_between_the_parts() -> None:
    peer, (split, other) = subscriber("a", "b")
    peer.expect("81 01 00 81 02 00 84 01 00 02 61 62 82 02 01 78 85 01 00 01 63")
    assert peer.reported(ElementsReceived) == [ElementsReceived(other, (b"x",)), ElementsReceived(split, (b"abc",))]


def test_case_p03_elements_are_delivered_when_their_last_part_arrives() -> None:
    peer, (stream,) = subscriber("a", demand=2)
    peer.expect("81 01 00 84 01 01 01 61 84 01 02 01 62 85 01 02 01 42 85 01 01 01 41")
    assert peer.elements(stream) == [b"bB", b"aA"]


def test_case_p04_a_last_part_alone_is_an_element() -> None:
    peer, (stream,) = subscriber("a")
    peer.expect("81 01 00 85 01 09 01 7a")
    assert peer.elements(stream) == [b"z"]


def test_case_p05_completion_in_the_middle_of_an_element_is_a_failure() -> None:
    peer, (stream,) = subscriber("a")
    peer.expect("81 01 00 84 01 00 01 61 86 01")
    assert peer.failure(stream) is not None
    assert peer.reported(Completed) == []


def test_case_p06_parts_after_a_cancel_are_dropped() -> None:
    peer, (stream,) = subscriber("a")
    peer.expect("81 01 00 84 01 00 01 61")
    peer.endpoint.session.cancel(stream)
    assert peer.expect("85 01 00 01 62") == raw("13 01")
    assert peer.reported(ElementsReceived) == []
    assert peer.endpoint.session.subscribing.open_bytes == 0


def test_case_p07_an_element_id_is_free_after_its_last_part() -> None:
    peer, (stream,) = subscriber("a", demand=2)
    peer.expect("81 01 00 84 01 00 01 61 85 01 00 01 62 84 01 00 01 63 85 01 00 01 64")
    assert peer.elements(stream) == [b"ab", b"cd"]


def test_case_p08_seventeen_open_elements_are_too_many() -> None:
    peer, (stream,) = subscriber("a", demand=99)
    opened = b"".join(encode(OnNextPart(1, element, b"x")) for element in range(16))
    assert peer.expect(raw("81 01 00") + opened) == b""
    assert peer.expect("84 01 10 01 61") == raw("13 01")
    assert peer.failure(stream) is not None
    assert peer.endpoint.session.subscribing.open_bytes == 0


def test_case_p09_an_element_that_is_too_large_frees_its_buffered_parts() -> None:
    peer, (stream,) = subscriber("a")
    peer.expect("81 01 00")
    part = encode(OnNextPart(1, 0, bytes(65_535)))
    for _ in range(256):
        assert peer.expect(part) == b""
    assert peer.endpoint.session.subscribing.open_bytes == 256 * 65_535
    assert peer.expect(encode(OnNextLastPart(1, 0, bytes(300)))) == raw("13 01")
    assert peer.failure(stream) is not None
    assert peer.endpoint.session.subscribing.open_bytes == 0


def test_all_streams_together_keep_no_more_of_open_elements_than_a_connection_may() -> None:
    peer, streams = subscriber("a", "b", "c", limits=EndpointLimits(incomplete_elements=100))
    sent = b"".join(
        raw(f"81 0{each} 00") + encode(OnNextPart(each, 0, bytes(40))) for each in range(1, len(streams) + 1)
    )
    assert peer.expect(sent) == raw("13 03")
    assert peer.endpoint.session.subscribing.open_bytes == 80


def test_case_p10_a_large_element_is_sent_in_parts_and_uses_one_request() -> None:
    peer = greeted()
    sent = frames(peer.expect(BIG))
    assert sent[0] == OnSubscribe(5, 0)
    assert sent[-1] == OnComplete(5)
    parts = [frame for frame in sent if isinstance(frame, OnNextPart)]
    (last,) = [frame for frame in sent if isinstance(frame, OnNextLastPart)]
    pieces: list[OnNextPart | OnNextLastPart] = [*parts, last]
    assert len(parts) == 3
    assert {frame.element for frame in pieces} == {0}
    assert max(len(part.data) for part in parts) == 65_535
    assert b"".join(part.data for part in pieces) == b"x" * 200_000


def test_case_p11_other_streams_have_their_turn_between_the_parts() -> None:
    sent = frames(greeted().expect(f"{BIG} {RANGE} 33 06 03"))
    codes = [type(frame) for frame in sent[2:]]
    assert codes[:6] == [OnNextPart, OnNext] * 3


def test_case_p12_an_empty_element_in_a_part() -> None:
    peer, (stream,) = subscriber("a")
    peer.expect("81 01 00 85 01 00 00")
    assert peer.elements(stream) == [b""]


def test_an_element_that_is_too_large_is_refused_with_413() -> None:
    sent = frames(greeted().expect(encode(SubscribeFrame(f"tck/big?bytes={(16 << 20) + 1}", 5, 1))))
    assert sent[0] == OnSubscribe(5, 0)
    assert isinstance(sent[1], OnError)
    assert sent[1].error.startswith("413 ")


def test_a_large_pack_is_cut_so_that_others_have_their_turn() -> None:
    peer = greeted()
    sent = peer.expect(encode(SubscribeFrame("tck/fixed?n=100000&size=8", 6, UNBOUNDED)) + raw(f"{RANGE} 32 01 02"))
    found = frames(sent)
    packs = [frame for frame in found if isinstance(frame, OnNextPacked)]
    assert [element for pack in packs for element in pack.elements] == [n.to_bytes(8, "big") for n in range(1, 100_001)]
    assert max(len(pack.elements) * 8 for pack in packs) <= 65_536
    assert found.index(OnNext(1, b"1")) < found.index(packs[2])


def test_streams_of_a_publisher_end_with_the_connection() -> None:
    peer, (stream,) = subscriber("a")
    peer.react(peer.endpoint.lose(peer.clock.now(), "gone"))
    assert peer.reported(StreamFailed) == [StreamFailed(stream, "gone")]


def test_elements_stay_in_order_if_a_pong_is_due_between_two_batches() -> None:
    """The first element without room in a batch waits for the next one; the pong comes before it or after it."""
    peer = EndpointClient()
    peer.expect("01 00 01 02")
    peer.react(peer.endpoint.receive(encode(SubscribeFrame("tck/never", 1, 200)), peer.clock.now()))
    (stream,) = peer.endpoint.session.by_stream
    elements = [bytes([number]) * 1000 for number in range(200)]
    assert peer.endpoint.session.offer(stream, elements)
    sent = peer.endpoint.take()
    sent += peer.expect(encode(Ping(b"")))
    assert [frame.element for frame in frames(sent) if isinstance(frame, OnNext)] == elements


@settings(max_examples=examples(200), deadline=None)
@given(
    steps=st.lists(st.sampled_from([b"a", b"b" * 8, b"c" * 40, "ping", "take"]), min_size=40, max_size=80),
    batch=st.integers(20, 100),
)
def test_elements_stay_in_order_whenever_the_transport_takes_a_batch(steps: list[bytes | str], batch: int) -> None:
    client = EndpointClient(EndpointRole.CLIENT)
    stream = client.endpoint.subscribe("tck/never", UNBOUNDED)
    server = EndpointClient(limits=EndpointLimits(batch=batch, part=7, split_above=9))
    server.react(server.endpoint.receive(client.sends(), server.clock.now()))
    (served,) = server.endpoint.session.by_stream
    sent, offered = b"", []
    for number, step in enumerate(steps):
        if step == "take":
            sent += server.endpoint.take()
        elif isinstance(step, bytes):
            offered.append(b"%d%b" % (number, step))
            server.endpoint.session.offer(served, offered[-1:])
        else:
            server.react(server.endpoint.receive(encode(Ping(b"x")), server.clock.now()))
    client.expect(sent + server.sends())
    assert client.elements(stream) == offered

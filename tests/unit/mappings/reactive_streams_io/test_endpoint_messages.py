"""Transports of messages: the reactive-streams-io conformance suite, 15.9, without a broker."""

from __future__ import annotations

import pytest

from mappings.reactive_streams_io.endpoint import EndpointRole
from mappings.reactive_streams_io.events import Closed, Interrupted, SessionOpened, StreamFailed
from mappings.reactive_streams_io.frames import Extension, Goodbye, ResumeGrant, Seq, SubscribeFrame, encode
from mappings.reactive_streams_io.resumption import Resumables
from tests.support.reactive_streams_io.conversation import EndpointClient, is_goodbye
from tests.support.reactive_streams_io.examples import raw

RANGE = "11 0d 74 63 6b 2f 72 61 6e 67 65 3f 6e 3d"
NEVER = "11 09 74 63 6b 2f 6e 65 76 65 72"


def session(*extensions: Extension, **options: object) -> EndpointClient:
    return EndpointClient(has_messages=True, extensions=extensions, **options)  # type: ignore[arg-type]


def numbered() -> EndpointClient:
    """A server with sequence numbers in force and a stream without demand."""
    peer = session(Extension.SEQUENCE)
    assert peer.expect(f"01 00 01 03 {NEVER} 01 00") == raw("02 00 01 03 81 01 00")
    return peer


def test_case_b01_hello_and_answers_come_in_order_on_the_reply_address() -> None:
    peer = session()
    assert peer.sends() == b""
    assert peer.expect(f"01 00 00 {RANGE} 31 01 01") == raw("02 00 00 81 01 00 82 01 01 31 86 01")


def test_case_b02_two_sessions_do_not_meet() -> None:
    for peer in (session(), session()):
        assert peer.expect(f"01 00 00 {RANGE} 31 01 01") == raw("02 00 00 81 01 00 82 01 01 31 86 01")


def test_case_b04_a_message_that_ends_inside_a_frame_is_fatal() -> None:
    peer = session()
    peer.expect("01 00 00")
    assert is_goodbye(peer.expect("12 01"), "protocol error: a message that ends inside a frame")
    assert peer.endpoint.is_closed


def test_case_b06_a_duplicate_message_is_processed_once() -> None:
    peer = numbered()
    assert peer.expect("b0 01 12 01 01") == b""
    assert peer.expect("b0 01 12 01 01") == b""
    (stream,) = peer.feeds
    assert peer.endpoint.session.capacity(stream) == 1


def test_case_b07_a_gap_is_noticed() -> None:
    peer = numbered()
    peer.expect("b0 01 12 01 01")
    sent = peer.expect("b0 03 12 01 01")
    assert sent[:2] == raw("b0 01")
    assert is_goodbye(sent, "protocol error: sequence gap")
    assert len(peer.cancelled) == 1


def test_case_b08_a_message_without_its_number_is_fatal() -> None:
    peer = numbered()
    peer.expect("b0 01 12 01 01")
    assert is_goodbye(peer.expect("12 01 01"), "protocol error: a message without its sequence number")


def test_case_b08_the_server_has_to_number_all_that_follows_its_hello() -> None:
    peer = session(Extension.SEQUENCE, role=EndpointRole.CLIENT)
    peer.expect("02 00 01 03")
    assert is_goodbye(peer.expect("13 01"))


def test_frames_that_a_client_sends_before_the_server_hello_have_no_sequence_number() -> None:
    peer = numbered()
    assert peer.expect(f"{NEVER} 02 00") == raw("b0 01 81 02 00")
    assert peer.expect(f"b0 01 {NEVER} 03 00") == raw("b0 02 81 03 00")


def test_a_number_has_to_start_the_message() -> None:
    assert is_goodbye(numbered().expect("b0 01 b0 02"), "protocol error: a sequence number that does not begin")
    peer = EndpointClient()
    peer.expect("01 00 01 03")
    assert is_goodbye(peer.expect("b0 01"), "protocol error: a sequence number that does not begin")


def test_messages_are_numbered_from_one_after_the_hello() -> None:
    client, server = session(Extension.SEQUENCE, role=EndpointRole.CLIENT), session(Extension.SEQUENCE)
    (hello,) = client.messages()
    assert hello == raw("01 00 01 03")
    assert server.expect(hello) == raw("02 00 01 03")
    client.expect("02 00 01 03")
    stream = client.endpoint.subscribe("tck/range?n=3", 2)
    (asked,) = client.messages()
    assert asked[:2] == raw("b0 01")
    answered = server.expect(asked)
    assert answered[:2] == raw("b0 01")
    client.expect(answered)
    client.expect(answered)
    assert client.elements(stream) == [b"1", b"2"]
    assert client.sends() == b""


def test_case_b11_small_elements_share_messages_of_bounded_size() -> None:
    peer = session()
    peer.expect("01 00 00")
    peer.react(peer.endpoint.receive(encode(SubscribeFrame("tck/range?n=100", 1, 100)), 0))
    assert len(peer.messages()) == 1
    peer.react(peer.endpoint.receive(encode(SubscribeFrame("tck/range?n=50000", 2, 50_000)), 0))
    messages = peer.messages()
    assert max(map(len, messages)) <= 65_536
    client = session(role=EndpointRole.CLIENT)
    client.expect("02 00 00")
    for name, demand in (("x", 100), ("tck/range?n=50000", 50_000)):
        stream = client.endpoint.subscribe(name, demand)
    client.expect("81 02 00")
    for message in messages:
        client.expect(message if message is not messages[0] else message[3:])
    assert client.elements(stream) == [str(number).encode() for number in range(1, 50_001)]


def test_a_part_that_is_larger_than_a_batch_has_a_message_of_its_own() -> None:
    peer = session()
    peer.expect("01 00 00")
    peer.react(peer.endpoint.receive(encode(SubscribeFrame("tck/big?bytes=200000", 1, 1)), 0))
    sizes = [len(message) for message in peer.messages()]
    assert sizes[0] == 3
    assert sizes[1:4] == [65_541] * 3


def test_case_b12_a_session_ends_when_its_peer_is_silent() -> None:
    peer = session(Extension.KEEPALIVE)
    peer.expect(f"01 00 01 02 {NEVER} 01 00")
    peer.waits(91)
    assert peer.endpoint.is_closed
    assert len(peer.cancelled) == 1


def test_without_keepalive_a_session_ends_after_ten_minutes() -> None:
    peer = session()
    peer.expect("01 00 00")
    assert peer.waits(599) == b""
    assert is_goodbye(peer.waits(2), "idle")


def test_a_gap_interrupts_a_client_that_can_resume() -> None:
    extensions = (Extension.RESUME, Extension.SEQUENCE)
    server = session(*extensions, resumables=Resumables())
    client = session(*extensions, role=EndpointRole.CLIENT)
    client.expect(server.expect(client.sends()))
    assert client.reported(SessionOpened)
    stream = client.endpoint.subscribe("tck/range?n=9", 2)
    sent = server.expect(client.sends())
    assert sent[:2] == raw("b0 01")
    client.expect(raw("b0 02") + sent[2:])
    assert client.reported(Interrupted) == [Interrupted("sequence gap")]
    assert client.reported(StreamFailed) == client.reported(Closed) == client.elements(stream) == []
    assert client.sends() == b""
    assert client.endpoint.ticket() is not None


@pytest.mark.parametrize(("hello", "can_resume"), [("02 00 01 03", False), ("02 00 02 01 03", True)])
def test_a_goodbye_without_a_sequence_number_means_that_the_peer_does_not_know_the_session(
    hello: str, can_resume: bool
) -> None:
    client = EndpointClient(EndpointRole.CLIENT, has_messages=True)
    client.sends()
    client.expect(hello)
    if can_resume:
        client.expect(encode(Seq(1)) + encode(ResumeGrant(bytes(16), 60_000, 1024)))
    client.expect(encode(Goodbye("protocol error: no session")))
    last = client.events[-1]
    assert last == (Interrupted if can_resume else Closed)("protocol error: no session")
    assert (client.endpoint.ticket() is not None) is can_resume

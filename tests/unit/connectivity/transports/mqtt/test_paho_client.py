"""The MQTT client without a socket: packet parsing from any pieces, and malformed input."""

from __future__ import annotations

import inspect
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paho.mqtt.client import Client
from paho.mqtt.enums import MQTTProtocolVersion

from connectivity.transports.mqtt.paho_client import PACKET_ROOM, SansIoPahoClient
from connectivity.transports.mqtt.properties import pack_varint
from connectivity.transports.mqtt.protocol_version import Publication, ReceivedPublish
from tests.support.dice import examples
from tests.support.recorded_confirms import record_confirms
from tests.support.table import each_row

V311, V5 = MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5

OVERRIDDEN = (
    "_packet_queue",
    "_handle_connack",
    "_handle_pubrec",
    "_handle_pubackcomp",
    "_handle_pubrel",
    "_create_socket_connection",
    "_ssl_wrap_socket",
)
USED = (
    "_in_packet",
    "_last_bytes_received",
    "_last_msg_out",
    "_last_mid",
    "_ping_t",
    "_sock",
    "_ssl_context",
    "_connect_timeout",
)


class FakeSocket:
    def close(self) -> None:
        pass


def client(
    protocol: MQTTProtocolVersion = V311,
) -> tuple[SansIoPahoClient, list[ReceivedPublish], list[tuple[int, int]]]:
    made = SansIoPahoClient("lab", protocol, clean_session=True)
    made._sock = FakeSocket()  # type: ignore[assignment]
    arrived: list[ReceivedPublish] = []
    made.on_arrival = arrived.append
    return made, arrived, record_confirms(made)


def packets(*publications: Publication) -> bytes:
    """Return the bytes that a client sends for these messages, which are also those of a broker."""
    sender, _, _ = client()
    for publication in publications:
        sender.send(publication)
    return b"".join(sender.unsent)


def test_the_library_still_calls_the_overridden_methods() -> None:
    """A new version of it that does otherwise must not go unnoticed."""
    source = inspect.getsource(Client)
    for name in OVERRIDDEN:
        theirs, ours = getattr(Client, name), getattr(SansIoPahoClient, name)
        assert ours is not theirs, name
        assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters), name
        assert f"self.{name}(" in source, name


@each_row("name", USED)
def test_the_library_still_has_the_attributes_that_the_client_uses(name: str) -> None:
    assert hasattr(client()[0], name)


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=5), st.data())
def test_packets_are_cut_from_any_pieces(payloads: list[bytes], data: st.DataObject) -> None:
    stream = packets(*(Publication(b"a/b", payload, 1, False, b"") for payload in payloads))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    receiver, arrived, _ = client()
    for start, end in pairwise([0, *cuts, len(stream)]):
        receiver.feed(stream[start:end])
    assert arrived == [
        ReceivedPublish("a/b", payload, 1, False, False, mid, b"") for mid, payload in enumerate(payloads, 1)
    ]


def test_a_large_packet_is_cut_from_many_pieces() -> None:
    payload = bytes(range(256)) * 10_000
    stream = packets(Publication(b"t", payload, 0, True, b""))
    receiver, arrived, _ = client()
    for start in range(0, len(stream), 1000):
        receiver.feed(stream[start : start + 1000])
    assert arrived == [ReceivedPublish("t", payload, 0, True, False, 0, b"")]


@settings(max_examples=examples(300))
@given(st.binary(max_size=80), st.sampled_from([V311, V5]))
def test_no_bytes_do_worse_than_end_the_link(content: bytes, protocol: MQTTProtocolVersion) -> None:
    """Which bytes do end it depends on nothing but the bytes: cut into single ones, they do the same."""
    (whole, arrived, confirmed), (cut, arrived_cut, confirmed_cut) = client(protocol), client(protocol)
    whole.feed(content)
    for start in range(len(content)):
        cut.feed(content[start : start + 1])
    assert (arrived_cut, confirmed_cut) == (arrived, confirmed)
    assert (cut.socket() is None) == (whole.socket() is None)


@pytest.mark.parametrize(
    "content",
    [
        b"\x30\xff\xff\xff\xff\x01",  # a length of five bytes
        b"\x36\x05\x00\x01a\x00\x01",  # QoS 3
        b"\x32\x05\x00\x00\x00\x01x",  # no topic
        b"\x32\x04\x00\x09ab",  # a topic longer than the packet
        b"\x30\x04\x00\x02\xff\xfe",  # a topic that is no UTF-8
        b"\x40\x00",  # an acknowledgement of nothing
        b"\x40\x00\x00\x05",  # the same, with bytes behind it
        b"\xf0\x00",  # a packet that MQTT 3.1.1 does not know
    ],
)
def test_a_protocol_violation_ends_the_link(content: bytes) -> None:
    receiver, arrived, confirmed = client()
    receiver.feed(content)
    receiver.feed(packets(Publication(b"a", b"", 0, False, b"")))
    assert (receiver.socket(), arrived, confirmed) == (None, [], [])


def test_qos_2_is_confirmed_by_the_last_of_its_packets() -> None:
    sender, _, confirmed = client()
    sender.feed(b"\x70\x02\x00\x05")  # a PUBCOMP that belongs to nothing
    sender.feed(b"\x50\x02\x00\x05")
    assert (confirmed, b"".join(sender.unsent)) == ([], b"\x62\x02\x00\x05")
    sender.feed(b"\x70\x02\x00\x05")
    assert confirmed == [(5, 0)]


def test_a_qos_2_message_is_confirmed_with_the_reason_code_of_the_first_broker_reply() -> None:
    """Only that packet reports a missing subscriber; the last packet is the end of every exchange."""
    sender, _, confirmed = client(V5)
    sender.feed(b"\x50\x03\x00\x05\x10\x70\x02\x00\x05")
    assert confirmed == [(5, 16)]


def test_a_qos_2_message_that_the_broker_has_taken_is_confirmed_even_if_its_identifier_is_unknown_later() -> None:
    """As refused, it would be sent again, and arrive twice."""
    sender, _, confirmed = client(V5)
    sender.feed(b"\x50\x02\x00\x05\x70\x03\x00\x05\x92")
    assert confirmed == [(5, 0)]


def test_a_resumed_session_releases_an_identifier_before_qos_2_uses_it() -> None:
    sender, _, _ = client()
    sender.is_resumed = True
    sender._last_mid = 6
    sender.send(Publication(b"a", b"", 2, False, b""))
    assert b"".join(sender.unsent) == b"\x62\x02\x00\x07" + b"\x34\x05\x00\x01a\x00\x07"


def test_an_unexpected_qos_2_message_is_acknowledged_in_two_steps() -> None:
    """Left-overs of a session that subscribed otherwise."""
    receiver, arrived, _ = client()
    receiver.feed(b"\x34\x05\x00\x01a\x00\x07")
    assert (arrived[0].qos, receiver.unsent) == (2, [])
    receiver.acknowledge(7, 2)
    receiver.feed(b"\x62\x02\x00\x07")
    assert b"".join(receiver.unsent) == b"\x50\x02\x00\x07" + b"\x70\x02\x00\x07"


def test_packet_identifiers_start_again_at_one() -> None:
    sender, _, _ = client()
    sender._last_mid = 65534
    for _ in range(3):
        sender.send(Publication(b"a", b"", 1, False, b""))
    assert list(sender.unconfirmed) == [65535, 1, 2]


def test_a_packet_identifier_in_use_is_left_out() -> None:
    sender = SansIoPahoClient("lab", V311, clean_session=True)
    sender._last_mid = 65533
    for _ in range(3):
        sender.send(Publication(b"a", b"", 1, False, b""))
    sender._last_mid = 65533
    sender.unsent.clear()
    sender.send(Publication(b"a", b"", 1, False, b""))
    assert b"".join(sender.unsent) == b"\x32\x05\x00\x01a\x00\x02"


def test_a_message_ends_once_with_the_broker_s_answer_to_its_packet_identifier() -> None:
    sender, outcomes = SansIoPahoClient("lab", V5, clean_session=True), list[tuple[str, bool]]()
    sender._sock = FakeSocket()  # type: ignore[assignment]
    message = Publication(b"a", b"", 1, False, b"")
    sender.send(message, "first", lambda error: outcomes.append(("first", error is None)))
    sender.send(message, "second", lambda error: outcomes.append(("second", error is None)))
    sender.feed(b"\x40\x03\x00\x02\x87" + b"\x40\x02\x00\x01" * 2 + b"\x40\x02\x00\x03")
    assert (outcomes, sender.unconfirmed) == ([("second", False), ("first", True)], {})


def test_b9_a_message_of_256_mb_costs_no_more_than_its_head() -> None:
    """It is delivered behind its last byte, without its payload."""
    receiver, arrived, _ = client()
    receiver.max_packet = PACKET_ROOM + (1 << 20)
    chunk, payload = bytes(65536), (256 << 20) - 1000
    head = b"\x32" + pack_varint(payload + 5) + b"\x00\x01t\x00\x07"
    tracemalloc.start()
    receiver.feed(head)
    for _ in range(payload // len(chunk)):
        receiver.feed(chunk)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (arrived, peak < 4 * PACKET_ROOM) == ([], True)
    receiver.feed(bytes(payload % len(chunk)) + packets(Publication(b"t", b"next", 1, False, b"")))
    assert arrived == [
        ReceivedPublish("t", b"", 1, False, False, 7, b"", payload),
        ReceivedPublish("t", b"next", 1, False, False, 1, b""),
    ]


@pytest.mark.parametrize("piece", [1000, 65_536, 200_000, 1_000_000])
def test_a_payload_is_skipped_in_any_pieces(piece: int) -> None:
    large = Publication(b"t", bytes(500_000), 1, False, b"")
    stream = packets(large, Publication(b"t", b"small", 1, False, b""), large, large)
    receiver, arrived, _ = client()
    receiver.max_packet = PACKET_ROOM
    for start in range(0, len(stream), piece):
        receiver.feed(stream[start : start + piece])
    assert [(each.mid, len(each.payload) + each.skipped) for each in arrived] == [
        (1, 500_000),
        (2, 5),
        (3, 500_000),
        (4, 500_000),
    ]
    assert all(not each.payload for each in arrived if each.skipped)


def test_a_packet_that_is_too_large_and_no_message_ends_the_link() -> None:
    receiver, _, _ = client()
    receiver.max_packet = PACKET_ROOM
    receiver.feed(b"\x90" + pack_varint(PACKET_ROOM + 1))
    assert receiver.socket() is None

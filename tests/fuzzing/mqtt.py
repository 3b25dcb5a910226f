"""The parsers of MQTT 3.1.1 and 5: packets of a broker, properties, topics and topic filters."""

from __future__ import annotations

from typing import Any

from paho.mqtt.client import topic_matches_sub
from paho.mqtt.enums import MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from connectivity.errors import PublishFailed
from connectivity.transports.base import OutboundMessage
from connectivity.transports.mqtt import properties as packed
from connectivity.transports.mqtt.mqtt5 import Mqtt5
from connectivity.transports.mqtt.mqtt311 import Mqtt311
from connectivity.transports.mqtt.paho_client import PACKET_ROOM, SansIoPahoClient
from connectivity.transports.mqtt.protocol_version import ReceivedPublish
from connectivity.transports.mqtt.topics import Sources, filter_fault, matches, replace_unfit, text_fault, topic_fault
from mappings.model.envelope import Envelope
from tests.fuzzing.target import target
from tests.support.reactive_streams_io.faulty_wire import pieces
from tests.support.recorded_confirms import record_confirms

SIZES = ([1], [3, 30], [9], [5000])
V311, V5 = MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5


class _FakeSocket:
    def close(self) -> None:
        """Do nothing: no socket is open."""


class _Client(SansIoPahoClient):
    """A client that records received messages with their headers, confirms and connects."""

    def __init__(self, *, is_5: bool) -> None:
        super().__init__("lab", V5 if is_5 else V311, clean_session=True)
        self._sock = _FakeSocket()  # type: ignore[assignment]
        self.max_packet = PACKET_ROOM
        self.version = Mqtt5() if is_5 else Mqtt311()
        self.arrived: list[tuple[ReceivedPublish, dict[str, str]]] = []
        self.confirmed = record_confirms(self)
        self.connected: list[int] = []
        self.on_arrival = self._arrival
        self.on_connect = lambda *given: self.connected.append(given[3].value)
        self.on_subscribe = lambda *given: None
        self.on_disconnect = lambda *given: None

    def _arrival(self, publish: ReceivedPublish) -> None:
        headers, _ = self.version.headers_of(publish)
        for text in (*headers, *headers.values()):
            text.encode()
        self.arrived.append((publish, headers))

    @property
    def received(self) -> tuple[Any, ...]:
        return self.arrived, self.confirmed, self.connected, self.is_open

    @property
    def is_open(self) -> bool:
        return self._sock is not None


def read_packets(data: bytes) -> None:
    """Packets give the same messages, whatever the sizes of the pieces in which they arrive.

    The first byte selects the version and the sizes.
    """
    how, received = data[0] if data else 0, data[1:]
    whole = _fed(received, [len(received) or 1], is_5=bool(how & 1))
    other = _fed(received, SIZES[how >> 1 & 3], is_5=bool(how & 1))
    assert other.received == whole.received
    _compare_properties(received)
    _publish_again(whole)


def _fed(data: bytes, sizes: list[int], *, is_5: bool) -> _Client:
    client = _Client(is_5=is_5)
    for piece in pieces(data, sizes):
        if client.is_open:
            client.feed(piece)
    return client


def _compare_properties(content: bytes) -> None:
    """The properties that the service reads are those that paho reads."""
    try:
        ours = packed.unpack(content)
    except packed.MalformedProperty:
        return
    theirs: Any = Properties(PacketTypes.PUBLISH)
    try:
        theirs.unpack(packed.pack_varint(len(content)) + content)
    except Exception:  # paho refuses more: repeated properties, texts with control characters
        return
    assert getattr(theirs, "UserProperty", []) == list(ours.users)
    assert getattr(theirs, "ContentType", None) == ours.content_type
    assert getattr(theirs, "ResponseTopic", None) == ours.response_topic
    assert getattr(theirs, "CorrelationData", None) == ours.correlation
    assert getattr(theirs, "MessageExpiryInterval", None) == ours.expiry


def _publish_again(client: _Client) -> None:
    """The headers of a message are the same after publishing them, but for characters that MQTT refuses."""
    for publish, headers in client.arrived:
        message = OutboundMessage(publish.topic, Envelope(publish.payload, headers))
        try:
            publication = client.version.publication(message)
        except PublishFailed:
            continue
        if not isinstance(client.version, Mqtt5):
            continue
        size, start = packed.unpack_varint(publication.properties, 0)
        again = packed.unpack(publication.properties[start : start + size])
        sent = {(replace_unfit(name), replace_unfit(value)) for name, value in headers.items()}
        assert sent.issuperset(again.users)


def _packet(head: int, body: bytes) -> bytes:
    return bytes((head,)) + packed.pack_varint(len(body)) + body


def _text(text: bytes) -> bytes:
    return len(text).to_bytes(2, "big") + text


_USER = packed.pack_user("a", "b") + packed.pack_text(packed.CONTENT_TYPE, "text/plain") + packed.pack_expiry(7)
_MORE = (
    packed.pack_text(packed.RESPONSE_TOPIC, "r/s")
    + packed.pack_binary(packed.CORRELATION_DATA, b"c\xff")
    + b"\x0b\x01\x01\x01\x23\x00\x02"
)
_SEEDS = [
    (0, _packet(0x20, b"\x00\x00")),
    (0, _packet(0x20, b"\x00\x02")),
    (1, _packet(0x20, b"\x01\x00\x06\x21\x00\x14\x22\x00\x0a")),
    (0, _packet(0x30, _text(b"a/b") + b"on")),
    (0, _packet(0x33, _text(b"a/b") + b"\x00\x07on") * 2),
    (1, _packet(0x32, _text(b"a/b") + b"\x00\x07" + packed.pack_varint(len(_USER)) + _USER + b"on")),
    (1, _packet(0x3D, _text(b"a/b") + b"\x00\x08" + packed.pack_varint(len(_MORE)) + _MORE + b"on")),
    (1, _USER + _MORE),
    (0, _packet(0x40, b"\x00\x01") + _packet(0x50, b"\x00\x02") + _packet(0x70, b"\x00\x02")),
    (1, _packet(0x40, b"\x00\x01\x10\x00") + _packet(0x50, b"\x00\x02\x87") + _packet(0x70, b"\x00\x02\x92\x00")),
    (0, _packet(0x62, b"\x00\x02") + _packet(0xD0, b"") + _packet(0x90, b"\x00\x01\x01\x80")),
    (1, _packet(0x90, b"\x00\x01\x00\x01\x87") + _packet(0xB0, b"\x00\x01\x00\x00")),
    (1, _packet(0xE0, b"\x8e\x00")),
    (1, _packet(0xE0, b"\x8e\x05\x1f\x00\x02no")),
    (0, _packet(0xE0, b"")),
]
_WORDS = [bytes((head,)) for head in (0x20, 0x30, 0x32, 0x34, 0x40, 0x50, 0x62, 0x70, 0x90, 0xB0, 0xD0, 0xE0, 0xF0)]

# ── topics ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_topics(data: bytes) -> None:
    """The service and paho agree on which topics a topic filter matches.

    The first line is the filter, the others are topics.
    """
    topic_filter, *topics = data.decode("utf-8", "replace").split("\n")
    if text_fault(topic_filter) is None:
        packed.pack_text(packed.CONTENT_TYPE, topic_filter)
    if filter_fault(topic_filter) is not None:
        return
    valid = [topic for topic in topics if topic_fault(topic) is None]
    inner = topic_filter.split("/", 2)[2] if topic_filter.startswith("$share/") else topic_filter
    sources = Sources([[topic_filter], ["a/#", topic_filter], ["#"]])
    for topic in valid:
        found = matches(topic_filter, topic)
        assert found == topic_matches_sub(inner, topic)
        assert (0 in sources.of(topic)) == found
        assert (2 in sources.of(topic)) == (not topic.startswith("$"))


TARGETS = {
    "mqtt-packets": target(
        read_packets,
        [bytes([version | number << 1 & 6]) + each for number, (version, each) in enumerate(_SEEDS)],
        _WORDS,
    ),
    "mqtt-topics": target(
        read_topics,
        ["a/+/c\na/b/c\na/c", "#\n$SYS/a\na", "+/b/#\na/b\n$a/b", "$share/g/a/#\na\na/b", "/+\n/\n/a", "$SYS/#\n$SYS"],
        ("/", "+", "#", "$share/", "$SYS", "\n", "//"),
    ),
}

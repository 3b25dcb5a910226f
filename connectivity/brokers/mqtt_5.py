"""MQTT 5: as MQTT 3.1.1 in `brokers/mqtt.py`, with headers.

What it adds to the page `docs/mqtt.md` is said in `MANUAL`; the properties on the wire are `connectivity.mqtt.properties`.
"""

from __future__ import annotations

from collections.abc import Mapping

from paho.mqtt.enums import MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from connectivity.brokers.base import BrokerType, Examination, Outgoing, Sign
from connectivity.brokers.mqtt import OUTCOMES, QOS, RETAIN, TOPIC, Mqtt311, encode_topic, read_qos, read_retain
from connectivity.errors import PublishFailed
from connectivity.manual import HeaderRule, Limit, Manual, Note
from connectivity.model import Connection
from connectivity.mqtt import properties as packed
from connectivity.mqtt.checks import check_mqtt_5
from connectivity.mqtt.connecting import connect
from connectivity.mqtt.dialect import Arrival, Publication
from connectivity.mqtt.examining import examine
from connectivity.mqtt.link import IN_FLIGHT, MqttLink
from connectivity.mqtt.options import Options
from connectivity.mqtt.topics import matches

EXPIRY, CORRELATION, REPLY_TO, CONTENT_TYPE = (
    "mqtt.message-expiry-interval",
    "correlation-id",
    "reply-to",
    "content-type",
)
RESERVED = frozenset({TOPIC, QOS, RETAIN, EXPIRY, CORRELATION, REPLY_TO, CONTENT_TYPE})

SESSION_EXPIRY = 60
"""Seconds that the broker keeps a session after its link is gone."""

NO_PROPERTIES = b"\x00"

READER_SIGNS: Mapping[int, Sign] = {0: Sign.HEARD, 16: Sign.UNHEARD, 135: Sign.REFUSED, 144: Sign.REFUSED}
"""What the reasons of PUBACK and PUBREC tell of those who read (MQTT 5, table 3-4)."""


class Mqtt5(Mqtt311):
    """How MQTT 5 carries an envelope; see `connectivity.mqtt.dialect.Dialect`."""

    protocol = MQTTProtocolVersion.MQTTv5
    signs = READER_SIGNS

    def received(self, arrival: Arrival) -> tuple[dict[str, str], tuple[int, ...]]:
        headers, _ = super().received(arrival)
        found = packed.unpack(arrival.properties)
        for name, value in found.users:
            if name.lower() not in RESERVED:
                headers[name] = value
        if found.expiry is not None:
            headers[EXPIRY] = str(found.expiry)
        if found.correlation is not None:
            headers[CORRELATION] = found.correlation.decode(errors="replace")
        if found.response_topic is not None:
            headers[REPLY_TO] = found.response_topic
        if found.content_type is not None:
            headers[CONTENT_TYPE] = found.content_type
        return headers, found.subscriptions

    def publication(self, message: Outgoing) -> Publication:
        topic, qos, retain = message.address, message.qos, False
        parts: list[bytes] = []
        for name, value in message.envelope.headers.items():
            if name == TOPIC:
                topic = value
            elif name == QOS:
                qos = read_qos(value)
            elif name == RETAIN:
                retain = read_retain(value)
            elif value and not value.isspace():
                parts.append(_pack(name, value))
        properties = b"".join(parts)
        properties = packed.pack_varint(len(properties)) + properties if properties else NO_PROPERTIES
        return Publication(encode_topic(topic), message.envelope.payload, qos, retain, properties)

    def connect_properties(self, receive_maximum: int) -> Properties | None:
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = SESSION_EXPIRY
        properties.ReceiveMaximum = receive_maximum
        return properties

    def subscribe_properties(self, number: int) -> Properties | None:
        properties = Properties(PacketTypes.SUBSCRIBE)
        properties.SubscriptionIdentifier = number
        return properties


def _pack(name: str, value: str) -> bytes:
    """One header as a property. Raises PublishFailed for a value that MQTT cannot carry."""
    try:
        if name == CORRELATION:
            return packed.pack_binary(packed.CORRELATION_DATA, value.encode())
        if name == CONTENT_TYPE:
            return packed.pack_text(packed.CONTENT_TYPE, value)
        if name == REPLY_TO:
            encode_topic(value)
            return packed.pack_text(packed.RESPONSE_TOPIC, value)
        if name == EXPIRY:
            return _pack_expiry(value)
        return packed.pack_user(name, value)
    except (packed.Malformed, UnicodeEncodeError) as error:
        raise PublishFailed(
            f"header {name[:200]!r} has {error}, expected text that MQTT can carry", status=400
        ) from error


def _pack_expiry(text: str) -> bytes:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 10) or int(digits) > packed.LONGEST_EXPIRY:
        expected = f"seconds from 0 to {packed.LONGEST_EXPIRY}"
        raise PublishFailed(f"header {EXPIRY} is {text[:200]!r}, expected {expected}", status=400)
    return packed.pack_expiry(int(digits)) if int(digits) else b""


async def _connect(connection: Connection, client: int = 0) -> MqttLink:
    return await connect(connection, Mqtt5(), client)


async def _examine(connection: Connection, name: str) -> Examination:
    return await examine(connection, Mqtt5(), name)


MANUAL = Manual(
    family="MQTT",
    title="MQTT 5",
    introduction="MQTT 5: as [`mqtt`](#type-mqtt), and messages have headers, which travel as properties.",
    example="examples/connections/gateways.json",
    headers=(
        HeaderRule(CORRELATION, "correlation data", "correlation data"),
        HeaderRule(REPLY_TO, "response topic", "response topic"),
        HeaderRule(CONTENT_TYPE, "content type", "content type"),
        HeaderRule(EXPIRY, "seconds that were left", "seconds to keep it; 0: for ever"),
        HeaderRule("any other", "the user property of this name", "a user property, unless it is blank"),
    ),
    header_rules=f"""\
`{TOPIC}`, `{QOS}` and `{RETAIN}` are as with `mqtt`. A user property that is called like one of the others is ignored; of
several with one name the last one counts.
""",
    outcomes=OUTCOMES,
    limits=(
        Limit("how long the broker keeps a session after its link is gone", f"{SESSION_EXPIRY} s"),
        Limit("unacknowledged deliveries, at which the broker holds back", str(IN_FLIGHT)),
    ),
    notes=(
        Note(
            "Several clients",
            """\
The clients of a connection (`clientCount`) share their subscriptions in a group that is called like the connection: each
message comes to one of them. Their client ids are the client id with `_0`, `_1` and so on behind it. A broker that has no
shared subscriptions delivers to the first client alone; the others publish, and the status says so. Which client gets a
message is the broker's choice, so it promises no order between two messages of one sender, not even on one topic; and what
is for a client whose link is gone waits for that client, for as long as its session is kept. Retained messages are not
delivered through shared subscriptions. `consumerCount` changes nothing: a source has one subscription for each client.
""",
        ),
        Note(
            "Several sources",
            """\
Each source's subscription has a number, so that a message which comes once for each of two sources is not handled twice by
both.
""",
        ),
    ),
)

BROKER = BrokerType(
    name="mqtt-5",
    schemes=("tcp", "ssl"),
    secure_schemes=("ssl",),
    options=Options,
    check=check_mqtt_5,
    has_headers=True,
    connect=_connect,
    examine=_examine,
    manual=MANUAL,
    matches=matches,
)

"""The connection type `mqtt-5`: how MQTT 5 carries an envelope, with its headers as properties."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from paho.mqtt.enums import MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from connectivity.errors import PublishFailed
from connectivity.transports.base import OutboundMessage, ReaderStatus
from connectivity.transports.mqtt import mqtt311
from connectivity.transports.mqtt import properties as packed
from connectivity.transports.mqtt.connector import connect
from connectivity.transports.mqtt.mqtt311 import QOS, RETAIN, TOPIC, Mqtt311, encode_topic, read_qos, read_retain
from connectivity.transports.mqtt.probe import examine
from connectivity.transports.mqtt.protocol_version import Publication, ReceivedPublish, asyncapi_names
from connectivity.transports.mqtt.validation import MQTT_5_SCHEMA, check_mqtt_5

EXPIRY, CORRELATION, REPLY_TO, CONTENT_TYPE = (
    "mqtt.message-expiry-interval",
    "correlation-id",
    "reply-to",
    "content-type",
)
RESERVED = frozenset({TOPIC, QOS, RETAIN, EXPIRY, CORRELATION, REPLY_TO, CONTENT_TYPE})

BINARY = "base64:"
"""The beginning of a correlation ID in base64."""

_FOR_ADDRESSES = b"-_"
"""The characters of base64 in place of + and /, which have a meaning in topics."""

NO_PROPERTIES = b"\x00"

READER_SIGNS: Mapping[int, ReaderStatus] = {
    0: ReaderStatus.HEARD,
    16: ReaderStatus.UNDELIVERED,
    135: ReaderStatus.REFUSED,
    144: ReaderStatus.REFUSED,
}
"""The status of readers for reasons of PUBACK and PUBREC (MQTT 5, table 3-4)."""


class Mqtt5(Mqtt311):
    """The `connectivity.transports.mqtt.protocol_version.ProtocolVersion` of MQTT 5."""

    protocol = MQTTProtocolVersion.MQTTv5
    reader_statuses = READER_SIGNS

    def headers_of(self, arrival: ReceivedPublish) -> tuple[dict[str, str], tuple[int, ...]]:
        headers, _ = super().headers_of(arrival)
        found = packed.unpack(arrival.properties)
        for name, value in found.users:
            if name.lower() not in RESERVED:
                headers[name] = value
        if found.expiry is not None:
            headers[EXPIRY] = str(found.expiry)
        if found.correlation is not None:
            headers[CORRELATION] = _correlation_id(found.correlation)
        if found.response_topic is not None:
            headers[REPLY_TO] = found.response_topic
        if found.content_type is not None:
            headers[CONTENT_TYPE] = found.content_type
        return headers, found.subscriptions

    def publication(self, message: OutboundMessage) -> Publication:
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

    def connect_properties(self, receive_maximum: int, max_packet: int) -> Properties | None:
        properties = Properties(PacketTypes.CONNECT)
        properties.ReceiveMaximum = receive_maximum
        properties.MaximumPacketSize = max_packet
        return properties

    def subscribe_properties(self, number: int) -> Properties | None:
        properties = Properties(PacketTypes.SUBSCRIBE)
        properties.SubscriptionIdentifier = number
        return properties


def _pack(name: str, value: str) -> bytes:
    """Return one header as a packed property, empty for a `reply-to` that is no topic.

    Raises PublishFailed for a value that MQTT cannot carry.
    """
    try:
        if name == CORRELATION:
            return packed.pack_binary(packed.CORRELATION_DATA, _correlation_data(value))
        if name == CONTENT_TYPE:
            return packed.pack_text(packed.CONTENT_TYPE, value)
        if name == REPLY_TO:
            with suppress(PublishFailed):
                return packed.pack_binary(packed.RESPONSE_TOPIC, encode_topic(value))
            return b""
        if name == EXPIRY:
            return _pack_expiry(value)
        return packed.pack_user(name, value)
    except packed.MalformedProperty as error:
        raise PublishFailed(f"header {name[:200]!r}: found {error}", status=400) from error


def _correlation_id(data: bytes) -> str:
    """Return correlation data as text: as it is, if the same bytes are made of it, else in base64."""
    with suppress(UnicodeDecodeError):
        if _correlation_data(text := data.decode()) == data:
            return text
    return BINARY + b64encode(data, _FOR_ADDRESSES).decode()


def _correlation_data(id: str) -> bytes:
    """Return the bytes of a correlation ID: those in base64, if `_correlation_id` has encoded them."""
    if id.startswith(BINARY):
        with suppress(ValueError):
            data = b64decode(id.removeprefix(BINARY), _FOR_ADDRESSES, validate=True)
            if _correlation_id(data) == id:
                return data
    return id.encode(errors="replace")


def _pack_expiry(text: str) -> bytes:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 10) or int(digits) > packed.MAX_EXPIRY:
        expected = f"seconds from 0 to {packed.MAX_EXPIRY}"
        raise PublishFailed(f"header {EXPIRY} is {text[:200]!r}, expected {expected}", status=400)
    return packed.pack_expiry(int(digits)) if int(digits) else b""


CONNECTION_TYPE = replace(
    mqtt311.CONNECTION_TYPE,
    name="mqtt-5",
    check=check_mqtt_5,
    has_headers=True,
    connect=partial(connect, Mqtt5()),
    open_session=partial(connect, Mqtt5(), is_publishing=False),
    asyncapi=asyncapi_names("5.0"),
    examine=partial(examine, Mqtt5()),
    schema=MQTT_5_SCHEMA,
)

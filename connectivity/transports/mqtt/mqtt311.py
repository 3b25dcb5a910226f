"""The connection type `mqtt`: how MQTT 3.1.1 carries an envelope."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from paho.mqtt.enums import MQTTProtocolVersion
from paho.mqtt.properties import Properties

from connectivity.errors import PublishFailed
from connectivity.transports.base import ConnectionType, OutboundMessage, ReaderStatus
from connectivity.transports.mqtt.connector import connect, session_names
from connectivity.transports.mqtt.options import Options
from connectivity.transports.mqtt.probe import examine
from connectivity.transports.mqtt.protocol_version import Publication, ReceivedPublish, asyncapi_names
from connectivity.transports.mqtt.topics import CACHED_TOPICS, MOST_LEVELS, is_filter, matches, topic_fault
from connectivity.transports.mqtt.validation import MQTT_SCHEMA, check_mqtt
from mappings.text_cache import cached_if_short

TOPIC, QOS, RETAIN = "mqtt.topic", "mqtt.qos", "mqtt.retain"

BROKER_TOPICS = ("$SYS", "$share")
"""The first levels of a broker's own topics: Mosquitto closes the link upon a message to one."""

_QOS = {"0": 0, "1": 1, "2": 2}
_RETAIN = {"true": True, "false": False}
_RETAIN_TEXTS = ("false", "true")


class Mqtt311:
    """The `connectivity.transports.mqtt.protocol_version.ProtocolVersion` of MQTT 3.1.1."""

    protocol = MQTTProtocolVersion.MQTTv311
    reader_statuses: Mapping[int, ReaderStatus] = {}

    def headers_of(self, arrival: ReceivedPublish) -> tuple[dict[str, str], tuple[int, ...]]:
        headers = {TOPIC: arrival.topic, QOS: str(arrival.qos), RETAIN: _RETAIN_TEXTS[arrival.retain]}
        return headers, ()

    def publication(self, message: OutboundMessage) -> Publication:
        topic, qos, retain = message.address, message.qos, False
        for name, value in message.envelope.headers.items():
            if name == TOPIC:
                topic = value
            elif name == QOS:
                qos = read_qos(value)
            elif name == RETAIN:
                retain = read_retain(value)
        return Publication(encode_topic(topic), message.envelope.payload, qos, retain, b"")

    def connect_properties(self, receive_maximum: int, max_packet: int) -> Properties | None:  # noqa: ARG002
        return None

    def subscribe_properties(self, number: int) -> Properties | None:  # noqa: ARG002
        return None


def read_qos(text: str) -> int:
    """Read a QoS header. Raises PublishFailed for anything but 0, 1 and 2."""
    if (qos := _QOS.get(text.strip())) is None:
        raise PublishFailed(f"header {QOS} is {text!r}, expected 0, 1 or 2", status=400)
    return qos


def read_retain(text: str) -> bool:
    """Read a retain header. Raises PublishFailed for anything but `true` and `false`, in any case."""
    if (retain := _RETAIN.get(text.strip().lower())) is None:
        raise PublishFailed(f"header {RETAIN} is {text!r}, expected true or false", status=400)
    return retain


@cached_if_short(CACHED_TOPICS)
def encode_topic(topic: str) -> bytes:
    """Return the topic's bytes. Raises PublishFailed for a topic that cannot be published to."""
    fault = topic_fault(topic)
    if fault is None and topic.split("/", 1)[0] in BROKER_TOPICS:
        fault = "a topic of the broker"
    if fault is None and topic.count("/") >= MOST_LEVELS:
        fault = f"more than {MOST_LEVELS} levels"
    if fault is not None:
        raise PublishFailed(f"the topic {topic[:200]!r} cannot be published to: found {fault}", status=400)
    return topic.encode()


CONNECTION_TYPE = ConnectionType(
    name="mqtt",
    schemes=("tcp", "ssl"),
    secure_schemes=("ssl",),
    options=Options,
    check=check_mqtt,
    has_headers=False,
    connect=partial(connect, Mqtt311()),
    open_session=partial(connect, Mqtt311(), is_publishing=False),
    asyncapi=asyncapi_names("3.1.1"),
    examine=partial(examine, Mqtt311()),
    matches=matches,
    is_filter=is_filter,
    address_header=TOPIC,
    session_names=session_names,
    schema=MQTT_SCHEMA,
)

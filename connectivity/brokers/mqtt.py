"""MQTT 3.1.1.

**Addresses.** A source's addresses are topic filters (`fleet/+/cmd`, `fleet/#`); a target's or reply-target's address is a
topic. A message goes to every source one of whose filters matches.

**Headers.** MQTT 3.1.1 carries none. Deliveries have `mqtt.topic`, `mqtt.qos` and `mqtt.retain`; in messages to send the
same three headers, set by a header mapping, take the place of the address, the QoS and "not retained"; others are dropped.

**Settling.** Settled and dropped deliveries are acknowledged, in the order of arrival. One that is to come again is not
acknowledged, so it comes again on the next link, with a mark; `reconnectForRedelivery` makes the next link come soon. A
delivery is named by its packet identifier. With QoS 0 there is nothing to acknowledge and nothing comes again.

**Limits.** One client for a connection and one consumer for a source, since this version cannot share subscriptions.
Sources with QoS 2 subscribe with QoS 1. 100 messages may wait for the broker's confirm, 1000 deliveries for their end.

The options are described in `connectivity.mqtt.options`, the link in `connectivity.mqtt.link`.
"""

from __future__ import annotations

from functools import lru_cache

from paho.mqtt.enums import MQTTProtocolVersion
from paho.mqtt.properties import Properties

from connectivity.brokers.base import BrokerType, Outgoing
from connectivity.errors import PublishFailed
from connectivity.model import Connection
from connectivity.mqtt.checks import check_mqtt
from connectivity.mqtt.connecting import connect
from connectivity.mqtt.dialect import Arrival, Publication
from connectivity.mqtt.link import MqttLink
from connectivity.mqtt.options import Options
from connectivity.mqtt.topics import CACHED_TOPICS, topic_fault

TOPIC, QOS, RETAIN = "mqtt.topic", "mqtt.qos", "mqtt.retain"

_QOS = {"0": 0, "1": 1, "2": 2}
_RETAIN = {"true": True, "false": False}
_RETAIN_TEXTS = ("false", "true")


class Mqtt311:
    """How MQTT 3.1.1 carries an envelope; see `connectivity.mqtt.dialect.Dialect`."""

    protocol = MQTTProtocolVersion.MQTTv311

    def received(self, arrival: Arrival) -> tuple[dict[str, str], tuple[int, ...]]:
        headers = {TOPIC: arrival.topic, QOS: str(arrival.qos), RETAIN: _RETAIN_TEXTS[arrival.retain]}
        return headers, ()

    def publication(self, message: Outgoing) -> Publication:
        topic, qos, retain = message.address, message.qos, False
        for name, value in message.envelope.headers.items():
            if name == TOPIC:
                topic = value
            elif name == QOS:
                qos = read_qos(value)
            elif name == RETAIN:
                retain = read_retain(value)
        return Publication(encode_topic(topic), message.envelope.payload, qos, retain, b"")

    def connect_properties(self, receive_maximum: int) -> Properties | None:  # noqa: ARG002
        return None

    def subscribe_properties(self, number: int) -> Properties | None:  # noqa: ARG002
        return None


def read_qos(text: str) -> int:
    """Raises PublishFailed for anything but 0, 1 and 2."""
    if (qos := _QOS.get(text.strip())) is None:
        raise PublishFailed(f"header {QOS} is {text!r}, expected 0, 1 or 2", status=400)
    return qos


def read_retain(text: str) -> bool:
    """Raises PublishFailed for anything but `true` and `false`, in any case."""
    if (retain := _RETAIN.get(text.strip().lower())) is None:
        raise PublishFailed(f"header {RETAIN} is {text!r}, expected true or false", status=400)
    return retain


@lru_cache(maxsize=CACHED_TOPICS)
def encode_topic(topic: str) -> bytes:
    """The topic's bytes. Raises PublishFailed for one that cannot be published to."""
    if (fault := topic_fault(topic)) is not None:
        raise PublishFailed(f"the topic {topic[:200]!r} has {fault}, expected a topic to publish to", status=400)
    return topic.encode()


async def _connect(connection: Connection, client: int = 0) -> MqttLink:
    return await connect(connection, Mqtt311(), client)


BROKER = BrokerType(
    name="mqtt",
    schemes=("tcp", "ssl"),
    secure_schemes=("ssl",),
    options=Options,
    check=check_mqtt,
    has_headers=False,
    connect=_connect,
)

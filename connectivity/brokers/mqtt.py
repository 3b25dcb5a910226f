"""MQTT 3.1.1: how it carries an envelope, and what people are told about it.

`MANUAL` says how addresses, headers, outcomes and limits are here; `docs/mqtt.md` is printed from it. The options are
described in `connectivity.mqtt.options`, the link in `connectivity.mqtt.link`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from paho.mqtt.enums import MQTTProtocolVersion
from paho.mqtt.properties import Properties

from connectivity.brokers.base import BrokerType, Examination, Outgoing, Sign
from connectivity.errors import PublishFailed
from connectivity.manual import AddressForm, HeaderRule, Limit, Manual, Note, Outcomes
from connectivity.model import Connection
from connectivity.mqtt.checks import check_mqtt
from connectivity.mqtt.connecting import HIGHEST_SUBSCRIBED_QOS, WINDOW, connect
from connectivity.mqtt.dialect import Arrival, Publication
from connectivity.mqtt.examining import examine
from connectivity.mqtt.link import IN_FLIGHT, MqttLink
from connectivity.mqtt.options import Options
from connectivity.mqtt.topics import CACHED_TOPICS, matches, topic_fault

TOPIC, QOS, RETAIN = "mqtt.topic", "mqtt.qos", "mqtt.retain"

_QOS = {"0": 0, "1": 1, "2": 2}
_RETAIN = {"true": True, "false": False}
_RETAIN_TEXTS = ("false", "true")


class Mqtt311:
    """How MQTT 3.1.1 carries an envelope; see `connectivity.mqtt.dialect.Dialect`."""

    protocol = MQTTProtocolVersion.MQTTv311
    signs: Mapping[int, Sign] = {}

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


async def _examine(connection: Connection, name: str) -> Examination:
    return await examine(connection, Mqtt311(), name)


OUTCOMES = Outcomes(
    settled="it is acknowledged",
    again="it is not acknowledged, so it comes again on the next link, with a mark; `reconnectForRedelivery` makes the next "
    "link come soon",
    dropped="it is acknowledged",
)
MANUAL = Manual(
    family="MQTT",
    title="MQTT 3.1.1",
    introduction="MQTT 3.1.1, for devices: messages carry no headers, so what a command has to say stands in its payload.",
    example="examples/connections/devices.yaml",
    addresses=(
        AddressForm("source", "topic filter", "all topics that it matches", "fleet/+/cmd"),
        AddressForm("target, reply-target", "topic", "whoever has subscribed to it", "fleet/{{ thing:name }}/res"),
    ),
    address_rules="A message goes to every source one of whose filters matches.",
    headers=(
        HeaderRule(TOPIC, "where it arrived", "takes the place of the address"),
        HeaderRule(QOS, "the QoS it came with", "takes the place of the source's or target's"),
        HeaderRule(RETAIN, "whether the broker had kept it", "`true`: the broker keeps it for later subscribers"),
        HeaderRule("any other", "there is none", "is dropped"),
    ),
    header_rules="In messages to send they are set by a header mapping.",
    outcomes=OUTCOMES,
    settling_rules="""\
Acknowledgements go in the order of arrival. A delivery is named by its packet identifier. With QoS 0 there is nothing to
acknowledge and nothing comes again.
""",
    limits=(
        Limit("deliveries that wait for their end", str(IN_FLIGHT)),
        Limit("messages that wait for the broker's confirm", str(WINDOW)),
        Limit("the QoS that sources subscribe with", f"{HIGHEST_SUBSCRIBED_QOS}, also where they say 2"),
        Limit(
            "clients of a connection",
            "one, since this version cannot share subscriptions; with `separatePublisherClient` one more",
        ),
    ),
    notes=(
        Note(
            "Retained messages",
            """\
Do not publish commands with the retain flag: a broker delivers a retained message at every new subscription, so the command
would be carried out again each time the service connects.
""",
        ),
    ),
)

BROKER = BrokerType(
    name="mqtt",
    schemes=("tcp", "ssl"),
    secure_schemes=("ssl",),
    options=Options,
    check=check_mqtt,
    has_headers=False,
    connect=_connect,
    examine=_examine,
    manual=MANUAL,
    matches=matches,
)

"""The differences between MQTT 3.1.1 and 5: headers, and properties of CONNECT and SUBSCRIBE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from paho.mqtt.enums import MQTTProtocolVersion
from paho.mqtt.properties import Properties

from connectivity.transports.base import AsyncApiNames, OutboundMessage, ReaderStatus


class ReceivedPublish(NamedTuple):
    """A received PUBLISH packet. `properties` are still packed, and empty in MQTT 3.1.1.

    `skipped` is the size of a payload that was too large to keep.
    """

    topic: str
    payload: bytes
    qos: int
    retain: bool
    redelivered: bool
    mid: int
    properties: bytes
    skipped: int = 0


class Publication(NamedTuple):
    """A PUBLISH packet to send. `properties` are packed with their length; empty in MQTT 3.1.1."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    properties: bytes


class ProtocolVersion(Protocol):
    """One version of MQTT."""

    protocol: MQTTProtocolVersion
    reader_statuses: Mapping[int, ReaderStatus]
    """The status of readers for the reason code of a confirm; other reasons say nothing."""

    def headers_of(self, arrival: ReceivedPublish) -> tuple[dict[str, str], tuple[int, ...]]:
        """Return the headers of a message, and its subscription identifiers (none: unknown)."""

    def publication(self, message: OutboundMessage) -> Publication:
        """Return the packet to send. Raises PublishFailed for invalid headers."""

    def connect_properties(self, receive_maximum: int, max_packet: int) -> Properties | None: ...

    def subscribe_properties(self, number: int) -> Properties | None:
        """Return the properties that make the broker add this identifier to the subscription's messages."""


def asyncapi_names(version: str) -> AsyncApiNames:
    """Return how AsyncAPI names this version of MQTT."""
    return AsyncApiNames(
        "mqtt",
        "secure-mqtt",
        version,
        {"+": "One level of the topic.", "#": "The remaining levels of the topic."},
        lambda qos: {"mqtt": {"qos": qos, "bindingVersion": "0.2.0"}},
    )

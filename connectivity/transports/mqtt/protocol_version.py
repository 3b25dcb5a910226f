"""What differs between MQTT 3.1.1 and 5, as the link sees it: how headers travel, and what a CONNECT or SUBSCRIBE adds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from paho.mqtt.enums import MQTTProtocolVersion
from paho.mqtt.properties import Properties

from connectivity.transports.base import OutboundMessage, ReaderStatus


class Arrival(NamedTuple):
    """A PUBLISH packet as received. `properties` are still packed, and empty in MQTT 3.1.1."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    redelivered: bool
    mid: int
    properties: bytes


@dataclass(frozen=True, slots=True)
class Publication:
    """A PUBLISH packet to send. `properties` are packed with their length; empty in MQTT 3.1.1."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    properties: bytes


class ProtocolVersion(Protocol):
    """One version of MQTT."""

    protocol: MQTTProtocolVersion
    signs: Mapping[int, ReaderStatus]
    """What the reason of a confirm says about those who read: nothing, where it is not here."""

    def received(self, arrival: Arrival) -> tuple[dict[str, str], tuple[int, ...]]:
        """The headers of a message, and the numbers of the subscriptions that it came by (none: not known)."""

    def publication(self, message: OutboundMessage) -> Publication:
        """What to send. Raises PublishFailed for headers that ask for the impossible."""

    def connect_properties(self, receive_maximum: int) -> Properties | None: ...

    def subscribe_properties(self, number: int) -> Properties | None:
        """What makes the broker mark the messages of this subscription with this number."""

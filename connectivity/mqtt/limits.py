"""What an MQTT 5 broker said in its CONNACK that it cannot take (§3.2.2.3). To send it anyway would end the link."""

from __future__ import annotations

from dataclasses import dataclass, replace

from paho.mqtt.properties import Properties

from connectivity.errors import PublishFailed
from connectivity.mqtt.dialect import Publication

MOST_BYTES = 268_435_455
"""The longest rest of a packet that the protocol can say."""

LONGEST_HEAD = 9
"""Type, length, length of the topic, packet identifier."""


@dataclass(frozen=True, slots=True)
class Limits:
    receive_maximum: int = 65535
    maximum_qos: int = 2
    retain: bool = True
    packet_size: int = MOST_BYTES
    shared_subscriptions: bool = True

    @classmethod
    def of(cls, properties: Properties | None) -> Limits:
        """The limits in a CONNACK; what it leaves out is not limited."""
        return cls(
            receive_maximum=getattr(properties, "ReceiveMaximum", 65535),
            maximum_qos=getattr(properties, "MaximumQoS", 2),
            retain=bool(getattr(properties, "RetainAvailable", 1)),
            packet_size=getattr(properties, "MaximumPacketSize", MOST_BYTES),
            shared_subscriptions=bool(getattr(properties, "SharedSubscriptionAvailable", 1)),
        )

    def fit(self, publication: Publication) -> Publication:
        """The message as the broker takes it: with its highest QoS at most. Raises PublishFailed for what it never takes."""
        size = LONGEST_HEAD + len(publication.topic) + len(publication.properties) + len(publication.payload)
        if size > self.packet_size:
            raise PublishFailed(f"a message of {size} bytes, the broker takes at most {self.packet_size}", status=413)
        if publication.retain and not self.retain:
            raise PublishFailed("a message to be retained, the broker retains none", status=400)
        if publication.qos > self.maximum_qos:
            return replace(publication, qos=self.maximum_qos)
        return publication

"""A broker of each kind for the same scenario: an operator of the Ditto protocol, and named clients.

place = ClientSetup("kafka", mosquitto, rabbitmq, kafka)
place.prepare()
documents = [place.document({"payloadMapping": ["tanks"]}, mappingDefinitions=…)]
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from paho.mqtt.client import MQTTv5, MQTTv311

from tests.support.brokers.kafka import Kafka
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.clients.amqp import AmqpClient
from tests.support.clients.kafka import KafkaClient
from tests.support.clients.mqtt import BrokerClient, MqttClient

KINDS = ("mqtt", "mqtt-5", "amqp-091", "kafka")
OPERATOR = "acme:operator"


class ClientSetup:
    """A broker with an operator and clients, whose addresses contain their names."""

    def __init__(self, kind: str, mosquitto: Mosquitto, rabbitmq: RabbitMQ, kafka: Kafka) -> None:
        self.kind = kind
        self.name = f"s{secrets.token_hex(4)}"
        self._mosquitto, self._rabbitmq, self._kafka = mosquitto, rabbitmq, kafka
        self.is_mqtt = kind.startswith("mqtt")
        self.separator = "/" if self.is_mqtt else "."

    def address(self, *parts: str) -> str:
        return self.separator.join((self.name, *parts))

    def document(self, source: dict[str, Any], **more: Any) -> dict[str, Any]:
        """Return a connection with two sources: for the operator, and for clients, which `source` completes."""
        operator = {
            "addresses": [self.address("operator", "ask")],
            "qos": 1,
            "authorizationContext": [OPERATOR],
            "replyTarget": {"address": self._written(self.address("operator", "answers"))},
        }
        clients = {
            "addresses": [self.address("+" if self.is_mqtt else "all", "req")],
            "qos": 1,
            "authorizationContext": [OPERATOR],
            "replyTarget": {"address": self._written("{{ header:reply-to }}")},
            **source,
        }
        if self.kind == "mqtt":
            clients["replyTarget"] = {"address": "{{ source:address | fn:replace('/req','/res') }}"}
        if self.kind == "kafka":
            more |= {"specificConfig": {"bootstrapServers": self._kafka.bootstrap, "consumerOffsetReset": "earliest"}}
        uris: dict[str, Callable[[], str]] = {"amqp-091": self._rabbitmq.uri, "kafka": self._kafka.uri}
        return {
            "id": self.name,
            "connectionType": self.kind,
            "connectionStatus": "open",
            "uri": uris.get(self.kind, self._mosquitto.uri)(),
            "sources": [operator, clients],
            **more,
        }

    def audience(self, *topics: str, subject: str = OPERATOR) -> dict[str, Any]:
        """Return another connection with one target, which publishes events to `listener`."""
        target = {"address": self._written(self.address("audience", "res")), "topics": list(topics), "qos": 1}
        document = {**self.document({}), "id": f"{self.name}-audience", "sources": []}
        return {**document, "targets": [{**target, "authorizationContext": [subject]}]}

    @property
    def pattern(self) -> str:
        """The pattern of the clients' reply addresses."""
        return self._written(self.address("*", "res"))

    def _written(self, address: str) -> str:
        return f"/{address}" if self.kind == "amqp-091" else address

    def requester(self, ask: str, answers: str) -> BrokerClient:
        if self.is_mqtt:
            version = MQTTv311 if self.kind == "mqtt" else MQTTv5
            broker = self._mosquitto
            return MqttClient(broker.host, broker.port, ask=ask, answers=answers, version=version)
        if self.kind == "kafka":
            return KafkaClient(self._kafka, ask=ask, answers=answers)
        return AmqpClient(self._rabbitmq.uri(), ask=ask, answers=answers)

    def prepare(self) -> None:
        """Create the addresses that must exist before the service connects."""
        if self.kind == "kafka":
            ends = [self.address(name, "res") for name in ("one", "two", "audience")]
            self._kafka.create(self.address("operator", "ask"), self.address("operator", "answers"))
            self._kafka.create(self.address("all", "req"), *ends)
        elif self.kind == "amqp-091":
            self.requester(self.address("operator", "ask"), self.address("operator", "answers")).close()
            for name in ("one", "audience"):
                self.requester(self.address("all", "req"), self.address(name, "res")).close()

    def operator(self) -> BrokerClient:
        return self.requester(self.address("operator", "ask"), self.address("operator", "answers"))

    def listener(self) -> BrokerClient:
        return self.requester(self.address("audience", "ask"), self.address("audience", "res"))

    def client(self, name: str) -> BrokerClient:
        return self.requester(self.address(name if self.is_mqtt else "all", "req"), self.address(name, "res"))


def prepared(mosquitto: Mosquitto, rabbitmq: RabbitMQ, kafka: Kafka) -> dict[str, ClientSetup]:
    """Return a prepared place of each kind."""
    made = {kind: ClientSetup(kind, mosquitto, rabbitmq, kafka) for kind in KINDS}
    for place in made.values():
        place.prepare()
    return made

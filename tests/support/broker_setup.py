"""The same scenarios on each broker: addresses of sources and of responses, and clients.

    setup = AmqpSetup(rabbitmq)
    document = setup.connection("site", setup.source("line-1", OWNER))
    with setup.client("line-1") as client:
        ...

Each setup has unique names, because all tests share the brokers.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from paho.mqtt.client import MQTTv5, MQTTv311

from tests.support.brokers.kafka import Kafka
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.clients.amqp import AmqpClient
from tests.support.clients.kafka import KafkaClient
from tests.support.clients.mqtt import BrokerClient, MqttClient


class BrokerSetup(ABC):
    """A broker with the addresses and clients of one test."""

    kind: ClassVar[str]
    separator: ClassVar[str]

    def __init__(self) -> None:
        self._prefix = f"g{secrets.token_hex(4)}"
        self.proxied: tuple[str, int] | None = None
        """Host and port of a proxy for the connections; clients connect to the broker itself."""

    def __repr__(self) -> str:
        return self.kind

    def ask(self, name: str) -> str:
        return self.separator.join((self._prefix, name, "ask"))

    def answers(self, name: str) -> str:
        return self.separator.join((self._prefix, name, "answers"))

    def source(self, name: str, *subjects: str, **more: Any) -> dict[str, Any]:
        """Return the source that the client with this name uses."""
        return {
            "addresses": [self.ask(name)],
            "qos": 1,
            "authorizationContext": list(subjects),
            "replyTarget": {"address": self.reply_address(name)},
            **more,
        }

    def connection(self, connection_id: str, *sources: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {
            "id": f"{self._prefix}-{connection_id}",
            "connectionType": self.kind,
            "connectionStatus": "open",
            "uri": self.uri(),
            "sources": list(sources),
            **more,
        }

    @abstractmethod
    def reply_address(self, name: str) -> str: ...

    @abstractmethod
    def uri(self) -> str: ...

    @abstractmethod
    def client(self, name: str) -> BrokerClient:
        """Return a client, and create the addresses that must exist before the service connects."""


class MqttSetup(BrokerSetup):
    kind = "mqtt"
    separator = "/"

    def __init__(self, broker: Mosquitto) -> None:
        super().__init__()
        self.broker = broker

    def reply_address(self, name: str) -> str:
        return self.answers(name)

    def uri(self) -> str:
        host, port = self.proxied or (self.broker.host, self.broker.port)
        return f"tcp://{host}:{port}"

    def client(self, name: str) -> BrokerClient:
        version = MQTTv5 if self.kind == "mqtt-5" else MQTTv311
        return MqttClient(
            self.broker.host, self.broker.port, ask=self.ask(name), answers=self.answers(name), version=version
        )


class Mqtt5Setup(MqttSetup):
    kind = "mqtt-5"


class AmqpSetup(BrokerSetup):
    kind = "amqp-091"
    separator = "."

    def __init__(self, broker: RabbitMQ) -> None:
        super().__init__()
        self.broker = broker

    def reply_address(self, name: str) -> str:
        return f"/{self.answers(name)}"

    def uri(self) -> str:
        host, port = self.proxied or (self.broker.host, self.broker.port)
        return self.broker.uri(host=host, port=port)

    def client(self, name: str) -> AmqpClient:
        return AmqpClient(self.broker.uri(), ask=self.ask(name), answers=self.answers(name))


class KafkaSetup(BrokerSetup):
    """The topic of commands has four partitions; all commands of an entity go to the same one."""

    kind = "kafka"
    separator = "."

    def __init__(self, broker: Kafka) -> None:
        super().__init__()
        self.broker = broker
        self._made: set[str] = set()

    def reply_address(self, name: str) -> str:
        return self.answers(name)

    def uri(self) -> str:
        host, port = self.proxied or (self.broker.host, self.broker.port)
        return f"tcp://{host}:{port}"

    def connection(self, connection_id: str, *sources: dict[str, Any], **more: Any) -> dict[str, Any]:
        options = {
            "bootstrapServers": self.uri().removeprefix("tcp://"),
            "consumerOffsetReset": "earliest",
        }
        return {**super().connection(connection_id, *sources, **more), "specificConfig": options}

    def client(self, name: str) -> BrokerClient:
        if name not in self._made:
            self._made.add(name)
            self.broker.create(self.ask(name), partitions=4)
            self.broker.create(self.answers(name))
        return KafkaClient(self.broker, ask=self.ask(name), answers=self.answers(name))

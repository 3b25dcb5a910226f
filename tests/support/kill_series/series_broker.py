"""The broker of a kill test, of each kind: its addresses, how it is killed, and what it keeps.

RabbitMQ and Kafka keep confirmed messages after SIGTERM and SIGKILL. Mosquitto writes its messages only at SIGTERM: a
SIGKILL loses confirmed messages that are not written, and sessions.
"""

from __future__ import annotations

import itertools
import queue
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.brokers.kafka import Kafka
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.brokers.proxy import ProxyThread
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.clients.amqp import AmqpClient
from tests.support.clients.paho_end import end_client
from tests.support.kill_series.clients import join
from tests.support.wait import PATIENCE

SUBJECT = "acme:load"


class KillSeriesBroker(ABC):
    """A broker and the addresses of one test."""

    kind: str
    server: str
    """The name of the fixture of such a broker."""
    broker: Mosquitto | RabbitMQ | Kafka
    survives_kill = True
    """Whether the broker keeps confirmed messages after SIGKILL."""

    options: dict[str, Any]
    """Values of `specificConfig` with which a dead link is noticed soon."""

    _separator: str

    @property
    @abstractmethod
    def uri(self) -> str:
        """The URI for load and checker; see `tests.support.kill_series.clients`."""

    @abstractmethod
    def service_uri(self, proxy: ProxyThread | None) -> str:
        """Return the URI for the service."""

    def take_down(self, *, gently: bool = False) -> None:
        """Stop the broker, by SIGKILL if it survives that and not `gently`."""
        if gently or not self.survives_kill:
            self.broker.stop()
        else:
            self.broker.kill()

    def start_again(self) -> None:
        self.broker.start_again()

    def proxy(self) -> ProxyThread:
        """Return a proxy in front of the broker, which is not started yet."""
        return ProxyThread(self.broker.host, self.broker.port)

    def addresses(self, series: str, part: str) -> tuple[str, str]:
        """Return the addresses of commands and responses of one part of a test."""
        base = f"{series}{self._separator}{part}"
        return f"{base}{self._separator}ask", f"{base}{self._separator}answers"

    def beside(self, *parts: str) -> str:
        """Return the address that these parts form."""
        return self._separator.join(parts)

    @abstractmethod
    def prepare(self, series: str, *parts: str) -> None:
        """Create the addresses that the service needs."""

    def reply_address(self, answers: str) -> str:
        return answers

    @abstractmethod
    def unsettled(self, series: str, part: str) -> int:
        """Return how many messages for the stopped service the broker still has."""

    def connection(self, series: str, *parts: str, proxy: ProxyThread | None = None) -> dict[str, Any]:
        """Return a connection with a source for each part."""
        sources = []
        for part in parts:
            ask, answers = self.addresses(series, part)
            sources.append(
                {
                    "addresses": [ask],
                    "qos": 1,
                    "authorizationContext": [SUBJECT],
                    "replyTarget": {"address": self.reply_address(answers)},
                }
            )
        return {
            "id": f"{series}-{self.kind}",
            "connectionType": self.kind,
            "connectionStatus": "open",
            "uri": self.service_uri(proxy),
            "specificConfig": self.options,
            "sources": sources,
        }


def target_connection(series_broker: KillSeriesBroker, series: str, address: str) -> dict[str, Any]:
    """Return a connection with a target for all events, which acknowledges those that its broker confirms."""
    document = series_broker.connection(f"{series}-target")
    target = {
        "address": series_broker.reply_address(address),
        "topics": ["_/_/things/twin/events"],
        "authorizationContext": [SUBJECT],
        "issuedAcknowledgementLabel": f"{document['id']}:sent",
        "qos": 1,
    }
    return {**document, "targets": [target]}


class MqttKillSeriesBroker(KillSeriesBroker):
    kind = "mqtt"
    server = "mosquitto"
    survives_kill = False
    _separator = "/"

    def __init__(self, broker: Mosquitto) -> None:
        self.broker: Mosquitto = broker
        self.options = {"keepAlive": "2s"}

    @property
    def uri(self) -> str:
        return self.broker.uri()

    def service_uri(self, proxy: ProxyThread | None) -> str:
        return self.uri if proxy is None else f"tcp://{proxy.host}:{proxy.port}"

    def prepare(self, series: str, *parts: str) -> None:
        """Do nothing: MQTT topics are not created."""

    def unsettled(self, series: str, part: str) -> int:
        """Take over the session of the service, and count the messages before one of its own."""
        ask, _ = self.addresses(series, part)
        own, came = b"the last one", queue.Queue[bytes]()
        client = Client(CallbackAPIVersion.VERSION2, f"{series}-{self.kind}", clean_session=False)
        client.on_message = lambda _client, _data, message: came.put(bytes(message.payload))
        client.connect(self.broker.host, self.broker.port)
        client.loop_start()
        client.publish(ask, own, 1)
        try:
            return next(count for count in itertools.count() if came.get(timeout=PATIENCE) == own)
        finally:
            end_client(client)


class Mqtt5KillSeriesBroker(MqttKillSeriesBroker):
    """The service uses MQTT 5, the other clients MQTT 3.1.1."""

    kind = "mqtt-5"


class AmqpKillSeriesBroker(KillSeriesBroker):
    kind = "amqp-091"
    server = "rabbitmq"
    _separator = "."

    def __init__(self, broker: RabbitMQ) -> None:
        self.broker: RabbitMQ = broker
        self.options = {"requestedHeartbeat": "2"}

    @property
    def uri(self) -> str:
        return self.broker.uri()

    def service_uri(self, proxy: ProxyThread | None) -> str:
        return self.uri if proxy is None else self.broker.uri(host=proxy.host, port=proxy.port)

    def prepare(self, series: str, *parts: str) -> None:
        for part in parts:
            join(self.uri, *self.addresses(series, part)).close()

    def unsettled(self, series: str, part: str) -> int:
        ask, answers = self.addresses(series, part)
        with AmqpClient(self.uri, ask=ask, answers=answers) as client:
            return client.waiting()

    def reply_address(self, answers: str) -> str:
        return f"/{answers}"

    def connection(self, series: str, *parts: str, proxy: ProxyThread | None = None) -> dict[str, Any]:
        document = super().connection(series, *parts, proxy=proxy)
        for source in document["sources"]:
            del source["qos"]
        return document


class KafkaKillSeriesBroker(KillSeriesBroker):
    kind = "kafka"
    server = "kafka"
    _separator = "."

    def __init__(self, broker: Kafka) -> None:
        self.broker: Kafka = broker
        self.options = {"bootstrapServers": self.broker.bootstrap, "consumerOffsetReset": "earliest"}

    @property
    def uri(self) -> str:
        return f"kafka://{self.broker.bootstrap}"

    def service_uri(self, proxy: ProxyThread | None) -> str:
        return self.broker.uri() if proxy is None else f"tcp://{proxy.host}:{proxy.port}"

    def prepare(self, series: str, *parts: str) -> None:
        self.broker.create(*(address for part in parts for address in self.addresses(series, part)))

    def unsettled(self, series: str, part: str) -> int:
        group = {"group.id": f"{series}-{self.kind}", "enable.auto.commit": False, "log_level": 0}
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap, **group})
        place = TopicPartition(self.addresses(series, part)[0], 0)
        try:
            _, end = consumer.get_watermark_offsets(place, PATIENCE)
            (committed,) = consumer.committed([place], PATIENCE)
            return int(end - max(0, committed.offset))
        finally:
            consumer.close()

    def reply_address(self, answers: str) -> str:
        return f"{answers}/{{{{ thing:id }}}}"

    def connection(self, series: str, *parts: str, proxy: ProxyThread | None = None) -> dict[str, Any]:
        document = super().connection(series, *parts, proxy=proxy)
        if proxy is not None:
            document["specificConfig"] = {**self.options, "bootstrapServers": f"{proxy.host}:{proxy.port}"}
        return document

    def proxy(self) -> ProxyThread:
        return ProxyThread(self.broker.host, self.broker.proxied_port, at=self.broker.proxy_port)


BrokerOfKind = Callable[[type[KillSeriesBroker]], KillSeriesBroker]
"""Creates a broker of this kind for a test."""

"""The same connection on each broker, for tests of behavior that must be equal on all brokers.

A `FourSources` is a broker with a connection document: four sources, a client for each, and an observer of all messages
at this broker. The sources do the same on each broker, with other addresses and transport headers.

| source | does |
|---|---|
| `fixed` | responds at a fixed address; the transport header `odd` becomes the header `custom` |
| `chosen` | responds at the address in the header `reply-to`, in the message or in its transport headers |
| `bound` | permits commands only for the entity in the transport (`device_id`, or a part of the MQTT topic) |
| `subject` | uses the transport header `who` as the subject (not over MQTT 3.1.1, which has no headers) |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

from aio_pika.abc import AbstractIncomingMessage, AbstractQueue
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]
from paho.mqtt.client import MQTTv5, MQTTv311

from tests.support.brokers.kafka import Kafka
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.clients.amqp import AmqpClient
from tests.support.clients.bare_mqtt import BareMqttClient
from tests.support.clients.kafka import KafkaClient
from tests.support.clients.mqtt import BrokerClient, MqttClient

OWNER = "acme:owner"
SOURCES = ("fixed", "chosen", "bound", "subject")
KINDS = ("mqtt", "mqtt-5", "amqp-091", "kafka")
ANSWER_WITHIN = 60.0


class FourSources(ABC):
    """A broker, with a connection whose ID is `name`."""

    kind: str
    separator = "."
    has_headers = True

    def __init__(self) -> None:
        self.name = f"g{uuid4().hex[:12]}"
        self.open = ExitStack()

    def __repr__(self) -> str:
        return f"<FourSources {self.kind} {self.name}>"

    def place(self, source: str, end: str) -> str:
        """Return the name of a topic or queue."""
        return self.separator.join((self.name, source, end))

    @property
    @abstractmethod
    def uri(self) -> str: ...

    def reply_address(self, place: str) -> str:
        """Return the address, or template, of a document that publishes responses to this place."""
        return place

    def document(self) -> dict[str, Any]:
        """Return the connection document with its sources."""
        return {
            "id": self.name,
            "connectionType": self.kind,
            "connectionStatus": "open",
            "uri": self.uri,
            "sources": [self._source(name) for name in SOURCES if self.has_headers or name != "subject"],
            **self.options(),
        }

    def options(self) -> dict[str, Any]:
        return {}

    def _source(self, name: str) -> dict[str, Any]:
        made: dict[str, Any] = {
            "addresses": [self.place(name, "ask")],
            "qos": 1,
            "authorizationContext": ["{{ header:who }}" if name == "subject" else OWNER],
            "headerMapping": {},
            "replyTarget": {"address": self.reply_address(self.place(name, "answers"))},
        }
        if self.has_headers:
            made["headerMapping"] = {
                "custom": "{{ header:odd }}",
                "correlation-id": "{{ header:correlation-id }}",
            }
        if name == "chosen":
            made["replyTarget"] = {"address": self.reply_address("{{ header:reply-to }}")}
            if self.has_headers:
                made["headerMapping"]["reply-to"] = "{{ header:reply-to }}"
        if name == "bound":
            self._bind(made)
        return made

    def _bind(self, source: dict[str, Any]) -> None:
        source["enforcement"] = {"input": "{{ header:device_id }}", "filters": ["{{ thing:id }}", "{{ policy:id }}"]}

    @abstractmethod
    def requester(self, source: str) -> BrokerClient:
        """Return a client that sends through a source."""

    def carried(self, **headers: str) -> dict[str, Any]:
        """Return transport headers as arguments of `send`; `_` is `-` in a name, except in `device_id`."""
        return {"headers": self.table({name.replace("_", "-"): value for name, value in headers.items()})}

    def table(self, headers: dict[str, str]) -> Any:
        if "device-id" in headers:
            headers["device_id"] = headers.pop("device-id")
        return headers

    def identify_as(self, requester: BrokerClient, device: str) -> dict[str, Any]:
        """Return the transport headers of the device `acme.site:<device>`."""
        return self.carried(device_id=f"acme.site:{device}")

    @abstractmethod
    def observe(self) -> None:
        """Start to observe all published messages, or forget the observed ones."""

    @abstractmethod
    def published(self) -> set[str]:
        """Return the addresses of the messages since `observe`, without those sent to the service."""

    @abstractmethod
    def left(self) -> int:
        """Return how many messages the broker holds for the service, which is stopped."""

    def close(self) -> None:
        self.open.close()


class MqttFourSources(FourSources):
    kind = "mqtt"
    separator = "/"
    has_headers = False
    version = MQTTv311

    def __init__(self, broker: Mosquitto) -> None:
        """The broker must not publish by itself (`sys_interval 0`)."""
        super().__init__()
        self.broker = broker
        self._observers: list[BareMqttClient] = []

    @property
    def uri(self) -> str:
        return self.broker.uri()

    def _bind(self, source: dict[str, Any]) -> None:
        before = f"{self.name}/bound/"
        source["addresses"] = [f"{before}+"]
        source["enforcement"] = {
            "input": "{{ source:address }}",
            "filters": [f"{before}{{{{ entity:name }}}}"],
        }
        source["replyTarget"] = {"address": f"{self.name}/answers/bound"}

    def place(self, source: str, end: str) -> str:
        return f"{self.name}/answers/bound" if (source, end) == ("bound", "answers") else super().place(source, end)

    def requester(self, source: str) -> MqttClient:
        ask, answers = self.place(source, "ask"), self.place(source, "answers")
        return MqttClient(self.broker.host, self.broker.port, ask=ask, answers=answers, version=self.version)

    def identify_as(self, requester: BrokerClient, device: str) -> dict[str, Any]:
        assert isinstance(requester, MqttClient)
        requester.ask = f"{self.name}/bound/{device}"
        return {}

    def observe(self) -> None:
        if not self._observers:
            made = [BareMqttClient(self.broker.host, self.broker.port, topic) for topic in ("#", "$SYS/#")]
            self._observers = [self.open.enter_context(each) for each in made]
        for each in self._observers:
            each.received.clear()

    def published(self) -> set[str]:
        topics = {envelope.headers["mqtt.topic"] for each in self._observers for envelope in each.received}
        return {topic for topic in topics if not topic.endswith("/ask")}

    def left(self) -> int:
        return 0  # MQTT cannot count them; the test sees them at the next start


class Mqtt5FourSources(MqttFourSources):
    """MQTT 5 with user properties: a header has the device, as on AMQP and Kafka."""

    kind = "mqtt-5"
    has_headers = True
    version = MQTTv5
    place = FourSources.place
    identify_as = FourSources.identify_as
    _bind = FourSources._bind

    def carried(self, **headers: str) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        for name, value in self.table({name.replace("_", "-"): value for name, value in headers.items()}).items():
            match name:
                case "reply-to":
                    properties["ResponseTopic"] = value
                case "correlation-id":
                    properties["CorrelationData"] = value.encode()
                case "content-type":
                    properties["ContentType"] = value
                case _:
                    properties.setdefault("UserProperty", []).append((name, value))
        return properties


class AmqpFourSources(FourSources):
    """RabbitMQ with a virtual host of which the observer traces all messages."""

    kind = "amqp-091"
    vhost = "fleet"

    def __init__(self, broker: RabbitMQ) -> None:
        super().__init__()
        self.broker = broker
        self._onlooker: _Tracer | None = None
        # The queues of the sources must exist before the service connects.
        for source in SOURCES:
            self.requester(source).close()

    @property
    def uri(self) -> str:
        return self.broker.uri(vhost=self.vhost)

    def reply_address(self, place: str) -> str:
        return f"/{place}"

    def requester(self, source: str) -> AmqpClient:
        ask, answers = self.place(source, "ask"), self.place(source, "answers")
        return AmqpClient(self.uri, ask=ask, answers=answers, says_where=False)

    def carried(self, **headers: str) -> dict[str, Any]:
        given = self.table({name.replace("_", "-"): value for name, value in headers.items()})
        names = {"reply-to": "reply_to", "correlation-id": "correlation_id", "content-type": "content_type"}
        properties = {names[name]: given.pop(name) for name in names if name in given}
        return {"headers": given, **properties}

    def observe(self) -> None:
        if self._onlooker is None:
            self.broker.control("trace_on", "-p", self.vhost)
            self.open.callback(self.broker.control, "trace_off", "-p", self.vhost)
            self._onlooker = self.open.enter_context(_Tracer(self.uri, ask=f"{self.name}.none", answers=self.name))
        self._onlooker.addresses.clear()

    def published(self) -> set[str]:
        assert self._onlooker is not None
        return {address for address in self._onlooker.addresses if not address.endswith(".ask")}

    def left(self) -> int:
        with AmqpClient(self.uri, ask=f"{self.name}.none", answers=f"{self.name}.nobody") as asking:
            return sum(asking.waiting(self.place(source, "ask")) for source in SOURCES)


class _Tracer(AmqpClient):
    """Observes all published messages, including those without a queue."""

    def __init__(self, uri: str, *, ask: str, answers: str) -> None:
        self.addresses: list[str] = []
        super().__init__(uri, ask=ask, answers=answers)

    async def _prepare(self, answers: AbstractQueue) -> None:
        await answers.bind("amq.rabbitmq.trace", "publish.#")

    async def _on_message(self, message: AbstractIncomingMessage) -> None:
        headers: dict[str, Any] = dict(message.headers)
        [key] = headers["routing_keys"]
        self.addresses.append(f"{headers['exchange_name']}/{key}")
        await message.ack()


class KafkaFourSources(FourSources):
    kind = "kafka"

    def __init__(self, broker: Kafka) -> None:
        super().__init__()
        self.broker = broker
        broker.create(*(self.place(source, end) for source in SOURCES for end in ("ask", "answers")))
        self._ends: dict[tuple[str, int], int] = {}

    @property
    def uri(self) -> str:
        return self.broker.uri()

    def options(self) -> dict[str, Any]:
        return {"specificConfig": {"bootstrapServers": self.broker.bootstrap, "consumerOffsetReset": "earliest"}}

    def requester(self, source: str) -> KafkaClient:
        return KafkaClient(self.broker, ask=self.place(source, "ask"), answers=self.place(source, "answers"))

    def table(self, headers: dict[str, str]) -> Any:
        return list(super().table(headers).items())

    def observe(self) -> None:
        self._ends = self._all_ends()

    def published(self) -> set[str]:
        grown = {topic for (topic, number), end in self._all_ends().items() if end > self._ends.get((topic, number), 0)}
        return {topic for topic in grown if not topic.endswith(".ask")}

    def _all_ends(self) -> dict[tuple[str, int], int]:
        """Return the end of each partition, except of the topic of group offsets, which grows by itself."""
        topics = self.broker.admin.list_topics(timeout=ANSWER_WITHIN).topics
        places = [
            TopicPartition(name, number)
            for name, topic in topics.items()
            for number in topic.partitions
            if name != "__consumer_offsets"
        ]
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        found = self.broker.admin.list_offsets(dict.fromkeys(places, latest))
        return {(place.topic, place.partition): each.result(ANSWER_WITHIN).offset for place, each in found.items()}

    def left(self) -> int:
        places = [TopicPartition(self.place(source, "ask"), 0) for source in SOURCES]
        asked = self.broker.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(self.name, places)])
        committed = asked[self.name].result(ANSWER_WITHIN).topic_partitions
        ends = self._all_ends()
        return sum(ends[place.topic, 0] - max(0, place.offset) for place in committed)


def status_and_error(answer: dict[str, Any]) -> tuple[int, str | None]:
    """Return status and error code of a response; the code is None if it is not an error."""
    value = answer.get("value")
    return answer["status"], value.get("error") if isinstance(value, dict) else None

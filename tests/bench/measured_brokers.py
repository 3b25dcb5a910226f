"""Queues and topics of RabbitMQ and Kafka for benchmarks, with counters of their messages.

No client consumes during a measurement. The counters ask the broker for its number of messages several times per second,
so that no further client slows down the service or the bare client.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from typing import Any, Protocol

import aiormq
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.bench.harness import SUBJECT
from tests.support.brokers.kafka import Kafka
from tests.support.brokers.rabbitmq import RabbitMQ

PATIENCE = 120.0
POLLED_EVERY = 0.005
UNCONFIRMED = 500


class MeasuredBroker(Protocol):
    """A broker with the queues or topics of a benchmark."""

    kind: str

    def address(self, name: str) -> str:
        """Return the name of this queue or topic at the broker, which other benchmarks may share."""

    def document(self, ask: str = "ask") -> dict[str, Any]:
        """Return a connection that responds to the address in the header `reply-to`."""

    def send(self, address: str, payloads: Sequence[bytes], reply_to: str) -> None:
        """Publish messages and wait for the confirms."""

    def held(self, address: str) -> int:
        """Return the number of messages that have arrived at an address."""

    def first(self, address: str) -> bytes:
        """Wait for the first message at an address and consume it."""

    def close(self) -> None: ...


class MeasuredAmqp:
    kind = "amqp"

    def __init__(self, broker: RabbitMQ, *queues: str) -> None:
        self.uri, self._prefix = broker.uri(), f"{secrets.token_hex(4)}-"
        self._runner = asyncio.Runner()
        self._runner.run(self._open(queues))

    async def _open(self, queues: Sequence[str]) -> None:
        self._connection = await aiormq.connect(self.uri)
        self._channel = await self._connection.channel(publisher_confirms=True)
        for queue in queues:
            await self._channel.queue_declare(self.address(queue), durable=True)

    def address(self, name: str) -> str:
        return self._prefix + name

    def document(self, ask: str = "ask") -> dict[str, Any]:
        return {
            "id": self.kind,
            "connectionType": "amqp-091",
            "connectionStatus": "open",
            "uri": self.uri,
            "sources": [
                {
                    "addresses": [self.address(ask)],
                    "authorizationContext": [SUBJECT],
                    "headerMapping": {"reply-to": "{{ header:reply-to }}"},
                    "replyTarget": {"address": "/{{ header:reply-to }}"},
                }
            ],
        }

    def send(self, address: str, payloads: Sequence[bytes], reply_to: str) -> None:
        async def all_of_them() -> None:
            waiting = iter(payloads)

            async def work() -> None:
                for payload in waiting:
                    fields = aiormq.spec.Basic.Properties(delivery_mode=2, reply_to=self.address(reply_to))
                    await self._channel.basic_publish(payload, routing_key=self.address(address), properties=fields)

            await asyncio.gather(*(work() for _ in range(UNCONFIRMED)))

        self._runner.run(all_of_them())

    def held(self, address: str) -> int:
        return self._runner.run(self._channel.queue_declare(self.address(address), passive=True)).message_count or 0

    def first(self, address: str) -> bytes:
        wait_for(self, address, 1)
        body = self._runner.run(self._channel.basic_get(self.address(address), no_ack=True)).body
        assert isinstance(body, bytes)
        return body

    def close(self) -> None:
        self._runner.run(self._connection.close())
        self._runner.close()


class MeasuredKafka:
    kind = "kafka"

    def __init__(self, broker: Kafka, *topics: str) -> None:
        self._prefix = f"{secrets.token_hex(4)}-"
        broker.create(*map(self.address, topics))
        self.bootstrap, self._uri = broker.bootstrap, broker.uri()
        settings = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
        self._producer = Producer({**settings, "enable.idempotence": True})
        self._consumer = Consumer({**settings, "group.id": "counter", "enable.auto.commit": False})

    def address(self, name: str) -> str:
        return self._prefix + name

    def document(self, ask: str = "ask") -> dict[str, Any]:
        return {
            "id": self.kind,
            "connectionType": "kafka",
            "connectionStatus": "open",
            "uri": self._uri,
            "specificConfig": {
                "bootstrapServers": self.bootstrap,
                "consumerOffsetReset": "earliest",
                "groupId": self.address(ask),
            },
            "sources": [{"addresses": [self.address(ask)], "qos": 1, "authorizationContext": [SUBJECT]}],
        }

    def send(self, address: str, payloads: Sequence[bytes], reply_to: str) -> None:
        for payload in payloads:
            self._producer.produce(self.address(address), payload, headers={"reply-to": self.address(reply_to)})
            self._producer.poll(0)
        assert self._producer.flush(PATIENCE) == 0

    def held(self, address: str) -> int:
        return self._consumer.get_watermark_offsets(TopicPartition(self.address(address), 0), PATIENCE)[1]

    def first(self, address: str) -> bytes:
        wait_for(self, address, 1)
        self._consumer.assign([TopicPartition(self.address(address), 0, 0)])
        while (message := self._consumer.poll(1)) is None or message.error() is not None:
            pass
        self._consumer.unassign()
        return message.value() or b""

    def close(self) -> None:
        self._consumer.close()


def wait_for(place: MeasuredBroker, address: str, count: int) -> None:
    end = time.monotonic() + PATIENCE
    while place.held(address) < count:
        assert time.monotonic() < end, f"{place.kind}: {place.held(address)} of {count} messages at {address}"
        time.sleep(POLLED_EVERY)


def rate(place: MeasuredBroker, address: str, count: int, before: int = 0) -> float:
    """Return the messages per second at an address, from the first one to the last of `count`."""
    wait_for(place, address, before + 1)
    begun, seen = time.perf_counter(), place.held(address)
    wait_for(place, address, before + count)
    return (before + count - seen) / (time.perf_counter() - begun)

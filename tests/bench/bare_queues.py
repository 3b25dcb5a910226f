"""The client libraries of AMQP and Kafka alone, in their fastest way: publish, or consume and respond.

    python -m tests.bench.bare_queues amqp publish URI COUNT BYTES TO
    python -m tests.bench.bare_queues amqp turn URI COUNT BYTES TO FROM
    python -m tests.bench.bare_queues kafka publish BOOTSTRAP COUNT BYTES TO
    python -m tests.bench.bare_queues kafka turn BOOTSTRAP COUNT BYTES TO FROM

They are aiormq on uvloop with pipelined confirms, and confluent-kafka with the service's settings, key and headers and a
callback for each message. `turn` receives a message, publishes one of BYTES bytes, waits for its confirm, and acknowledges
the first. Prints one JSON line: the seconds from the first message to the last confirm.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any, Final

import aiormq
import uvloop
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from connectivity.transports.amqp.consumer import IN_FLIGHT
from connectivity.transports.amqp.link import WINDOW
from connectivity.transports.kafka.client_config import LINGER_MS

ACKED_EVERY = 100
RECORD: Final[dict[str, Any]] = {
    "key": b"CUv11AOcswaj9LcfVHP0wA",
    "headers": [
        ("content-type", b"application/vnd.eclipse.ditto+json"),
        ("correlation-id", b"365adad2-a7bf-48cd-a8d5-e41978b117c8"),
        ("ditto-connection-id", b"kafka"),
    ],
}
"""The key and headers of each record, as those of the service."""


def properties() -> aiormq.spec.Basic.Properties:
    return aiormq.spec.Basic.Properties(
        delivery_mode=2, content_type="application/vnd.eclipse.ditto+json", correlation_id="c-1"
    )


async def amqp_publish(uri: str, count: int, payload: bytes, to: str) -> float:
    connection = await aiormq.connect(uri)
    channel = await connection.channel(publisher_confirms=True)
    left = count

    async def work() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await channel.basic_publish(payload, routing_key=to, properties=properties(), mandatory=True)

    begun = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(WINDOW)))
    seconds = time.perf_counter() - begun
    await connection.close()
    return seconds


async def amqp_turn(uri: str, count: int, payload: bytes, to: str, source: str) -> float:
    connection = await aiormq.connect(uri)
    incoming, outgoing = await connection.channel(), await connection.channel(publisher_confirms=True)
    await incoming.basic_qos(prefetch_count=IN_FLIGHT)
    finished, turned, acked = asyncio.Event(), 0, 0

    async def take(message: aiormq.abc.DeliveredMessage) -> None:
        nonlocal turned, acked
        await outgoing.basic_publish(payload, routing_key=to, properties=properties(), mandatory=True)
        turned += 1
        assert message.delivery_tag is not None
        if (turned % ACKED_EVERY == 0 or turned == count) and message.delivery_tag > acked:
            # The confirms of responses may arrive in another order, and a broker accepts each delivery tag once.
            acked = message.delivery_tag
            await incoming.basic_ack(acked, multiple=True, wait=False)
        if turned == count:
            finished.set()

    begun = time.perf_counter()
    await incoming.basic_consume(source, take)
    await finished.wait()
    seconds = time.perf_counter() - begun
    await connection.close()
    return seconds


def producer(bootstrap: str) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": LINGER_MS,
            "batch.size": 131_072,
            "socket.nagle.disable": True,
        }
    )


def kafka_publish(bootstrap: str, count: int, payload: bytes, to: str) -> float:
    client, confirmed = producer(bootstrap), 0

    def reported(error: object, _: Message) -> None:
        nonlocal confirmed
        assert error is None
        confirmed += 1

    # The first message waits for the library's connection.
    client.produce(to, payload)
    client.flush()
    begun = time.perf_counter()
    for number in range(count):
        while number - confirmed > 50_000:
            client.poll(0.01)
        client.produce(to, payload, on_delivery=reported, **RECORD)
        client.poll(0)
    client.flush()
    assert confirmed == count
    return time.perf_counter() - begun


def kafka_turn(bootstrap: str, count: int, payload: bytes, to: str, source: str) -> float:
    client, turned = producer(bootstrap), 0
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bare",
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            "fetch.queue.backoff.ms": 10,
        }
    )
    consumer.assign([TopicPartition(source, 0, 0)])

    def reported(error: object, _: Message) -> None:
        nonlocal turned
        assert error is None
        turned += 1

    first = consumer.poll(30)
    assert first is not None
    assert first.error() is None
    client.produce(to, payload, on_delivery=reported, **RECORD)
    begun = time.perf_counter()
    while turned < count:
        messages = consumer.consume(500, 0.05)
        for _ in messages:
            client.produce(to, payload, on_delivery=reported, **RECORD)
        if messages:
            consumer.store_offsets(message=messages[-1])
        client.poll(0)
    seconds = time.perf_counter() - begun
    consumer.close()
    return seconds


def main(kind: str, what: str, address: str, count: str, size: str, *places: str) -> None:
    payload = b"x" * int(size)
    match kind, what:
        case "amqp", "publish":
            seconds = uvloop.run(amqp_publish(address, int(count), payload, *places))
        case "amqp", "turn":
            seconds = uvloop.run(amqp_turn(address, int(count), payload, *places))
        case "kafka", "publish":
            seconds = kafka_publish(address, int(count), payload, *places)
        case _:
            seconds = kafka_turn(address, int(count), payload, *places)
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""What the client libraries do alone, each as fast as it can be used: publishing, and taking messages and answering them.

    python -m tests.bench.bare_queues amqp publish URI COUNT BYTES TO
    python -m tests.bench.bare_queues amqp turn URI COUNT BYTES TO FROM
    python -m tests.bench.bare_queues kafka publish BOOTSTRAP COUNT BYTES TO
    python -m tests.bench.bare_queues kafka turn BOOTSTRAP COUNT BYTES TO FROM

aiormq on uvloop with pipelined confirms; confluent-kafka with the settings that the service uses, and a callback for each
message. A turn is: a message in, one of BYTES bytes out, confirmed, the first one acknowledged.
"""

from __future__ import annotations

import asyncio
import sys

import aiormq
import uvloop
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from connectivity.amqp.intake import IN_FLIGHT
from connectivity.amqp.link import WINDOW

ACKED_EVERY = 100


def properties() -> aiormq.spec.Basic.Properties:
    return aiormq.spec.Basic.Properties(
        delivery_mode=2, content_type="application/vnd.eclipse.ditto+json", correlation_id="c-1"
    )


async def amqp_publish(uri: str, count: int, payload: bytes, to: str) -> None:
    connection = await aiormq.connect(uri)
    channel = await connection.channel(publisher_confirms=True)
    left = count

    async def work() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await channel.basic_publish(payload, routing_key=to, properties=properties(), mandatory=True)

    await asyncio.gather(*(work() for _ in range(WINDOW)))
    await connection.close()


async def amqp_turn(uri: str, count: int, payload: bytes, to: str, source: str) -> None:
    connection = await aiormq.connect(uri)
    incoming, outgoing = await connection.channel(), await connection.channel(publisher_confirms=True)
    await incoming.basic_qos(prefetch_count=IN_FLIGHT)
    finished, turned = asyncio.Event(), 0

    async def take(message: aiormq.abc.DeliveredMessage) -> None:
        nonlocal turned
        await outgoing.basic_publish(payload, routing_key=to, properties=properties(), mandatory=True)
        turned += 1
        if turned % ACKED_EVERY == 0 or turned == count:
            assert message.delivery_tag is not None
            await incoming.basic_ack(message.delivery_tag, multiple=True, wait=False)
        if turned == count:
            finished.set()

    await incoming.basic_consume(source, take)
    await finished.wait()
    await connection.close()


def producer(bootstrap: str) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 0,
            "batch.size": 131_072,
            "socket.nagle.disable": True,
        }
    )


def kafka_publish(bootstrap: str, count: int, payload: bytes, to: str) -> None:
    client, confirmed = producer(bootstrap), 0

    def reported(error: object, _: Message) -> None:
        nonlocal confirmed
        assert error is None
        confirmed += 1

    for number in range(count):
        while number - confirmed > 50_000:
            client.poll(0.01)
        client.produce(to, payload, headers={"correlation-id": "c-1"}, on_delivery=reported)
        client.poll(0)
    client.flush()
    assert confirmed == count


def kafka_turn(bootstrap: str, count: int, payload: bytes, to: str, source: str) -> None:
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

    while turned < count:
        messages = consumer.consume(500, 0.05)
        for _ in messages:
            client.produce(to, payload, headers={"correlation-id": "c-1"}, on_delivery=reported)
        if messages:
            consumer.store_offsets(message=messages[-1])
        client.poll(0)
    consumer.close()


def main(kind: str, what: str, address: str, count: str, size: str, *places: str) -> None:
    payload = b"x" * int(size)
    match kind, what:
        case "amqp", "publish":
            uvloop.run(amqp_publish(address, int(count), payload, *places))
        case "amqp", "turn":
            uvloop.run(amqp_turn(address, int(count), payload, *places))
        case "kafka", "publish":
            kafka_publish(address, int(count), payload, *places)
        case "kafka", "turn":
            kafka_turn(address, int(count), payload, *places)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Measures the rate of a link to RabbitMQ, compared with aio-pika and with the library below it.

    python -m tests.bench.amqp_link [messages]

The messages are persistent and mandatory, have payloads of 400 bytes, and are all confirmed, with at most 500
unconfirmed; the queues are durable. The rates depend on the broker and on the load of the machine; the processor time per
message does not. Each rate is the median of three alternating runs.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import Awaitable, Callable

import aio_pika
import aiormq
import uvloop

from connectivity.connections.model import Connection
from connectivity.transports import load_connection_type
from connectivity.transports.amqp.consumer import IN_FLIGHT
from connectivity.transports.amqp.link import WINDOW
from connectivity.transports.base import Link
from tests.bench.mqtt_link import PAYLOAD, Stopwatch, drain, publish
from tests.support.brokers.rabbitmq import RabbitMQ

ROUNDS = 3
HEADERS = {"content-type": "application/json", "correlation-id": "c-1"}


async def link_to(broker: RabbitMQ) -> Link:
    make = load_connection_type("amqp-091").connect
    assert make is not None
    document = {
        "id": "bench",
        "connectionType": "amqp-091",
        "connectionStatus": "open",
        "uri": broker.uri(),
        "sources": [{"addresses": ["in"], "authorizationContext": ["bench:all"]}],
    }
    return await make(Connection.model_validate(document))


async def our_publish(broker: RabbitMQ, count: int, headers: dict[str, str]) -> str:
    link = await link_to(broker)
    figures = await publish(link, count, "/out", headers, WINDOW)
    await link.close()
    return figures


async def bare_publish(broker: RabbitMQ, count: int, headers: dict[str, str]) -> str:
    """Publish with as many tasks as there may be unconfirmed messages; each waits for its confirm."""
    connection = await aiormq.connect(broker.uri())
    channel = await connection.channel(publisher_confirms=True)
    assert isinstance(channel, aiormq.Channel)
    left = count

    async def work() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            fields = aiormq.spec.Basic.Properties(
                delivery_mode=2,
                headers=dict(headers) or None,
                content_type=headers.get("content-type"),
                correlation_id=headers.get("correlation-id"),
            )
            await channel.basic_publish(PAYLOAD, routing_key="out", properties=fields, mandatory=True, wait=False)

    watch = Stopwatch()
    await asyncio.gather(*(work() for _ in range(WINDOW)))
    figures = watch.figures(count)
    await connection.close()
    return figures


async def pika_publish(broker: RabbitMQ, count: int, headers: dict[str, str]) -> str:
    """The same as `bare_publish` with the messages of aio-pika."""
    connection = await aio_pika.connect(broker.uri())
    exchange = (await connection.channel()).default_exchange
    left = count

    async def work() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            message = aio_pika.Message(
                PAYLOAD,
                delivery_mode=2,
                headers=dict(headers) or None,
                content_type=headers.get("content-type"),
                correlation_id=headers.get("correlation-id"),
            )
            await exchange.publish(message, "out", mandatory=True)

    watch = Stopwatch()
    await asyncio.gather(*(work() for _ in range(WINDOW)))
    figures = watch.figures(count)
    await connection.close()
    return figures


async def our_drain(broker: RabbitMQ, count: int) -> str:
    link = await link_to(broker)
    figures = await drain(link, count)
    await link.close()
    return figures


async def bare_drain(broker: RabbitMQ, count: int) -> str:
    """Consume, and acknowledge every hundredth message together with all before it."""
    connection = await aiormq.connect(broker.uri())
    channel = await connection.channel()
    await channel.basic_qos(prefetch_count=IN_FLIGHT)
    finished, got, watch = asyncio.Event(), 0, Stopwatch()

    async def take(message: aiormq.abc.DeliveredMessage) -> None:
        nonlocal got
        got += 1
        if got % 100 == 0 or got == count:
            assert message.delivery_tag is not None
            await channel.basic_ack(message.delivery_tag, multiple=True, wait=False)
        if got == count:
            finished.set()

    await channel.basic_consume("in", take)
    await finished.wait()
    figures = watch.figures(count)
    await connection.close()
    return figures


async def pika_drain(broker: RabbitMQ, count: int) -> str:
    """The same as `bare_drain` with the queue and messages of aio-pika."""
    connection = await aio_pika.connect(broker.uri())
    channel = await connection.channel()
    await channel.set_qos(IN_FLIGHT)
    finished, got, watch = asyncio.Event(), 0, Stopwatch()

    async def take(message: aio_pika.abc.AbstractIncomingMessage) -> None:
        nonlocal got
        got += 1
        if got % 100 == 0 or got == count:
            await message.ack(multiple=True)
        if got == count:
            finished.set()

    await (await channel.get_queue("in")).consume(take)
    await finished.wait()
    figures = watch.figures(count)
    await connection.close()
    return figures


async def measure(broker: RabbitMQ, count: int) -> None:
    connection = await aio_pika.connect(broker.uri())
    channel = await connection.channel()
    queues = {name: await channel.declare_queue(name, durable=True) for name in ("in", "out")}

    async def fill() -> None:
        gate = asyncio.Semaphore(WINDOW)
        message = aio_pika.Message(PAYLOAD, delivery_mode=2)

        async def one() -> None:
            async with gate:
                await channel.default_exchange.publish(message, "in")

        await asyncio.gather(*(one() for _ in range(count)))

    async def nothing() -> None:
        await queues["out"].purge()

    def publishing(headers: dict[str, str]) -> dict[str, Callable[[], Awaitable[str]]]:
        return {
            "link": lambda: our_publish(broker, count, headers),
            "aio-pika": lambda: pika_publish(broker, count, headers),
            "aiormq": lambda: bare_publish(broker, count, headers),
        }

    kinds: list[tuple[str, dict[str, Callable[[], Awaitable[str]]], Callable[[], Awaitable[None]]]]
    receiving: dict[str, Callable[[], Awaitable[str]]] = {
        "link": lambda: our_drain(broker, count),
        "aio-pika": lambda: pika_drain(broker, count),
        "aiormq": lambda: bare_drain(broker, count),
    }
    kinds = [
        ("publish", publishing({}), nothing),
        ("publish with headers", publishing(HEADERS), nothing),
        ("receive and settle", receiving, fill),
    ]
    for name, runs, prepare in kinds:
        found: dict[str, list[str]] = {who: [] for who in runs}
        for _ in range(ROUNDS):
            for who, run in runs.items():
                await prepare()
                found[who].append(await run())
        rates = {who: statistics.median(float(text.split("/s")[0]) for text in texts) for who, texts in found.items()}
        for who, texts in found.items():
            shown = sorted(texts, key=lambda text: float(text.split("/s")[0]))[len(texts) // 2]
            print(f"{who:8} {name:22} {shown}, ratio {rates['link'] / rates[who]:.2f}")
    await connection.close()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    with RabbitMQ.start() as broker:
        uvloop.run(measure(broker, count))


if __name__ == "__main__":
    main()

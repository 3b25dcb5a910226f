"""Measures the rate of a link to Kafka, compared with the bare client library.

    python -m tests.bench.kafka_link [messages]

Payloads have 400 bytes; the bare producer has the same settings and a delivery callback for each message. The rate
depends on the load of the machine and on the broker, which runs on it; the processor time per message does not.
"""

from __future__ import annotations

import asyncio
import sys
import time

import uvloop
from confluent_kafka import Consumer, Producer

from connectivity.connections.model import Connection
from connectivity.errors import ConnectivityError
from connectivity.transports import load_connection_type
from connectivity.transports.base import Link, OutboundMessage
from connectivity.transports.kafka import client_config
from connectivity.transports.kafka.options import Options
from mappings.model.envelope import Envelope
from tests.bench.mqtt_link import PAYLOAD, Stopwatch, drain
from tests.support.brokers.kafka import Kafka

ROUND_TRIPS = 300


def connection(broker: Kafka, name: str = "bench", source: str = "in") -> Connection:
    return Connection.model_validate(
        {
            "id": name,
            "connectionType": "kafka",
            "connectionStatus": "open",
            "uri": broker.uri(),
            "specificConfig": {"bootstrapServers": broker.bootstrap, "consumerOffsetReset": "earliest"},
            "sources": [{"addresses": [source], "qos": 1, "authorizationContext": ["bench:all"]}],
        }
    )


async def publish(link: Link, count: int, address: str, headers: dict[str, str]) -> str:
    """Return the messages per second through the link, with a full window."""
    finished = asyncio.get_running_loop().create_future()
    left, sent = count, 0
    message = OutboundMessage(address, Envelope(PAYLOAD, headers))

    def done(error: ConnectivityError | None) -> None:
        nonlocal left, sent
        assert error is None
        left -= 1
        if sent < count:
            sent += 1
            link.publish(message, done)
        elif not left:
            finished.set_result(None)

    watch = Stopwatch()
    sent = min(link.window, count)
    for _ in range(sent):
        link.publish(message, done)
    await finished
    return watch.figures(count)


def bare_publish(broker: Kafka, count: int, topic: str) -> str:
    document = connection(broker)
    producer = Producer(client_config.producer_settings(document, Options.model_validate(document.own_options)))
    confirmed = 0

    def reported(error: object, _: object) -> None:
        nonlocal confirmed
        assert error is None
        confirmed += 1

    watch = Stopwatch()
    for number in range(count):
        while number - confirmed > 50_000:
            producer.poll(0.01)
        producer.produce(topic, PAYLOAD, on_delivery=reported)
        producer.poll(0)
    producer.flush()
    assert confirmed == count
    return watch.figures(count)


def bare_consume(broker: Kafka, count: int, topic: str) -> str:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "bare", "auto.offset.reset": "earliest", "log_level": 0}
    )
    consumer.subscribe([topic])
    while (first := consumer.poll(1)) is None:
        pass
    assert first.error() is None
    got, watch = 1, Stopwatch()
    while got < count:
        got += len(consumer.consume(500, 0.1))
    figures = watch.figures(count)
    consumer.close()
    return figures


async def round_trips(link: Link) -> str:
    """Return the milliseconds from a publish to the receipt of the same message, one after the other."""
    times = []
    arriving = link.consume(0)
    for _ in range(ROUND_TRIPS):
        begun = time.perf_counter()
        link.publish(OutboundMessage("turn", Envelope(PAYLOAD)), lambda _: None)
        for delivery in await anext(arriving):
            delivery.settle()
        times.append((time.perf_counter() - begun) * 1000)
    times.sort()
    return f"p50 {times[len(times) // 2]:.2f} ms, p99 {times[len(times) * 99 // 100]:.2f} ms"


async def measure(broker: Kafka, count: int) -> None:
    make = load_connection_type("kafka").connect
    assert make is not None
    link = await make(connection(broker))
    headers = {"content-type": "application/json", "correlation-id": "c-1"}
    for name, given in (("publish", {}), ("publish with headers", headers)):
        for _ in range(2):
            print(f"link  {name:22} {await publish(link, count, 'out', given)}")
    print(f"link  {'receive and settle':22} {await drain(link, count)}")
    await link.close()
    link = await make(connection(broker, "turns", "turn"))
    print(f"link  {'round trip':22} {await round_trips(link)}")
    await link.close()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with Kafka.start() as broker:
        broker.create("in", "out", "turn")
        for topic in ("in", "out", "out"):
            print(f"bare  {'publish':22} {bare_publish(broker, count, topic)}")
        print(f"bare  {'receive':22} {bare_consume(broker, count, 'in')}")
        uvloop.run(measure(broker, count))


if __name__ == "__main__":
    main()

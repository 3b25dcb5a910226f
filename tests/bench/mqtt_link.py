"""How fast a link to Mosquitto publishes and receives, beside the bare client library doing the same in its thread.

    python -m tests.bench.mqtt_link [messages]

QoS 1, payloads of 400 bytes, at most 100 unconfirmed messages.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable

import paho.mqtt.client as paho
import uvloop

from connectivity.brokers import load_broker
from connectivity.brokers.base import Link, Outgoing
from connectivity.errors import ConnectivityError
from connectivity.model import Connection
from mappings.envelope import Envelope
from tests.brokers.mosquitto import Mosquitto

PAYLOAD = b"x" * 400
WINDOW = 100


def connection(broker: Mosquitto, kind: str) -> Connection:
    return Connection.model_validate(
        {
            "id": f"bench-{kind}",
            "connectionType": kind,
            "connectionStatus": "open",
            "uri": f"tcp://{broker.host}:{broker.port}",
            "specificConfig": {"cleanSession": "true"},
            "sources": [{"addresses": ["bench/in"], "qos": 1, "authorizationContext": ["bench:all"]}],
        }
    )


async def publish(link: Link, count: int, address: str, headers: dict[str, str]) -> float:
    """Messages a second through the link, window always full."""
    loop = asyncio.get_running_loop()
    finished = loop.create_future()
    left, sent = count, 0
    message = Outgoing(address, Envelope(PAYLOAD, headers))

    def send() -> None:
        nonlocal sent
        if sent < count:
            sent += 1
            link.publish(message, done)

    def done(error: ConnectivityError | None) -> None:
        nonlocal left
        assert error is None
        left -= 1
        if left:
            send()
        else:
            finished.set_result(None)

    started = time.perf_counter()
    for _ in range(min(link.window, WINDOW)):
        send()
    await finished
    return count / (time.perf_counter() - started)


async def receive(link: Link, broker: Mosquitto, count: int, properties: paho.Properties | None = None) -> float:
    """Deliveries a second, each settled; the messages come from the broker's queue."""
    sender = threading.Thread(target=bare_publish, args=(broker, count, properties is not None, "bench/in"))
    sender.start()
    got, started = 0, 0.0
    async for deliveries in link.consume(0):
        started = started or time.perf_counter()
        for delivery in deliveries:
            delivery.settle()
        got += len(deliveries)
        if got >= count:
            break
    rate = count / (time.perf_counter() - started)
    sender.join()
    return rate


def bare_publish(broker: Mosquitto, count: int, is_5: bool, topic: str) -> float:
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5 if is_5 else paho.MQTTv311)
    client.max_inflight_messages_set(WINDOW)
    room, up = threading.Semaphore(WINDOW), threading.Event()
    client.on_publish = lambda *_: room.release()
    client.on_connect = lambda *_: up.set()
    client.connect(broker.host, broker.port)
    client.loop_start()
    up.wait()
    started = time.perf_counter()
    for _ in range(count):
        room.acquire()
        client.publish(topic, PAYLOAD, 1)
    for _ in range(WINDOW):
        room.acquire()
    rate = count / (time.perf_counter() - started)
    client.disconnect()
    client.loop_stop()
    return rate


async def queued(link: Link, count: int, fill: Callable[[], object]) -> float:
    """Deliveries a second from a backlog that waited for the session."""
    await asyncio.to_thread(fill)
    return await drain(link, count)


async def drain(link: Link, count: int) -> float:
    got, started = 0, time.perf_counter()
    async for deliveries in link.consume(0):
        for delivery in deliveries:
            delivery.settle()
        got += len(deliveries)
        if got >= count:
            break
    return count / (time.perf_counter() - started)


async def measure(broker: Mosquitto, kind: str, count: int) -> None:
    make = load_broker(kind).connect
    assert make is not None
    link = await make(connection(broker, kind))
    headers = {"content-type": "application/json", "correlation-id": "c-1"}
    for name, given in (("publish", {}), ("publish with headers", headers)):
        print(f"{kind:7} {name:22} {await publish(link, count, 'bench/out', given):8.0f}/s  window {link.window}")
    await link.close()
    # A backlog: the session is known, the link comes back to what has gathered meanwhile.
    document = connection(broker, kind).model_copy(update={"specific_config": {"clientId": f"backlog-{kind}"}})
    link = await make(document)
    await link.close()
    await asyncio.to_thread(bare_publish, broker, count, kind == "mqtt-5", "bench/in")
    link = await make(document)
    print(f"{kind:7} {'receive and settle':22} {await drain(link, count):8.0f}/s")
    await link.close()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    lines = ("max_inflight_messages 1000", "max_queued_messages 1000000")
    with Mosquitto.start(persistence=False, config_lines=lines) as broker:
        for is_5 in (False, True):
            print(
                f"bare    publish, {'MQTT 5' if is_5 else 'MQTT 3.1.1':14} {bare_publish(broker, count, is_5, 'bench/out'):8.0f}/s"
            )
        for kind in ("mqtt", "mqtt-5"):
            uvloop.run(measure(broker, kind, count))


if __name__ == "__main__":
    main()

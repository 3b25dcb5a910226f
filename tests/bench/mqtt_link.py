"""Measures the rate of a link to Mosquitto, compared with the bare client library in its thread.

    python -m tests.bench.mqtt_link [messages]

QoS 1, payloads of 400 bytes, at most 100 unconfirmed messages. The rate depends on the load of the machine and on the
broker; the processor time per message does not.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import paho.mqtt.client as paho
import uvloop
from paho.mqtt.enums import CallbackAPIVersion

from connectivity.connections.model import Connection
from connectivity.errors import ConnectivityError
from connectivity.transports import load_connection_type
from connectivity.transports.base import Link, OutboundMessage
from mappings.model.envelope import Envelope
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.clients.paho_end import end_client

PAYLOAD = b"x" * 400
WINDOW = 100


class Stopwatch:
    """A stopwatch that starts when it is created."""

    def __init__(self) -> None:
        self._started, self._used = time.perf_counter(), time.process_time()

    def figures(self, count: int) -> str:
        seconds, used = time.perf_counter() - self._started, time.process_time() - self._used
        return f"{count / seconds:8.0f}/s {used / count * 1e6:6.1f} µs of processor time each"


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


async def publish(link: Link, count: int, address: str, headers: dict[str, str], window: int = WINDOW) -> str:
    """Return the messages per second through the link, with a full window."""
    loop = asyncio.get_running_loop()
    finished = loop.create_future()
    left, sent = count, 0
    message = OutboundMessage(address, Envelope(PAYLOAD, headers))

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

    watch = Stopwatch()
    for _ in range(min(link.window, window)):
        send()
    await finished
    return watch.figures(count)


def bare_publish(broker: Mosquitto, count: int, is_5: bool, topic: str) -> str:
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5 if is_5 else paho.MQTTv311)
    client.max_inflight_messages_set(WINDOW)
    room, up = threading.Semaphore(WINDOW), threading.Event()
    client.on_publish = lambda *_: room.release()
    client.on_connect = lambda *_: up.set()
    client.connect(broker.host, broker.port)
    client.loop_start()
    up.wait()
    watch = Stopwatch()
    for _ in range(count):
        room.acquire()
        client.publish(topic, PAYLOAD, 1)
    for _ in range(WINDOW):
        room.acquire()
    figures = watch.figures(count)
    end_client(client)
    return figures


async def drain(link: Link, count: int) -> str:
    """Return the deliveries per second from a backlog of the session, each acknowledged."""
    got, watch = 0, Stopwatch()
    async for deliveries in link.consume(0):
        for delivery in deliveries:
            delivery.settle()
        got += len(deliveries)
        if got >= count:
            break
    return watch.figures(count)


async def measure(broker: Mosquitto, kind: str, count: int) -> None:
    make = load_connection_type(kind).connect
    assert make is not None
    link = await make(connection(broker, kind))
    headers = {"content-type": "application/json", "correlation-id": "c-1"}
    for name, given in (("publish", {}), ("publish with headers", headers)):
        print(f"{kind:7} {name:22} {await publish(link, count, 'bench/out', given)}")
    await link.close()
    # A backlog: the broker has queued messages for the session before the link reconnects.
    document = connection(broker, kind).model_copy(update={"specific_config": {"clientId": f"backlog-{kind}"}})
    link = await make(document)
    await link.close()
    await asyncio.to_thread(bare_publish, broker, count, kind == "mqtt-5", "bench/in")
    link = await make(document)
    print(f"{kind:7} {'receive and settle':22} {await drain(link, count)}")
    await link.close()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    lines = ("max_inflight_messages 1000", "max_queued_messages 1000000")
    with Mosquitto.start(persistence=False, config_lines=lines) as broker:
        for is_5 in (False, True):
            name = "MQTT 5" if is_5 else "MQTT 3.1.1"
            print(f"bare    publish, {name:13} {bare_publish(broker, count, is_5, 'bench/out')}")
        for kind in ("mqtt", "mqtt-5"):
            uvloop.run(measure(broker, kind, count))


if __name__ == "__main__":
    main()

"""Streams: publish to broadcast, one message to a thousand sessions, and resends.

Resends are compared with a replay of the Ditto protocol, and run through a WebSocket listener too. The request topic
identifies a session: the response to a request on `bench/7/req` goes to `bench/7/res`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from mappings.streams.stream_id import partition_id
from spark_store.journal.journal import Journal
from spark_store.records import Change, Snapshot
from tests.bench.harness import FULL, STAMP, SUBJECT, Scale, fill, processor_seconds, run, serving, sink, thing
from tests.bench.report import Figure
from tests.support.brokers import free_port
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.clients.mqtt import MqttClient
from tests.support.connection_documents import EVERYTHING, client, connection, source
from tests.support.replayed import fold
from tests.support.service_process import ServiceCommand

STREAM = "tank"
POLICY = EntityId(EntityType.POLICY, "acme.bench", "tanks")
OPTIONS = {"streams": {STREAM: {"policyId": str(POLICY)}}}
PATIENT = ("max_inflight_messages 1000", "max_queued_messages 1000000")
"""Mosquitto with large queues, because it drops messages above their limits."""

TURNS = 1


def document(broker: Mosquitto) -> dict[str, Any]:
    """Return a connection with commands at `bench/ask` and stream requests at `bench/<session>/req`."""
    asking = {
        "addresses": ["bench/+/req"],
        "qos": 1,
        "authorizationContext": [SUBJECT],
        "payloadMapping": ["streams"],
        "replyTarget": {"address": "{{ source:address | fn:replace('/req','/res') }}"},
    }
    return connection(
        broker,
        source("bench", SUBJECT),
        asking,
        mappingDefinitions={
            "streams": {"mappingEngine": "Streamr", "options": {**OPTIONS, "replyAddressPattern": "bench/*/res"}}
        },
    )


def fill_stream(path: Path, messages: int = 0, size: int = 0) -> None:
    """Write the policy of the stream, and messages with `size` bytes of content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    journal = Journal.open(path)
    entry = {"subjects": {SUBJECT: {"type": "test"}}, "resources": {"policy:/": EVERYTHING, "stream:/": EVERYTHING}}
    rules = {"policyId": str(POLICY), "imports": {}, "entries": {"bench": entry}}
    written = Event(POLICY, 1, STAMP, "created", "/", json.dumps(rules).encode(), b"{}")
    journal.append([Change((written,), (fold([written]),))])
    if messages:
        entity = partition_id(STREAM, 0)
        content = json.dumps(json.dumps({"note": "x" * size})).encode()
        events = tuple(Event(entity, n + 1, STAMP, "published", "/", content, b"{}") for n in range(messages))
        journal.append([Change(events, (Snapshot(entity, messages, STAMP, STAMP, {}, None),))])
    journal.close()


def publish(size: int) -> str:
    """Return a request to publish a message of `size` bytes."""
    return json.dumps({"type": "publish", "stream": STREAM, "msg": json.dumps({"note": "x" * size})})


def session(broker: Mosquitto, name: str) -> MqttClient:
    """Return a client that sends the requests of this session, and receives nothing."""
    return MqttClient(broker.host, broker.port, ask=f"bench/{name}/req", answers="bench/unused")


def subscribe(broker: Mosquitto, *sessions: str) -> None:
    """Subscribe sessions to the stream, several at a time."""
    request = {"type": "subscribe", "stream": STREAM}
    with MqttClient(broker.host, broker.port, ask="bench/unused", answers="bench/+/res") as mqtt_client:
        for start in range(0, len(sessions), 100):
            some = sessions[start : start + 100]
            for name in some:
                mqtt_client.ask = f"bench/{name}/req"
                mqtt_client.send(request, wait=False)
            for _ in some:
                frame: Any = mqtt_client.next()
                assert frame[1] == 2, f"found {frame}, expected a session to be subscribed"


@contextmanager
def running(folder: Path, broker: Mosquitto, **settings: Any) -> Iterator[ServiceCommand]:
    with serving(folder, document(broker), **settings) as service:
        yield service


@contextmanager
def passing_on(broker: Mosquitto, count: int, size: int) -> Iterator[None]:
    """Start a bare client that publishes a message of this size for each received one."""
    command = [
        sys.executable,
        "-m",
        "tests.bench.bare_forwarder",
        broker.host,
        broker.port,
        "bare/in",
        "bare/out",
        count,
        size,
    ]
    with subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield
        assert process.wait(120) == 0


def payload_of(figures: Mapping[str, Any], topic: str) -> int:
    """Return the size of the payload of the last packet."""
    return int(figures["bytes"]) - len(topic) - 5


def live(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """Published and broadcast messages, compared with a bare client that receives and publishes as many."""
    count, size = scale.of(20_000, 200), 200
    fill_stream(folder / "data" / "journal.db")
    ours, bare, processor, length, left_out = [], [], 0.0, 0, 0
    with Mosquitto.start(persistence=False, config_lines=PATIENT) as broker, running(folder, broker) as service:
        subscribe(broker, "a")
        for _ in range(TURNS):
            with sink(broker, "bench/a/res", count) as figures:
                before = processor_seconds(service)
                run("bare", broker.host, broker.port, "bench/p/req", count, publish(size))
                found = figures()
                processor = processor_seconds(service) - before
                length = payload_of(found, "bench/a/res")
                left_out += count - found["seen"]
                ours.append((found["seen"] - 1) / found["seconds"])
            with sink(broker, "bare/out", count) as figures, passing_on(broker, count, length):
                run("bare", broker.host, broker.port, "bare/in", count, publish(size))
                bare.append((count - 1) / figures()["seconds"])
    ratio = statistics.median(ours) / statistics.median(bare)
    return [
        Figure(
            "publish → broadcast over MQTT, QoS 1, durable",
            f"{statistics.median(ours):,.0f}/s",
            f"{statistics.median(bare):,.0f}/s (paho receiving and publishing)",
            "ratio ≥ 0.8",
            ratio >= 0.8,
            f"ratio {ratio:.2f}; {length} bytes; service: {processor / count * 1e6:.0f} µs of processor time per message; "
            f"{left_out} of {TURNS * count} left out since the session did not keep up",
        )
    ]


def many(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """One message to a thousand sessions, each with its own address; then twenty in a row."""
    sessions, size = scale.of(1_000, 20), 200
    fill_stream(folder / "data" / "journal.db")
    rates: dict[int, list[float]] = {1: [], 20: []}
    bare, processor, length = [], 0.0, 0
    with Mosquitto.start(persistence=False, config_lines=PATIENT) as broker, running(folder, broker) as service:
        subscribe(broker, *map(str, range(sessions)))
        for messages in (1, 20) * TURNS:
            with sink(broker, "bench/+/res", messages * sessions) as figures, session(broker, "p") as publisher:
                before = processor_seconds(service)
                for _ in range(messages):
                    publisher.send(publish(size).encode(), wait=False)
                found = figures()
                processor = (processor_seconds(service) - before) / messages / sessions
                length = payload_of(found, f"bench/{sessions - 1}/res")
                rates[messages].append((messages * sessions - 1) / found["seconds"])
        for _ in range(TURNS):
            with sink(broker, "bare", 20 * sessions) as figures:
                run("bare", broker.host, broker.port, "bare", 20 * sessions, length)
                bare.append((20 * sessions - 1) / figures()["seconds"])
    one, twenty = statistics.median(rates[1]), statistics.median(rates[20])
    return [
        Figure(
            "one message to 1,000 sessions over MQTT, QoS 1",
            f"{one:,.0f} frames/s",
            f"{statistics.median(bare):,.0f}/s (paho, window 100)",
            "≥ 10,000/s",
            one >= 10_000,
            f"{twenty:,.0f}/s for 20 messages in a row; {length} bytes; service {processor * 1e6:.0f} µs of processor "
            "per frame",
        )
    ]


def resend(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """A resend of a whole stream, compared with a replay of as many events in messages of the same size."""
    count = scale.of(100_000, 500)
    path = folder / "data" / "journal.db"
    fill(path, 1, count)
    fill_stream(path, count, 496)
    ours, ditto, spent = [], [], {"streamr": 0.0, "ditto": 0.0}
    sizes = {"streamr": 0, "ditto": 0}
    request = {"type": "resend", "stream": STREAM, "sub": "a", "resend_all": True}
    prefix = f"acme.bench/{thing(0).name}/things/twin/streaming"
    with Mosquitto.start(persistence=False, config_lines=PATIENT) as broker, running(folder, broker) as service:
        for _ in range(TURNS):
            with sink(broker, "bench/a/res", count) as figures, session(broker, "a") as mqtt_client:
                before = processor_seconds(service)
                mqtt_client.send(request)
                found = figures()
                spent["streamr"] = processor_seconds(service) - before
                sizes["streamr"] = payload_of(found, "bench/a/res")
                ours.append((count - 1) / found["seconds"])
            with client(broker, "bench") as opener:
                created = opener.ask_for(f"{prefix}/subscribeForPersistedEvents")
            with (
                sink(broker, "bench/answers", count) as figures,
                MqttClient(broker.host, broker.port, ask="bench/ask", answers="bench/unused") as mqtt_client,
            ):
                before = processor_seconds(service)
                mqtt_client.command(f"{prefix}/request", value={**created["value"], "demand": count})
                found = figures()
                spent["ditto"] = processor_seconds(service) - before
                sizes["ditto"] = payload_of(found, "bench/answers")
                ditto.append((count - 1) / found["seconds"])
    ratio = statistics.median(ours) / statistics.median(ditto)
    each = {name: f"{seconds / count * 1e6:.0f} µs" for name, seconds in spent.items()}
    return [
        Figure(
            "resend of 100,000 messages over MQTT, QoS 1",
            f"{statistics.median(ours):,.0f}/s",
            f"{statistics.median(ditto):,.0f}/s (Ditto replay)",
            "ratio ≥ 0.8",
            ratio >= 0.8,
            f"ratio {ratio:.2f}; {sizes['streamr']} and {sizes['ditto']} bytes; service {each['streamr']} and "
            f"{each['ditto']} of processor each",
        )
    ]


def listener(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """A resend of a whole stream through a WebSocket listener, compared with a bare server."""
    count = scale.of(100_000, 500)
    fill_stream(folder / "data" / "journal.db", count, 496)
    request = json.dumps({"type": "resend", "stream": STREAM, "sub": "a", "resend_all": True})
    port = free_port()
    document = {
        "id": "listener",
        "connectionType": "websocket",
        "connectionStatus": "open",
        "uri": f"ws://127.0.0.1:{port}",
        "sources": [{"addresses": ["/streams"], "authorizationContext": [SUBJECT], "payloadMapping": ["streams"]}],
        "mappingDefinitions": {"streams": {"mappingEngine": "Streamr", "options": OPTIONS}},
    }
    ours, bare, processor, length = [], [], 0.0, 0
    with serving(folder, document) as service:
        for _ in range(TURNS):
            before = processor_seconds(service)
            found = run("peer", "127.0.0.1", port, "/streams", count, request)
            processor = processor_seconds(service) - before
            length = int(found["bytes"])
            ours.append((count - 1) / found["seconds"])
            with bare_websocket(count, length) as bare_port:
                bare.append((count - 1) / run("peer", "127.0.0.1", bare_port, "/", count)["seconds"])
    ratio = statistics.median(ours) / statistics.median(bare)
    return [
        Figure(
            "resend of 100,000 messages through a WebSocket listener",
            f"{statistics.median(ours):,.0f}/s",
            f"{statistics.median(bare):,.0f}/s (`websockets`, sending)",
            "ratio ≥ 0.8",
            ratio >= 0.8,
            f"ratio {ratio:.2f}; {length} bytes; service: {processor / count * 1e6:.0f} µs of processor time per message",
        )
    ]


@contextmanager
def bare_websocket(count: int, size: int) -> Iterator[int]:
    """Start a bare server that sends messages to its first client, and yield its port."""
    command = [sys.executable, "-m", "tests.bench.bare_websocket", str(count), str(size)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        assert process.wait(120) == 0

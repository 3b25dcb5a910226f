"""Replays as reactive-streams-io: in process, and over TCP and MQTT, compared with bare clients."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mappings.reactive_streams_io.frames import OnComplete, encode
from mappings.reactive_streams_io.limits import UNBOUNDED
from tests.bench.harness import FULL, SUBJECT, Scale, fill, processor_seconds, run, serving, sink, thing
from tests.bench.report import Figure
from tests.bench.streamr import PATIENT
from tests.support import memory_transport as _memory_transport  # noqa: F401
from tests.support.brokers import free_port
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.clients.mqtt import MqttClient
from tests.support.connection_documents import connection, source
from tests.support.in_process.reactive_streams_io import H, RsioHarness, raw, subscribe
from tests.support.in_process.service import pause, until
from tests.support.service_process import ServiceCommand

GOAL = 500_000
TURNS = 3
SIZE = 16
PIECE = 1 << 16
"""Bytes that the bare server sends in one step."""

END = encode(OnComplete(1))


def packed(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """From a test publisher through feed, engine, session and outbox to the bytes of a link."""
    count = scale.of(400_000, 2_000)
    rates, processor, messages = asyncio.run(_packed(count))
    rate = statistics.median(rates)
    return [
        Figure(
            f"packed replay of {SIZE}-byte elements in process, feed to message",
            f"{rate:,.0f} elements/s",
            "–",
            f"≥ {GOAL:,}/s",
            rate >= GOAL,
            f"{processor / count * 1e6:.2f} µs of processor per element; {messages:,} messages",
        )
    ]


async def _packed(count: int) -> tuple[list[float], float, int]:
    rates, processor, messages = [], 0.0, 0
    rsio_harness = await RsioHarness.filled()
    try:
        rsio_harness.send("a", H)
        await pause()
        for _ in range(TURNS):
            rsio_harness.forget()
            begun, spent = time.perf_counter(), time.process_time()
            rsio_harness.send("a", subscribe(f"tck/fixed?n={count}&size={SIZE}", 1, UNBOUNDED))
            published = rsio_harness.link.published
            await until(lambda: published and published[-1].envelope.payload.endswith(END))  # noqa: B023
            rates.append(count / (time.perf_counter() - begun))
            processor = time.process_time() - spent
            messages = len(published)
    finally:
        await rsio_harness.close()
    return rates, processor, messages


def listener(port: int) -> dict[str, Any]:
    """Return a TCP listener with twins and the test publishers."""
    return {
        "id": "listener",
        "connectionType": "tcp",
        "connectionStatus": "open",
        "uri": f"tcp://127.0.0.1:{port}",
        "sources": [{"addresses": ["rsio"], "authorizationContext": [SUBJECT], "payloadMapping": ["rsio"]}],
        "mappingDefinitions": {"rsio": {"mappingEngine": "ReactiveStreamsIO", "options": {"tck": True}}},
    }


@contextmanager
def bare_socket(file: Path, piece: int) -> Iterator[int]:
    """Start a bare server that sends the bytes of a file, and yield its port."""
    command = [sys.executable, "-m", "tests.bench.bare_socket", str(file), str(piece)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        assert process.wait(120) == 0


def tcp(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """A history and packed elements to a client that reads every frame, compared with a bare socket."""
    events, elements = scale.of(100_000, 500), scale.of(1_000_000, 2_000)
    fill(folder / "data" / "journal.db", 1, events)
    port = free_port()
    with serving(folder, listener(port)) as service:
        return [
            _beside(folder, scale, service, port, "a history", f"things/{thing(0)}/history", events),
            _beside(folder, scale, service, port, "packed elements", f"tck/fixed?n={elements}&size={SIZE}", elements),
        ]


def _beside(
    folder: Path, scale: Scale, service: ServiceCommand, port: int, what: str, publisher: str, count: int
) -> Figure:
    """Measure `count` elements, and the same bytes from the bare server, in turn."""
    file = folder / "raw_bytes"
    least = SIZE * count
    raw = run("reader", "127.0.0.1", port, "count", publisher, least, file)["raw_bytes"]
    rates: dict[tuple[str, str], list[float]] = {}
    ours = theirs = 0.0
    for _ in range(scale.of(TURNS, 1)):
        for how in ("count", "read"):
            before = processor_seconds(service)
            found = run("reader", "127.0.0.1", port, how, publisher, least)
            ours = processor_seconds(service) - before
            rates.setdefault(("ours", how), []).append(count / found["seconds"])
            with bare_socket(file, PIECE) as bare:
                found = run("reader", "127.0.0.1", bare, how, publisher, least)
            theirs = found["processor"]
            rates.setdefault(("bare", how), []).append(count / found["seconds"])
    spent = f"service {ours / count * 1e6:.2f} µs, client {theirs / count * 1e6:.2f} µs"
    middle = {key: statistics.median(each) for key, each in rates.items()}
    ratio = middle["ours", "read"] / middle["bare", "read"]
    return Figure(
        f"{what} over TCP to a client that reads the frames",
        f"{middle['ours', 'read']:,.0f} elements/s",
        f"{middle['bare', 'read']:,.0f} elements/s (asyncio on uvloop, the same bytes)",
        "ratio ≥ 0.8",
        ratio >= 0.8,
        f"ratio {ratio:.2f}; {raw / count:.0f} bytes each; processor time for each: {spent}; "
        f"to one that looks at nothing {middle['ours', 'count']:,.0f} and "
        f"{middle['bare', 'count']:,.0f} elements/s",
    )


def mqtt(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """Packed elements and a history over MQTT, compared with paho with messages of the same size."""
    events, elements = scale.of(200_000, 500), scale.of(2_000_000, 2_000)
    fill(folder / "data" / "journal.db", 1, events)
    options = {"rsio": {"mappingEngine": "ReactiveStreamsIO", "options": {"tck": True}}}
    with Mosquitto.start(persistence=False, config_lines=PATIENT) as broker:
        definition = connection(broker, source("bench", SUBJECT, payloadMapping=["rsio"]), mappingDefinitions=options)
        with serving(folder, definition) as service:
            packs = f"tck/fixed?n={elements}&size={SIZE}"
            return [
                _over_mqtt(service, broker, scale, "packed elements", packs, elements, 0.8),
                _over_mqtt(service, broker, scale, "a history", f"things/{thing(0)}/history", events, None),
            ]


def _over_mqtt(
    service: ServiceCommand,
    broker: Mosquitto,
    scale: Scale,
    what: str,
    publisher: str,
    count: int,
    goal: float | None,
) -> Figure:
    """Measure the bytes per second of the service and of the bare client, in turn."""
    ours, bare, processor, size = [], [], 0.0, 0
    found: dict[str, Any] = {}
    for _ in range(scale.of(TURNS, 1)):
        with (
            sink(broker, "bench/answers", count, END) as figures,
            MqttClient(broker.host, broker.port, ask="bench/ask", answers="bench/unused") as mqtt_client,
        ):
            before = processor_seconds(service)
            mqtt_client.send(raw(H, subscribe(publisher, 1, UNBOUNDED)))
            found = figures()
            processor = processor_seconds(service) - before
            ours.append(found["raw_bytes"] / found["seconds"])
        size = found["raw_bytes"] // found["seen"]
        with sink(broker, "bare", found["seen"]) as figures:
            run("bare", broker.host, broker.port, "bare", found["seen"], size)
            found_bare = figures()
            bare.append(found_bare["raw_bytes"] / found_bare["seconds"])
    rate, other, each = statistics.median(ours), statistics.median(bare), found["raw_bytes"] / count
    ratio = rate / other
    return Figure(
        f"{what} over MQTT, QoS 1",
        f"{rate / each:,.0f} elements/s, {rate / 1e6:,.0f} MB/s",
        f"{other / 1e6:,.0f} MB/s (paho, window 100)",
        "–" if goal is None else f"ratio ≥ {goal}",
        goal is None or ratio >= goal,
        f"ratio {ratio:.2f}; {found['seen']:,} messages of {size:,} bytes, {each:.0f} for each element; service "
        f"{processor / count * 1e6:.2f} µs of processor per element",
    )

"""Benchmarks for operators: the API under load, a scrape of many connections, and a start."""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.bench.harness import FULL, MESSAGE_BYTES, SUBJECT, Scale, fill, processor_seconds, run, serving
from tests.bench.modify import THINGS
from tests.bench.report import Figure
from tests.bench.targets import target, target_connection
from tests.support.brokers.kafka import Kafka
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.connection_documents import connection, source
from tests.support.kill_series.connection_churn import CONNECTIONS
from tests.support.kill_series.series_broker import SUBJECT as TRIAL_SUBJECT
from tests.support.kill_series.series_broker import (
    AmqpKillSeriesBroker,
    KafkaKillSeriesBroker,
    KillSeriesBroker,
    MqttKillSeriesBroker,
)
from tests.support.service_process import ServiceCommand
from tests.support.wait import wait_until_sync

RATE = 1_000
"""Commands per second over all brokers together. With the responses, these are 2,000 messages."""

REQUESTS = 3_000
PAUSE = 0.005
MANY, OPEN_OF_MANY = 10_000, 100
SCRAPED = 1_000
TURNS, COMMANDS = 8, 4_000


def closed(number: int) -> dict[str, Any]:
    return {
        "id": f"resting-{number}",
        "connectionType": "mqtt",
        "connectionStatus": "closed",
        "uri": "tcp://127.0.0.1:1883",
        "sources": [{"addresses": [f"resting/{number}"], "qos": 1, "authorizationContext": [SUBJECT]}],
    }


def under_load(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """Reads, and changes of a closed connection, while each of three brokers delivers commands."""
    fill(folder / "data" / "journal.db", THINGS, 3)
    with Mosquitto.start() as mosquitto, RabbitMQ.start() as rabbitmq, Kafka.start() as kafka:
        series_brokers = MqttKillSeriesBroker(mosquitto), AmqpKillSeriesBroker(rabbitmq), KafkaKillSeriesBroker(kafka)
        return _under_load(folder, scale, series_brokers)


def _under_load(folder: Path, scale: Scale, series_brokers: Sequence[KillSeriesBroker]) -> list[Figure]:
    for series_broker in series_brokers:
        series_broker.prepare("bench", "load")
    documents = [series_broker.connection("bench", "load") for series_broker in series_brokers]
    for document in documents:
        for each in document["sources"]:
            each["authorizationContext"] = [SUBJECT, TRIAL_SUBJECT]
    with serving(folder, *documents) as service:
        requests = scale.of(REQUESTS, 20)
        idle = _latencies(service, [document["id"] for document in documents], requests)
        with _loaded(series_brokers) as rates:
            busy = _latencies(service, [document["id"] for document in documents], requests)
        held = sum(rates)
    figures = []
    for what in idle:
        alone, found = (statistics.quantiles(it[what], n=100) for it in (idle, busy))
        figures.append(
            Figure(
                f"API, {what}, while three brokers bring {held:,.0f} commands/s",
                f"p50 {found[49]:.1f} ms, p99 {found[98]:.1f} ms",
                f"p50 {alone[49]:.1f} ms, p99 {alone[98]:.1f} ms (no load)",
                "p99 ≤ 25 ms",
                found[98] <= 25,
                f"longest {max(busy[what]):.1f} ms",
            )
        )
    return figures


@contextmanager
def _loaded(series_brokers: Sequence[KillSeriesBroker]) -> Iterator[list[float]]:
    """Run a load over each broker, and return the rates."""
    rates: list[float] = []
    loads = []
    try:
        for series_broker in series_brokers:
            command = [series_broker.uri, *series_broker.addresses("bench", "load"), str(RATE / len(series_brokers))]
            load = subprocess.Popen(
                [sys.executable, "-m", "tests.bench.paced_load", *command], stdout=subprocess.PIPE, text=True
            )
            assert load.stdout is not None
            loads.append(load)
            assert load.stdout.readline() == "ready\n"
        yield rates
        for load in loads:
            load.terminate()
        for load in loads:
            result = json.loads(load.communicate(timeout=180)[0])
            assert not result["refused"], result
            rates.append(result["rate"])
    finally:
        for load in loads:
            if load.poll() is None:
                load.kill()
                load.wait()


def _latencies(service: ServiceCommand, ids: Sequence[str], requests: int) -> dict[str, list[float]]:
    """Return the milliseconds of sequential requests, by their kind."""
    link = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
    reads = [CONNECTIONS, *(f"{CONNECTIONS}/{id}{part}" for id in ids for part in ("", "/status", "/metrics", "/logs"))]
    resting = closed(0)
    reading, changing, every = "reads", "changes of a closed connection", "all of these, nine reads to a change"
    found: dict[str, list[float]] = {reading: [], changing: [], every: []}
    for number in range(requests):
        is_change = number % 10 == 0
        begun = time.perf_counter()
        if is_change:
            body = json.dumps({**resting, "name": f"change {number}"})
            link.request("PUT", f"{CONNECTIONS}/{resting['id']}", body, {"content-type": "application/json"})
        else:
            link.request("GET", reads[number % len(reads)])
        answer = link.getresponse()
        text = answer.read()
        assert answer.status < 300, text
        for what in (changing if is_change else reading, every):
            found[what].append((time.perf_counter() - begun) * 1000)
        time.sleep(PAUSE)
    link.close()
    return found


def many_connections(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """Measure ten thousand files and a hundred open connections: their list, and a scrape of a thousand."""
    number, opened = scale.of(MANY, 50), scale.of(OPEN_OF_MANY, 5)
    series_broker = MqttKillSeriesBroker(Mosquitto.start())
    try:
        documents = [closed(n) for n in range(number - opened)]
        documents += [{**series_broker.connection("bench", f"part-{n}"), "id": f"open-{n}"} for n in range(opened)]
        begun = time.perf_counter()
        with serving(folder, *documents) as service:
            started = time.perf_counter() - begun
            listed = _seconds(service, CONNECTIONS)
            ids = _seconds(service, f"{CONNECTIONS}?ids-only=true")
    finally:
        series_broker.broker.close()
    return [
        Figure(
            f"start with {number:,} connection files, {opened} open",
            f"{started:.1f} s",
            "–",
            "≤ 20 s",
            started <= 20,
            "until it is ready, writing the files included",
        ),
        Figure(
            f"list of {number:,} connections", f"{listed:.2f} s", f"{ids:.2f} s (ids only)", "≤ 1 s", listed <= 1, ""
        ),
    ]


class Unmonitored(ServiceCommand):
    """A service without monitoring."""

    program = (sys.executable, "-m", "tests.bench.unmonitored")


def monitored(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """Modifies with events at a target, over a broker, with and without monitoring, alternately."""
    turns, commands = scale.of(TURNS, 2), scale.of(COMMANDS, 100)
    with Mosquitto.start(persistence=False) as broker:
        services: dict[str, ServiceCommand] = {}
        try:
            for kind, name in ((ServiceCommand, "with"), (Unmonitored, "without")):
                fill(folder / name / "data" / "journal.db", THINGS, 3)
                documents = (
                    connection(broker, source(name, SUBJECT), id=f"{name}-source"),
                    target_connection(broker, f"{name}-target", target(f"{name}/events")),
                )
                services[name] = kind.start(folder / name, documents, log={"format": "json", "level": "warning"})
            spent: dict[str, list[float]] = {name: [] for name in services}
            for turn in range(turns + 1):
                for name in sorted(services, reverse=turn % 2 == 1):
                    before = processor_seconds(services[name])
                    run("modify", broker.host, broker.port, commands, MESSAGE_BYTES, 0, "modify", 0, *_places(name))
                    wait_until_sync(lambda: services[name].metric("connectivity_target_lag_events") == 0, 60)  # noqa: B023
                    if turn:
                        # The first round is a warm-up.
                        spent[name].append((processor_seconds(services[name]) - before) / commands * 1e6)
        finally:
            for service in services.values():
                service.__exit__(None, None, None)
    ratios = [ours / bare for ours, bare in zip(spent["with"], spent["without"], strict=True)]
    ours, bare = (statistics.median(spent[name]) for name in ("with", "without"))
    cost = statistics.median(ratios) - 1
    doubt = statistics.stdev(ratios) / len(ratios) ** 0.5
    return [
        Figure(
            "monitoring, modify over MQTT with its event at a target",
            f"{ours:.0f} µs of processor each",
            f"{bare:.0f} µs (nothing is counted or written)",
            "cost ≤ 3 %",
            cost <= 0.03,
            f"cost {cost:+.1%} ± {doubt:.1%}, {turns} turns of {commands:,}",
        )
    ]


def _places(name: str) -> tuple[str, str]:
    """Return the topics of the commands and responses of a load."""
    return f"{name}/answers", f"{name}/ask"


def scrape(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """`/metrics` with a thousand open connections."""
    connections = scale.of(SCRAPED, 20)
    series_broker = MqttKillSeriesBroker(Mosquitto.start())
    try:
        documents = [{**series_broker.connection("bench", f"part-{n}"), "id": f"open-{n}"} for n in range(connections)]
        with serving(folder, *documents) as service:
            taken = sorted(_seconds(service, "/metrics") for _ in range(20))
    finally:
        series_broker.broker.close()
    return [
        Figure(
            f"scrape with {connections:,} connections",
            f"p50 {taken[10] * 1000:.0f} ms, longest {taken[-1] * 1000:.0f} ms",
            "–",
            "≤ 200 ms",
            taken[-1] <= 0.2,
            "",
        )
    ]


def _seconds(service: ServiceCommand, path: str) -> float:
    begun = time.perf_counter()
    status, _ = service.ask("GET", path)
    assert status == 200
    return time.perf_counter() - begun

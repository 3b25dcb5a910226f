"""Runs all benchmarks of the service, or those with the given names.

    python -m tests.bench [NAME…]

Benchmarks of the lake take a size in events, as in `lake-fill=200000`, but `lake-random` seconds and `lake-large`
megabytes; `million`, `search` and `search-cost` take a number of things. A run that measures all figures of
docs/explanation/performance.md writes the page. Each benchmark starts and stops the processes that it needs. A slow result
is no failure.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from connectivity.connections.model import Connection
from connectivity.monitoring.prometheus import PrometheusRegistry
from connectivity.store.store import Store
from connectivity.subscriptions.history_feed import HistoryFeed
from connectivity.subscriptions.limits import SubscriptionLimits
from connectivity.subscriptions.manager import Subscriber, SubscriptionManager
from connectivity.targets.outbox import Outbox
from connectivity.targets.reply_target import ReplyTargetPublisher
from connectivity.transports.base import Done
from connectivity.validation.validator import parse
from mappings.model.signals import HistoryQuery, Next, Outbound, Request, Subscribe, SubscriptionKind
from spark_store.journal.journal import Journal
from tests.bench import (
    as_of,
    as_of_whole,
    binary_frames,
    cold_history,
    compaction_load,
    fairness,
    lake,
    lake_extremes,
    lake_log,
    lake_random,
    lake_scale,
    loop,
    monitoring,
    operating,
    page,
    rsio,
    search,
    search_by_id,
    search_index_cost,
    sizes,
    start,
    streamr,
    target_filters,
    targets,
    twins,
)
from tests.bench.harness import FULL, MESSAGE_BYTES, SUBJECT, Scale, fill, processor_seconds, run, serving, sink, thing
from tests.bench.modify import THINGS
from tests.bench.queues import drained_over_amqp, drained_over_kafka, next_over_amqp, next_over_kafka, three_at_once
from tests.bench.report import HEAD, Figure, machine
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.clients.mqtt import MqttClient
from tests.support.connection_documents import client, connection, source
from tests.support.service_process import ServiceCommand


@contextmanager
def running(folder: Path, broker: Mosquitto, **settings: Any) -> Iterator[ServiceCommand]:
    with serving(folder, connection(broker, source("bench", SUBJECT)), **settings) as service:
        yield service


def next_over_mqtt(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """`next` events with demand, compared with paho that publishes messages of the same size."""
    count = scale.of(60_000, 500)
    fill(folder / "data" / "journal.db", 1, count)
    with Mosquitto.start(persistence=False) as broker, running(folder, broker) as service:
        prefix = f"acme.bench/{thing(0).name}/things/twin/streaming"
        with client(broker, "bench") as mqtt_client:
            created = mqtt_client.ask_for(f"{prefix}/subscribeForPersistedEvents")
        ours, bare, processor = [], [], 0.0
        size = MESSAGE_BYTES
        for _ in range(scale.of(3, 1)):
            with MqttClient(broker.host, broker.port, ask="bench/ask", answers="bench/unused") as mqtt_client:
                with client(broker, "bench") as opener:
                    created = opener.ask_for(f"{prefix}/subscribeForPersistedEvents")
                with sink(broker, "bench/answers", count - 1) as figures:
                    before = processor_seconds(service)
                    mqtt_client.command(f"{prefix}/request", value={**created["value"], "demand": count - 1})
                    found = figures()
                    processor = processor_seconds(service) - before
                    ours.append((count - 2) / found["seconds"])
                    size = int(found["bytes"])
            with sink(broker, "bare", count - 1) as figures:
                run("bare", broker.host, broker.port, "bare", count - 1, size - len("bench/answers") - 5)
                bare.append((count - 2) / figures()["seconds"])
        ratio = statistics.median(ours) / statistics.median(bare)
        return [
            Figure(
                "`next` events over MQTT, QoS 1",
                f"{statistics.median(ours):,.0f}/s",
                f"{statistics.median(bare):,.0f}/s (paho, window 100)",
                "ratio ≥ 1.5",
                ratio >= 1.5,
                f"ratio {ratio:.2f}; {size} bytes; service: {processor / count * 1e6:.0f} µs of processor time per event",
            )
        ]


def durable_modify(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """Modifies with responses: as fast as possible, and at a thousand per second."""
    fill(folder / "data" / "journal.db", THINGS, 3)
    with Mosquitto.start(persistence=False) as broker, running(folder, broker) as service:
        run("modify", broker.host, broker.port, scale.of(3_000, 100), MESSAGE_BYTES, 0)
        before = processor_seconds(service)
        count = scale.of(30_000, 300)
        fast = run("modify", broker.host, broker.port, count, MESSAGE_BYTES, 0)
        processor = processor_seconds(service) - before
        paced = run("modify", broker.host, broker.port, scale.of(10_000, 200), MESSAGE_BYTES, 1_000)
        with sink(broker, "bare", count) as figures:
            run("bare", broker.host, broker.port, "bare", count, MESSAGE_BYTES)
            bare = count / figures()["seconds"]
    rate = count / fast["seconds"]
    return [
        Figure(
            "durable modify with response, QoS 1",
            f"{rate:,.0f}/s",
            f"{bare:,.0f}/s (paho publishing alone)",
            "≥ 7,000/s",
            rate >= 7_000,
            f"ratio {rate / bare:.2f}; service: {processor / count * 1e6:.0f} µs of processor time per command",
        ),
        Figure(
            "the same at 1,000/s",
            f"p50 {paced['p50']:.1f} ms, p99 {paced['p99']:.1f} ms",
            "–",
            "p99 ≤ 5 ms",
            paced["p99"] <= 5,
            f"longest {paced['max']:.1f} ms",
        ),
    ]


def first_next(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """The time from `request` to the first `next`, for random things among a million entries."""
    things, samples = scale.of(1_000, 10), scale.of(300, 20)
    fill(folder / "data" / "journal.db", things, scale.of(1_000, 10))
    waits: list[float] = []
    with Mosquitto.start(persistence=False) as broker, running(folder, broker), client(broker, "bench") as mqtt_client:
        for number in range(samples):
            prefix = f"acme.bench/{thing(number * 37 % things).name}/things/twin/streaming"
            created = mqtt_client.ask_for(f"{prefix}/subscribeForPersistedEvents")
            request = {**created["value"], "demand": 1}
            begun = time.perf_counter()
            mqtt_client.send({"topic": f"{prefix}/request", "path": "/", "value": request}, wait=False)
            mqtt_client.next()
            waits.append((time.perf_counter() - begun) * 1000)
            mqtt_client.command(f"{prefix}/cancel", value=created["value"])
        echoes = _round_trip(broker)
    ranks = statistics.quantiles(waits, n=100)
    return [
        Figure(
            "first `next` after `request`, 1 M entries",
            f"p50 {ranks[49]:.1f} ms, p99 {ranks[98]:.1f} ms",
            f"p50 {echoes:.1f} ms (paho sends to itself)",
            "p50 ≤ 5 ms",
            ranks[49] <= 5,
            f"ratio {ranks[49] / echoes:.1f}",
        )
    ]


def _round_trip(broker: Mosquitto) -> float:
    """The median time, in milliseconds, of a message that a bare client sends to itself."""
    waits = []
    with MqttClient(broker.host, broker.port, ask="echo", answers="echo") as echo:
        for _ in range(200):
            begun = time.perf_counter()
            echo.send({"x": "y" * MESSAGE_BYTES}, wait=False)
            echo.next()
            waits.append((time.perf_counter() - begun) * 1000)
    return statistics.median(waits)


def replay_in_process(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """A replay through feed, subscription manager and encoder, without a broker."""
    count = scale.of(200_000, 2_000)
    path = folder / "journal.db"
    fill(path, 1, count)
    journal = Journal.open(path)
    rates = []
    for _ in range(scale.of(3, 1)):
        begun, processor = time.perf_counter(), time.process_time()
        sent = asyncio.run(_replay(journal, count))
        rates.append(sent / (time.perf_counter() - begun))
        spent = (time.process_time() - processor) / sent * 1e6
    rate = statistics.median(rates)
    return [
        Figure(
            "replay in process, feed to encoded envelope",
            f"{rate:,.0f} events/s",
            "–",
            "≥ 150,000/s",
            rate >= 150_000,
            f"{spent:.1f} µs of processor per event",
        )
    ]


async def _replay(journal: Journal, count: int) -> int:

    document = {
        "id": "bench",
        "connectionType": "mqtt",
        "connectionStatus": "open",
        "uri": "tcp://127.0.0.1:1883",
        "sources": [source("bench", SUBJECT)],
    }
    built: Connection = parse(document)
    route = ReplyTargetPublisher(built, 0, Outbox(), PrometheusRegistry().meter("bench"), lambda: datetime.now(UTC))
    encoded, is_over = 0, asyncio.Event()

    class Counting:
        connection_id, terminal_needs_request = "bench", True

        def post(self, signal: Outbound, ended: Done | None = None) -> None:
            nonlocal encoded
            envelopes = route.mapper.encode(signal, None)
            if isinstance(signal, Next):
                encoded += len(envelopes)
                if encoded >= count:
                    is_over.set()

    store = Store(journal)

    def open_feed(signal: Subscribe, _subjects: tuple[str, ...]) -> HistoryFeed:
        assert isinstance(signal.query, HistoryQuery)
        return HistoryFeed.open(store, signal.query, datetime.now(UTC))

    streams = SubscriptionManager(open_feed, SubscriptionLimits(), time.monotonic)
    peer = Subscriber(Counting(), (SUBJECT,), "bench")
    headers = {"correlation-id": "c-1", "ditto-originator": SUBJECT}
    streams.subscribe(Subscribe(SubscriptionKind.HISTORY, HistoryQuery(thing(0)), headers, key="1"), peer)
    streams.request(Request(SubscriptionKind.HISTORY, "1", count, headers), peer)
    await is_over.wait()
    return encoded


def idle_subscriptions(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """A hundred thousand subscriptions without requests."""
    number, things = scale.of(100_000, 1_000), scale.of(1_000, 10)
    fill(folder / "data" / "journal.db", things, 3)
    bounds = {"idle_timeout": "1h", "max_per_user": 2 * number}
    with Mosquitto.start(persistence=False) as broker, running(folder, broker, subscriptions=bounds) as service:
        assert service.process is not None
        process = psutil.Process(service.process.pid)
        _subscribe(broker, scale.of(2_000, 200), things)
        before = process.memory_info().rss
        seconds = scale.of(5.0, 0.5)
        alone = _busy(service, seconds)
        _subscribe(broker, number, things)
        grown = (process.memory_info().rss - before) / 1e6
        idle = _busy(service, seconds)
    return [
        Figure(
            "100,000 idle subscriptions",
            f"{grown:.0f} MB more memory, {idle:.1f} % of a core",
            f"{alone:.1f} % of a core without them",
            "≤ 60 MB, no processor time",
            grown <= 60 and idle - alone < 0.5,
            f"{grown * 1e6 / number:.0f} bytes each",
        )
    ]


def _busy(service: ServiceCommand, seconds: float) -> float:
    """The percentage of a core that the idle service uses."""
    spent = processor_seconds(service)
    time.sleep(seconds)
    return (processor_seconds(service) - spent) / seconds * 100


def _subscribe(broker: Mosquitto, number: int, things: int, at_once: int = 200) -> None:
    """Open subscriptions in small groups, because many pending messages would need memory too."""
    with client(broker, "bench") as mqtt_client:
        for start in range(0, number, at_once):
            for n in range(start, start + at_once):
                topic = f"acme.bench/device-{n % things}/things/twin/streaming/subscribeForPersistedEvents"
                document = {"topic": topic, "path": "/", "headers": {"correlation-id": f"subscriber-{n}"}}
                mqtt_client.send(document, wait=False)
            for _ in range(at_once):
                mqtt_client.next()
            mqtt_client.messages.clear()


BENCHMARKS: dict[str, Callable[..., Iterable[Figure]]] = {
    "replay": replay_in_process,
    "frames": binary_frames.measured,
    "next": next_over_mqtt,
    "fairness": fairness.beside_replays,
    "modify": durable_modify,
    "retrieve": twins.retrieves,
    "loop": loop.stalls,
    "entries": twins.policies_with_many_entries,
    "million": twins.a_million_things,
    "first": first_next,
    "start": start.to_ready,
    "idle": idle_subscriptions,
    "target": targets.event_latency,
    "targets": targets.filtered,
    "amqp-next": next_over_amqp,
    "amqp-drain": drained_over_amqp,
    "kafka-next": next_over_kafka,
    "kafka-drain": drained_over_kafka,
    "three": three_at_once,
    "targets-judged": target_filters.judged,
    "api": operating.under_load,
    "many": operating.many_connections,
    "monitoring-served": operating.monitored,
    "scrape-served": operating.scrape,
    "lake-fill": lake.filled,
    "lake-scale": lake_scale.measured,
    "lake-random": lake_random.measured,
    "lake-large": lake_extremes.large,
    "lake-long-ids": lake_extremes.long_ids,
    "monitoring": monitoring.costs,
    "scrapes": monitoring.scrapes,
    "lake-soon": lake.soon,
    "lake-log": lake_log.trickle,
    "lake-memory": lake.memory,
    "cold-first": cold_history.first_page,
    "cold-replay": cold_history.replays,
    "lake-export": cold_history.exports,
    "compaction": compaction_load.while_compacting,
    "search-by-id": search_by_id.by_id,
    "search-in-process": search_by_id.in_process,
    "search-cost": search_index_cost.costs,
    "search": search.search,
    "search-as-of": as_of.first_page,
    "search-as-of-all": as_of_whole.whole_result,
    "streamr-live": streamr.live,
    "streamr-many": streamr.many,
    "streamr-resend": streamr.resend,
    "streamr-listener": streamr.listener,
    "rsio-packed": rsio.packed,
    "rsio-tcp": rsio.tcp,
    "rsio-mqtt": rsio.mqtt,
    "rsio-sizes": sizes.listed,
}


def measured(name: str, scale: Scale = FULL, *size: int) -> Iterator[Figure]:
    """The figures of one benchmark, which uses its own temporary folder."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        yield from BENCHMARKS[name](Path(folder), scale, *size)


def main(names: list[str]) -> int:
    if unknown := [name for name in names if name.partition("=")[0] not in BENCHMARKS]:
        print(f"benchmark: found {', '.join(unknown)}, expected some of: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    print(f"{machine()}\n\n{HEAD}", flush=True)
    found: dict[str, list[Figure]] = {}
    for wanted in names or list(BENCHMARKS):
        name, _, size = wanted.partition("=")
        found[name] = []
        for figure in measured(name, FULL, *([int(size)] if size else [])):
            found[name].append(figure)
            print(figure.row(), flush=True)
    page.write(found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

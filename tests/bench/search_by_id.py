"""Searches by ID, over MQTT compared with two bare clients, and in process."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from connectivity.dispatch.assembly import assemble
from connectivity.monitoring.prometheus import PrometheusRegistry
from connectivity.sources.delivery import DeliveryLedger, read
from connectivity.sources.reader import SourceReader
from connectivity.store.store import Store
from connectivity.subscriptions.feed import Feed
from connectivity.subscriptions.limits import SubscriptionLimits
from connectivity.subscriptions.manager import SubscriptionManager
from connectivity.subscriptions.search_feed import SearchService
from connectivity.targets.outbox import Outbox
from connectivity.targets.reply_target import ReplyTargetPublisher
from connectivity.transports.base import Delivery, Done, OutboundMessage
from connectivity.twins.decider import Decider
from connectivity.validation.validator import parse
from mappings.errors import Fault
from mappings.model.envelope import Envelope
from mappings.model.signals import SearchQuery, Subscribe
from spark_store.journal.journal import Journal
from spark_store.search.sqlite_search import SqliteSearch
from tests.bench.harness import FULL, SUBJECT, Scale, fill, processor_seconds, run, serving, thing
from tests.bench.report import Figure
from tests.bench.search_load import THINGS, request, subscribe
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.connection_documents import connection, source
from tests.support.in_process.fakes import Link

COUNT = 10_000
AT_ONCE = 100
ROUNDS = 3


def by_id(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """Searches of five messages, a hundred at a time and one by one, compared with two bare clients."""
    path = folder / "data" / "journal.db"
    fill(path, THINGS, 3)
    page = _page(path)
    figures, most = [], scale.of(COUNT, 2 * AT_ONCE)
    with (
        Mosquitto.start(persistence=False) as broker,
        serving(folder, connection(broker, source("bench", SUBJECT))) as service,
        _answering(broker, page),
    ):
        _converse(broker, "bench", scale.of(2_000, AT_ONCE), AT_ONCE)
        for at_once, count in ((AT_ONCE, most), (1, most // 10)):
            ours, bare, processor = [], [], 0.0
            for _ in range(scale.of(ROUNDS, 1)):
                bare.append(count / _converse(broker, "bare", count, at_once))
                before = processor_seconds(service)
                ours.append(count / _converse(broker, "bench", count, at_once))
                processor = processor_seconds(service) - before
            ratio = statistics.median(ours) / statistics.median(bare)
            figures.append(
                Figure(
                    f"search by id over MQTT, five messages each, {at_once} at a time",
                    f"{statistics.median(ours):,.0f}/s",
                    f"{statistics.median(bare):,.0f}/s (two paho clients, the same five messages)",
                    "ratio ≥ 0.8",
                    ratio >= 0.8,
                    f"ratio {ratio:.2f}; service: {processor / count * 1e6:.0f} µs of processor time per search",
                )
            )
    return figures


def _converse(broker: Mosquitto, name: str, count: int, at_once: int) -> float:
    seconds = run("search_load", broker.host, broker.port, f"{name}/ask", f"{name}/answers", count, at_once)["seconds"]
    return float(seconds)


def _page(path: Path) -> str:
    """Return the page that a search finds."""
    journal = Journal.open(path)
    snapshot = journal.snapshot(thing(0))
    journal.close()
    assert snapshot is not None
    return json.dumps([snapshot.state], separators=(",", ":"))


@contextmanager
def _answering(broker: Mosquitto, page: str) -> Iterator[None]:
    """Start the bare client in place of the service."""
    command = [
        sys.executable,
        "-m",
        "tests.bench.bare_search",
        broker.host,
        str(broker.port),
        "bare/ask",
        "bare/answers",
    ]
    with subprocess.Popen([*command, page], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield
        process.stdin.close()


# --- in process ---------------------------------------------------------------------------------------------------------


def in_process(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """From the bytes of a delivery to the bytes of its responses, without a broker."""
    path = folder / "journal.db"
    fill(path, THINGS, 3)
    rate, processor = asyncio.run(_in_process(path, scale))
    return [
        Figure(
            "search by id in process, five messages each",
            f"{rate:,.0f}/s",
            "–",
            "≥ 5,000/s",
            rate >= 5_000,
            f"{processor * 1e6:.0f} µs of processor per search",
        )
    ]


class _Taking(Link):
    """A link that accepts all messages immediately; `keys` are the IDs of created subscriptions."""

    def __init__(self) -> None:
        super().__init__(1_000_000)
        self.keys: list[str] = []
        self.ended = self.awaited = 0
        self.over = asyncio.Event()

    def publish(self, message: OutboundMessage, done: Done) -> None:
        payload = message.envelope.payload
        if payload.startswith(b'{"topic":"_/_/things/twin/search/created"'):
            self.keys.append(payload[payload.index(b'"subscriptionId":"') + 18 : -3].decode())
        elif payload.startswith(b'{"topic":"_/_/things/twin/search/complete"'):
            self.ended += 1
            if self.ended == self.awaited:
                self.over.set()
        done(None)


async def _in_process(path: Path, scale: Scale) -> tuple[float, float]:
    store = Store(Journal.open(path))
    decider = Decider(store, now=lambda: datetime.now(UTC))
    searching = SearchService(store, decider.world, decider.now, partial(SqliteSearch, path))

    def open_feed(signal: Subscribe, subjects: tuple[str, ...]) -> Feed | Fault:
        assert isinstance(signal.query, SearchQuery)
        return searching.open(signal.query, signal.headers, subjects)

    streams = SubscriptionManager(open_feed, SubscriptionLimits(), time.monotonic)
    dispatcher, ledger = assemble(store, streams, decider, {}).dispatcher, DeliveryLedger()
    document: dict[str, Any] = {"id": "bench", "connectionType": "mqtt", "connectionStatus": "open"}
    built = parse({**document, "uri": "tcp://127.0.0.1:1883", "sources": [source("bench", SUBJECT)]})
    link, outbox = _Taking(), Outbox()
    outbox.attach(link)
    reader = SourceReader(
        ReplyTargetPublisher(built, 0, outbox, PrometheusRegistry().meter("bench"), lambda: datetime.now(UTC))
    )
    names, count = iter(range(10 * COUNT)), scale.of(COUNT, 2 * AT_ONCE)

    def deliver(payloads: list[bytes]) -> None:
        each = [Delivery(Envelope(it, {}), "bench/ask", str(next(names)), False, _nothing) for it in payloads]
        dispatcher.handle(read(reader, each, ledger), _nothing)

    async def search(first: int, count: int) -> None:
        link.keys.clear()
        link.over.clear()
        ended = link.ended
        deliver([subscribe(number) for number in range(first, first + count)])
        link.awaited = ended + count
        deliver([request(key, "1") for key in link.keys])
        await link.over.wait()

    rates, processor = [], 0.0
    await search(0, THINGS)
    for _ in range(scale.of(ROUNDS, 1)):
        begun, before = time.perf_counter(), time.process_time()
        for first in range(0, count, AT_ONCE):
            await search(first, AT_ONCE)
        rates.append(count / (time.perf_counter() - begun))
        processor = (time.process_time() - before) / count
    await searching.close()
    await store.close()
    return statistics.median(rates), processor


def _nothing(*_: object) -> None:
    """Do nothing, in place of a wait."""

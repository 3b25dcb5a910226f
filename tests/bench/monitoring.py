"""Measures the cost of a connection's metrics and logs, and of a scrape.

It measures the path of messages through the service, from their bytes to the confirm, without a network. Two paths with
monitoring and two without process the same messages alternately, and the processor time of the process is compared. There
are two of each kind, because equal paths differ slightly by their memory addresses. The log is on, as it is during use.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvloop
from prometheus_client import generate_latest

from connectivity.connections.model import Connection
from connectivity.dispatch.assembly import assemble
from connectivity.monitoring.counters import Addresses, EventCounter, SignalReference, TargetCounters
from connectivity.monitoring.meter import Meter
from connectivity.monitoring.prometheus import PrometheusRegistry
from connectivity.sources.delivery import DeliveryLedger, read
from connectivity.sources.reader import SourceReader
from connectivity.store.store import Store
from connectivity.subscriptions.history_feed import HistoryFeed
from connectivity.subscriptions.limits import SubscriptionLimits
from connectivity.subscriptions.manager import SubscriptionManager
from connectivity.targets.open_connection import OpenConnection
from connectivity.targets.outbox import Outbox
from connectivity.targets.reply_target import reply_publishers
from connectivity.targets.target import TargetPublisher
from connectivity.transports.base import Delivery, Done, OutboundMessage, Outcome
from connectivity.twins.decider import Decider
from connectivity.validation.validator import parse
from mappings.model.envelope import Envelope
from mappings.model.signals import HistoryQuery, Subscribe
from spark_store.journal.journal import Journal
from tests.bench.harness import FULL, MESSAGE_BYTES, SUBJECT, Scale, fill, frozen_as_before, thing
from tests.bench.modify import THINGS, command
from tests.bench.report import Figure
from tests.support.connection_documents import source
from tests.support.in_process.fakes import Link

TURNS = 100
BATCH = 50
COMMANDS = 250
EVENTS = 20_000
CONNECTIONS = 1_000
SCRAPES = 15
MOST_COST = 0.03
MOST_SCRAPE = 0.2


class Silent(EventCounter):
    """A metric that is not recorded."""

    def note(self, about: SignalReference | None, count: int = 1, words: str | None = None) -> None:
        pass


class Nothing:
    """Log steps that are not recorded."""

    def note(self, about: SignalReference) -> None:
        pass

    def note_each(self, abouts: Sequence[SignalReference]) -> None:
        pass


def silenced(facts: Any) -> Any:
    """Replace the metrics of a component by some that record nothing."""
    for name in ("read", "passed", "written"):
        if hasattr(facts, name):
            setattr(facts, name, Nothing())
    return facts


class SilentMeter(Meter):
    """A meter without counters and logs."""

    def inbound(self, outcome: str, count: int = 1) -> None:
        pass

    def __init__(self, *all: Any) -> None:
        super().__init__(*all)
        silenced(self.replies)

    def source(self, *all: Any) -> Addresses:
        addresses = super().source(*all)
        for facts in addresses.each():
            silenced(facts)
        return addresses

    def target(self, address: str) -> TargetCounters:
        found: TargetCounters = silenced(super().target(address))
        return found

    def _counter(self, category: str, address: str | None, type: str, *more: Any) -> EventCounter:
        counter = super()._counter(category, address, type, *more)
        return Silent(self._clock, self.log, counter.kind, "", None)


class SilentMonitor(PrometheusRegistry):
    def meter(self, connection_id: str) -> Meter:
        return SilentMeter(connection_id, self._clock, time.time)


class Tally:
    """A counter with a waiting task, which costs less than polling."""

    def __init__(self) -> None:
        self._number = self._wanted = 0
        self._is_there = asyncio.Event()

    def count(self) -> None:
        self._number += 1
        if self._number == self._wanted:
            self._is_there.set()

    def expect(self, more: int) -> None:
        """Set the number of further counts to wait for."""
        self._wanted = self._number + more
        self._is_there.clear()

    async def reached(self) -> None:
        await self._is_there.wait()


class Confirming(Link):
    """A broker that confirms all messages immediately."""

    def __init__(self) -> None:
        super().__init__(100)
        self.taken = Tally()

    def publish(self, message: OutboundMessage, done: Done) -> None:
        self.taken.count()
        done(None)


class Way:
    """The path of messages through one connection, with its own journal."""

    def __init__(self, path: Path, monitor: PrometheusRegistry, *, has_target: bool, events: int = 3) -> None:
        """Fill the journal, unless its file exists."""
        if not path.exists():
            fill(path, THINGS, events)
        self.monitor = monitor
        self.store = Store(Journal.open(path))
        now = datetime.now
        decider = Decider(self.store, now=lambda: now(UTC))
        self.streams = SubscriptionManager(self._open_feed, SubscriptionLimits(), time.monotonic)
        self.dispatch, self.ledger = assemble(self.store, self.streams, decider, {}), DeliveryLedger()
        self.link, self.outbox = Confirming(), Outbox()
        self.outbox.attach(self.link)
        meter = monitor.meter("bench")
        if not isinstance(meter, SilentMeter):
            meter.log.enable()
        self.ended = Tally()
        self.connection = _connection("bench", source("bench", SUBJECT))
        clock = lambda: now(UTC)  # noqa: E731 - the shortest function that reads the clock
        self.reader = SourceReader(*reply_publishers(self.connection, 0, self.outbox, meter, clock))
        # The service does not send an event to the connection of its command, so the target is on another one.
        self.beside = _connection("beside", targets=[_TARGET])
        more = monitor.meter("beside")
        if not isinstance(more, SilentMeter):
            more.log.enable()
        self.targets = [TargetPublisher(self.beside, 0, self.outbox, more, clock)] if has_target else []

    async def start(self) -> Way:
        if self.targets:
            await self.dispatch.event_publisher.prepare(self.beside)
            for component in self.dispatch.components:
                component.opened(OpenConnection(self.beside, self.targets))
        return self

    def _open_feed(self, signal: Subscribe, _subjects: tuple[str, ...]) -> HistoryFeed:
        assert isinstance(signal.query, HistoryQuery)
        return HistoryFeed.open(self.store, signal.query, datetime.now(UTC))

    def _ended(self, _delivery: Delivery, _outcome: Outcome) -> None:
        self.ended.count()

    async def take(self, payloads: list[bytes]) -> None:
        """Process these commands, from their bytes to the last confirm."""
        self.link.taken.expect(len(payloads) * (1 + len(self.targets)))
        for start in range(0, len(payloads), BATCH):
            deliveries = [
                Delivery(Envelope(payload, {}), "bench", None, False, self._ended)
                for payload in payloads[start : start + BATCH]
            ]
            self.ended.expect(len(deliveries))
            self.dispatch.dispatcher.handle(read(self.reader, deliveries, self.ledger), _nothing)
            self.monitor.tick()
            await self.ended.reached()
        await self.link.taken.reached()

    async def replay(self, count: int) -> None:
        """Replay `count` events of one thing, with the demand of its subscriber."""
        prefix = f"acme.bench/{thing(0).name}/things/twin/streaming"
        await self._say(f"{prefix}/subscribeForPersistedEvents", b"null")
        key = next(iter(self.streams)).key
        self.link.taken.expect(count)
        await self._say(f"{prefix}/request", b'{"subscriptionId":"%s","demand":%d}' % (key.encode(), count))
        await self.link.taken.reached()
        await self._say(f"{prefix}/cancel", b'{"subscriptionId":"%s"}' % key.encode())

    async def _say(self, topic: str, value: bytes) -> None:
        payload = b'{"topic":"%s","path":"/","headers":{},"value":%s}' % (topic.encode(), value)
        self.ended.expect(1)
        delivery = Delivery(Envelope(payload, {}), "bench", None, False, self._ended)
        self.dispatch.dispatcher.handle(read(self.reader, [delivery], self.ledger), _nothing)
        await self.ended.reached()

    async def close(self) -> None:
        self.dispatch.event_publisher.closed("beside")
        await self.dispatch.event_publisher.close()
        await self.store.close()


_TARGET = {"address": "events", "topics": ["_/_/things/twin/events"], "authorizationContext": [SUBJECT], "qos": 1}


def _connection(name: str, *sources: Any, **more: Any) -> Connection:
    document = {"id": name, "connectionType": "mqtt", "connectionStatus": "open", "uri": "tcp://127.0.0.1:1883"}
    return parse({**document, "sources": list(sources), **more})


def _nothing(_arrivals: object) -> None:
    raise AssertionError("the store is there")


def costs(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """Commands, commands with events at a target, and replays, with and without monitoring, alternately."""
    count, events, turns = scale.of(COMMANDS, 50), scale.of(EVENTS // 10, 100), scale.of(TURNS, 2)
    payloads = [command(number, MESSAGE_BYTES, "modify", 0) for number in range(count)]
    modifies: Callable[[Way], Awaitable[None]] = lambda way: way.take(payloads)  # noqa: E731
    replays: Callable[[Way], Awaitable[None]] = lambda way: way.replay(events - 1)  # noqa: E731
    return [
        uvloop.run(_compared(folder / "modify", "modify", modifies, count, events, turns)),
        uvloop.run(
            _compared(folder / "target", "modify, with a target", modifies, count, events, turns, has_target=True)
        ),
        uvloop.run(_compared(folder / "replay", "replay", replays, events - 1, events, turns)),
    ]


async def _compared(
    folder: Path,
    what: str,
    work: Callable[[Way], Awaitable[None]],
    number: int,
    events: int,
    turns: int,
    *,
    has_target: bool = False,
) -> Figure:
    made = (
        ("with", PrometheusRegistry),
        ("without", SilentMonitor),
        ("also-without", SilentMonitor),
        ("also-with", PrometheusRegistry),
    )
    ways = [
        await Way(folder / name / "journal.db", monitor(), has_target=has_target, events=events).start()
        for name, monitor in made
    ]
    for way in ways:
        await work(way)
    spent: list[list[float]] = [[] for _ in ways]
    with frozen_as_before():
        gc.collect()
        gc.freeze()
        for turn in range(turns):
            # The order rotates, because the speed of the machine may change.
            for step in range(len(ways)):
                index = (turn + step) % len(ways)
                gc.collect()
                begun = time.process_time()
                await work(ways[index])
                spent[index].append(time.process_time() - begun)
    for way in ways:
        await way.close()
    ratios = [(first + last) / (one + other) for first, one, other, last in zip(*spent, strict=True)]
    ratio = statistics.median(ratios)
    doubt = statistics.stdev(ratios) / turns**0.5
    first, one, other, last = (statistics.median(each) / number * 1e6 for each in spent)
    alike = max(abs(one / other - 1), abs(first / last - 1))
    ours, bare = (first + last) / 2, (one + other) / 2
    return Figure(
        f"monitoring, {what}",
        f"{ours:.2f} µs of processor each",
        f"{bare:.2f} µs (nothing is counted or written)",
        f"cost ≤ {MOST_COST:.0%}",
        ratio - 1 <= MOST_COST,
        f"cost {ratio - 1:+.1%} ± {doubt:.1%}, {turns} turns; two that do the same differ by {alike:.1%}",
    )


def scrapes(_folder: Path, scale: Scale = FULL) -> list[Figure]:
    """The duration of a scrape with many active connections, and with as many idle ones."""
    figures, connections = [], scale.of(CONNECTIONS, 50)
    for what, is_used in (("in use", True), ("open and idle", False)):
        monitor = PrometheusRegistry()
        monitor.watch_subscriptions(list)
        for number in range(connections):
            meter = monitor.meter(f"depot-{number}")
            meter.is_up = True
            arriving, target = meter.source([f"in/{number}"])[f"in/{number}"], meter.target(f"out/{number}")
            if is_used:
                meter.inbound("refused")
                facts = (arriving.acknowledged, arriving.requeued, target.published, meter.replies.published)
                for fact in (*facts, meter.replies.unresolved, target.not_published):
                    fact.note(None)
        waits = []
        for _ in range(scale.of(SCRAPES, 2)):
            begun = time.perf_counter()
            size = len(generate_latest(monitor.registry))
            waits.append(time.perf_counter() - begun)
        wait = statistics.median(waits)
        figures.append(
            Figure(
                f"scrape, {connections:,} connections {what}",
                f"{wait * 1000:.0f} ms",
                "–",
                f"≤ {MOST_SCRAPE * 1000:.0f} ms",
                wait <= MOST_SCRAPE,
                f"{size / 1000:,.0f} kB",
            )
        )
    return figures

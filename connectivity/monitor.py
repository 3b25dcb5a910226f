"""What is counted, for Prometheus.

Counters belong to connections; labels never carry entity ids. The numbers of open subscriptions and of outstanding demand
are read from their owner when somebody scrapes, not kept twice.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

_COMMIT_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


Encode = Callable[[CollectorRegistry], bytes]
"""What writes a registry in one of Prometheus' formats."""


class OpenSubscription(Protocol):
    """What a scrape reads of a subscription."""

    demand: int

    @property
    def connection_id(self) -> str: ...


class Figure(NamedTuple):
    """A gauge: its name, what it means, its values by the values of its labels, and the labels' names."""

    name: str
    meaning: str
    values: Mapping[tuple[str, ...], float]
    labels: tuple[str, ...] = ()


class Meter:
    """The counters of one connection, bound to its labels once."""

    def __init__(self, monitor: Monitor, connection_id: str) -> None:
        self._deliveries = monitor.deliveries
        self._connection_id = connection_id
        self._bound: dict[tuple[str, str], Counter] = {}
        self._events = monitor.events.labels(connection_id)
        self.up = monitor.up.labels(connection_id)

    def inbound(self, outcome: str, count: int = 1) -> None:
        """Deliveries: settled, given_back or dropped; malformed, refused or failed; unread by any mapper; answered_again;
        unmatched, with an answer or acknowledgement that nobody waits for; held while the store was away."""
        self._count("in", outcome, count)

    def outbound(self, outcome: str, count: int = 1) -> None:
        """Messages: published, failed, unwritten by the mapper, or not sent for a reason: not_expected, no_reply_target,
        address_unresolved, not_diverted."""
        self._count("out", outcome, count)

    def events_sent(self, count: int) -> None:
        """Elements of subscriptions that were handed on."""
        self._events.inc(count)

    def _count(self, direction: str, outcome: str, count: int) -> None:
        counter = self._bound.get((direction, outcome))
        if counter is None:
            counter = self._deliveries.labels(self._connection_id, direction, outcome)
            self._bound[direction, outcome] = counter
        counter.inc(count)


class Monitor:
    """Every metric of the service; one registry per service, so that tests may have several."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._connections: dict[str, None] = {}
        self.deliveries = Counter(
            "connectivity_deliveries",
            "Messages by what became of them.",
            ["connection", "direction", "outcome"],
            registry=self.registry,
        )
        self.events = Counter(
            "connectivity_events_sent",
            "Elements of subscriptions that were sent.",
            ["connection"],
            registry=self.registry,
        )
        self.up = Gauge(
            "connectivity_connection_up", "1 while the connection is open.", ["connection"], registry=self.registry
        )
        self.commit = Histogram(
            "connectivity_journal_commit_seconds",
            "How long a commit of the journal took.",
            buckets=_COMMIT_BUCKETS,
            registry=self.registry,
        )

        self.trimmed = Counter(
            "connectivity_journal_trimmed",
            "Events that the journal has let go, because the lake has them.",
            registry=self.registry,
        )
        self.skipped = Counter(
            "connectivity_target_skipped",
            "Events that a target misses: the journal had let them go, or they cannot be made, or never be taken.",
            ["connection", "target"],
            registry=self.registry,
        )
        self.trimming = Gauge(
            "connectivity_journal_trimming_up",
            "0 while the journal cannot be trimmed, because it cannot be told whether the lake has its events.",
            registry=self.registry,
        )
        self.trimming.set(1)

        self._looks: list[Callable[[], Awaitable[None]]] = []

    def meter(self, connection_id: str) -> Meter:
        self._connections[connection_id] = None
        return Meter(self, connection_id)

    def forget(self, connection_id: str) -> None:
        """The connection is closed for good: an alert on links that are down must not go on about it."""
        self._connections.pop(connection_id, None)
        self.up.remove(connection_id)

    def watch_subscriptions(self, subscriptions: Callable[[], Iterable[OpenSubscription]]) -> None:
        """Where a scrape finds the open subscriptions."""
        self.registry.register(_Subscriptions(subscriptions, self._connections))

    def watch_lake(self, lag: Callable[[], tuple[int, float] | None]) -> None:
        """Where a scrape finds how many events are not in the lake yet, and for how many seconds; None: not known now."""
        self.registry.register(_Lag(lag))

    def watch_figures(self, figures: Callable[[], Iterable[Figure]]) -> None:
        """Where a scrape finds figures that somebody else knows."""
        self.registry.register(_Figures(figures))

    def look_first(self, look: Callable[[], Awaitable[None]]) -> None:
        """What is to be done before a scrape, where reading it would keep the loop waiting."""
        self._looks.append(look)

    async def scrape(self, encode: Encode = generate_latest) -> bytes:
        """`exposition`, once everybody has looked."""
        for look in self._looks:
            await look()
        return self.exposition(encode)

    def exposition(self, encode: Encode = generate_latest) -> bytes:
        """All metrics in the format that `encode` writes, Prometheus' text format by default."""
        return encode(self.registry)


class _Subscriptions(Collector):
    def __init__(self, subscriptions: Callable[[], Iterable[OpenSubscription]], connections: Iterable[str]) -> None:
        """A connection without subscriptions has none: that is a number too."""
        self._subscriptions = subscriptions
        self._connections = connections

    def collect(self) -> Iterator[GaugeMetricFamily]:
        number, demand = Tally(dict.fromkeys(self._connections, 0)), Tally(dict.fromkeys(self._connections, 0))
        for subscription in self._subscriptions():
            number[subscription.connection_id] += 1
            demand[subscription.connection_id] += subscription.demand
        for name, text, tally in (
            ("connectivity_subscriptions", "Open subscriptions.", number),
            ("connectivity_demand", "Elements requested and not yet sent.", demand),
        ):
            family = GaugeMetricFamily(name, text, labels=["connection"])
            for connection_id, value in tally.items():
                family.add_metric([connection_id], value)
            yield family


class _Lag(Collector):
    def __init__(self, lag: Callable[[], tuple[int, float] | None]) -> None:
        self._lag = lag

    def collect(self) -> Iterator[GaugeMetricFamily]:
        if (found := self._lag()) is None:
            return
        events, seconds = found
        yield GaugeMetricFamily("connectivity_lake_lag_events", "Events that are not in the lake yet.", value=events)
        yield GaugeMetricFamily(
            "connectivity_lake_lag_seconds", "How long the oldest of them has been waiting.", value=seconds
        )


class _Figures(Collector):
    def __init__(self, figures: Callable[[], Iterable[Figure]]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for figure in self._figures():
            family = GaugeMetricFamily(figure.name, figure.meaning, labels=figure.labels)
            for labels, value in figure.values.items():
                family.add_metric(labels, value)
            yield family

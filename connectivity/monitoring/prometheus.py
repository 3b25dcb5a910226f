"""What is counted, for Prometheus.

Counters belong to connections; labels never carry entity ids. What a connection counts is counted by its `Meter`
(`connectivity.monitoring`), and read from there when somebody scrapes, not kept twice; so are the numbers of open
subscriptions and of outstanding demand. A connection that never counted anything has no line of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from connectivity.monitoring.meter import Meter
from connectivity.monitoring.windows import SecondClock

_COMMIT_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

_LOGS_SECONDS: Final = 300
"""So often it is looked which logs have had their time."""

_MOST_GONE: Final = 1_000
"""So many connections that are closed for good are remembered with what they counted."""

Encode = Callable[[CollectorRegistry], bytes]
"""What writes a registry in one of Prometheus' formats."""


class OpenSubscription(Protocol):
    """What a scrape reads of a subscription."""

    demand: int

    @property
    def connection_id(self) -> str: ...


class GaugeReading(NamedTuple):
    """A gauge: its name, what it means, its values by the values of its labels, and the labels' names."""

    name: str
    meaning: str
    values: Mapping[tuple[str, ...], float]
    labels: tuple[str, ...] = ()


class PrometheusRegistry:
    """Every metric of the service; one registry per service, so that tests may have several."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time) -> None:
        """`clock` gives monotonic seconds, `now` seconds since the epoch."""
        self.registry = CollectorRegistry()
        self._clock = SecondClock(clock)
        self._now = now
        self._logs_looked_at = self._clock.second
        self._meters: dict[str, Meter] = {}
        self._gone: dict[str, Meter] = {}
        """Those of connections that are closed for good, which may come back."""
        self.registry.register(_Connections(self._meters, self._gone))
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
        self._skipped = Counter(
            "connectivity_target_skipped",
            "Events that a target misses: the journal had let them go, or they cannot be made, or never be taken.",
            ["connection", "target"],
            registry=self.registry,
        )
        self._skipping: dict[str, set[str]] = {}
        """Targets with a number of their own there, by connection."""
        self._job_failures = Counter(
            "connectivity_job_failures", "Rounds of a background job that failed.", ["job"], registry=self.registry
        )
        self.trimming = Gauge(
            "connectivity_journal_trimming_up",
            "0 while the journal cannot be trimmed, because it cannot be told whether the lake has its events.",
            registry=self.registry,
        )
        self.trimming.set(1)

        self._looks: list[Callable[[], Awaitable[None]]] = []

    def meter(self, connection_id: str) -> Meter:
        """The one of this connection. One that comes back goes on counting."""
        meter = self._meters.get(connection_id)
        if meter is None:
            known = self._gone.pop(connection_id, None)
            meter = self._meters[connection_id] = known or Meter(connection_id, self._clock, self._now)
        return meter

    def known(self, connection_id: str) -> Meter:
        """The one of this connection, to be read, whether it runs or not. One that never ran has counted nothing."""
        known = self._meters.get(connection_id) or self._gone.get(connection_id)
        return known or Meter(connection_id, self._clock, self._now)

    def forget(self, connection_id: str) -> None:
        """The connection is closed for good: an alert on links that are down must not go on about it."""
        meter = self._meters.pop(connection_id, None)
        if meter is not None and meter.has_counted:
            self._gone[connection_id] = meter
            if len(self._gone) > _MOST_GONE:
                del self._gone[next(iter(self._gone))]

    def erase(self, connection_id: str) -> None:
        """There is no such connection any more, and it does not come back."""
        self._meters.pop(connection_id, None)
        self._gone.pop(connection_id, None)
        for target in self._skipping.pop(connection_id, ()):
            self._skipped.remove(connection_id, target)

    def skip(self, connection_id: str, target: str, events: int) -> None:
        """A target misses so many events; with 0 of them it is counted from now on."""
        self._skipping.setdefault(connection_id, set()).add(target)
        self._skipped.labels(connection_id, target).inc(events)

    def count_job_failure(self, job: str) -> None:
        """Count a round of a background job that failed."""
        self._job_failures.labels(job).inc()

    def tick(self) -> None:
        """About once a second: what is counted from now on, is counted now."""
        self._clock.tick()
        if self._clock.second - self._logs_looked_at >= _LOGS_SECONDS:
            self._logs_looked_at = self._clock.second
            for meter in self._meters.values():
                meter.log.expire()

    def watch_subscriptions(self, subscriptions: Callable[[], Iterable[OpenSubscription]]) -> None:
        """Where a scrape finds the open subscriptions."""
        self.registry.register(_Subscriptions(subscriptions, self._meters))

    def watch_lake(self, lag: Callable[[], tuple[int, float] | None]) -> None:
        """Where a scrape finds how many events are not in the lake yet, and for how many seconds; None: not known now."""
        self.registry.register(_Lag(lag))

    def watch_figures(self, figures: Callable[[], Iterable[GaugeReading]]) -> None:
        """Where a scrape finds figures that somebody else knows."""
        self.registry.register(_Figures(figures))

    def look_first(self, look: Callable[[], Awaitable[None]]) -> None:
        """What is to be done before a scrape, where reading it would keep the loop waiting."""
        self._looks.append(look)

    async def scrape(self, encode: Encode = generate_latest) -> bytes:
        """`exposition`, once everybody has looked. Read at once, and written in a worker thread: that takes longer."""
        for look in self._looks:
            await look()
        return await asyncio.to_thread(encode, _Read(list(self.registry.collect())))

    def exposition(self, encode: Encode = generate_latest) -> bytes:
        """All metrics in the format that `encode` writes, Prometheus' text format by default."""
        return encode(self.registry)


class _Read(CollectorRegistry):
    """What a registry had when it was read."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        super().__init__()
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics)


_WATCHED: Mapping[tuple[str, str], int] = {("in", "failed"): 0, ("out", "failed"): 0}
"""What alerts are about is there from the begin: of a number that was never 0, nobody sees that it has become 1."""


class _Connections(Collector):
    def __init__(self, meters: Mapping[str, Meter], gone: Mapping[str, Meter]) -> None:
        self._meters = meters
        self._gone = gone

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        deliveries = CounterMetricFamily(
            "connectivity_deliveries",
            "Messages by what became of them.",
            labels=["connection", "direction", "outcome"],
        )
        events = CounterMetricFamily(
            "connectivity_events_sent", "Elements of subscriptions that were sent.", labels=["connection"]
        )
        up = GaugeMetricFamily("connectivity_connection_up", "1 while the connection is open.", labels=["connection"])
        for connection_id, meter in {**self._gone, **self._meters}.items():
            for outcome, number in {**_WATCHED, **meter.deliveries()}.items():
                deliveries.add_metric([connection_id, *outcome], number)
            events.add_metric([connection_id], meter.events)
        for connection_id, meter in self._meters.items():
            up.add_metric([connection_id], meter.is_up)
        yield from (deliveries, events, up)


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
    def __init__(self, figures: Callable[[], Iterable[GaugeReading]]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for figure in self._figures():
            family = GaugeMetricFamily(figure.name, figure.meaning, labels=figure.labels)
            for labels, value in figure.values.items():
                family.add_metric(labels, value)
            yield family


def store_figures(is_available: bool) -> Iterator[GaugeReading]:
    """What the store says of itself."""
    yield GaugeReading("connectivity_store_up", "1 while the journal can be written.", {(): is_available})

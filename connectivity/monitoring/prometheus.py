"""The metrics of the service in Prometheus' formats.

The counters belong to connections; labels never carry entity IDs. The counts of a connection are read from its `Meter`
at each scrape, as are open subscriptions and their demand. A connection that has never counted anything has no sample.
"""

from __future__ import annotations

import asyncio
import platform
import time
from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from connectivity import __version__
from connectivity.monitoring.meter import Meter
from connectivity.monitoring.windows import SecondClock

_COMMIT_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

_LOG_CHECK_SECONDS: Final = 300
"""How often to check for logs that have expired, in seconds."""

_MOST_CLOSED: Final = 1_000
"""How many closed connections keep their counts."""

Encode = Callable[[CollectorRegistry], bytes]
"""Writes a registry in one of Prometheus' formats."""


class OpenSubscription(Protocol):
    """The part of a subscription that a scrape reads."""

    demand: int

    @property
    def connection_id(self) -> str: ...


class GaugeReading(NamedTuple):
    """A gauge: its name, its help text, its values by label values, and the names of the labels."""

    name: str
    meaning: str
    values: Mapping[tuple[str, ...], float]
    labels: tuple[str, ...] = ()


class PrometheusRegistry:
    """All metrics of the service; each service has a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._clock = SecondClock(time.monotonic)
        self._logs_checked_at = self._clock.second
        self._meters: dict[str, Meter] = {}
        self._closed: dict[str, Meter] = {}
        """The meters of closed connections, which may be opened again."""
        self._connections = _Connections(self._meters, self._closed)
        self.registry.register(self._connections)
        build = Info(
            "connectivity_build", "The versions of the service and of Python, as labels.", registry=self.registry
        )
        build.info({"version": __version__, "python": platform.python_version()})
        self.commit = Histogram(
            "connectivity_journal_commit_seconds",
            "Duration of a journal commit.",
            buckets=_COMMIT_BUCKETS,
            registry=self.registry,
        )

        self.trimmed = Counter(
            "connectivity_journal_trimmed",
            "Events that were deleted from the journal because the lake has them.",
            registry=self.registry,
        )
        self._job_failures = Counter(
            "connectivity_job_failures", "Failed runs of a background job.", ["name"], registry=self.registry
        )
        self.trimming = Gauge(
            "connectivity_journal_trimming_up",
            "0 while the journal cannot be trimmed because it is unknown whether the lake has its events.",
            registry=self.registry,
        )
        self.trimming.set(1)

        self._before_scrape: list[Callable[[], Awaitable[None]]] = []

    def meter(self, connection_id: str) -> Meter:
        """Return the meter of a connection that runs. A connection that is opened again continues its counts."""
        meter = self._meters.get(connection_id)
        if meter is None:
            known = self._closed.pop(connection_id, None)
            meter = self._meters[connection_id] = known or Meter(connection_id, self._clock, time.time)
        return meter

    def find_meter(self, connection_id: str) -> Meter:
        """Return the meter of a connection, whether it runs or not; one that is not kept if it never ran."""
        known = self._meters.get(connection_id) or self._closed.get(connection_id)
        return known or Meter(connection_id, self._clock, time.time)

    def forget(self, connection_id: str) -> None:
        """Stop reporting whether a closed connection is up, so that no alert fires."""
        meter = self._meters.pop(connection_id, None)
        if meter is not None and meter.has_counted:
            self._closed[connection_id] = meter
            if len(self._closed) > _MOST_CLOSED:
                del self._closed[next(iter(self._closed))]

    def keep_only(self, is_known: Callable[[str], bool]) -> None:
        """Delete the counts of closed connections for which this is false."""
        for connection_id in [each for each in self._closed if not is_known(each)]:
            del self._closed[connection_id]

    def erase(self, connection_id: str) -> None:
        """Delete everything counted of a connection that was deleted."""
        self._meters.pop(connection_id, None)
        self._closed.pop(connection_id, None)

    def skip(self, connection_id: str, target: str, events: int) -> None:
        """Count events that a target was not sent; with 0 the sample appears."""
        self.find_meter(connection_id).skipped[target] += events

    def count_job_failure(self, job: str) -> None:
        """Count a round of a background job that failed."""
        self._job_failures.labels(job).inc()

    def tick(self) -> None:
        """Advance the clock of all counters; to be called about once a second."""
        self._clock.tick()
        if self._clock.second - self._logs_checked_at >= _LOG_CHECK_SECONDS:
            self._logs_checked_at = self._clock.second
            for meter in self._meters.values():
                meter.log.expire()

    def watch_unusable(self, unusable: Callable[[], Iterable[str]]) -> None:
        """Set the source of the connections that cannot be opened because of their documents, which are down."""
        self._connections.unusable = unusable

    def watch_subscriptions(self, subscriptions: Callable[[], Iterable[OpenSubscription]]) -> None:
        """Set the source of the open subscriptions, which each scrape reads."""
        self.registry.register(_Subscriptions(subscriptions, self._meters))

    def watch_figures(self, figures: Callable[[], Iterable[GaugeReading]]) -> None:
        """Add gauges, which each scrape reads from `figures`."""
        self.registry.register(_Figures(figures))

    def look_first(self, look: Callable[[], Awaitable[None]]) -> None:
        """Add a coroutine to await before each scrape, for values whose reading would block the event loop."""
        self._before_scrape.append(look)

    async def scrape(self, encode: Encode = generate_latest) -> bytes:
        """Return all metrics in the format that `encode` writes, by default Prometheus' text format.

        All `look_first` coroutines are awaited before; a worker thread writes the text.
        """
        for look in self._before_scrape:
            await look()
        return await asyncio.to_thread(encode, _Scraped(list(self.registry.collect())))


class _Scraped(CollectorRegistry):
    """The metrics of a registry as they were at a scrape."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        super().__init__()
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics)


_WATCHED: Mapping[tuple[str, str], int] = {("in", "failed"): 0, ("out", "failed"): 0}
"""Outcomes with alerts have a sample of 0 from the beginning, so that `increase` sees the first 1."""


class _Connections(Collector):
    def __init__(self, meters: Mapping[str, Meter], closed: Mapping[str, Meter]) -> None:
        self._meters = meters
        self._closed = closed
        self.unusable: Callable[[], Iterable[str]] = tuple

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        deliveries = CounterMetricFamily(
            "connectivity_deliveries",
            "Messages by direction and outcome.",
            labels=["connection", "direction", "outcome"],
        )
        events = CounterMetricFamily(
            "connectivity_events_sent", "Elements of subscriptions that were sent.", labels=["connection"]
        )
        skipped = CounterMetricFamily(
            "connectivity_target_skipped",
            "Events that were not sent to a target: deleted from the journal, not encodable, or never accepted.",
            labels=["connection", "target"],
        )
        up = GaugeMetricFamily("connectivity_connection_up", "1 while the connection is open.", labels=["connection"])
        for connection_id, meter in {**self._closed, **self._meters}.items():
            for outcome, number in {**_WATCHED, **meter.deliveries()}.items():
                deliveries.add_metric([connection_id, *outcome], number)
            events.add_metric([connection_id], meter.events)
            for target, number in meter.skipped.items():
                skipped.add_metric([connection_id, target], number)
        for connection_id, meter in self._meters.items():
            up.add_metric([connection_id], meter.is_up)
        for connection_id in self.unusable():
            if connection_id not in self._meters:
                up.add_metric([connection_id], 0)
        yield from (deliveries, events, skipped, up)


class _Subscriptions(Collector):
    def __init__(self, subscriptions: Callable[[], Iterable[OpenSubscription]], connections: Iterable[str]) -> None:
        """A connection without subscriptions has a sample of 0."""
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
    """Yield the gauges of the store."""
    yield GaugeReading("connectivity_store_up", "1 while the journal can be written.", {(): is_available})


def file_figures(problems: int) -> Iterator[GaugeReading]:
    """Yield the gauge of connection files."""
    meaning = "Problems of connection files and their folder, which the service does not use meanwhile."
    yield GaugeReading("connectivity_file_problems", meaning, {(): problems})

"""The counters of one connection, and the metrics that operators see of them.

A `Meter` outlives the running connection: counting goes on after the connection was closed and opened again, or changed,
except at addresses that it no longer has. The values for Prometheus (`deliveries`) never decrease while the service runs;
the windows (`report`) can be reset (Ditto connections, metrics).
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from connectivity.monitoring.connection_log import ConnectionLog, EntryKind, instant
from connectivity.monitoring.counters import (
    INBOUND,
    OUTBOUND,
    RESPONSES,
    Addresses,
    EventCounter,
    MetricLabels,
    ReplyCounters,
    SourceCounters,
    TargetCounters,
)
from connectivity.monitoring.windows import WINDOWS, CountSnapshot, SecondClock

_SOURCE: Final = "source"
_TARGET: Final = "target"
_RESPONSE: Final = "response"


class Meter:
    """The counters and the log of one connection."""

    def __init__(self, connection_id: str, clock: SecondClock, now: Callable[[], float]) -> None:
        """`now` returns seconds since the epoch."""
        self.connection_id = connection_id
        self.log = ConnectionLog(now)
        self.is_up = False
        """Whether the connection is open."""
        self.events = 0
        """How many elements of subscriptions were sent."""
        self.skipped: Counter[str] = Counter()
        """How many events were not sent to a target, by its index."""
        self._clock = clock
        self._now = now
        self._counters: dict[tuple[EntryKind, str], EventCounter] = {}
        self._outcomes: Counter[MetricLabels] = Counter()
        """Counts of the connection as a whole, and of addresses that it no longer has."""
        self.replies = ReplyCounters(partial(self._counter, _RESPONSE, None))

    def inbound(self, outcome: str) -> None:
        """Count a delivery by an outcome that belongs to no address.

        Such outcomes are malformed, refused, failed, unread (by any mapper), answered_again, unanswerable, held (while the
        store was unavailable), and overdue (rejected because nothing had settled them).
        """
        self._outcomes["in", outcome] += 1

    def source(self, addresses: Iterable[str], matches: Callable[[str, str], bool] = operator.eq) -> Addresses:
        """Return the counters of a source with these addresses. `matches`: see `Addresses`."""
        return Addresses(
            {address: SourceCounters(partial(self._counter, _SOURCE, address)) for address in addresses}, matches
        )

    def target(self, address: str) -> TargetCounters:
        """Return the counters of the targets with this address, as the document has it."""
        return TargetCounters(partial(self._counter, _TARGET, address))

    def _counter(
        self,
        category: str,
        address: str | None,
        type: str,
        is_success: bool,
        words: str,
        outcome: MetricLabels | None = None,
    ) -> EventCounter:
        """Return the counter of this kind and message; the same one at every call."""
        kind = EntryKind(category, type, address, is_success)
        counter = self._counters.get((kind, words))
        if counter is None:
            counter = self._counters[kind, words] = EventCounter(self._clock, self.log, kind, words, outcome)
        return counter

    def keep(self, sources: Collection[str], targets: Collection[str]) -> None:
        """Delete the counters of all other addresses; what they have counted stays in `deliveries`."""
        known = {_SOURCE: sources, _TARGET: targets}
        for key, counter in list(self._counters.items()):
            kind = counter.kind
            if kind.address is not None and kind.address not in known[kind.category]:
                del self._counters[key]
                self.log.drop(kind)
                if counter.outcome is not None and (total := counter.total):
                    self._outcomes[counter.outcome] += total

    def deliveries(self) -> Mapping[MetricLabels, int]:
        """Return the number of messages by direction and outcome, since the service has known the connection."""
        totals = Counter(self._outcomes)
        for counter in self._counters.values():
            if counter.outcome is not None and (total := counter.total):
                totals[counter.outcome] += total
        return totals

    @property
    def has_counted(self) -> bool:
        """Whether anything has been counted."""
        counters = self._counters.values()
        return bool(self.events or self._outcomes or self.skipped.total()) or any(each.total for each in counters)

    def reset(self) -> None:
        """Reset the windows to zero."""
        for counter in self._counters.values():
            counter.reset()

    def report(self, sources: Sequence[str], targets: Sequence[str]) -> Mapping[str, Any]:
        """Return the metrics of a connection with these addresses: by direction, and by address (Ditto)."""
        self._clock.tick()
        counted: dict[EntryKind, CountSnapshot] = {}
        for counter in self._counters.values():
            counted[counter.kind] = counted.get(counter.kind, _NONE) + counter.read()
        of_sources = {each: self._by_type(counted, _SOURCE, each, INBOUND) for each in dict.fromkeys(sources)}
        of_targets = {each: self._by_type(counted, _TARGET, each, OUTBOUND) for each in dict.fromkeys(targets)}
        of_targets[RESPONSES] = self._by_type(counted, _RESPONSE, None, OUTBOUND)
        inbound = _sums(of_sources.values(), INBOUND)
        outbound = _sums(of_targets.values(), OUTBOUND)
        everything = (pair for types in (inbound, outbound) for pair in types.values())
        return {
            "connectionId": self.connection_id,
            "containsFailures": any(failure.windows[-1] for _, failure in everything),
            "connectionMetrics": {"inbound": self._as_json(inbound), "outbound": self._as_json(outbound)},
            "sourceMetrics": {"addressMetrics": {each: self._as_json(types) for each, types in of_sources.items()}},
            "targetMetrics": {"addressMetrics": {each: self._as_json(types) for each, types in of_targets.items()}},
        }

    @staticmethod
    def _by_type(
        counted: Mapping[EntryKind, CountSnapshot], category: str, address: str | None, types: Iterable[str]
    ) -> _Types:
        return {
            type: (
                counted.get(EntryKind(category, type, address, True), _NONE),
                counted.get(EntryKind(category, type, address, False), _NONE),
            )
            for type in types
        }

    def _as_json(self, types: _Types) -> Mapping[str, Any]:
        return {
            type: {"success": self._count_as_json(success), "failure": self._count_as_json(failure)}
            for type, (success, failure) in types.items()
        }

    def _count_as_json(self, counted: CountSnapshot) -> Mapping[str, Any]:
        document: dict[str, Any] = {window.name: n for window, n in zip(WINDOWS, counted.windows, strict=True)}
        if counted.last is not None:
            document["lastMessageAt"] = instant(self._now() - (self._clock.second - counted.last))
        return document


_Types = dict[str, tuple[CountSnapshot, CountSnapshot]]
"""Success and failure of each type."""

_NONE = CountSnapshot()


def _sums(addresses: Iterable[_Types], types: Iterable[str]) -> _Types:
    """Return the sums over all addresses, by type."""
    totals: _Types = dict.fromkeys(types, (_NONE, _NONE))
    for each in addresses:
        for type, (success, failure) in each.items():
            totals[type] = totals[type][0] + success, totals[type][1] + failure
    return totals

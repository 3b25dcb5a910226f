"""Counters of what happens at the addresses of a connection, with entries in its log.

Noting an event at an `EventCounter` adds to its windows and to its metric, and writes an entry into the connection's log
while that is on. The counters of one source, one target or all responses are attributes of one object, so nothing is
looked up for a message (Ditto connections, metrics and logs).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

from connectivity.monitoring.connection_log import MOST_KEPT, ConnectionLog, EntryKind, LogEntry
from connectivity.monitoring.windows import SecondClock, WindowedCount
from mappings.ids import EntityId

INBOUND: Final = ("consumed", "mapped", "enforced", "dropped", "acknowledged", "throttled", "other")
"""The metric types of sources."""

OUTBOUND: Final = ("dispatched", "filtered", "mapped", "dropped", "published", "acknowledged", "other")
"""The metric types of targets and of responses."""

RESPONSES: Final = "_responses"
"""The address under which responses and elements of subscriptions are counted."""

MetricLabels: TypeAlias = "tuple[str, str]"
"""The labels `direction` and `outcome` of the metric on messages."""

_CORRELATION_ID: Final = "correlation-id"


class SignalReference(Protocol):
    """The part of a signal that a log entry refers to."""

    @property
    def headers(self) -> Mapping[str, Any]: ...

    @property
    def entity(self) -> EntityId | None: ...


class EventCounter(WindowedCount):
    """The counter of one kind of event at one address."""

    __slots__ = ("_message", "_ring", "kind", "log", "outcome")

    def __init__(
        self, clock: SecondClock, log: ConnectionLog, kind: EntryKind, words: str, outcome: MetricLabels | None
    ) -> None:
        """`words`: the usual message of a log entry."""
        super().__init__(clock)
        self.log = log
        self._ring: deque[LogEntry] | None = None
        self._message: str | None = words
        self.kind = kind
        self.outcome = outcome

    def note(self, about: SignalReference | None, count: int = 1, words: str | None = None) -> None:
        """Count events, about a signal if there is one; `words` replaces the usual log message."""
        if self.second != self.clock.second:
            self.roll()
        self.open += count
        if (log := self.log).is_on:
            ring = self._ring or self.ring()
            if about is None:
                ring.append((log.now(), None, None, words or self._message))
            else:
                ring.append((log.now(), about.headers.get(_CORRELATION_ID), about.entity, words or self._message))

    def ring(self) -> deque[LogEntry]:
        """Return the ring of the log that the entries of this counter go to."""
        if self._ring is None:
            self._ring, self._message = self.log.ring(self.kind, self._message or "")
        return self._ring


class CounterGroup:
    """Counters of events that happen to the same signal at once, counted by one call."""

    __slots__ = ("_clock", "_counters", "_log")

    def __init__(self, *counters: EventCounter) -> None:
        """Each counter must be the first of its kind, so that one entry without a message suits all of them."""
        self._counters = counters
        self._clock, self._log = counters[0].clock, counters[0].log

    def note(self, about: SignalReference) -> None:
        """Count one event about a signal at each counter."""
        second = self._clock.second
        for counter in self._counters:
            if counter.second != second:
                counter.roll()
            counter.open += 1
        if (log := self._log).is_on:
            entry = log.now(), about.headers.get(_CORRELATION_ID), about.entity, None
            for counter in self._counters:
                (counter._ring or counter.ring()).append(entry)

    def note_each(self, signals: Sequence[SignalReference]) -> None:
        """Count one event for each of these signals, and log the last ones, which would replace others."""
        second, number = self._clock.second, len(signals)
        for counter in self._counters:
            if counter.second != second:
                counter.roll()
            counter.open += number
        if (log := self._log).is_on:
            now = log.now()
            entries = [(now, about.headers.get(_CORRELATION_ID), about.entity, None) for about in signals[-MOST_KEPT:]]
            for counter in self._counters:
                (counter._ring or counter.ring()).extend(entries)


Make: TypeAlias = Callable[..., EventCounter]
"""Makes a counter from a type, whether it is a success, the log message, and the outcome."""


class SourceCounters:
    """The counters of one address of a source."""

    __slots__ = (
        "acknowledged",
        "consumed",
        "dropped",
        "enforced",
        "mapped",
        "not_enforced",
        "not_mapped",
        "read",
        "rejected",
        "requeued",
        "throttled",
        "unmatched",
    )

    def __init__(self, make: Make) -> None:
        self.consumed = make("consumed", True, "Message was consumed.")
        self.mapped = make("mapped", True, "Message was mapped to a signal.")
        self.read = CounterGroup(self.consumed, self.mapped)
        """Counts most messages."""
        self.not_mapped = make("mapped", False, "Message could not be mapped.")
        self.enforced = make("enforced", True, "Enforcement passed.")
        self.not_enforced = make(
            "enforced", False, "Enforcement failed: the sender is not allowed to act for the entity."
        )
        self.dropped = make("dropped", True, "Message dropped, no payload mapper accepts it.")
        self.acknowledged = make("acknowledged", True, "Message was acknowledged to the broker.", ("in", "settled"))
        self.requeued = make("acknowledged", False, "Message was requeued for redelivery.", ("in", "requeued"))
        self.rejected = make("acknowledged", False, "Message was rejected without redelivery.", ("in", "dropped"))
        self.throttled = make("throttled", True, "Consuming was throttled by its rate limit.")
        self.unmatched = make(
            "other", False, "No command waits for this response or acknowledgement.", ("in", "unmatched")
        )


class TargetCounters:
    """The counters of one target."""

    __slots__ = (
        "acknowledged",
        "dispatched",
        "filtered",
        "mapped",
        "not_acknowledged",
        "not_filtered",
        "not_mapped",
        "not_published",
        "passed",
        "published",
        "unresolved",
        "unwritten",
        "written",
    )

    def __init__(self, make: Make) -> None:
        self.dispatched = make("dispatched", True, "Signal was dispatched to the target.")
        self.filtered = make("filtered", True, "Signal passed the target's filters.")
        self.not_filtered = make("filtered", False, "Signal could not be filtered.", ("out", "failed"))
        self.mapped = make("mapped", True, "Signal was mapped to a message.")
        self.passed = CounterGroup(self.dispatched, self.filtered)
        """Counts every signal that a target is sent."""
        self.written = CounterGroup(self.dispatched, self.filtered, self.mapped)
        """Counts most signals that a target is sent."""
        self.not_mapped = make("mapped", False, "Signal could not be mapped.", ("out", "failed"))
        self.unwritten = make("dropped", True, "Signal dropped, no payload mapper can write it", ("out", "unwritten"))
        self.unresolved = make(
            "dropped", True, "Signal dropped, target address unresolved", ("out", "address_unresolved")
        )
        self.published = make("published", True, "Message was published.", ("out", "published"))
        self.not_published = make("published", False, "Message could not be published.", ("out", "failed"))
        self.acknowledged = make("acknowledged", True, "Signal was acknowledged.")
        self.not_acknowledged = make("acknowledged", False, "Signal was not acknowledged.")


class ReplyCounters(TargetCounters):
    """The counters of responses and of elements of subscriptions, for all reply targets of a connection."""

    __slots__ = ("dispatched_error", "no_reply_target", "not_allowed", "not_diverted", "not_expected", "responses")

    def __init__(self, make: Make) -> None:
        super().__init__(make)
        self.responses = CounterGroup(self.dispatched, self.mapped)
        """Counts most responses."""
        self.dispatched_error = make("dispatched", False, "An error was dispatched to the reply target.")
        self.no_reply_target = make(
            "dropped", True, "Signal dropped, the source has no reply target", ("out", "no_reply_target")
        )
        self.not_expected = make(
            "dropped",
            True,
            "Signal dropped, the command or the reply target's expectedResponseTypes does not ask for it",
            ("out", "not_expected"),
        )
        self.not_allowed = make(
            "dropped",
            False,
            "Signal dropped, the reply target's pattern does not allow its address",
            ("out", "address_not_allowed"),
        )
        self.not_diverted = make("dropped", True, "Signal dropped, response diversion failed", ("out", "not_diverted"))


class Addresses(dict[str, SourceCounters]):
    """The counters of a source address, by the addresses of messages that belong to it."""

    __slots__ = ("_counters", "_matches")

    def __init__(self, counters: Mapping[str, SourceCounters], matches: Callable[[str, str], bool]) -> None:
        """`matches(pattern, address)`: whether a message's address belongs to a source address."""
        super().__init__()
        self._counters = counters
        self._matches = matches

    def __missing__(self, address: str) -> SourceCounters:
        if len(self) >= _CACHE_SIZE:
            self.clear()
        first, *others = self._counters
        pattern = next((each for each in (first, *others) if not others or self._matches(each, address)), first)
        counters = self[address] = self._counters[pattern]
        return counters

    def each(self) -> Sequence[SourceCounters]:
        return tuple(self._counters.values())


_CACHE_SIZE: Final = 1000
"""How many message addresses are cached with the source address that they belong to."""

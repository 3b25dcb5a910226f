"""The facts of one connection, and what operators are shown of them.

A `Meter` outlives what runs: a connection that is closed and opened again, or changed, goes on counting where it was, apart
from addresses that it does not have any more. What it says in Prometheus' words (`deliveries`) never goes down while the
service runs; what it says in windows (`report`) can be set to zero (Ditto connections, metrics).
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
    Outcome,
    ReplyFacts,
    SourceCounters,
    TargetFacts,
)
from connectivity.monitoring.windows import WINDOWS, CountSnapshot, SecondClock

_SOURCE: Final = "source"
_TARGET: Final = "target"
_RESPONSE: Final = "response"


class Meter:
    """What one connection counts and writes down."""

    def __init__(self, connection_id: str, clock: SecondClock, now: Callable[[], float]) -> None:
        """`now` gives seconds since the epoch."""
        self.connection_id = connection_id
        self.log = ConnectionLog(now)
        self.is_up = False
        """Whether the connection is open."""
        self.events = 0
        """How many elements of subscriptions were handed on."""
        self._clock = clock
        self._now = now
        self._facts: dict[tuple[EntryKind, str], EventCounter] = {}
        self._outcomes: Counter[Outcome] = Counter()
        """What is counted of the connection as a whole, and what was counted at addresses that it had."""
        self.replies = ReplyFacts(partial(self._fact, _RESPONSE, None))

    def __repr__(self) -> str:
        return f"<Meter of {self.connection_id}, {len(self._facts)} facts>"

    # counting

    def inbound(self, outcome: str, count: int = 1) -> None:
        """Deliveries as a whole: malformed, refused or failed; unread by any mapper; answered_again;
        unanswerable; held while the store was away. What belongs to an address is told to its facts."""
        self._outcomes["in", outcome] += count

    def source(self, addresses: Iterable[str], matches: Callable[[str, str], bool] = operator.eq) -> Addresses:
        """The facts of a source with these addresses. `matches`: see `Addresses`."""
        return Addresses(
            {address: SourceCounters(partial(self._fact, _SOURCE, address)) for address in addresses}, matches
        )

    def target(self, address: str) -> TargetFacts:
        """The facts of the targets with this address, as the document has it."""
        return TargetFacts(partial(self._fact, _TARGET, address))

    def _fact(
        self,
        category: str,
        address: str | None,
        type: str,
        is_success: bool,
        words: str,
        outcome: Outcome | None = None,
    ) -> EventCounter:
        """The same one for the same address, whoever asks."""
        kind = EntryKind(category, type, address, is_success)
        fact = self._facts.get((kind, words))
        if fact is None:
            fact = self._facts[kind, words] = EventCounter(self._clock, self.log, kind, words, outcome)
        return fact

    def keep(self, sources: Collection[str], targets: Collection[str]) -> None:
        """The connection has no other addresses any more. What was counted at them stays in what never goes down."""
        known = {_SOURCE: sources, _TARGET: targets}
        for key, fact in list(self._facts.items()):
            kind = fact.kind
            if kind.address is not None and kind.address not in known[kind.category]:
                del self._facts[key]
                self.log.drop(kind)
                if fact.outcome is not None and (total := fact.total):
                    self._outcomes[fact.outcome] += total

    def deliveries(self) -> Mapping[Outcome, int]:
        """Messages by direction and what became of them, since the service has known the connection."""
        found = Counter(self._outcomes)
        for fact in self._facts.values():
            if fact.outcome is not None and (total := fact.total):
                found[fact.outcome] += total
        return found

    @property
    def has_counted(self) -> bool:
        """Whether there is anything to remember."""
        return bool(self.events or self._outcomes) or any(fact.total for fact in self._facts.values())

    # what operators are shown

    def reset(self) -> None:
        """Count from zero."""
        for fact in self._facts.values():
            fact.reset()

    def report(self, sources: Sequence[str], targets: Sequence[str]) -> Mapping[str, Any]:
        """The metrics of a connection with these addresses: by direction, and by address."""
        self._clock.tick()
        counted: dict[EntryKind, CountSnapshot] = {}
        for fact in self._facts.values():
            counted[fact.kind] = counted.get(fact.kind, _NONE) + fact.read()
        of_sources = {each: self._of(counted, _SOURCE, each, INBOUND) for each in dict.fromkeys(sources)}
        of_targets = {each: self._of(counted, _TARGET, each, OUTBOUND) for each in dict.fromkeys(targets)}
        of_targets[RESPONSES] = self._of(counted, _RESPONSE, None, OUTBOUND)
        inbound = _together(of_sources.values(), INBOUND)
        outbound = _together(of_targets.values(), OUTBOUND)
        everything = (pair for types in (inbound, outbound) for pair in types.values())
        return {
            "connectionId": self.connection_id,
            "containsFailures": any(failure.windows[-1] for _, failure in everything),
            "connectionMetrics": {"inbound": self._shown(inbound), "outbound": self._shown(outbound)},
            "sourceMetrics": {"addressMetrics": {each: self._shown(types) for each, types in of_sources.items()}},
            "targetMetrics": {"addressMetrics": {each: self._shown(types) for each, types in of_targets.items()}},
        }

    @staticmethod
    def _of(
        counted: Mapping[EntryKind, CountSnapshot],
        category: str,
        address: str | None,
        types: Iterable[str],
    ) -> _Types:
        return {
            type: (
                counted.get(EntryKind(category, type, address, True), _NONE),
                counted.get(EntryKind(category, type, address, False), _NONE),
            )
            for type in types
        }

    def _shown(self, types: _Types) -> Mapping[str, Any]:
        return {
            type: {"success": self._shown_count(success), "failure": self._shown_count(failure)}
            for type, (success, failure) in types.items()
        }

    def _shown_count(self, counted: CountSnapshot) -> Mapping[str, Any]:
        shown: dict[str, Any] = {window.name: n for window, n in zip(WINDOWS, counted.windows, strict=True)}
        if counted.last is not None:
            shown["lastMessageAt"] = instant(self._now() - (self._clock.second - counted.last))
        return shown


_Types = dict[str, tuple[CountSnapshot, CountSnapshot]]
"""Success and failure of each type."""

_NONE = CountSnapshot()


def _together(addresses: Iterable[_Types], types: Iterable[str]) -> _Types:
    """The same of all addresses."""
    found: _Types = dict.fromkeys(types, (_NONE, _NONE))
    for each in addresses:
        for type, (success, failure) in each.items():
            found[type] = found[type][0] + success, found[type][1] + failure
    return found

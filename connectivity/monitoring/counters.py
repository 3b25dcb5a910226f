"""What can happen at an address of a connection: counted, and written down, by one call.

A `EventCounter` is one such thing. Noting it adds to its windows and to the metric that it belongs to, and puts an entry
into the connection's log while that is on. Those of one source, of one target and of all answers stand together, so that
whoever has something to tell has them at hand: nothing is looked up when a message comes by (Ditto connections, metrics and
logs).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

from connectivity.monitoring.connection_log import MOST_KEPT, ConnectionLog, Entry, EntryKind
from connectivity.monitoring.windows import SecondClock, WindowedCount
from mappings.ids import EntityId

INBOUND: Final = ("consumed", "mapped", "enforced", "dropped", "acknowledged", "throttled", "other")
"""What is counted of sources."""

OUTBOUND: Final = ("dispatched", "filtered", "mapped", "dropped", "published", "acknowledged", "other")
"""What is counted of targets and of answers."""

RESPONSES: Final = "_responses"
"""The address under which answers, and elements of subscriptions, are counted."""

Outcome: TypeAlias = "tuple[str, str]"
"""The labels `direction` and `outcome` of the metric on messages."""

_CORRELATION_ID: Final = "correlation-id"


class SignalReference(Protocol):
    """A signal, as far as a log says what an entry is about."""

    @property
    def headers(self) -> Mapping[str, Any]: ...

    @property
    def entity(self) -> EntityId | None: ...


class EventCounter(WindowedCount):
    """One kind of thing that happens at one address."""

    __slots__ = ("_ring", "_words", "kind", "log", "outcome")

    def __init__(
        self, clock: SecondClock, log: ConnectionLog, kind: EntryKind, words: str, outcome: Outcome | None
    ) -> None:
        """`words`: what an entry says, unless somebody knows better."""
        super().__init__(clock)
        self.log = log
        self._ring: deque[Entry] | None = None
        self._words: str | None = words
        self.kind = kind
        self.outcome = outcome

    def __repr__(self) -> str:
        level = "success" if self.kind.is_success else "failure"
        return f"<Fact {self.kind.category} {self.kind.type} {level}, {self.total}>"

    def note(self, about: SignalReference | None, count: int = 1, words: str | None = None) -> None:
        """It has happened so many times, to a signal if to one. `words` say what the usual ones do not."""
        if self.second != self.clock.second:
            self.roll()
        self.open += count
        if (log := self.log).is_on:
            ring = self._ring or self.ring()
            if about is None:
                ring.append((log.now(), None, None, words or self._words))
            else:
                ring.append((log.now(), about.headers.get(_CORRELATION_ID), about.entity, words or self._words))

    def ring(self) -> deque[Entry]:
        """Where its entries go."""
        if self._ring is None:
            self._ring, self._words = self.log.ring(self.kind, self._words or "")
        return self._ring


class CounterGroup:
    """Facts that happen to the same signal at the same time: told with one call, and one look at the time."""

    __slots__ = ("_clock", "_facts", "_log")

    def __init__(self, *facts: EventCounter) -> None:
        """Each fact is the first of its kind, so that one entry suits all of them."""
        self._facts = facts
        self._clock, self._log = facts[0].clock, facts[0].log

    def note(self, about: SignalReference) -> None:
        """They have happened to a signal."""
        second = self._clock.second
        for fact in self._facts:
            if fact.second != second:
                fact.roll()
            fact.open += 1
        if (log := self._log).is_on:
            entry = log.now(), about.headers.get(_CORRELATION_ID), about.entity, None
            for fact in self._facts:
                (fact._ring or fact.ring()).append(entry)

    def note_each(self, abouts: Sequence[SignalReference]) -> None:
        """They have happened to each of these signals. Only of the last ones anything is written: they would push the
        others out."""
        second, number = self._clock.second, len(abouts)
        for fact in self._facts:
            if fact.second != second:
                fact.roll()
            fact.open += number
        if (log := self._log).is_on:
            now = log.now()
            entries = [(now, about.headers.get(_CORRELATION_ID), about.entity, None) for about in abouts[-MOST_KEPT:]]
            for fact in self._facts:
                fact.ring().extend(entries)


Make: TypeAlias = Callable[..., EventCounter]
"""Makes a fact of a category and an address from its type, whether it is a success, its usual words, and its outcome."""


class SourceCounters:
    """What happens at one address of a source."""

    __slots__ = (
        "acknowledged",
        "consumed",
        "dropped",
        "enforced",
        "given_back",
        "mapped",
        "not_enforced",
        "not_mapped",
        "read",
        "rejected",
        "throttled",
        "unmatched",
    )

    def __init__(self, make: Make) -> None:
        self.consumed = make("consumed", True, "Message was consumed.")
        self.mapped = make("mapped", True, "Message was mapped to a signal.")
        self.read = CounterGroup(self.consumed, self.mapped)
        """What happens to nearly every message."""
        self.not_mapped = make("mapped", False, "Message could not be mapped.")
        self.enforced = make("enforced", True, "The sender speaks for the entity.")
        self.not_enforced = make("enforced", False, "The sender may not speak for the entity.")
        self.dropped = make("dropped", True, "Message was dropped: no payload mapper is meant for it.")
        self.acknowledged = make("acknowledged", True, "Message was acknowledged to the broker.", ("in", "settled"))
        self.given_back = make("acknowledged", False, "Message was given back, to come again.", ("in", "given_back"))
        self.rejected = make("acknowledged", False, "Message was rejected, never to come again.", ("in", "dropped"))
        self.throttled = make("throttled", True, "Consuming was held back: its rate is limited.")
        self.unmatched = make("other", False, "Nobody waits for this answer or acknowledgement.", ("in", "unmatched"))


class TargetFacts:
    """What happens at one target."""

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
        """What happens to every signal that a target is sent."""
        self.written = CounterGroup(self.dispatched, self.filtered, self.mapped)
        """What happens to nearly every one of them."""
        self.not_mapped = make("mapped", False, "Signal could not be mapped.", ("out", "failed"))
        self.unwritten = make(
            "dropped", True, "Signal dropped, no payload mapper has words for it", ("out", "unwritten")
        )
        self.unresolved = make(
            "dropped", True, "Signal dropped, target address unresolved", ("out", "address_unresolved")
        )
        self.published = make("published", True, "Message was published.", ("out", "published"))
        self.not_published = make("published", False, "Message could not be published.", ("out", "failed"))
        self.acknowledged = make("acknowledged", True, "Signal was acknowledged.")
        self.not_acknowledged = make("acknowledged", False, "Signal was not acknowledged.")


class ReplyFacts(TargetFacts):
    """What happens to answers, and to elements of subscriptions, at all reply-targets of a connection."""

    __slots__ = ("dispatched_error", "no_reply_target", "not_diverted", "not_expected", "said")

    def __init__(self, make: Make) -> None:
        super().__init__(make)
        self.said = CounterGroup(self.dispatched, self.mapped)
        """What happens to nearly every answer."""
        self.dispatched_error = make("dispatched", False, "An error was dispatched to the reply-target.")
        self.no_reply_target = make(
            "dropped", True, "Signal dropped, the source has no reply-target", ("out", "no_reply_target")
        )
        self.not_expected = make(
            "dropped", True, "Signal dropped, nobody wants an answer of its kind", ("out", "not_expected")
        )
        self.not_diverted = make("dropped", True, "Signal dropped, it could not be diverted", ("out", "not_diverted"))


class Addresses:
    """The facts of a source, by its addresses."""

    __slots__ = ("_facts", "_found", "_matches")

    def __init__(self, facts: Mapping[str, SourceCounters], matches: Callable[[str, str], bool]) -> None:
        """`matches`: whether a message that came in at the second address belongs to the first, which may be a pattern."""
        self._facts = facts
        self._matches = matches
        self._found: dict[str, SourceCounters] = {}

    def at(self, address: str) -> SourceCounters:
        """Those of the address of the source that this one, where a message came in, belongs to."""
        found = self._found.get(address)
        return found if found is not None else self._find(address)

    def _find(self, address: str) -> SourceCounters:
        if len(self._found) >= _MOST_FOUND:
            self._found.clear()
        first, *others = self._facts
        pattern = next((each for each in (first, *others) if not others or self._matches(each, address)), first)
        found = self._found[address] = self._facts[pattern]
        return found

    def each(self) -> Sequence[SourceCounters]:
        return tuple(self._facts.values())


_MOST_FOUND: Final = 1000
"""So many addresses are remembered with the pattern that they belong to."""

"""Quotas of namespaces and subjects: their use, and the quota that a change would exceed. Pure.

The first rule that names a namespace or a subject applies to it, to each by itself. A thing or policy is added to the use of
its namespace and of the subject that created it; a change to that of its namespace and of the subject that made it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import chain, islice
from typing import NamedTuple, TypeAlias

from cachetools import FIFOCache

from connectivity.config.quotas import QuotaRule
from connectivity.security.creation import NamePatterns

NEARLY = 90
"""The percentage of a quota from which on it is nearly used."""

MOST_NAMES = 10_000
"""The most names whose rules are remembered. Clients choose names, such as the namespaces of a search."""


class QuotaHolder(str, Enum):
    """The kind of a quota's holder."""

    NAMESPACE = "namespace"
    SUBJECT = "subject"


class Quantity(str, Enum):
    """A quantity that a quota bounds; the value is the name of its setting."""

    THINGS = "things"
    POLICIES = "policies"
    BYTES = "bytes"
    EVENTS_PER_DAY = "events_per_day"
    BYTES_PER_DAY = "bytes_per_day"
    SUBSCRIPTIONS = "subscriptions"
    SEARCHES = "searches"

    @property
    def is_per_day(self) -> bool:
        """Whether it begins at 0 each day."""
        return self in (Quantity.EVENTS_PER_DAY, Quantity.BYTES_PER_DAY)

    @property
    def is_stored(self) -> bool:
        """Whether it is counted in the stored data."""
        return self in (Quantity.THINGS, Quantity.POLICIES, Quantity.BYTES)


QuotaKey: TypeAlias = tuple[QuotaHolder, str, Quantity]
"""One counted quantity: its holder, the holder's name, and the quantity."""

QuotaKind: TypeAlias = tuple[QuotaHolder, Quantity]


def growth_by_one(quantity: Quantity, subjects: Sequence[str], namespaces: Iterable[str]) -> dict[QuotaKey, int]:
    """Return the growth by one, of the first subject and of some namespaces."""
    holders = [(QuotaHolder.SUBJECT, subject) for subject in subjects[:1]]
    holders += [(QuotaHolder.NAMESPACE, namespace) for namespace in namespaces]
    return {(*holder, quantity): 1 for holder in holders}


def growth_by_event(namespace: str, subject: str, size: int) -> Counter[QuotaKey]:
    """Return the growth by one event of so many bytes, apart from the stored data."""
    growth: Counter[QuotaKey] = Counter()
    for holder in ((QuotaHolder.NAMESPACE, namespace), (QuotaHolder.SUBJECT, subject)):
        growth[(*holder, Quantity.EVENTS_PER_DAY)] = 1
        growth[(*holder, Quantity.BYTES_PER_DAY)] = size
    return growth


class QuotaUse(NamedTuple):
    """The use of a quota, and what a refused growth would add to it."""

    key: QuotaKey
    used: int
    allowed: int
    added: int = 0

    def __str__(self) -> str:
        holder, name, quantity = self.key
        use = f"the {holder.value} '{name}' uses {self.used} of its quota {quantity.value} of {self.allowed}"
        # A full quota explains itself.
        return f"{use}, and this needs {self.added} more" if self.added and self.used < self.allowed else use


class QuotaLevels(NamedTuple):
    """The used percentage of the fullest quota of a kind, at most 100, and how many are nearly used."""

    highest: int
    nearly: int


class QuotaCounts:
    """The use of some quantities, and how full their quotas are.

    A report of that takes no longer for many quotas than for one.
    """

    __slots__ = ("_levels", "nearly", "used")

    def __init__(self) -> None:
        self.used: dict[QuotaKey, int] = {}
        """The use, without zeros."""
        self.nearly: dict[QuotaKey, None] = {}
        """The quotas that are nearly used."""
        self._levels: Counter[tuple[QuotaKind, int]] = Counter()
        """The number of quotas by kind and used percentage."""

    def add(self, key: QuotaKey, added: int, allowed: int) -> None:
        """Add to the use of a quota."""
        before = self.used.get(key, 0)
        after = max(0, before + added)
        kind = key[0], key[2]
        if before:
            level = kind, _percentage(before, allowed)
            self._levels[level] -= 1
            if not self._levels[level]:
                del self._levels[level]
        if not after:
            self.used.pop(key, None)
            self.nearly.pop(key, None)
            return
        self.used[key] = after
        percentage = _percentage(after, allowed)
        self._levels[kind, percentage] += 1
        if percentage >= NEARLY:
            self.nearly[key] = None
        else:
            self.nearly.pop(key, None)

    def levels(self) -> Iterator[tuple[QuotaKind, QuotaLevels]]:
        """Yield how full the quotas of each kind are."""
        found: dict[QuotaKind, QuotaLevels] = {}
        for (kind, percentage), number in self._levels.items():
            highest, nearly = found.get(kind, (0, 0))
            found[kind] = QuotaLevels(max(highest, percentage), nearly + number * (percentage >= NEARLY))
        yield from found.items()


def _percentage(used: int, allowed: int) -> int:
    return min(100, used * 100 // allowed)


class Quotas:
    """The quotas of the settings, and their use."""

    def __init__(self, rules: Sequence[QuotaRule]) -> None:
        self._rules = [
            (holder, NamePatterns(patterns), rule)
            for rule in rules
            for holder, patterns in (
                (QuotaHolder.NAMESPACE, rule.namespaces),
                (QuotaHolder.SUBJECT, rule.subjects),
            )
            if patterns
        ]
        self.is_empty = not self._rules
        """Whether there is no rule."""
        self._found: FIFOCache[tuple[QuotaHolder, str], QuotaRule | None] = FIFOCache(MOST_NAMES)
        self._stored = QuotaCounts()
        self._daily = QuotaCounts()
        self._open = QuotaCounts()
        self._day = ""
        self._changed: dict[QuotaKey, None] = {}
        """The quantities of the day that `changed` has not returned since they changed."""
        self._meanwhile: list[Mapping[QuotaKey, int]] | None = None
        """The growth since the running count of the stored data began."""
        self.begun = 0
        """How many counts of the stored data have begun."""
        self._replaced_by = 0
        """The number of the count that the use of stored data comes from."""

    def allowed(self, key: QuotaKey) -> int | None:
        """Return the quota; None: unbounded."""
        return _bound(self.rule(*key[:2]), key[2])

    def rule(self, holder: QuotaHolder, name: str) -> QuotaRule | None:
        """Return the first rule that names a namespace or a subject."""
        try:
            return self._found[holder, name]
        except KeyError:
            found = self._found[holder, name] = self._find(holder, name)
            return found

    def _find(self, holder: QuotaHolder, name: str) -> QuotaRule | None:
        return next((rule for kind, names, rule in self._rules if kind is holder and names.match_any([name])), None)

    def take(
        self, growth: Mapping[QuotaKey, int], day: str | None = None, *, is_forced: bool = False
    ) -> QuotaUse | None:
        """Add a growth to the use. If it exceeds a quota, add nothing and return that, unless it is forced.

        `day` is the date of the service's clock, needed for quantities of a day.
        """
        if day is not None and day != self._day:
            self._day, self._daily, self._changed = day, QuotaCounts(), {}
        if not is_forced:
            for key, added in growth.items():
                if added > 0 and (allowed := self.allowed(key)) is not None:
                    used = self._counts(key[2]).used.get(key, 0)
                    if used + added > allowed:
                        return QuotaUse(key, used, allowed, added)
        self._add(growth)
        if self._meanwhile is not None:
            self._meanwhile.append(growth)
        return None

    def give_back(self, growth: Mapping[QuotaKey, int], begun: int | None = None) -> None:
        """Subtract a growth that ended or was not stored.

        `begun`: the value of `begun` when stored data were taken. A count that began later has not found them.
        """
        is_replaced = begun is not None and begun < self._replaced_by
        less = {key: -added for key, added in growth.items() if not (is_replaced and key[2].is_stored)}
        self._add(less)
        if self._meanwhile is not None and begun == self.begun:
            self._meanwhile.append(less)

    def _add(self, growth: Mapping[QuotaKey, int]) -> None:
        for key, added in growth.items():
            # Names come from clients: only those with a quota are kept.
            if (allowed := self.allowed(key)) is not None:
                self._counts(key[2]).add(key, added, allowed)
                if key[2].is_per_day:
                    self._changed[key] = None

    def resume(self, day: str, used: Mapping[QuotaKey, int]) -> None:
        """Add the use of this day from before a restart."""
        self.take(used, day, is_forced=True)
        self._changed.clear()

    def changed(self, most: int) -> tuple[str, dict[QuotaKey, int]]:
        """Return the day, and at most so many of the uses in it that have changed since they were returned."""
        used = self._daily.used
        found = {key: used.get(key, 0) for key in islice(self._changed, most)}
        for key in found:
            del self._changed[key]
        return self._day, found

    def not_kept(self, day: str, keys: Iterable[QuotaKey]) -> None:
        """Return these again, since they could not be stored."""
        if day == self._day:
            self._changed.update(dict.fromkeys(keys))

    def begin_count(self) -> None:
        """Note that a count of the stored data begins, which finds exactly what was taken before."""
        self.begun += 1
        self._meanwhile = []

    def counted(self, stored: Mapping[QuotaKey, int]) -> QuotaCounts:
        """Return the use of the quotas, given that of all names. May run in any thread."""
        counts = QuotaCounts()
        for key, used in stored.items():
            if (allowed := _bound(self._find(*key[:2]), key[2])) is not None:
                counts.add(key, used, allowed)
        return counts

    def end_count(self, counts: QuotaCounts | None) -> None:
        """Replace the use of stored data by the count and what was taken meanwhile.

        `counts`: None if the count has failed.
        """
        meanwhile, self._meanwhile = self._meanwhile, None
        if counts is None:
            return
        self._stored = counts
        self._replaced_by = self.begun
        for growth in meanwhile or ():
            self._add({key: added for key, added in growth.items() if key[2].is_stored})

    def levels(self) -> Iterator[tuple[QuotaKind, QuotaLevels]]:
        """Yield how full the quotas of each kind are, with work that does not depend on their number."""
        return chain.from_iterable(counts.levels() for counts in self._all)

    def nearly_used(self, most: int) -> Iterator[QuotaUse]:
        """Yield at most so many of the quotas that are nearly used."""
        for key in islice(chain.from_iterable(counts.nearly for counts in self._all), most):
            allowed = self.allowed(key)
            assert allowed is not None, "only quotas are kept"
            yield QuotaUse(key, self._counts(key[2]).used[key], allowed)

    @property
    def _all(self) -> tuple[QuotaCounts, QuotaCounts, QuotaCounts]:
        return self._stored, self._daily, self._open

    def _counts(self, quantity: Quantity) -> QuotaCounts:
        if quantity.is_stored:
            return self._stored
        return self._daily if quantity.is_per_day else self._open


def _bound(rule: QuotaRule | None, quantity: Quantity) -> int | None:
    allowed: int | None = None if rule is None else getattr(rule, quantity.value)
    return allowed

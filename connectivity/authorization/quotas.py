"""Quotas of namespaces and subjects: their use, and the quota that a change would exceed. Pure.

The first rule that names a namespace or a subject applies to it, to each by itself. A thing or policy is added to the use of
its namespace and of the subject that created it; a change to that of its namespace and of the subject that made it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, TypeAlias

from connectivity.config.quotas import QuotaRule
from connectivity.security.creation import NamePatterns


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


def growth_by_event(namespace: str, subject: str, size: int) -> Counter[QuotaKey]:
    """Return the growth by one event of so many bytes, apart from the stored data."""
    growth: Counter[QuotaKey] = Counter()
    for holder in ((QuotaHolder.NAMESPACE, namespace), (QuotaHolder.SUBJECT, subject)):
        growth[(*holder, Quantity.EVENTS_PER_DAY)] = 1
        growth[(*holder, Quantity.BYTES_PER_DAY)] = size
    return growth


class QuotaUse(NamedTuple):
    """The use of a quota."""

    key: QuotaKey
    used: int
    allowed: int

    def __str__(self) -> str:
        holder, name, quantity = self.key
        return f"the {holder.value} '{name}' uses {self.used} of its quota {quantity.value} of {self.allowed}"


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
        self._used: Counter[QuotaKey] = Counter()
        self._since: Counter[QuotaKey] = Counter()
        """Taken since the last count of what is stored began."""
        self._found: dict[tuple[QuotaHolder, str], QuotaRule | None] = {}
        self._day = ""

    @property
    def is_empty(self) -> bool:
        """Whether there is no rule."""
        return not self._rules

    def allowed(self, key: QuotaKey) -> int | None:
        """Return the quota; None: unbounded."""
        holder, name, quantity = key
        rule = self.rule(holder, name)
        allowed: int | None = None if rule is None else getattr(rule, quantity.value)
        return allowed

    def rule(self, holder: QuotaHolder, name: str) -> QuotaRule | None:
        """Return the first rule that names a namespace or a subject."""
        try:
            return self._found[holder, name]
        except KeyError:
            named = (rule for kind, names, rule in self._rules if kind is holder and names.match_any([name]))
            found = self._found[holder, name] = next(named, None)
            return found

    def take(
        self, growth: Mapping[QuotaKey, int], day: str | None = None, *, is_forced: bool = False
    ) -> QuotaUse | None:
        """Add a growth to the use. If it exceeds a quota, add nothing and return that, unless it is forced.

        `day` is the date of the service's clock, needed for quantities of a day.
        """
        if day is not None and day != self._day:
            self._day = day
            for counted in (self._used, self._since):
                for key in [key for key in counted if key[2].is_per_day]:
                    del counted[key]
        # Names come from clients: only those with a quota are kept.
        bounded = {key: (added, allowed) for key, added in growth.items() if (allowed := self.allowed(key)) is not None}
        for key, (added, allowed) in bounded.items():
            if added > 0 and not is_forced and self._used[key] + added > allowed:
                return QuotaUse(key, self._used[key], allowed)
        for key, (added, _) in bounded.items():
            self._used[key] += added
            self._since[key] += added
        return None

    def give_back(self, growth: Mapping[QuotaKey, int]) -> None:
        """Subtract a growth that was not stored."""
        self.take({key: -added for key, added in growth.items()})

    def begin_count(self) -> None:
        """Note that a count of the stored data begins."""
        self._since.clear()

    def end_count(self, stored: Mapping[QuotaKey, int]) -> None:
        """Replace the use of stored data by the count and what was taken meanwhile. Other use stays."""
        others = {key: used for key, used in self._used.items() if not key[2].is_stored}
        meanwhile = {key: used for key, used in self._since.items() if key[2].is_stored}
        self._used = Counter(others)
        self._used.update({key: used for key, used in stored.items() if self.allowed(key) is not None})
        self._used.update(meanwhile)
        self._used = +self._used
        self._found.clear()

    def __iter__(self) -> Iterator[QuotaUse]:
        """Iterate over the quotas that are used."""
        for key, used in self._used.items():
            if (allowed := self.allowed(key)) is not None:
                yield QuotaUse(key, used, allowed)

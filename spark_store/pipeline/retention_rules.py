"""Rules of retention: which events of the lake have expired.

Without Spark, so that `verify` needs none.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import msgspec

from mappings.ids import namespace_of
from spark_store.journal.reader import JournalEntry
from spark_store.sql import literal

Firsts = Mapping[timedelta, int | None]
"""By age: the least number of a younger event of the lake; None if there is none."""


class RetentionRule(msgspec.Struct, frozen=True):
    """A rule: keeps events not older than `age`, and the newest `revisions` of each entity.

    Without either, everything.
    """

    age: timedelta | None = None
    revisions: int | None = None

    @property
    def is_forever(self) -> bool:
        return self.age is None and self.revisions is None

    def expired_condition(self, now: datetime, firsts: Firsts) -> str:
        """The condition, in SQL, under which an event may go; `newest` is the newest revision of its entity."""
        conditions = []
        if self.age is not None:
            conditions.append(f"ts < {literal(time_before(now, self.age))}")
            if (first := firsts.get(self.age)) is not None:
                conditions.append(f"seq < {first}")
        if self.revisions is not None:
            conditions.append(f"revision <= newest - {self.revisions}")
        return " AND ".join(conditions) or "false"


def time_before(now: datetime, age: timedelta) -> datetime:
    """Return the time so long before now; the calendar's beginning if it is earlier: nothing is so old."""
    try:
        return now - age
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


class RetentionRules(msgspec.Struct, frozen=True):
    """The rules: the `default`, or that of a namespace."""

    default: RetentionRule = RetentionRule()
    namespaces: Mapping[str, RetentionRule] = {}

    @property
    def is_forever(self) -> bool:
        return self.default.is_forever and all(rule.is_forever for rule in self.namespaces.values())

    @property
    def ages(self) -> set[timedelta]:
        """The ages of all rules."""
        return {rule.age for rule in (self.default, *self.namespaces.values()) if rule.age is not None}

    def expired_condition(self, now: datetime, firsts: Firsts) -> str:
        """Return the SQL condition for expired rows of `events`, with `newest` as in `RetentionRule`."""
        names = self.namespaces
        default, *rules = (rule.expired_condition(now, firsts) for rule in (self.default, *names.values()))
        others = " AND ".join([default, *(f"namespace <> {literal(name)}" for name in names)])
        named = [f"namespace = {literal(name)} AND {rule}" for name, rule in zip(names, rules, strict=True)]
        return " OR ".join(f"({rule})" for rule in [others, *named])

    def has_expired(self, entry: JournalEntry, newest: int, now: datetime) -> bool:
        """Whether the lake may lack an event of the journal, of an entity with the revision `newest`.

        As far as the event's own time and revision show.
        """
        rule = self.namespaces.get(namespace_of(entry.entity), self.default)
        is_old = rule.age is None or datetime.fromisoformat(entry.timestamp) < time_before(now, rule.age)
        is_far = rule.revisions is None or entry.revision <= newest - rule.revisions
        return not rule.is_forever and is_old and is_far

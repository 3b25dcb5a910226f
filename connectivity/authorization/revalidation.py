"""Checks permissions again that were granted once (Streamr protocol, permissions; rsio, names).

A subscription may last for years. When policies change, the affected sessions are checked again before they receive what was
committed with the change; when a subject has expired, before they receive anything newer, and within a second. Every
session is also checked about once a minute, some in each second. While the store cannot be read, checks are postponed. Each
protocol defines the check and its consequences.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from datetime import datetime
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

import structlog

from connectivity.authorization.dependencies import DependencyIndex
from mappings.ids import EntityId, EntityType
from mappings.timestamps import utc_text
from spark_store.errors import StateDamaged, StoreError
from spark_store.records import Change

log = structlog.get_logger(__name__)

_NAMING_A_POLICY: Final = frozenset({"/", "/policyId"})
"""The path at which a change gives a thing another policy."""

ChangeListener: TypeAlias = Callable[[Collection[EntityId], str], object]
"""Receives the changed entities, and the time of the newest event of the commit."""


def changed_entities(changes: Iterable[Change]) -> set[EntityId]:
    """The policies that have changed, and the things that may have another policy than before."""
    return {
        event.entity
        for change in changes
        for event in change.events
        if event.entity.type is EntityType.POLICY
        or (event.path in _NAMING_A_POLICY and event.entity.type is EntityType.THING)
    }


class PolicyChangeNotifier:
    """Notifies of policies that have changed, and of the time of what was committed."""

    def __init__(self) -> None:
        self._listeners: dict[ChangeListener, None] = {}

    def watch(self, listener: ChangeListener) -> None:
        """Call `listener` after each commit, before anyone receives its events."""
        self._listeners[listener] = None

    def leave(self, listener: ChangeListener) -> None:
        """Remove a listener."""
        self._listeners.pop(listener, None)

    def notify(self, changes: Iterable[Change], erased: Sequence[EntityId] = ()) -> None:
        """Notify of durable changes. An error of one receiver affects no other."""
        if not self._listeners:
            return
        changes = tuple(changes)
        found = changed_entities(changes) | set(erased)
        newest = max((event.timestamp for change in changes for event in change.events), default="")
        for listener in list(self._listeners):
            try:
                listener(found, newest)
            except Exception:
                log.exception("policy change not processed")


_MOST_OUTDATED: Final = 64
"""How many outdated entries, or as many as current ones, the heap of expiries may have."""

ROUND = 60
"""After how many sweeps all have been checked."""

_THING_AND_POLICY: Final = 2
"""How many dependencies a reader of a thing has whose policy imports nothing."""

Judged = TypeVar("Judged", bound=Hashable)


class AccessDependencies(NamedTuple):
    """The entities on which a check depends, and when the first subject expires, as in `Event.timestamp`."""

    entities: frozenset[EntityId] = frozenset()
    expires: str | None = None


class AccessRevalidation(ABC, Generic[Judged]):
    """Repeats permission checks, while there is anyone to check."""

    def __init__(self, notifier: PolicyChangeNotifier, now: Callable[[], datetime]) -> None:
        self._notifier = notifier
        self._now = now
        self._all: DependencyIndex[Judged] = DependencyIndex()
        self._owed: dict[Judged, None] = {}
        """Those whose check was postponed."""
        self._expires: dict[Judged, str] = {}
        self._expiring: list[tuple[str, int, Judged]] = []
        """A heap by time; numbers keep two from being compared.

        Entries that differ from `_expires` are outdated.
        """
        self._numbers = count()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._all!r}>"

    def __contains__(self, judged: Judged) -> bool:
        return judged in self._all

    @abstractmethod
    def concerning(self, judged: Judged) -> AccessDependencies:
        """Returns what a check depends on. Raises StoreUnavailable."""

    @abstractmethod
    def recheck(self, found: Collection[Judged]) -> None:
        """Check these again: each is noted or forgotten. Raises StoreUnavailable."""

    def note(self, judged: Judged) -> None:
        """Add someone to check, or update the dependencies. Raises StoreUnavailable."""
        upon, expires = self.concerning(judged)
        if not len(self._all):
            self._notifier.watch(self._changed)
        self._all.note(judged, upon)
        if expires is None:
            self._expires.pop(judged, None)
        elif self._expires.get(judged) != expires:
            self._expires[judged] = expires
            heappush(self._expiring, (expires, next(self._numbers), judged))
        self._remove_outdated()

    def forget(self, judged: Judged) -> None:
        """Remove a check."""
        self._all.forget(judged)
        self._owed.pop(judged, None)
        self._expires.pop(judged, None)
        self._remove_outdated()
        if not len(self._all):
            self._notifier.leave(self._changed)

    def select(self, are_meant: Callable[[Judged], bool]) -> Collection[Judged]:
        """Return those that a predicate selects."""
        return self._all.select(are_meant)

    def sweep(self) -> None:
        """About once a second: judge those whose subject has expired, and some others, whatever has changed."""
        owed, self._owed = self._owed, {}
        expired = self._expired(utc_text(self._now())) if self._expiring else {}
        self._judge({**owed, **dict.fromkeys(self._all.turn(ROUND)), **expired})

    def _changed(self, entities: Collection[EntityId], newest: str) -> None:
        self._judge(self._affected(entities) | self._expired(newest))

    def _affected(self, entities: Collection[EntityId]) -> dict[Judged, None]:
        if not entities:
            return {}
        things = {entity for entity in entities if entity.type is not EntityType.POLICY}
        found = dict.fromkeys(self._all.of(set(entities) - things))
        # A thing that is replaced as a whole, many times in a second perhaps, has the same policy as a rule.
        return found | dict.fromkeys(judged for judged in self._all.of(things) if self._depends_on_others(judged))

    def _expired(self, newest: str) -> dict[Judged, None]:
        """Return those whose check holds no longer at the time of the newest event."""
        found: dict[Judged, None] = {}
        while self._expiring and self._expiring[0][0] <= newest:
            expires, _, judged = heappop(self._expiring)
            if self._expires.get(judged) == expires:
                del self._expires[judged]
                found[judged] = None
        return found

    def _remove_outdated(self) -> None:
        """Remove outdated entries from the heap when they are the most: expiries may be years ahead."""
        if len(self._expiring) > 2 * len(self._expires) + _MOST_OUTDATED:
            self._expiring = [(expires, next(self._numbers), judged) for judged, expires in self._expires.items()]
            heapify(self._expiring)

    def _depends_on_others(self, judged: Judged) -> bool:
        """Whether another policy may decide than when the dependencies were noted."""
        try:
            upon = self.concerning(judged).entities
        except StoreError:
            return True
        # Policies that import each other are the same dependencies, whichever of them decides.
        return upon != self._all.upon(judged) or len(upon) > _THING_AND_POLICY

    def _judge(self, found: dict[Judged, None]) -> None:
        if not found:
            return
        try:
            self.recheck(list(found))
        except StoreError as error:
            if isinstance(error, StateDamaged) and len(found) > 1:
                # One of them depends on it; the others are checked.
                for judged in found:
                    self._judge({judged: None})
                return
            log.warning("permission checks postponed", count=len(found), reason=str(error))
            self._owed |= {judged: None for judged in found if judged in self._all}

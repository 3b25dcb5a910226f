"""The things that wait apart at a target, because its broker refuses messages to their addresses.

A parked thing keeps the revision with which it continues; its events wait in the journal. It is retried after a growing
pause, one event at a time. Times are seconds of the caller's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Final

from mappings.ids import EntityId, EntityType
from spark_store.records import entity_of

MAX_PARKED: Final = 100
"""The limit of parked things of a target. If more are refused, their addresses are hardly the cause."""


class _ParkedThing:
    """`due`: when to retry, infinite while an event is in flight."""

    __slots__ = ("due", "reason", "revision", "tries")

    def __init__(self, revision: int) -> None:
        self.revision, self.tries, self.due, self.reason = revision, 0, 0.0, "not retried yet"


class ParkedThings:
    """The parked things of one target, the one parked first in front."""

    def __init__(self, positions: Iterable[tuple[str, int]], pause: Callable[[int], float]) -> None:
        """`pause` returns the seconds to wait after so many tries."""
        self._pause = pause
        self._things = {entity_of(EntityType.THING.value, id): _ParkedThing(revision) for id, revision in positions}

    def __len__(self) -> int:
        return len(self._things)

    def __contains__(self, entity: EntityId) -> bool:
        return entity in self._things

    def __str__(self) -> str:
        """Return the number of things, and the refusal of the first one."""
        entity, thing = next(iter(self._things.items()))
        number = f"{len(self)} things, first" if len(self) > 1 else "1 thing,"
        return f"{number} {entity}: {thing.reason}"

    @property
    def positions(self) -> tuple[tuple[str, int], ...]:
        """The IDs and next revisions of the things."""
        return tuple((entity.id, thing.revision) for entity, thing in self._things.items())

    @property
    def next_due(self) -> float:
        """When the next thing is due; infinite if none will be."""
        return min((thing.due for thing in self._things.values()), default=inf)

    def reason(self, entity: EntityId) -> str:
        """Return why the broker refused the event of a parked thing."""
        return self._things[entity].reason

    def due(self, now: float) -> tuple[EntityId, int] | None:
        """Return a thing that is due, and its next revision."""
        return next(((entity, it.revision) for entity, it in self._things.items() if it.due <= now), None)

    def park(self, entity: EntityId, revision: int, reason: str, now: float) -> bool:
        """Park a thing from a refused event on, or a parked one from an earlier event on.

        Return false if there is no room for another thing.
        """
        if (thing := self._things.get(entity)) is not None:
            thing.revision = min(thing.revision, revision)
            return True
        if len(self) >= MAX_PARKED:
            return False
        self._things[entity] = _ParkedThing(revision)
        self.refused(entity, reason, now)
        return True

    def begin(self, entity: EntityId, revision: int) -> None:
        """Note that the event with this revision is in flight."""
        self._things[entity].revision, self._things[entity].due = revision, inf

    def passed(self, entity: EntityId, revision: int, now: float) -> None:
        """Continue after the event that was in flight, unless an earlier one was refused meanwhile."""
        thing = self._things[entity]
        thing.revision += thing.revision == revision
        thing.tries, thing.due = 0, now

    def refused(self, entity: EntityId, reason: str, now: float) -> None:
        """Retry a thing after a pause."""
        thing = self._things[entity]
        thing.tries += 1
        thing.due, thing.reason = now + self._pause(thing.tries), reason

    def leave(self, entity: EntityId) -> None:
        """Park a thing no longer."""
        del self._things[entity]

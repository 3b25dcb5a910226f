"""Index of dependencies on entities, to find what a change may affect.

Whether a subject may read a stream depends on policies, their imports, and the thing that names its policy. Thousands may
read streams while policies change rarely: `of` finds those that a change may affect. Permissions may also expire without an
event; `turn` returns a share of all, so that each is checked in a given time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Generic, TypeVar

from mappings.ids import EntityId

Dependent = TypeVar("Dependent", bound=Hashable)


class DependencyIndex(Generic[Dependent]):
    """The dependents there are, each with the entities that it depends upon."""

    def __init__(self) -> None:
        self._upon: dict[Dependent, frozenset[EntityId]] = {}
        self._of: dict[EntityId, set[Dependent]] = {}
        self._waiting: deque[Dependent] = deque()
        """Those whose turn has not come in this round."""
        self._due = 0
        """The remaining fraction of a turn, in rounds."""

    def __len__(self) -> int:
        return len(self._upon)

    def __contains__(self, dependent: Dependent) -> bool:
        return dependent in self._upon

    def note(self, dependent: Dependent, entities: frozenset[EntityId]) -> None:
        """Add a dependent, or replace the entities that it depends on."""
        former = self._upon.get(dependent, frozenset())
        self._upon[dependent] = entities
        self._leave(dependent, former - entities)
        for entity in entities - former:
            self._of.setdefault(entity, set()).add(dependent)

    def forget(self, dependent: Dependent) -> None:
        """Remove a dependent, if it is known."""
        self._leave(dependent, self._upon.pop(dependent, frozenset()))

    def upon(self, dependent: Dependent) -> frozenset[EntityId]:
        """Return the entities on which it depends."""
        return self._upon.get(dependent, frozenset())

    def of(self, changed: Iterable[EntityId]) -> Collection[Dependent]:
        """Return those that depend on any of these entities."""
        if not self._of:
            return ()
        return set().union(*(self._of[entity] for entity in changed if entity in self._of))

    def select(self, are_meant: Callable[[Dependent], bool]) -> Collection[Dependent]:
        """Return those that a predicate selects."""
        return [dependent for dependent in self._upon if are_meant(dependent)]

    def turn(self, rounds: int) -> Collection[Dependent]:
        """Return a share of all, so that each has a turn in about that many calls."""
        self._due += len(self._upon)
        if not self._waiting:
            self._waiting.extend(self._upon)
        turn, self._due = divmod(self._due, rounds)
        found = [self._waiting.popleft() for _ in range(min(turn, len(self._waiting)))]
        return [dependent for dependent in found if dependent in self._upon]

    def _leave(self, dependent: Dependent, entities: Iterable[EntityId]) -> None:
        for entity in entities:
            others = self._of[entity]
            others.discard(dependent)
            if not others:
                del self._of[entity]

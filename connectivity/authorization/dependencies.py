"""What depends on which entities: so that a change leads straight to those whom it may concern.

Who may follow a stream is said by policies, by those that they import, and by the thing that names its policy. Policies
change seldom and streams are followed by thousands, so nobody is judged again but for a change that may concern him: `of`
finds them. A permission may also end without any event, when the time of a subject is over; therefore `turn` gives a part of
all, so large that everybody's turn comes in a given time.
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
        """Whose turn has not come in this round."""
        self._due = 0
        """What part of a turn is left over, in rounds."""

    def __repr__(self) -> str:
        return f"<Dependents: {len(self._upon)} of {len(self._of)} entities>"

    def __len__(self) -> int:
        return len(self._upon)

    def __contains__(self, dependent: Dependent) -> bool:
        return dependent in self._upon

    def note(self, dependent: Dependent, entities: frozenset[EntityId]) -> None:
        """A dependent is there, or depends upon other entities from now on."""
        former = self._upon.get(dependent, frozenset())
        self._upon[dependent] = entities
        self._leave(dependent, former - entities)
        for entity in entities - former:
            self._of.setdefault(entity, set()).add(dependent)

    def forget(self, dependent: Dependent) -> None:
        """It is there no more. Nothing, if it was not."""
        self._leave(dependent, self._upon.pop(dependent, frozenset()))

    def upon(self, dependent: Dependent) -> frozenset[EntityId]:
        """What it was noted to depend upon."""
        return self._upon.get(dependent, frozenset())

    def of(self, changed: Iterable[EntityId]) -> Collection[Dependent]:
        """Those that depend upon any of these."""
        if not self._of:
            return ()
        return set().union(*(self._of[entity] for entity in changed if entity in self._of))

    def those(self, are_meant: Callable[[Dependent], bool]) -> Collection[Dependent]:
        """Those that are meant, of all."""
        return [dependent for dependent in self._upon if are_meant(dependent)]

    def turn(self, rounds: int) -> Collection[Dependent]:
        """Some of them, as many as it takes for everybody to have a turn in about so many calls, and nobody many more."""
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

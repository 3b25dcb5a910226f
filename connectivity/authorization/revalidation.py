"""Who may still do what he was once let in for (Streamr protocol, permissions; reactive-streams-io, names).

Whoever follows something may do so for years. Whenever policies change, those whom that may concern are judged again, before
anybody is sent what was committed together with the change. Since the time of a subject may also end without an event,
everybody is judged again once a minute, some in each second. Where the store cannot be read, the judgement is made up for
with the next ones. What a judgement is, and what follows from it, is said by each protocol.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Final, Generic, TypeAlias, TypeVar

import structlog

from connectivity.authorization.dependencies import DependencyIndex
from mappings.ids import EntityId, EntityType
from spark_store.errors import StoreUnavailable
from spark_store.records import Change

log = structlog.get_logger(__name__)


_NAMING_A_POLICY: Final = frozenset({"/", "/policyId"})
"""Where a thing is changed that has another policy afterwards."""

Told: TypeAlias = Callable[[Collection[EntityId]], object]


def authorities(changes: Iterable[Change]) -> set[EntityId]:
    """The policies that have changed, and the things that may have another policy than before."""
    return {
        event.entity
        for change in changes
        for event in change.events
        if event.entity.type is EntityType.POLICY
        or (event.path in _NAMING_A_POLICY and event.entity.type is EntityType.THING)
    }


class PolicyChangeNotifier:
    """Who wants to know."""

    def __init__(self) -> None:
        self._told: dict[Told, None] = {}

    def __repr__(self) -> str:
        return f"<Authorities, watched by {len(self._told)}>"

    def watch(self, told: Told) -> None:
        """From now on `told` is called after each commit that has changed some, with these."""
        self._told[told] = None

    def leave(self, told: Told) -> None:
        """It is called no more."""
        self._told.pop(told, None)

    def tell(self, changes: Iterable[Change], erased: Sequence[EntityId] = ()) -> None:
        """These changes are durable. A mistake of somebody who is told costs nobody else anything."""
        if not self._told or not (found := authorities(changes) | set(erased)):
            return
        for told in list(self._told):
            try:
                told(found)
            except Exception:
                log.exception("what follows from a change of policies was not done")


ROUND = 60
"""After so many sweeps everybody was judged again."""

Judged = TypeVar("Judged", bound=Hashable)


class AccessRevalidation(ABC, Generic[Judged]):
    """Those who are judged again and again. The authorities tell of changes while there is anybody."""

    def __init__(self, authorities: PolicyChangeNotifier) -> None:
        self._authorities = authorities
        self._all: DependencyIndex[Judged] = DependencyIndex()
        self._owed: dict[Judged, None] = {}
        """Who was not judged when it was time."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._all!r}>"

    def __contains__(self, judged: Judged) -> bool:
        return judged in self._all

    @abstractmethod
    def concerning(self, judged: Judged) -> frozenset[EntityId]:
        """What a judgement depends upon. Raises StoreUnavailable."""

    @abstractmethod
    def judge(self, found: Collection[Judged]) -> None:
        """Judge these: each is noted again or forgotten. Raises StoreUnavailable."""

    def note(self, judged: Judged) -> None:
        """Somebody is there, or what he depends upon may be another than before. Raises StoreUnavailable."""
        upon = self.concerning(judged)
        if not len(self._all):
            self._authorities.watch(self._changed)
        self._all.note(judged, upon)

    def forget(self, judged: Judged) -> None:
        """He is there no more."""
        self._all.forget(judged)
        self._owed.pop(judged, None)
        if not len(self._all):
            self._authorities.leave(self._changed)

    def those(self, are_meant: Callable[[Judged], bool]) -> Collection[Judged]:
        """Those that are meant, of all."""
        return self._all.those(are_meant)

    def sweep(self) -> None:
        """About once a second: judge some again, whatever has changed."""
        owed, self._owed = self._owed, {}
        self._judge({**owed, **dict.fromkeys(self._all.turn(ROUND))})

    def _changed(self, entities: Collection[EntityId]) -> None:
        things = {entity for entity in entities if entity.type is not EntityType.POLICY}
        found = dict.fromkeys(self._all.of(set(entities) - things))
        # A thing that is replaced as a whole, many times in a second perhaps, has the same policy as a rule.
        found |= dict.fromkeys(judged for judged in self._all.of(things) if self._depends_on_others(judged))
        self._judge(found)

    def _depends_on_others(self, judged: Judged) -> bool:
        """Whether he depends upon other entities than he was noted to."""
        try:
            return self.concerning(judged) != self._all.upon(judged)
        except StoreUnavailable:
            return True

    def _judge(self, found: dict[Judged, None]) -> None:
        if not found:
            return
        try:
            self.judge(list(found))
        except StoreUnavailable as error:
            log.warning("who may still read cannot be judged now", who=len(found), reason=str(error))
            self._owed |= {judged: None for judged in found if judged in self._all}

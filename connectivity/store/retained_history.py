"""Where the history of an entity begins by now: the oldest revision that a page of it can still bring.

Of an entity's events the beginning goes first: the journal lets them go once the lake has them, retention deletes them
there, an erasure takes them from both. Whoever names an event to somebody, as a message names the one before it, has to know
whether it could still be fetched, and cannot wait for a disk to find out. So `oldest` answers from memory: where the lake's
beginning is not known, with that of the journal, which is later. It is never a revision that is gone, as far as this process
has seen. `look` asks the lake, and so does `round`, once a second, for those that were asked about.

What is known of the lake holds until something was deleted there. That is seen by looking at its log; as long as nobody has
looked for a while, nothing is known.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from mappings.ids import EntityId
from spark_store.errors import StoreError
from spark_store.journal.journal import Journal
from spark_store.records import HistoryStart

if TYPE_CHECKING:
    from spark_store.lake.history_reader import LakeHistory


Asked = TypeVar("Asked")

MOST = 10_000
"""Of so many entities it is kept where they begin."""

SOME = 100
"""So many entities are looked for in the lake at once."""

TRUSTED_SECONDS = 10.0
"""For so long what is known of the lake holds without a look at it."""


class LakeQuery(Protocol):
    """As `Store.ask_lake`."""

    def __call__(self, ask: Callable[[LakeHistory, int], Asked]) -> Awaitable[Asked | None]: ...


class _Found(NamedTuple):
    """The oldest revision in the lake of each entity (0 for none), when so many deletions had been seen."""

    deletions: int
    oldest: dict[EntityId, int]


class RetainedHistory:
    """Where the entities of one store begin."""

    def __init__(self, journal: Journal, ask_lake: LakeQuery, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives monotonic seconds."""
        self._journal = journal
        self._ask_lake = ask_lake
        self._clock = clock
        self._begun: OrderedDict[EntityId, HistoryStart] = OrderedDict()
        self._cold: OrderedDict[EntityId, int] = OrderedDict()
        self._wanted: OrderedDict[EntityId, None] = OrderedDict()
        self._deletions = -1
        self._looked = float("-inf")

    def __repr__(self) -> str:
        return f"<Kept: {len(self._begun)} entities, {len(self._cold)} of them in the lake>"

    def oldest(self, entity: EntityId) -> int:
        """The smallest revision that can still be read, or a later one; where there is none, the one that comes next.

        Raises StoreUnavailable.
        """
        begun = self._beginning(entity)
        if begun.is_here:
            return begun.first
        if (cold := self._cold.get(entity)) is not None and self._clock() - self._looked < TRUSTED_SECONDS:
            return cold
        _put(self._wanted, entity, None)
        return begun.first

    async def look(self, entity: EntityId) -> int:
        """The smallest revision that can be read now, or the one that comes next.

        Raises StoreUnavailable, HistoryUnavailable.
        """
        begun = self._beginning(entity)
        if begun.is_here:
            return begun.first
        found = await self._find([entity])
        return begun.first if found is None else found.oldest[entity] or begun.first

    async def round(self) -> None:
        """See whether something has been deleted in the lake, and look for those that were asked about.

        While the lake cannot be read nothing is known of it; a later round may find out.
        """
        wanted = list(self._wanted)[:SOME]
        if not wanted and not self._cold:
            return
        try:
            await self._find(wanted)
        except StoreError:
            return
        for entity in wanted:
            self._wanted.pop(entity, None)

    def forget(self, entity: EntityId | None = None) -> None:
        """An entity was erased (None: anything may have changed)."""
        for known in (self._begun, self._cold):
            if entity is None:
                known.clear()
            else:
                known.pop(entity, None)

    def trimmed(self) -> None:
        """Events have left the journal: where entities begin there has to be asked anew."""
        self._begun.clear()

    def beginning(self, entity: EntityId) -> HistoryStart:
        """Where an entity begins in the journal at this moment. Raises StoreUnavailable."""
        return self._journal.beginning(entity)

    def _beginning(self, entity: EntityId) -> HistoryStart:
        if (found := self._begun.get(entity)) is None:
            found = self._journal.beginning(entity)
            _put(self._begun, entity, found)
        return found

    async def _find(self, entities: Iterable[EntityId]) -> _Found | None:
        """Look in the lake, and note what is found; None without a lake."""
        begun = {entity: self._beginning(entity) for entity in entities}

        def ask(cold: LakeHistory, reaching: int) -> _Found:
            # Asked first: what is deleted after it is seen the next time.
            deletions = cold.deletions()
            oldest = {
                entity: cold.oldest(entity, erased + 1, first - 1, reaching=reaching)
                for entity, (erased, first) in begun.items()
            }
            return _Found(deletions, oldest)

        started = self._clock()
        found = await self._ask_lake(ask)
        if found is None or found.deletions < self._deletions:
            return found
        if found.deletions > self._deletions:
            # Those that were known are looked for again.
            for entity in self._cold:
                _put(self._wanted, entity, None)
            self._cold.clear()
            self._deletions = found.deletions
        self._looked = started
        for entity, oldest in found.oldest.items():
            # What was erased or trimmed meanwhile is asked for anew.
            if self._begun.get(entity) is begun[entity]:
                _put(self._cold, entity, oldest or begun[entity].first)
        return found


def _put(known: OrderedDict[EntityId, Asked], entity: EntityId, value: Asked) -> None:
    known[entity] = value
    known.move_to_end(entity)
    if len(known) > MOST:
        known.popitem(last=False)

"""The oldest revision of each entity that can still be read, from journal and lake.

The journal trims events that the lake has, retention deletes them in the lake, an erasure deletes them in both. `oldest`
answers from memory, without waiting for a disk: if the beginning in the lake is not known, it returns that in the journal,
which is later. `look` reads the lake, and `round` does so once a second for the entities that were asked about. A beginning
in the lake is valid until the lake's log shows a deletion, or has not been read for a while.
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

Result = TypeVar("Result")

MOST = 10_000
"""The most entities whose beginning is kept."""

LOOKUP_BATCH = 100
"""How many entities are looked up in the lake at once."""

CACHE_SECONDS = 10.0
"""How long the known beginnings in the lake are valid without reading its log."""


class LakeQuery(Protocol):
    """The type of `Store.ask_lake`."""

    def __call__(self, ask: Callable[[LakeHistory, int], Result]) -> Awaitable[Result | None]: ...


class _LakeBeginnings(NamedTuple):
    """The oldest revision of each entity in the lake (0 for none), and how many deletions had been seen."""

    deletions: int
    oldest: dict[EntityId, int]


class RetainedHistory:
    """The beginnings of the histories of one store."""

    def __init__(self, journal: Journal, ask_lake: LakeQuery, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns monotonic seconds."""
        self._journal = journal
        self._ask_lake = ask_lake
        self._clock = clock
        self._starts: OrderedDict[EntityId, HistoryStart] = OrderedDict()
        self._cold: OrderedDict[EntityId, int] = OrderedDict()
        self._requested: OrderedDict[EntityId, None] = OrderedDict()
        self._deletions = -1
        self._last_read = float("-inf")

    def __repr__(self) -> str:
        return f"<RetainedHistory of {len(self._starts)} entities, {len(self._cold)} of them in the lake>"

    def oldest(self, entity: EntityId) -> int:
        """Return the smallest revision that can be read, or a later one; the next revision if there is none.

        Raises StoreUnavailable.
        """
        begun = self._beginning(entity)
        if begun.is_here:
            return begun.first
        if (cold := self._cold.get(entity)) is not None and self._clock() - self._last_read < CACHE_SECONDS:
            return cold
        _put(self._requested, entity, None)
        return begun.first

    async def look(self, entity: EntityId) -> int:
        """Return the smallest revision that can be read now; the next revision if there is none.

        Raises StoreUnavailable, HistoryUnavailable.
        """
        begun = self._beginning(entity)
        if begun.is_here:
            return begun.first
        found = await self._find([entity])
        return begun.first if found is None else found.oldest[entity] or begun.first

    async def round(self) -> None:
        """Detect deletions in the lake, and look up the entities that were asked about.

        While the lake cannot be read, nothing is known of it; a later round may succeed.
        """
        wanted = list(self._requested)[:LOOKUP_BATCH]
        if not wanted and not self._cold:
            return
        try:
            await self._find(wanted)
        except StoreError:
            return
        for entity in wanted:
            self._requested.pop(entity, None)

    def forget(self, entity: EntityId | None = None) -> None:
        """Discard what is known of an erased entity (None: of all)."""
        for known in (self._starts, self._cold):
            if entity is None:
                known.clear()
            else:
                known.pop(entity, None)

    def trimmed(self) -> None:
        """Discard what is known of the journal, after events were trimmed."""
        self._starts.clear()

    def _beginning(self, entity: EntityId) -> HistoryStart:
        if (found := self._starts.get(entity)) is None:
            found = self._journal.beginning(entity)
            _put(self._starts, entity, found)
        return found

    async def _find(self, entities: Iterable[EntityId]) -> _LakeBeginnings | None:
        """Read the lake and note the result; None without a lake."""
        begun = {entity: self._beginning(entity) for entity in entities}

        def ask(cold: LakeHistory, reaching: int) -> _LakeBeginnings:
            # Read first: deletions after this are detected the next time.
            deletions = cold.deletions()
            oldest = {
                entity: cold.oldest(entity, erased + 1, first - 1, reaching=reaching)
                for entity, (erased, first) in begun.items()
            }
            return _LakeBeginnings(deletions, oldest)

        started = self._clock()
        found = await self._ask_lake(ask)
        if found is None or found.deletions < self._deletions:
            return found
        if found.deletions > self._deletions:
            # Look up the known entities again.
            for entity in self._cold:
                _put(self._requested, entity, None)
            self._cold.clear()
            self._deletions = found.deletions
        self._last_read = started
        for entity, oldest in found.oldest.items():
            # Entities that were erased or trimmed meanwhile are looked up again.
            if self._starts.get(entity) is begun[entity]:
                _put(self._cold, entity, oldest or begun[entity].first)
        return found


def _put(known: OrderedDict[EntityId, Result], entity: EntityId, value: Result) -> None:
    known[entity] = value
    known.move_to_end(entity)
    if len(known) > MOST:
        known.popitem(last=False)

"""Searches the present things in the journal's file: exact results, each page of one instant.

`SqliteSearch.page` answers a query from a place on, over a connection of its own that one thread uses at a time. A page has
one read view, also for policies (`snapshot`). The index narrows the search (`spark_store.search.index_sql`),
`spark_store.search.planner` chooses the access path, and the reference evaluator decides about each state, unless there are
neither restrictions nor a filter (Ditto search, permissions). A page returns after a slice of time with the place it has
reached, and a search without results ends with its budget.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from cachetools import LRUCache

from mappings.ids import EntityId
from mappings.json_values import decode_state
from spark_store.errors import (
    DAMAGED_JOURNAL,
    MOVED_JOURNAL,
    BudgetExceeded,
    StoreUnavailable,
    translate_sqlite_error,
)
from spark_store.files import is_elsewhere
from spark_store.records import Snapshot
from spark_store.rql.ast import Field, FieldKind
from spark_store.rql.pace import SearchPace, ThreadPace
from spark_store.rql.query import PAGE_BYTES, Budget, ReadRights, SearchHit, SortField, SortKey, ThingPage, ThingQuery
from spark_store.search.candidates import CachedCandidates
from spark_store.search.planner import QueryPlan
from spark_store.search.read_view import Deadline, ReadView, SearchTimeout
from spark_store.search.scan import OrderedScan

SLICE: Final = 0.25
"""Seconds after which a page returns its results."""

_CACHED_BYTES: Final = 64 << 20
"""How much memory the cached candidates take; those of the newest page are always cached."""

_CACHED_QUERIES: Final = 64
"""For how many queries candidates are cached at most, however few they are."""

_EVERY: Final = 500
"""The size of a page when all things are read."""

_BY_ID: Final = (SortField(Field(FieldKind.DOCUMENT, ("thingId",))),)

_OPERATIONS: Final = 20_000
"""Operations of SQLite after which the clock is read: less than a millisecond."""

_PRAGMAS: Final = ("query_only = ON", "temp_store = MEMORY", "cache_size = -32768")
_SNAPSHOT: Final = "SELECT revision, created, modified, state, policy FROM entities WHERE type = ? AND id = ?"


class _CacheEntry(NamedTuple):
    """The candidates of a query, and which request collected them from which version of the file.

    All pages of a request have the same budget. Keeping the query keeps its identity from being reused.
    """

    question: ThingQuery
    budget: Budget
    version: int
    candidates: CachedCandidates


class SqliteSearch:
    """The search over a journal's file. One thread at a time may use it."""

    def __init__(
        self,
        path: str | Path,
        pace: ThreadPace | None = None,
        *,
        slice_seconds: float = SLICE,
        identity: tuple[int, int] | None = None,
    ) -> None:
        """The file exists, and has the newest schema and this `identity`. Without `pace` nothing rests.

        Raises StoreUnavailable.
        """
        self.path = str(path)
        if identity is not None and is_elsewhere(path, identity):
            raise StoreUnavailable(f"{path}: {MOVED_JOURNAL}")
        self._slice = slice_seconds
        self._pace = pace or ThreadPace(SearchPace())
        self._known: LRUCache[int, _CacheEntry] = LRUCache(_CACHED_BYTES, _share_of_cache)
        with self._translating():
            self._connection = sqlite3.connect(self.path, timeout=1.0, isolation_level=None, check_same_thread=False)
            try:
                for pragma in _PRAGMAS:
                    self._connection.execute(f"PRAGMA {pragma}").fetchall()
            except BaseException:
                self._connection.close()
                raise

    def page(
        self,
        question: ThingQuery,
        rights: ReadRights,
        after: SortKey | None,
        limit: int,
        budget: Budget,
        max_bytes: int = PAGE_BYTES,
    ) -> ThingPage:
        """Return up to `limit` things after `after`, with up to `max_bytes` of JSON, but at least one.

        Raises BudgetExceeded, StoreUnavailable.
        """
        started, rested = self._pace.now(), self._pace.rested
        clock = Deadline(started + budget.left(), self._slice, self._pace)
        hits: list[SearchHit] = []
        places: list[SortKey] = []
        place, is_last = after, True
        with self._translating(), self._read_view(clock) as read_view:
            entry = self._recall(question, after, budget)
            try:
                walk = OrderedScan(read_view, question, rights, limit, entry.candidates)
                for found in walk.matches(after):
                    if found.hit is None:
                        if clock.is_late():
                            # Nothing more was found up to this place.
                            place, is_last = found.place, False
                            break
                        continue
                    max_bytes -= found.size
                    if len(hits) == limit or (hits and max_bytes < 0):
                        is_last = False
                        break
                    hits.append(found.hit)
                    place = found.place
                    places.append(place)
                    if walk.sorts_by_id and len(hits) < limit and clock.is_late():
                        # Each may take long to match, and in this order none is matched again. A full page reads one
                        # more, to know whether it is the last.
                        is_last = False
                        break
            except (sqlite3.OperationalError, SearchTimeout):
                if not clock.has_stopped:
                    raise
                is_last = False
            finally:
                self._known[id(question)] = entry
        if hits or is_last:
            budget.spent = 0.0
        else:
            budget.spent += self._pace.now() - started - (self._pace.rested - rested)
            if clock.has_stopped or budget.left() <= 0:
                raise BudgetExceeded(budget.seconds)
        return ThingPage(hits, place, is_last, places)

    def every(self, question: ThingQuery, rights: ReadRights, budget: Budget) -> Iterator[SearchHit]:
        """Yield everything that matches, in order.

        It is read in pages, each with a read view of its own. Raises what `page` raises.
        """
        place: SortKey | None = None
        while True:
            found = self.page(question, rights, place, _EVERY, budget)
            yield from found.hits
            if found.is_last:
                return
            place = found.place

    def count(self, question: ThingQuery, rights: ReadRights, budget: Budget) -> int:
        """Return how many things match. Raises as `page` does."""
        return sum(1 for _ in self.every(replace(question, order=_BY_ID), rights, budget))

    def sees(self, namespace: str, rights: ReadRights) -> bool:
        """Whether the requester sees a thing in a namespace; also true if a page does not tell.

        Raises StoreUnavailable.
        """
        try:
            found = self.page(ThingQuery(None, _BY_ID, frozenset({namespace})), rights, None, 1, Budget())
        except BudgetExceeded:
            return True
        return bool(found.hits) or not found.is_last

    def explain(self, question: ThingQuery, rights: ReadRights, limit: int = 25) -> QueryPlan:
        """Return the plan of the first page at this moment. Raises StoreUnavailable."""
        clock = Deadline(self._pace.now() + Budget().seconds, self._slice, self._pace)
        with self._translating(), self._read_view(clock) as read_view:
            return OrderedScan(read_view, question, rights, limit, CachedCandidates()).plan()

    def snapshot(self, entity: EntityId) -> Snapshot | None:
        """Return the committed state of an entity; within a page, that of the page's read view.

        Raises StoreUnavailable.
        """
        with self._translating():
            row = self._connection.execute(_SNAPSHOT, (entity.type.value, entity.id)).fetchone()
            if row is None:
                return None
            revision, created, modified, text, policy = row
            state = None if text is None else decode_state(text)
            return Snapshot(entity, revision, created, modified, state, policy)

    def close(self) -> None:
        """Close the file. May be repeated."""
        with self._translating():
            self._connection.close()

    def _recall(self, question: ThingQuery, after: SortKey | None, budget: Budget) -> _CacheEntry:
        """Return the cache entry of a query.

        Its candidates are empty for a first page, and if the file has changed since another request collected them.
        """
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        entry = None if after is None else self._known.get(id(question))
        if entry is not None and (entry.version == version or entry.budget is budget):
            return entry
        return _CacheEntry(question, budget, version, CachedCandidates())

    @contextlib.contextmanager
    def _read_view(self, clock: Deadline) -> Iterator[ReadView]:
        """Open a read view until the deadline."""
        self._pace.begin()
        self._connection.set_progress_handler(clock.tick, _OPERATIONS)
        try:
            self._connection.execute("BEGIN")
            try:
                yield ReadView(self._connection, clock)
            finally:
                # The deadline does not apply to ending the transaction.
                self._connection.set_progress_handler(None, 0)
                self._connection.execute("ROLLBACK")
        finally:
            self._connection.set_progress_handler(None, 0)

    @contextlib.contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise translate_sqlite_error(self.path, error) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StoreUnavailable(
                f"{self.path}: a stored state cannot be decoded: {error}; {DAMAGED_JOURNAL}"
            ) from error


def _share_of_cache(entry: _CacheEntry) -> int:
    """Return how much of the cache an entry uses: all of it at most, and enough to bound their number."""
    return min(max(entry.candidates.bytes, _CACHED_BYTES // _CACHED_QUERIES), _CACHED_BYTES)

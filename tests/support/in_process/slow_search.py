"""A search without an index, which reads all states of a journal for each page.

It is a slow reference, and records the pages that it returns.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from mappings.ids import EntityId, EntityType, parse_entity_id
from spark_store.journal.journal import Journal
from spark_store.records import Snapshot
from spark_store.rql.order import compare, key_of, sort_key
from spark_store.rql.pace import ThreadPace
from spark_store.rql.query import PAGE_BYTES, Budget, ReadRights, SearchHit, SortKey, ThingPage, ThingQuery
from spark_store.rql.search_evaluator import holds
from spark_store.search.index_sql import AllThings
from spark_store.search.planner import AccessPath, QueryPlan, shown_order
from spark_store.search.point_lookup import thing_of


class RequestedPage(NamedTuple):
    """The arguments of a call of `page`."""

    after: SortKey | None
    limit: int
    thread: str


def _ids_of_things(connection: sqlite3.Connection) -> list[str]:
    return [id for (id,) in connection.execute("SELECT id FROM entities WHERE type = 'thing' ORDER BY key")]


class SlowSearch:
    """Finds things by reading each one, sorting, and filtering by query and permissions."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self.pages: list[RequestedPage] = []
        self.slice: int | None = None
        """The maximum number of things on a page, as if more took too long."""
        self.error: Exception | None = None
        """The error that each page raises."""
        self.is_closed = False
        self.gate = threading.Event()
        """Pages wait until this is set."""
        self.gate.set()
        self._threads = threading.local()

    def opened(self, pace: ThreadPace) -> SlowSearch:
        """Begin a page of this pace with each one that this thread reads, as `SqliteSearch` does."""
        self._threads.pace = pace
        return self

    @cached_property
    def _own(self) -> Journal:
        """The same journal on other database connections, because a connection serves one thread at a time."""
        return Journal.open(self._journal.path)

    def snapshot(self, entity: EntityId) -> Snapshot | None:
        with self._lock:
            return self._own.snapshot(entity)

    def things(self) -> Iterator[Snapshot]:
        for id in self._journal.read_in_worker(_ids_of_things):
            entity = parse_entity_id(EntityType.THING, id)
            if entity is not None and (found := self.snapshot(entity)) is not None:
                yield found

    def page(
        self,
        question: ThingQuery,
        rights: ReadRights,
        after: SortKey | None,
        limit: int,
        budget: Budget,
        max_bytes: int = PAGE_BYTES,
    ) -> ThingPage:
        if (pace := getattr(self._threads, "pace", None)) is not None:
            pace.begin()
        self.pages.append(RequestedPage(after, limit, threading.current_thread().name))
        assert self.gate.wait(60)
        if self.error is not None:
            raise self.error
        found = [each for thing in self.things() if (each := _seen(thing, question, rights)) is not None]
        found = [each for each in found if after is None or compare(each[0], after, question.order) > 0]
        by = key_of(question.order)
        found.sort(key=lambda each: by(each[0]))
        taken = found[: limit if self.slice is None else min(limit, self.slice)]
        sizes = list(accumulate(len(json.dumps(hit.thing)) for _, hit in taken))
        taken = taken[: max(1, sum(size <= max_bytes for size in sizes))]
        places = [place for place, _ in taken]
        return ThingPage([hit for _, hit in taken], places[-1] if places else after, len(taken) == len(found), places)

    def sees(self, namespace: str, rights: ReadRights) -> bool:
        question = ThingQuery(None, (), frozenset({namespace}))
        return any(_seen(thing, question, rights) is not None for thing in self.things())

    def explain(self, question: ThingQuery, rights: ReadRights, limit: int) -> QueryPlan:
        number = sum(1 for _ in self.things())
        return QueryPlan(AccessPath.THINGS, AllThings(), None, number, False, shown_order(tuple(question.order)))

    def close(self) -> None:
        self.is_closed = True
        with self._lock:
            if (own := self.__dict__.pop("_own", None)) is not None:
                own.close()


def _seen(snapshot: Snapshot, question: ThingQuery, rights: ReadRights) -> tuple[SortKey, SearchHit] | None:
    if snapshot.state is None or snapshot.policy is None:
        return None
    namespace = snapshot.entity.namespace
    if question.namespaces and namespace not in question.namespaces:
        return None
    access = rights.access(snapshot.policy, namespace)
    whole = thing_of(snapshot)
    if access is None or (seen := access.view(whole)) is None:
        return None
    if question.predicate is not None and not holds(question.predicate, whole, access.may):
        return None
    return sort_key(whole, question.order, access.may), SearchHit(snapshot.entity.id, seen)

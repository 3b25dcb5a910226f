"""Counting and measuring all that a search finds: an extension of searches, of ours (`spark_store.search.aggregation`).

Everything that matches is walked over in slices by the threads that look, so that others have their turn in between; each
slice sees the present of its moment. What a thing adds is what whoever asks may read of it: the part of it that he may see,
and of that only places that he may read themselves, as in a filter (Ditto search, permissions).

The rows are made at the first request, by a thread since exact means of many groups take a second, and delivered in pages,
as things are. Until then they rest with the subscription; there are some thousands at most.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from connectivity.subscriptions.feed import Feed, FeedFailed, Page, PageEnd, Position
from connectivity.subscriptions.search_feed import AT_ONCE, PageBuilder, SearchService, SearchWorker
from connectivity.twins.access import ThingRights
from connectivity.twins.retrieval import TIMESTAMP
from mappings.errors import Fault
from mappings.ids import EntityType, parse_entity_id
from mappings.model.signals import Headers, SearchQuery
from spark_store.errors import AggregationInvalid, BudgetExceeded, QueryError, TooManyGroups
from spark_store.rql.options import BY_ID
from spark_store.rql.query import Access, Budget, Place, SearchHit, ThingQuery
from spark_store.search.aggregation import MOST_GROUPS, Aggregation, GroupAccumulator, read_aggregation

_encode: Final = msgspec.json.Encoder().encode


def open_search(
    searching: SearchService, query: SearchQuery, headers: Headers, subjects: tuple[str, ...], seconds: float
) -> Feed | Fault:
    """The feed of a search, of its things or of what is made of them, or what is wrong with it.

    `seconds`: for how long all things may be looked at, to make something of them.
    """
    if query.aggregation is None:
        return searching.open(query, headers, subjects)
    try:
        aggregation = read_aggregation(msgspec.json.decode(query.aggregation))
        if query.at is not None or TIMESTAMP in headers:
            raise AggregationInvalid(f"found the header '{TIMESTAMP}', expected a question about the present")
        asked = searching.understand(query, subjects)
    except QueryError as error:
        return error.fault
    return AggregationFeed(FullScan(searching, asked.question, subjects, seconds), aggregation, asked.size)


class FullScan:
    """All that a question finds, in the order of ids, a slice at a time."""

    __slots__ = ("_budget", "_left", "_place", "_question", "_searching", "_seconds", "_subjects", "is_over")

    def __init__(self, searching: SearchService, question: ThingQuery, subjects: Sequence[str], seconds: float) -> None:
        self._searching = searching
        self._question = ThingQuery(question.predicate, (BY_ID,), question.namespaces)
        self._subjects = subjects
        self._seconds = self._left = seconds
        self._place: Place | None = None
        self.is_over = False

    async def slice(self, add: Callable[[Sequence[SearchHit], SearchWorker, ThingRights], None]) -> None:
        """Hand some more hits over, in the thread that looks.

        Raises FeedFailed when the time for all of it is over, StoreUnavailable, and what `add` raises.
        """
        try:
            await self._searching.look(lambda looking: self._look(looking, add))
        except BudgetExceeded:
            raise FeedFailed(self._too_long()) from None
        if self._left <= 0 and not self.is_over:
            raise FeedFailed(self._too_long())

    def _look(
        self, looking: SearchWorker, add: Callable[[Sequence[SearchHit], SearchWorker, ThingRights], None]
    ) -> None:
        # Only looking counts, not the waiting for a thread that looks.
        began = time.perf_counter()
        rights = ThingRights(looking.world, self._subjects)
        found = looking.reading.page(self._question, rights, self._place, AT_ONCE, Budget(self._left))
        add(found.hits, looking, rights)
        self._place, self.is_over = found.place, found.is_last
        self._left -= time.perf_counter() - began

    def _too_long(self) -> Fault:
        return Fault(
            503,
            "thing-search:budget.exceeded",
            f"Not all that matches was looked at within {self._seconds:g} s.",
            "Ask for less: narrow the filter, or name namespaces.",
        )


class AggregationFeed(Feed):
    """The rows of one aggregation, in pages."""

    def __init__(self, everything: FullScan, aggregation: Aggregation, size: int) -> None:
        self._everything = everything
        self._tally = GroupAccumulator(aggregation, MOST_GROUPS)
        self._size = size
        self._rows: Sequence[bytes] | None = None

    async def page(self, position: Position, limit: int, max_bytes: int) -> Page:
        """At most `limit` pages of rows; none before everything was looked at. Raises FeedFailed, StoreUnavailable."""
        if self._rows is None:
            try:
                await self._everything.slice(self._add)
            except TooManyGroups as error:
                raise FeedFailed(error.fault) from error
            if not self._everything.is_over:
                return Page((), position, PageEnd.MORE)
            self._rows = await asyncio.to_thread(lambda: [_encode(row) for row in self._tally.rows()])
        pages = PageBuilder(self._size, max_bytes)
        most = self._size * max(1, min(limit, AT_ONCE // self._size))
        for row in self._rows[position : position + most]:
            pages.add(row)
            position += 1
            pages.end_if_heavy()
            if len(pages.done) == limit or sum(map(len, pages.done)) > max_bytes:
                break
        pages.end()
        return Page(pages.done, position, PageEnd.END if position == len(self._rows) else PageEnd.MORE)

    def _add(self, hits: Sequence[SearchHit], looking: SearchWorker, rights: ThingRights) -> None:
        for hit in hits:
            # Without a policy any more, it was deleted a moment ago.
            if (access := access_of(hit, looking, rights)) is not None:
                self._tally.add(hit.thing, None if access.is_whole else access.may)


def access_of(hit: SearchHit, looking: SearchWorker, rights: ThingRights) -> Access | None:
    """What may be read of a thing that was found. Which policy it has need not be visible."""
    entity = parse_entity_id(EntityType.THING, hit.thing_id)
    policy = hit.thing.get("policyId")
    if policy is None and entity is not None and (snapshot := looking.reading.snapshot(entity)) is not None:
        policy = snapshot.policy
    return None if policy is None or entity is None else rights.access(policy, entity.namespace)

"""Aggregations: counts and measures of all things that a search finds.

The measures are in `spark_store.search.aggregation`. Search threads scan all matches in slices, so that other searches are
served in between; each slice reads the current state. A thing contributes only fields that the subscriber has permission to
read (Ditto search, permissions).

The rows are computed at the first request, in a thread, because exact means of many groups take a second. They are kept with
the subscription, and sent in pages like things. The bytes that are kept for one user, and for all, are limited.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from connectivity.subscriptions.feed import Feed, FeedFailed, FeedPosition, Page, PageEnd
from connectivity.subscriptions.search_feed import AT_ONCE, STORE_UNAVAILABLE, PageBuilder, SearchService, SearchWorker
from connectivity.twins.access import ThingRights
from connectivity.twins.retrieval import TIMESTAMP
from mappings.errors import Fault
from mappings.ids import EntityType, parse_entity_id
from mappings.json_values import parse_json
from mappings.model.signals import Headers, SearchQuery
from spark_store.errors import AggregationInvalid, BudgetExceeded, QueryError, TooManyGroups
from spark_store.rql.options import BY_ID
from spark_store.rql.query import Access, Budget, SearchHit, SortKey, ThingQuery
from spark_store.search.aggregation import MOST_GROUPS, Aggregation, GroupAccumulator, read_aggregation

MOST_ROW_BYTES: Final = 32 << 20
"""The most bytes of rows that are kept for one user."""

MOST_ROW_BYTES_TOGETHER: Final = 256 << 20
"""The most bytes of rows that are kept for all users."""

_encode: Final = msgspec.json.Encoder().encode


class RowBudget:
    """The bytes of rows that are kept until their subscriptions have sent them, by user."""

    def __init__(self) -> None:
        self._by_user: Counter[tuple[str, ...]] = Counter()

    def add(self, user: tuple[str, ...], size: int) -> None:
        """Count the rows of one more aggregation. Raises FeedFailed if they are too many."""
        kept, together = self._by_user[user], self._by_user.total()
        if kept + size > MOST_ROW_BYTES or together + size > MOST_ROW_BYTES_TOGETHER:
            message = (
                f"The rows have {size} bytes, and {kept} bytes of rows of other aggregations of these subjects are not "
                f"received yet. At most {MOST_ROW_BYTES} are kept for the same subjects, {MOST_ROW_BYTES_TOGETHER} for all."
            )
            hint = "Receive the rows of other aggregations or cancel them, or group by a path with fewer values."
            raise FeedFailed(Fault(429, "thing-search:aggregation.limit", message, hint))
        self._by_user[user] += size

    def remove(self, user: tuple[str, ...], size: int) -> None:
        self._by_user[user] -= size
        if not self._by_user[user]:
            del self._by_user[user]


def open_search(
    searching: SearchService,
    kept: RowBudget,
    query: SearchQuery,
    headers: Headers,
    subjects: tuple[str, ...],
    seconds: float,
) -> Feed | Fault:
    """Return the feed of a search or aggregation, or the fault of its query.

    `kept` counts the rows of all aggregations. `seconds`: the time limit for scanning all matches of an aggregation.
    """
    if query.aggregation is None:
        return searching.open(query, headers, subjects)
    try:
        aggregation = read_aggregation(parse_json(query.aggregation))
        if query.at is not None or TIMESTAMP in headers:
            raise AggregationInvalid(
                f"found the header '{TIMESTAMP}', expected none, because aggregations read the current state"
            )
        request = searching.understand(query, subjects)
    except QueryError as error:
        return error.fault
    scan = FullScan(searching, request.question, subjects, seconds)
    return AggregationFeed(scan, aggregation, request.size, kept)


class FullScan:
    """A scan of all matches of a query, ordered by ID, a slice at a time."""

    __slots__ = ("_budget", "_is_over", "_place", "_question", "_searching", "subjects")

    def __init__(self, searching: SearchService, question: ThingQuery, subjects: Sequence[str], seconds: float) -> None:
        self._searching = searching
        self._question = ThingQuery(question.predicate, (BY_ID,), question.namespaces)
        self.subjects = tuple(subjects)
        self._budget = Budget(seconds)
        """The time that is left. One object for all slices: they share the candidates."""
        self._place: SortKey | None = None
        self._is_over = False

    async def read(self, add: Callable[[SearchHit, SearchWorker, ThingRights], None]) -> None:
        """Pass each match to `add`, in search threads.

        Raises FeedFailed when the time limit is exceeded or too many searches wait, StoreUnavailable, and what `add` raises.
        """
        async with self._searching.searches.slot(self.subjects, self._question.namespaces):
            while not self._is_over:
                try:
                    await self._searching.look(self.subjects, lambda worker: self._read_slice(worker, add))
                except BudgetExceeded:
                    raise FeedFailed(self._timeout_fault()) from None
                if self._budget.left() <= 0 and not self._is_over:
                    raise FeedFailed(self._timeout_fault())

    def _read_slice(self, worker: SearchWorker, add: Callable[[SearchHit, SearchWorker, ThingRights], None]) -> None:
        # Waiting for a thread does not count towards the time limit, and neither do its rests.
        pace = worker.pace
        ends = pace.now() - pace.rested + self._budget.left()
        rights = ThingRights(worker.world, self.subjects)
        page = worker.reading.page(self._question, rights, self._place, AT_ONCE, self._budget)
        for hit in pace.each(page.hits):
            if pace.now() - pace.rested >= ends:
                raise FeedFailed(self._timeout_fault())
            add(hit, worker, rights)
        self._place, self._is_over = page.place, page.is_last
        self._budget.spent = self._budget.seconds - (ends - (pace.now() - pace.rested))

    def _timeout_fault(self) -> Fault:
        return Fault(
            503,
            "thing-search:budget.exceeded",
            f"The search did not read all matches within {self._budget.seconds:g} s.",
            "Narrow the filter, or specify namespaces.",
        )


class AggregationFeed(Feed):
    """The rows of one aggregation, in pages."""

    has_timeout = True
    store_fault = STORE_UNAVAILABLE

    def __init__(self, scan: FullScan, aggregation: Aggregation, size: int, kept: RowBudget) -> None:
        self._scan = scan
        self._groups: GroupAccumulator | None = GroupAccumulator(aggregation, MOST_GROUPS)
        self._size = size
        self._kept = kept
        self._kept_bytes = 0
        self._rows: Sequence[bytes] | None = None

    async def prepare(self) -> None:
        """Scan all matches. Raises FeedFailed, StoreUnavailable."""
        if (groups := self._groups) is None:
            return

        def add(hit: SearchHit, worker: SearchWorker, rights: ThingRights) -> None:
            # A thing without a policy has just been deleted.
            if (access := access_of(hit, worker, rights)) is not None:
                groups.add(hit.thing, None if access.is_whole else access.may)

        try:
            await self._scan.read(add)
        except TooManyGroups as error:
            raise FeedFailed(error.fault) from error
        rows = await asyncio.to_thread(lambda: [_encode(row) for row in groups.rows()])
        size = sum(map(len, rows))
        self._kept.add(self._scan.subjects, size)
        self._rows, self._kept_bytes, self._groups = rows, size, None

    async def page(self, position: FeedPosition, limit: int, max_bytes: int) -> Page:
        """Return at most `limit` pages of rows, after `prepare`."""
        assert self._rows is not None, "the rows are computed first"
        pages = PageBuilder(self._size, max_bytes)
        most = self._size * max(1, min(limit, AT_ONCE // self._size))
        for row in self._rows[position : position + most]:
            pages.add(row)
            position += 1
            pages.end_if_large()
            if len(pages.done) == limit or sum(map(len, pages.done)) > max_bytes:
                break
        pages.end()
        return Page(pages.done, position, PageEnd.END if position == len(self._rows) else PageEnd.MORE)

    def close(self) -> None:
        """Free the rows."""
        size, self._kept_bytes = self._kept_bytes, 0
        if size:
            self._kept.remove(self._scan.subjects, size)


def access_of(hit: SearchHit, worker: SearchWorker, rights: ThingRights) -> Access | None:
    """Return which fields of a match can be read; its `policyId` need not be readable."""
    entity = parse_entity_id(EntityType.THING, hit.thing_id)
    policy = hit.thing.get("policyId")
    if policy is None and entity is not None and (snapshot := worker.reading.snapshot(entity)) is not None:
        policy = snapshot.policy
    return None if policy is None or entity is None else rights.access(policy, entity.namespace)

"""Searches of the current state, and their feeds (Ditto protocol, search).

A search that names its thing is answered on the event loop, from the state in memory, unless its filter could take long. Any
other one runs in a worker thread with a read connection of its own (`spark_store.rql.query.ThingSearch`), in slices, so that
it blocks neither the event loop nor other searches; users take turns (`connectivity.subscriptions.search_queue`). All
changes decided before a page is requested are durable before it is read: clients find their writes.

Nothing stays open between two pages: a position is that of the last thing in the order of the result. Current policies
decide what a page may show. A page is filled until the time limit, and sent if it has things; otherwise the search fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from connectivity.authorization.quotas import Quotas
from connectivity.monitoring.prometheus import GaugeReading
from connectivity.store.store import Store
from connectivity.subscriptions.feed import Feed, FeedFailed, FeedPosition, Page, PageEnd
from connectivity.subscriptions.search_queue import MAX_RUNNING, MAX_WAITING, SearchQueue, User, search_metrics
from connectivity.twins.access import ThingRights
from connectivity.twins.context import CurrentStateLookup, StateLookup
from connectivity.twins.retrieval import LIFECYCLE, TIMESTAMP, readable_policy
from mappings.errors import Fault
from mappings.ids import EntityId, EntityType, parse_entity_id
from mappings.json_values import encode_value, without_mark
from mappings.model.field_selector import FieldSelection, parse_fields, select
from mappings.model.headers import FIELDS, invalid_header
from mappings.model.signals import Headers, SearchQuery
from mappings.text_cache import cached_if_short
from mappings.timestamps import parse_instant, shorten_timestamp, utc_text
from spark_store.errors import BudgetExceeded, InvalidOption, QueryError, StoreUnavailable
from spark_store.records import Snapshot
from spark_store.rql import Predicate
from spark_store.rql.options import MAX_NAMESPACES, read_options
from spark_store.rql.pace import SearchPace, ThreadPace
from spark_store.rql.query import Budget, ReadRights, SearchHit, SortKey, ThingPage, ThingQuery, ThingSearch
from spark_store.rql.search_evaluator import read
from spark_store.search.planner import QueryPlan
from spark_store.search.point_lookup import PointLookup, named_thing

_TIMES: Final = ("_created", "_modified")


PolicyOf: TypeAlias = Callable[[EntityId], Any]
"""Returns the readable part of a thing's policy; None for nothing."""


def item(hit: SearchHit, selection: FieldSelection | None, policy_of: PolicyOf | None = None) -> bytes:
    """Return a thing for a page: its selected fields, or its document without special fields."""
    if selection is None and hit.text is not None:
        return without_mark(hit.text)
    thing = hit.thing
    if selection is None:
        return encode_value({name: value for name, value in thing.items() if name[:1] != "_"})
    result: dict[str, Any] = {**thing, "_namespace": hit.thing_id.partition(":")[0], "_lifecycle": LIFECYCLE}
    if policy_of is not None and "_policy" in selection:
        entity = parse_entity_id(EntityType.THING, hit.thing_id)
        if entity is not None and (policy := policy_of(entity)) is not None:
            result["_policy"] = policy
    for name in _TIMES:
        if name in selection and name in result:
            result[name] = shorten_timestamp(result[name])
    return encode_value(select(result, selection))


class PageBuilder:
    """Collects things into pages of `size` things and at most `max_bytes`."""

    __slots__ = ("_items", "_left", "_max_bytes", "done", "size")

    def __init__(self, size: int, max_bytes: int) -> None:
        self.size = size
        self.done: list[bytes] = []
        """The complete pages."""
        self._items: list[bytes] = []
        self._max_bytes = self._left = max_bytes

    @property
    def page_capacity(self) -> int:
        """How many things the current page can still take."""
        return self.size - len(self._items)

    @property
    def page_bytes_left(self) -> int:
        """How many bytes the current page can still take."""
        return max(1, self._left)

    @property
    def is_open(self) -> bool:
        """Whether the current page has things."""
        return bool(self._items)

    def add(self, item: bytes) -> None:
        self._items.append(item)
        self._left -= len(item) + 1
        if len(self._items) == self.size:
            self.end()

    def end_if_large(self) -> None:
        """End the page if half of its bytes are used: the next thing may be as large."""
        if self._left <= self._max_bytes // 2:
            self.end()

    def end(self) -> None:
        """Complete the current page, unless it is empty."""
        if self._items:
            self.done.append(b"[%b]" % b",".join(self._items))
            self._items = []
            self._left = self._max_bytes


Result = TypeVar("Result")

AT_ONCE: Final = 500
"""How many things are read at once if a client has requested several pages."""

_STOPPED: Final = "searches are stopped: the service is shutting down"
_ANY_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)

STORE_UNAVAILABLE: Final = Fault(
    503,
    "thing-search:store.unavailable",
    "The search cannot be answered now, because the store is unavailable.",
    "Try again later. The log of the service has the reason.",
)

NO_PAST: Final = Fault(
    501,
    "thing-search:past.unavailable",
    "Searches of the past are unavailable: this service has no lake.",
    "Search the current state, without the header 'at-historical-timestamp'.",
)


class SearchConnection(ThingSearch, Protocol):
    """A read connection for searches, used by one thread at a time."""

    def snapshot(self, entity: EntityId) -> Snapshot | None:
        """Return the durable state of an entity, as of the current page. Raises StoreUnavailable."""

    def sees(self, namespace: str, rights: ReadRights) -> bool:
        """Whether a search in a namespace finds something, or takes long. Raises StoreUnavailable."""

    def explain(self, question: ThingQuery, rights: ReadRights, limit: int) -> QueryPlan:
        """Return the plan for finding the first `limit` things. Raises StoreUnavailable."""

    def close(self) -> None: ...


class SearchRequest(NamedTuple):
    """A parsed search: `size` things on a page, with the fields of `selection` or the document."""

    question: ThingQuery
    size: int
    selection: FieldSelection | None
    subjects: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """The limits of searches."""

    budget: float = 5.0
    """The time limit of one page, in seconds."""
    workers: int = 2
    """The number of worker threads."""


class SearchWorker(NamedTuple):
    """The read connection of a worker thread, the current state as read by it, and the thread's pace."""

    reading: SearchConnection
    world: StateLookup
    pace: ThreadPace


class SearchService:
    """Opens the feeds of searches, and owns the worker threads."""

    def __init__(
        self,
        store: Store,
        world: StateLookup,
        now: Callable[[], datetime],
        open_connection: Callable[[ThreadPace], SearchConnection],
        options: SearchOptions | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        """`world` is the current state for the event loop; each worker thread calls `open_connection` once."""
        self.options = options or SearchOptions()
        self.store = store
        self.world = world
        self.as_of: Callable[[SearchRequest, int], Feed | Fault] | None = None
        """Opens a search of the past, before an instant in nanoseconds since 1970; None without a lake."""
        self._now = now
        self.pace = SearchPace()
        """The pace of the worker threads."""
        self._workers = _Workers(open_connection, self.pace, now, self.options.workers)
        self.searches = SearchQueue(sys.maxsize, MAX_RUNNING, MAX_WAITING, quotas, self.sees)
        """The searches whose page is being filled, and scans of all matches, however many slices they take."""

    def open(self, query: SearchQuery, headers: Headers, subjects: tuple[str, ...]) -> Feed | Fault:
        """Return the feed of a search, or a fault."""
        at = query.at
        if at is None and (text := headers.get(TIMESTAMP)) is not None and (at := parse_instant(text)) is None:
            return invalid_header(FIELDS[TIMESTAMP], text)
        try:
            request = self.understand(query, subjects)
        except QueryError as error:
            return error.fault
        if at is not None:
            return NO_PAST if self.as_of is None else self.as_of(request, at)
        return SearchFeed(self, request)

    def understand(self, query: SearchQuery, subjects: Sequence[str]) -> SearchRequest:
        """Parse a query. Raises QueryError."""
        options = read_options(query.options)
        if (number := len(query.namespaces)) > MAX_NAMESPACES:
            raise InvalidOption(
                "Too many namespaces.", f"Found {number} namespaces, expected at most {MAX_NAMESPACES}."
            )
        predicate = self._read(query.filter) if query.filter is not None else None
        question = ThingQuery(predicate, options.order, frozenset(query.namespaces))
        selection = None if query.fields is None else parse_fields(query.fields)
        return SearchRequest(question, query.size or options.size, selection, tuple(subjects))

    def _read(self, filter: str) -> Predicate:
        return read(filter, self._now()) if "time:" in filter else _read_once(filter)

    async def look(self, user: User, look: Callable[[SearchWorker], Result]) -> Result:
        """Run `look` in a worker thread in the user's turn, after all changes decided until now are durable.

        Raises StoreUnavailable, and what `look` raises.
        """
        await self.store.commits.barrier()
        return await self._workers.run(user, look)

    async def sees(self, user: User, namespace: str) -> bool:
        """Whether a user sees a thing in a namespace. Raises StoreUnavailable."""
        return await self.look(user, lambda worker: worker.reading.sees(namespace, ThingRights(worker.world, user)))

    def figures(self) -> Iterator[GaugeReading]:
        """Return the gauges for a scrape."""
        return search_metrics(self.searches.running.total(), self.searches.waiting)

    async def close(self) -> None:
        """Stop the worker threads."""
        self.searches.close(_STOPPED)
        await self._workers.close()


@cached_if_short(512)
def _read_once(filter: str) -> Predicate:
    """Parse a filter without times; equal filters share a predicate, to save memory."""
    return read(filter, _ANY_TIME)


class _Slice(NamedTuple):
    """Things as bytes for pages, the place after them, and whether they are the last."""

    items: Sequence[bytes]
    end: SortKey | None
    is_last: bool


class SearchFeed(Feed):
    """The pages of one search. A single object, as there may be many."""

    __slots__ = ("_is_closed", "_request", "_service", "_thing_id")
    has_timeout = True
    store_fault = STORE_UNAVAILABLE

    def __init__(self, service: SearchService, request: SearchRequest) -> None:
        self._service = service
        self._request = request
        self._thing_id = named_thing(request.question.predicate)
        self._is_closed = False

    async def page(self, position: FeedPosition, limit: int, max_bytes: int) -> Page:
        """Return at most `limit` pages of about `max_bytes` together. Raises FeedFailed, StoreUnavailable."""
        if self._lookup() is not None:
            return await self._fill(position, limit, max_bytes)
        async with self._slot():
            return await self._fill(position, limit, max_bytes)

    async def page_at(self, offset: int, max_bytes: int) -> Page:
        """Return the page after so many things. Raises FeedFailed, StoreUnavailable."""
        async with self._slot():
            place, budget = None, Budget(self._service.options.budget)
            while offset:
                try:
                    result = await self._find(place, min(offset, AT_ONCE), budget, max_bytes)
                except BudgetExceeded as error:
                    raise FeedFailed(error.fault) from error
                if result.is_last:
                    return Page((), 0, PageEnd.END)
                place, offset = result.end, offset - len(result.items)
            return await self._fill(place or 0, 1, max_bytes)

    def _lookup(self) -> PointLookup | None:
        """Return the look-up that answers at once; None if the search names no thing, or could take long."""
        if self._thing_id is None:
            return None
        lookup = PointLookup(self._thing_id, self._service.world.snapshot)
        return lookup if lookup.is_quick(self._request.question) else None

    def _slot(self) -> contextlib.AbstractAsyncContextManager[None]:
        return self._service.searches.slot(self._request.subjects, self._request.question.namespaces)

    async def _fill(self, position: FeedPosition, limit: int, max_bytes: int) -> Page:
        size, place = self._request.size, position or None
        pages, budget = PageBuilder(size, max_bytes), Budget(self._service.options.budget)
        wanted = size * max(1, min(limit, AT_ONCE // size))
        while True:
            try:
                result = await self._find(place, wanted, budget, pages.page_bytes_left)
            except BudgetExceeded as error:
                pages.end()
                if not pages.done:
                    raise FeedFailed(error.fault) from error
                return Page(pages.done, place, PageEnd.MORE)
            for each in result.items:
                pages.add(each)
            place = result.end
            if result.is_last or self._is_closed:
                pages.end()
                return Page(pages.done, place, PageEnd.END)
            pages.end_if_large()
            if pages.done and not pages.is_open:
                return Page(pages.done, place, PageEnd.MORE)
            wanted = pages.page_capacity

    async def _find(self, place: SortKey | None, limit: int, budget: Budget, max_bytes: int) -> _Slice:
        """Return things after a place. Raises BudgetExceeded, StoreUnavailable."""
        service = self._service
        if (lookup := self._lookup()) is not None:
            result = self._read(lookup, service.world, place, limit, budget, max_bytes)
            await service.store.commits.barrier()
            return self._slice(result, result.hits, service.world, max_bytes)

        def look(worker: SearchWorker) -> _Slice:
            result = self._read(worker.reading, worker.world, place, limit, budget, max_bytes)
            return self._slice(result, worker.pace.each(result.hits), worker.world, max_bytes)

        return await service.look(self._request.subjects, look)

    def _read(
        self, search: ThingSearch, world: StateLookup, place: SortKey | None, limit: int, budget: Budget, max_bytes: int
    ) -> ThingPage:
        question, _, _, subjects = self._request
        if self._is_closed:
            # The feed was closed while it waited for a thread.
            return ThingPage((), place, is_last=True)
        return search.page(question, ThingRights(world, subjects), place, limit, budget, max_bytes)

    def _slice(self, result: ThingPage, hits: Iterable[SearchHit], world: StateLookup, max_bytes: int) -> _Slice:
        """Return the things of a result as bytes: those that fit, since a policy may be larger than its thing."""
        selection, subjects = self._request.selection, self._request.subjects
        items: list[bytes] = []

        def policy_of(entity: EntityId) -> Any:
            snapshot = world.snapshot(entity)
            return None if snapshot is None else readable_policy(snapshot, subjects, world)

        for number, hit in enumerate(hits):
            thing = item(hit, selection, policy_of)
            max_bytes -= len(thing)
            if number and max_bytes < 0:
                return _Slice(items, result.places[number - 1], is_last=False)
            items.append(thing)
        return _Slice(items, result.place, result.is_last)

    def close(self) -> None:
        """Read no further slice."""
        self._is_closed = True


class _Workers:
    """Worker threads, each with a connection of its own."""

    def __init__(
        self,
        open_connection: Callable[[ThreadPace], SearchConnection],
        pace: SearchPace,
        now: Callable[[], datetime],
        number: int,
    ) -> None:
        self._open = open_connection
        self._pace = pace
        self._now = now
        self._threads = ThreadPoolExecutor(max_workers=number, thread_name_prefix="search")
        self._queue = SearchQueue(number, number, sys.maxsize)
        self._thread_local = threading.local()
        self._opened: list[SearchConnection] = []
        self._is_closed = False

    async def run(self, user: User, look: Callable[[SearchWorker], Result]) -> Result:
        if self._is_closed:
            raise StoreUnavailable(_STOPPED)
        await self._queue.enter(user)
        if self._is_closed:
            self._queue.leave(user)
            raise StoreUnavailable(_STOPPED)
        running = self._threads.submit(self._run, look)
        try:
            return await asyncio.wrap_future(running)
        finally:
            if running.done():
                self._queue.leave(user)
            else:
                # The waiting task was cancelled; the thread is free once it has ended.
                running.add_done_callback(partial(self._end_later, asyncio.get_running_loop(), user))

    def _end_later(self, loop: asyncio.AbstractEventLoop, user: User, _: Future[Any]) -> None:
        # The event loop is closed if the service stopped before.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self._queue.leave, user)

    async def close(self) -> None:
        self._is_closed = True
        self._queue.close(_STOPPED)
        await asyncio.to_thread(self._threads.shutdown)
        for reading in self._opened:
            reading.close()

    def _run(self, look: Callable[[SearchWorker], Result]) -> Result:
        worker: SearchWorker | None = getattr(self._thread_local, "worker", None)
        if worker is None:
            pace = ThreadPace(self._pace)
            reading = self._open(pace)
            self._opened.append(reading)
            worker = self._thread_local.worker = SearchWorker(
                reading, CurrentStateLookup(reading.snapshot, self._timestamp), pace
            )
        try:
            return look(worker)
        except StoreUnavailable:
            # Open a new connection for the next search: this one may be broken for good.
            del self._thread_local.worker
            self._opened.remove(worker.reading)
            worker.reading.close()
            raise

    def _timestamp(self) -> str:
        return utc_text(self._now())

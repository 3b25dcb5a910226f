"""Searches: what a subscribe asks, and the feeds that answer it page by page (Ditto protocol, search).

A search that names the thing it is about is answered on the loop, from the states that everything else is decided with; any
other one by a worker thread, over a reading connection of its own (`spark_store.rql.query.ThingSearch`), in slices, so that
neither the loop nor another search ever waits for a long one. Whatever was decided before a page is asked for is durable
before it is answered: a client finds its own writes.

Nothing stays open between two pages: a position is the place of the last thing in the order of the answer. What somebody
may read is judged for every page by the policies of that moment. A page goes on being filled as long as the search has time;
what was found by then is sent, and a search that finds nothing in its time ends.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec

from connectivity.store.store import Store
from connectivity.subscriptions.feed import Feed, FeedFailed, Page, PageEnd, Position
from connectivity.twins.access import ThingRights
from connectivity.twins.context import CurrentStateLookup, StateLookup
from connectivity.twins.retrieval import TIMESTAMP, shortened
from mappings.ditto.timestamps import parse_instant
from mappings.errors import Fault
from mappings.ids import LONGEST_KNOWN, EntityId
from mappings.model.field_selector import Selection, parse_fields, select
from mappings.model.headers import FIELDS, invalid_header
from mappings.model.signals import Headers, SearchQuery
from mappings.texts import utc_text
from spark_store.errors import BudgetExceeded, QueryError, StoreUnavailable
from spark_store.records import Snapshot
from spark_store.rql import Predicate
from spark_store.rql.options import read_options
from spark_store.rql.query import Budget, Place, ReadRights, SearchHit, ThingQuery, ThingSearch
from spark_store.rql.search_evaluator import read
from spark_store.search.planner import QueryPlan
from spark_store.search.point_lookup import PointLookup, named_thing

_TIMES: Final = ("_created", "_modified")
_encode: Final = msgspec.json.Encoder().encode


def item(hit: SearchHit, selection: Selection | None) -> bytes:
    """A thing as a page has it: those fields of it that were selected, or its document without the fields beside it."""
    if selection is None and hit.text is not None:
        return hit.text
    thing = hit.thing
    if selection is None:
        return _encode({name: value for name, value in thing.items() if name[:1] != "_"})
    found: dict[str, Any] = {**thing, "_namespace": hit.thing_id.partition(":")[0]}
    for name in _TIMES:
        if name in selection and name in found:
            found[name] = shortened(found[name])
    return _encode(select(found, selection))


class PageBuilder:
    """Things on their way into pages of `size` things and at most `max_bytes`."""

    __slots__ = ("_items", "_left", "_max_bytes", "done", "size")

    def __init__(self, size: int, max_bytes: int) -> None:
        self.size = size
        self.done: list[bytes] = []
        """The pages that are complete."""
        self._items: list[bytes] = []
        self._max_bytes = self._left = max_bytes

    @property
    def missing(self) -> int:
        """How many things the page that is being filled still takes."""
        return self.size - len(self._items)

    @property
    def left(self) -> int:
        """How many bytes it still takes."""
        return max(1, self._left)

    @property
    def is_open(self) -> bool:
        """Whether a page has been begun and not ended."""
        return bool(self._items)

    def add(self, item: bytes) -> None:
        self._items.append(item)
        self._left -= len(item) + 1
        if len(self._items) == self.size:
            self.end()

    def end_if_heavy(self) -> None:
        """End a page that has half of its bytes: what follows may be as large."""
        if self._left <= self._max_bytes // 2:
            self.end()

    def end(self) -> None:
        """The page is complete with what it has, if that is anything."""
        if self._items:
            self.done.append(b"[%b]" % b",".join(self._items))
            self._items = []
            self._left = self._max_bytes


Answered = TypeVar("Answered")

AT_ONCE: Final = 500
"""So many things are looked for at once, where a client has asked for several pages."""

_STOPPED: Final = "the service stops: nothing is looked for any more"
_ANY_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)

NO_PAST: Final = Fault(
    501,
    "thing-search:past.unavailable",
    "Things cannot be searched as they were: this service has no lake.",
    "Search them as they are, without the header 'at-historical-timestamp'.",
)


class SearchConnection(ThingSearch, Protocol):
    """A connection that reads the present for searches. It is used by one thread at a time."""

    def snapshot(self, entity: EntityId) -> Snapshot | None:
        """The durable state of an entity; within a page, that which the page is made from. Raises StoreUnavailable."""

    def explain(self, question: ThingQuery, rights: ReadRights, limit: int) -> QueryPlan:
        """How the first `limit` things would be come by now. Raises StoreUnavailable."""

    def close(self) -> None: ...


class SearchRequest(NamedTuple):
    """What a client wants to know: `size` things on a page, and of each what `selection` says, or its document."""

    question: ThingQuery
    size: int
    selection: Selection | None
    subjects: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """What searches may take."""

    budget: float = 5.0
    """Seconds of looking for one page."""
    workers: int = 2
    """Threads that look."""


class SearchWorker(NamedTuple):
    """What a thread that looks has at hand: a connection, and the present as that reads it."""

    reading: SearchConnection
    world: StateLookup


class SearchService:
    """Opens the feeds of searches, and has the threads that look for things."""

    def __init__(
        self,
        store: Store,
        world: StateLookup,
        now: Callable[[], datetime],
        open_reading: Callable[[], SearchConnection],
        options: SearchOptions | None = None,
    ) -> None:
        """`world` is the present on the loop; `open_reading` is called once in each thread that looks."""
        self.options = options or SearchOptions()
        self.store = store
        self.world = world
        self.as_of: Callable[[SearchRequest, int], Feed | Fault] | None = None
        """Opens the feed of a search in the past, before an instant in nanoseconds since 1970; None without a lake."""
        self._now = now
        self._workers = _Workers(open_reading, now, self.options.workers)

    def open(self, query: SearchQuery, headers: Headers, subjects: tuple[str, ...]) -> Feed | Fault:
        """The feed of a search, or what is wrong with it."""
        at = query.at
        if at is None and (text := headers.get(TIMESTAMP)) is not None and (at := parse_instant(text)) is None:
            return invalid_header(FIELDS[TIMESTAMP], text)
        try:
            asked = self.understand(query, subjects)
        except QueryError as error:
            return error.fault
        if at is not None:
            return NO_PAST if self.as_of is None else self.as_of(asked, at)
        return SearchFeed(self, asked)

    def understand(self, query: SearchQuery, subjects: Sequence[str]) -> SearchRequest:
        """What a query means now. Raises QueryError."""
        options = read_options(query.options)
        predicate = self._read(query.filter) if query.filter is not None else None
        question = ThingQuery(predicate, options.order, frozenset(query.namespaces))
        selection = None if query.fields is None else parse_fields(query.fields)
        return SearchRequest(question, options.size, selection, tuple(subjects))

    def _read(self, filter: str) -> Predicate:
        if "time:" in filter or len(filter) > LONGEST_KNOWN:
            return read(filter, self._now())
        return _read_once(filter)

    async def look(self, look: Callable[[SearchWorker], Answered]) -> Answered:
        """What `look` comes to in a thread that looks, for which everything that was decided until now is durable.

        Raises StoreUnavailable, and what `look` raises.
        """
        await self.store.barrier()
        return await self._workers.run(look)

    async def close(self) -> None:
        """Look for nothing more."""
        await self._workers.close()


@lru_cache(maxsize=512)
def _read_once(filter: str) -> Predicate:
    """A filter without times: whoever says the same shares what it means, so that many idle searches take little room."""
    return read(filter, _ANY_TIME)


class _Found(NamedTuple):
    """Things as pages have them, the place behind them, and whether nothing follows."""

    items: Sequence[bytes]
    place: Place | None
    is_last: bool


class SearchFeed(Feed):
    """The pages of one search. One object, since there may be very many."""

    __slots__ = ("_asked", "_is_closed", "_named", "_searching")

    def __init__(self, searching: SearchService, asked: SearchRequest) -> None:
        self._searching = searching
        self._asked = asked
        self._named = named_thing(asked.question.predicate)
        self._is_closed = False

    async def page(self, position: Position, limit: int, max_bytes: int) -> Page:
        """At most `limit` pages from `position` on, of about `max_bytes` together. Raises FeedFailed, StoreUnavailable."""
        size, place = self._asked.size, position or None
        pages, budget = PageBuilder(size, max_bytes), Budget(self._searching.options.budget)
        wanted = size * max(1, min(limit, AT_ONCE // size))
        while True:
            try:
                found = await self._find(place, wanted, budget, pages.left)
            except BudgetExceeded as error:
                pages.end()
                if not pages.done:
                    raise FeedFailed(error.fault) from error
                return Page(pages.done, place, PageEnd.MORE)
            for each in found.items:
                pages.add(each)
            place = found.place
            if found.is_last or self._is_closed:
                pages.end()
                return Page(pages.done, place, PageEnd.END)
            pages.end_if_heavy()
            if pages.done and not pages.is_open:
                return Page(pages.done, place, PageEnd.MORE)
            wanted = pages.missing

    async def _find(self, place: Place | None, limit: int, budget: Budget, max_bytes: int) -> _Found:
        """Things behind a place, as pages have them. Raises BudgetExceeded, StoreUnavailable."""
        searching = self._searching
        if self._named is not None:
            named = PointLookup(self._named, searching.world.snapshot)
            found = self._look(named, searching.world, place, limit, budget, max_bytes)
            await searching.store.barrier()
            return found
        return await searching.look(
            lambda looking: self._look(looking.reading, looking.world, place, limit, budget, max_bytes)
        )

    def _look(
        self, search: ThingSearch, world: StateLookup, place: Place | None, limit: int, budget: Budget, max_bytes: int
    ) -> _Found:
        question, _, selection, subjects = self._asked
        if self._is_closed:
            # Others may have been looking for long before it was this one's turn.
            return _Found((), place, is_last=True)
        found = search.page(question, ThingRights(world, subjects), place, limit, budget, max_bytes)
        return _Found([item(hit, selection) for hit in found.hits], found.place, found.is_last)

    def close(self) -> None:
        """Nobody asks any more: no further slice is looked at."""
        self._is_closed = True


class _Workers:
    """Threads that look, each with a connection of its own. What asks first is answered first."""

    def __init__(self, open_reading: Callable[[], SearchConnection], now: Callable[[], datetime], number: int) -> None:
        self._open = open_reading
        self._now = now
        self._threads = ThreadPoolExecutor(max_workers=number, thread_name_prefix="search")
        self._own = threading.local()
        self._opened: list[SearchConnection] = []
        self._is_closed = False

    async def run(self, look: Callable[[SearchWorker], Answered]) -> Answered:
        if self._is_closed:
            raise StoreUnavailable(_STOPPED)
        looked = asyncio.get_running_loop().run_in_executor(self._threads, self._run, look)
        try:
            return await looked
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._is_closed and (task is None or not task.cancelling()):
                # What had not begun when the threads were closed; nobody has cancelled whoever waits for it.
                raise StoreUnavailable(_STOPPED) from None
            raise

    async def close(self) -> None:
        self._is_closed = True
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
        for reading in self._opened:
            reading.close()

    def _run(self, look: Callable[[SearchWorker], Answered]) -> Answered:
        looking: SearchWorker | None = getattr(self._own, "looking", None)
        if looking is None:
            reading = self._open()
            self._opened.append(reading)
            looking = self._own.looking = SearchWorker(reading, CurrentStateLookup(reading.snapshot, self._timestamp))
        try:
            return look(looking)
        except StoreUnavailable:
            # The next one begins with a new connection: this one may never read again.
            del self._own.looking
            self._opened.remove(looking.reading)
            looking.reading.close()
            raise

    def _timestamp(self) -> str:
        return utc_text(self._now())

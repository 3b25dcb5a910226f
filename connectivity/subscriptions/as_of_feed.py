"""Searches of the past, with the header `at-historical-timestamp` (Ditto protocol, search).

The first request waits until the lake has all events before the timestamp, and runs one Spark query
(`spark_store.queries.as_of`). Spark's workers write its result into files, which are read part by part into a spool on disk
(`spark_store.queries.spool`), from which pages are read: memory is bounded for any result. Policies decide who can read
what, both when the result is collected and again for each page. Threads read, parse and filter; only policies are looked up
on the event loop.

Cancelling or expiry of the subscription stops the Spark query and deletes the spool.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec
import structlog

from connectivity.authorization.quotas import Quotas
from connectivity.fair_share import FairShare
from connectivity.store.spark_queries import AT_ONCE as SPARK_AT_ONCE
from connectivity.store.spark_queries import AsyncSparkQueries
from connectivity.store.store import Store
from connectivity.subscriptions.feed import Feed, FeedFailed, FeedPosition, Page, PageEnd
from connectivity.subscriptions.search_feed import AT_ONCE, STORE_UNAVAILABLE, PageBuilder, SearchRequest, item
from connectivity.subscriptions.search_queue import MAX_WAITING, SearchQueue, User
from connectivity.twins.access import ThingRights
from connectivity.twins.context import StateLookup
from connectivity.twins.retrieval import TIMESTAMP
from mappings.errors import Fault
from spark_store.errors import (
    BudgetExceeded,
    LakeUnfit,
    LimitExceeded,
    QueryTimeout,
    StoreUnavailable,
    translate_system_error,
)
from spark_store.journal.reader import JournalReader
from spark_store.lake.tables import Lake
from spark_store.lake.watermark import read_watermark
from spark_store.queries.as_of import (
    CandidateAccess,
    candidates,
    instant,
    is_reached,
    matching,
    query,
    result_files,
    visible_parts,
    with_guards,
)
from spark_store.queries.as_of_fold import Candidate, FoldOutput
from spark_store.queries.spark_query import QueryLimits, SparkQueries
from spark_store.queries.spool import Spool, SpoolLimits
from spark_store.records import StateGuard
from spark_store.rql.query import Access

log = structlog.get_logger(__name__)

LAKE_BEHIND: Final = Fault(
    503,
    "thing-search:past.behind",
    "The lake does not yet contain all events before the requested time.",
    "Try again later, or request an earlier time.",
)
UNREACHABLE: Final = Fault(
    503,
    "thing-search:past.unreachable",
    "Searches of the past are unavailable: the lake cannot be queried.",
    "Try again later.",
)
BUDGET_EXCEEDED: Final = Fault(
    503,
    "thing-search:budget.exceeded",
    "The search exceeds the limit for searches of the past.",
    "Narrow the search: compare a path for equality or a range, or specify namespaces.",
)
RESULTS_TOO_LARGE: Final = Fault(
    429,
    "thing-search:search.limit",
    "The results of open searches of the past take too much space on disk.",
    "Cancel such searches or request their remaining pages, narrow the search, or try again later.",
)
TIME_IN_FUTURE: Final = Fault(
    400,
    "header.invalid",
    f"The value of the header '{TIMESTAMP}' is in the future.",
    "Use a time in the past, and try again.",
    {"invalidHeaderKey": TIMESTAMP},
)

SHARED: Final = 4
"""How many of the largest results all users share; see `connectivity.fair_share`."""

_POLL_SECONDS: Final = 0.1
_SLICE_SECONDS: Final = 0.001
"""How long policies are looked up before other tasks run."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Candidate).decode


@dataclass(frozen=True, slots=True)
class PastOptions:
    """The limits of searches of the past."""

    open_timeout: float = 15.0
    """How many seconds to wait for the lake."""
    seconds: float = 60.0
    """The time limit of the Spark query, in seconds."""
    bound: SpoolLimits = field(default_factory=SpoolLimits)
    """The limits of the result."""


class AsOfSearches:
    """Opens the feeds of searches of the past."""

    def __init__(
        self,
        store: Store,
        world: StateLookup,
        queries: SparkQueries,
        now: Callable[[], datetime],
        options: PastOptions | None = None,
        quotas: Quotas | None = None,
        sees: Callable[[User, str], Awaitable[bool]] | None = None,
    ) -> None:
        """`world` is the current state, for use on the event loop. `sees`: see `SearchQueue`."""
        self.options = options or PastOptions()
        self.lake: Lake = queries.lake
        self.spark = AsyncSparkQueries(queries)
        self.searches = SearchQueue(SPARK_AT_ONCE, max(1, SPARK_AT_ONCE - 1), MAX_WAITING, quotas, sees)
        self.result_bytes = FairShare(SHARED * self.options.bound.bytes)
        """The bytes of all results, by user."""
        self._store = store
        self._world = world
        self._now = now
        # A service that was killed leaves its files behind.
        shutil.rmtree(self.lake.results, ignore_errors=True)

    def open(self, request: SearchRequest, at: int) -> Feed | Fault:
        """Return the feed of a search before `at`, in nanoseconds since 1970, or a fault."""
        if at > (self._now() - _EPOCH) // timedelta(microseconds=1) * 1000:
            return TIME_IN_FUTURE
        return AsOfFeed(self, request, instant(max(at, 0)))

    async def accesses(
        self, found: Sequence[CandidateAccess], subjects: Sequence[str]
    ) -> dict[StateGuard, Access | None]:
        """Return which fields of the things of each policy can be read.

        Yields to other tasks in between, because there may be as many policies as things.
        """
        rights, began = ThingRights(self._world, subjects), time.perf_counter()
        accesses: dict[StateGuard, Access | None] = {}
        for guard in {it.guard for it in found}:
            accesses[guard] = rights.access_of(guard)
            if time.perf_counter() - began > _SLICE_SECONDS:
                await asyncio.sleep(0)
                began = time.perf_counter()
        return accesses

    async def reach(self, before: datetime) -> None:
        """Wait until the lake has all events before an instant.

        Raises FeedFailed, StoreUnavailable, LakeUnfit.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.options.open_timeout
        await self._store.commits.barrier()
        while not await asyncio.to_thread(self._is_reached, before):
            if loop.time() >= deadline:
                raise FeedFailed(LAKE_BEHIND)
            await asyncio.sleep(_POLL_SECONDS)

    def _is_reached(self, before: datetime) -> bool:
        with JournalReader.open(self.lake.journal) as reader:
            return is_reached(reader, read_watermark(self.lake.watermark).visible, before)

    @contextlib.contextmanager
    def result_folder(self) -> Iterator[str]:
        """A folder for the files of one query. Raises StoreUnavailable."""
        try:
            self.lake.results.mkdir(parents=True, exist_ok=True)
            folder = tempfile.TemporaryDirectory(dir=self.lake.results.absolute(), ignore_cleanup_errors=True)
        except OSError as error:
            raise translate_system_error(self.lake.results, error, "search results cannot be written") from error
        with folder as name:
            yield name

    def with_guards(self, found: Sequence[Candidate]) -> list[CandidateAccess]:
        """Add to each candidate what decides about it, by the journal; in a thread. Raises StoreUnavailable."""
        with JournalReader.open(self.lake.journal) as reader:
            return with_guards(reader, found)

    def close(self) -> None:
        """Stop all Spark queries."""
        self.spark.close()


class AsOfFeed(Feed):
    """The pages of one search of the past. A position is the index of the next record in the spool."""

    has_timeout = True
    store_fault = STORE_UNAVAILABLE

    def __init__(self, past: AsOfSearches, request: SearchRequest, before: datetime) -> None:
        self._past = past
        self._request = request
        self._before = before
        self._collecting: asyncio.Task[Spool] | None = None
        self._share = past.result_bytes.peer(request.subjects, request.subjects)
        self._held_bytes = 0
        """The part of the share that the result takes."""
        self._is_closed = False

    async def prepare(self) -> None:
        """Collect the result. Raises FeedFailed, StoreUnavailable."""
        await self._spool()

    async def page(self, position: FeedPosition, limit: int, max_bytes: int) -> Page:
        """Return at most `limit` pages of about `max_bytes` together. Raises FeedFailed, StoreUnavailable."""
        try:
            if (spool := await self._spool()) is not None:
                return await self._page(spool, position, limit, max_bytes)
        except StoreUnavailable:
            if not self._is_closed:
                raise
        return Page([], position, PageEnd.END)

    async def _spool(self) -> Spool | None:
        """Return the result, collected once; None if the feed was closed. Raises FeedFailed, StoreUnavailable."""
        if self._is_closed:
            return None
        if self._collecting is None:
            self._collecting = asyncio.create_task(self._collect())
        try:
            return await self._collecting
        except (asyncio.CancelledError, StoreUnavailable):
            # The task that collects the result was cancelled, not this coroutine.
            if self._is_closed:
                return None
            raise

    async def _page(self, spool: Spool, start: int, limit: int, max_bytes: int) -> Page:
        size = self._request.size
        pages, most = PageBuilder(size, max_bytes), size * max(1, min(limit, AT_ONCE // size))
        left = max_bytes
        while start < len(spool) and len(pages.done) * size < most:
            records = await asyncio.to_thread(spool.read, start, most, max_bytes)
            for number, thing in await self._items(records):
                if (pages.is_open or pages.done) and len(thing) > left:
                    pages.end()
                    return Page(pages.done, start + number, PageEnd.MORE)
                pages.add(thing)
                left -= len(thing)
                if len(pages.done) * size >= most:
                    start, records = start + number + 1, []
                    break
            start += len(records)
        pages.end()
        return Page(pages.done, start, PageEnd.MORE if start < len(spool) else PageEnd.END)

    async def _items(self, records: Sequence[bytes]) -> list[tuple[int, bytes]]:
        """Return the readable things of some records, each with the index of its record."""
        found = await asyncio.to_thread(lambda: self._past.with_guards([_decode(record) for record in records]))
        accesses = await self._past.accesses(found, self._request.subjects)
        selection = self._request.selection

        def readable_items() -> list[tuple[int, bytes]]:
            numbers = {_decode(record).entity: number for number, record in enumerate(records)}
            return [(numbers[hit.thing_id], item(hit, selection)) for hit in visible_parts(found, accesses)]

        return await asyncio.to_thread(readable_items)

    async def _collect(self) -> Spool:
        """Collect the result. Raises FeedFailed, StoreError."""
        try:
            return await self._run_query()
        except QueryTimeout as error:
            raise FeedFailed(BudgetExceeded(self._past.options.seconds).fault) from error
        except LimitExceeded as error:
            raise FeedFailed(BUDGET_EXCEEDED) from error
        except (StoreUnavailable, LakeUnfit) as error:
            log.warning("search of the past failed", reason=str(error))
            raise FeedFailed(UNREACHABLE) from error

    async def _run_query(self) -> Spool:
        past, question, bound = self._past, self._request.question, self._past.options.bound
        await past.reach(self._before)
        if not self._share.has_room:
            raise FeedFailed(RESULTS_TOO_LARGE)
        with contextlib.ExitStack() as undo, past.result_folder() as folder:
            output = FoldOutput(folder, bound.bytes)
            spark_query = await asyncio.to_thread(query, past.lake, question, self._before, output)
            spool = Spool(past.lake.results, question.order, bound)
            undo.callback(self._drop, spool)
            async with past.searches.slot(self._request.subjects, question.namespaces):
                rows = await past.spark.run(spark_query, QueryLimits(past.options.seconds))
                for file in result_files(rows):
                    async for found in self._parts(file):
                        if not self._share.has_room:
                            raise FeedFailed(RESULTS_TOO_LARGE)
                        accesses = await past.accesses(found, self._request.subjects)
                        await asyncio.to_thread(self._add_to_spool, spool, found, accesses)
                        self._share.take(spool.bytes - self._held_bytes)
                        self._held_bytes = spool.bytes
            await asyncio.to_thread(spool.sort)
            undo.pop_all()
        return spool

    async def _parts(self, file: Path) -> AsyncIterator[list[CandidateAccess]]:
        parts = candidates(file)

        def read() -> list[CandidateAccess] | None:
            part = next(parts, None)
            return None if part is None else self._past.with_guards(part)

        while (found := await asyncio.to_thread(read)) is not None:
            yield found

    def _add_to_spool(
        self, spool: Spool, found: Sequence[CandidateAccess], accesses: dict[StateGuard, Access | None]
    ) -> None:
        for place, candidate in matching(found, accesses, self._request.question):
            spool.add(place, _encode(candidate))

    def close(self) -> None:
        """Stop the Spark query and delete the spool."""
        self._is_closed = True
        if (task := self._collecting) is None:
            return
        if not task.done():
            task.cancel()
        elif not task.cancelled() and task.exception() is None:
            self._drop(task.result())

    def _drop(self, spool: Spool) -> None:
        spool.close()
        self._share.give_back(self._held_bytes)
        self._held_bytes = 0

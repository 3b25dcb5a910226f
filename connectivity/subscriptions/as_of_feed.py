"""Searches of the past: which things were there, and how, before an instant (Ditto protocol, search, with the header
`at-historical-timestamp`).

The first request of one waits until the lake has everything from before the instant, and asks Spark once
(`spark_store.queries.as_of`). What belongs to the answer goes into a spool (`spark_store.queries.spool`), so that each
further page costs no more than reading it. Who may read what is judged by the policies of today: when the answer is
gathered, and again for every page. Threads read, parse and judge; the loop only looks policies up.

Whoever cancels, or is idle for too long, stops Spark's work for him, and his spool is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
import structlog

from connectivity.store.spark_queries import AsyncSparkQueries
from connectivity.store.store import Store
from connectivity.subscriptions.feed import Feed, FeedFailed, Page, PageEnd, Position
from connectivity.subscriptions.search_feed import AT_ONCE, PageBuilder, SearchRequest, item
from connectivity.twins.access import ThingRights
from connectivity.twins.context import StateLookup
from connectivity.twins.retrieval import TIMESTAMP
from mappings.errors import Fault
from spark_store.errors import (
    BudgetExceeded,
    LakeUnfit,
    LimitExceeded,
    NoPipeline,
    PipelineLost,
    QueryTimeout,
    StoreUnavailable,
)
from spark_store.journal.reader import JournalReader
from spark_store.lake.tables import Lake
from spark_store.lake.watermark import read_watermark
from spark_store.queries.as_of import (
    Candidate,
    CandidateAccess,
    Policy,
    candidates,
    guarded,
    instant,
    is_reached,
    judged,
    query,
    seen,
)
from spark_store.queries.spark_query import QueryLimits, SparkQueries
from spark_store.queries.spool import Spool, SpoolLimits
from spark_store.rql.query import Access

log = structlog.get_logger(__name__)


BEHIND: Final = Fault(
    503,
    "thing-search:past.behind",
    "The lake has not everything yet from before the time that was asked for.",
    "Try again later, or ask for an earlier time.",
)
UNREACHABLE: Final = Fault(
    503,
    "thing-search:past.unreachable",
    "Things cannot be searched as they were at present: whoever answers for the lake does not.",
    "Try again later.",
)
TOO_MUCH: Final = Fault(
    503,
    "thing-search:budget.exceeded",
    "The search finds more than it may keep for its pages.",
    "Ask for less: compare a path for equality or a range, or name namespaces.",
)
FUTURE: Final = Fault(
    400,
    "header.invalid",
    f"The value of the header '{TIMESTAMP}' is a time to come.",
    "Verify that it is a time that has passed, and try again.",
    {"invalidHeaderKey": TIMESTAMP},
)

_LOOK_SECONDS: Final = 0.1
_TURN_SECONDS: Final = 0.001
"""For so long at once policies are looked up."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Candidate).decode


@dataclass(frozen=True, slots=True)
class PastOptions:
    """What searches of the past may take."""

    open_timeout: float = 15.0
    """Seconds of waiting for the lake."""
    seconds: float = 60.0
    """Seconds until Spark has answered."""
    bound: SpoolLimits = field(default_factory=SpoolLimits)
    """What one of them may find."""


class AsOfSearches:
    """Opens the feeds of searches of the past."""

    def __init__(
        self,
        store: Store,
        world: StateLookup,
        queries: SparkQueries,
        now: Callable[[], datetime],
        options: PastOptions | None = None,
    ) -> None:
        """`world` is the present on the loop."""
        self.options = options or PastOptions()
        self.lake: Lake = queries.lake
        self.wide = AsyncSparkQueries(queries)
        self._store = store
        self._world = world
        self._now = now

    def open(self, asked: SearchRequest, at: int) -> Feed | Fault:
        """The feed of a search of what was before `at`, in nanoseconds since 1970; or what is wrong with it."""
        if at > (self._now() - _EPOCH) // timedelta(microseconds=1) * 1000:
            return FUTURE
        return AsOfFeed(self, asked, instant(max(at, 0)))

    async def accesses(self, found: Sequence[CandidateAccess], subjects: Sequence[str]) -> dict[Policy, Access | None]:
        """What somebody may read now of the things of each policy. There may be as many policies as things, so that others
        have their turn in between."""
        rights, began = ThingRights(self._world, subjects), time.perf_counter()
        accesses: dict[Policy, Access | None] = {}
        for policy in {it.policy for it in found}:
            accesses[policy] = rights.access(*policy)
            if time.perf_counter() - began > _TURN_SECONDS:
                await asyncio.sleep(0)
                began = time.perf_counter()
        return accesses

    async def reach(self, before: datetime) -> None:
        """Wait until the lake has everything from before an instant. Raises FeedFailed, StoreUnavailable, LakeUnfit."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.options.open_timeout
        await self._store.barrier()
        while not await asyncio.to_thread(self._is_reached, before):
            if loop.time() >= deadline:
                raise FeedFailed(BEHIND)
            await asyncio.sleep(_LOOK_SECONDS)

    def _is_reached(self, before: datetime) -> bool:
        with JournalReader.open(self.lake.journal) as follower:
            return is_reached(follower, read_watermark(self.lake.watermark).seq, before)

    def guarded(self, found: Sequence[Candidate]) -> list[CandidateAccess]:
        """In a thread: candidates with the policies that the journal names for them. Raises StoreUnavailable."""
        with JournalReader.open(self.lake.journal) as follower:
            return guarded(follower, found)

    def close(self) -> None:
        """Ask Spark for nothing more."""
        self.wide.close()


class AsOfFeed(Feed):
    """The pages of one search of the past. A position is the number of the first thing that has not been looked at."""

    def __init__(self, past: AsOfSearches, asked: SearchRequest, before: datetime) -> None:
        self._past = past
        self._asked = asked
        self._before = before
        self._gathering: asyncio.Task[Spool] | None = None
        self._is_closed = False

    async def page(self, position: Position, limit: int, max_bytes: int) -> Page:
        """At most `limit` pages from `position` on, of about `max_bytes` each. Raises FeedFailed, StoreUnavailable."""
        if self._gathering is None:
            self._gathering = asyncio.create_task(self._gather())
        try:
            spool = await self._gathering
            return await self._page(spool, position, limit, max_bytes)
        except (asyncio.CancelledError, StoreUnavailable):
            # Of the task, not of whoever waits for it.
            if self._is_closed:
                return Page([], position, PageEnd.END)
            raise

    async def _page(self, spool: Spool, start: int, limit: int, max_bytes: int) -> Page:
        size = self._asked.size
        pages, most = PageBuilder(size, max_bytes), size * max(1, min(limit, AT_ONCE // size))
        while start < len(spool) and len(pages.done) * size < most:
            records = await asyncio.to_thread(spool.read, start, most, max_bytes)
            for number, found in await self._items(records):
                if pages.is_open and len(found) > pages.left:
                    pages.end()
                    return Page(pages.done, start + number, PageEnd.MORE)
                pages.add(found)
                if len(pages.done) * size >= most:
                    start, records = start + number + 1, []
                    break
            start += len(records)
        pages.end()
        return Page(pages.done, start, PageEnd.MORE if start < len(spool) else PageEnd.END)

    async def _items(self, records: Sequence[bytes]) -> list[tuple[int, bytes]]:
        """What may be seen of some records: the number of each, and its thing as pages have it."""
        found = await asyncio.to_thread(lambda: self._past.guarded([_decode(record) for record in records]))
        accesses = await self._past.accesses(found, self._asked.subjects)
        selection = self._asked.selection

        def shown() -> list[tuple[int, bytes]]:
            numbers = {_decode(record).entity: number for number, record in enumerate(records)}
            return [(numbers[hit.thing_id], item(hit, selection)) for hit in seen(found, accesses)]

        return await asyncio.to_thread(shown)

    async def _gather(self) -> Spool:
        """Everything that belongs to the answer. Raises FeedFailed, StoreError."""
        try:
            return await self._gathered()
        except QueryTimeout as error:
            raise FeedFailed(BudgetExceeded(self._past.options.seconds).fault) from error
        except LimitExceeded as error:
            raise FeedFailed(TOO_MUCH) from error
        except (NoPipeline, PipelineLost, StoreUnavailable, LakeUnfit) as error:
            log.warning("the past cannot be searched", reason=str(error))
            raise FeedFailed(UNREACHABLE) from error

    async def _gathered(self) -> Spool:
        past, question = self._past, self._asked.question
        await past.reach(self._before)
        asking = await asyncio.to_thread(query, past.lake, question, self._before)
        with contextlib.ExitStack() as undo:
            spool = Spool(past.lake.folder, question.order, past.options.bound)
            undo.callback(spool.close)
            async with contextlib.aclosing(past.wide.run(asking, QueryLimits(past.options.seconds))) as batches:
                async for batch in batches:
                    found = await asyncio.to_thread(lambda it: past.guarded(list(candidates(it))), batch)
                    accesses = await past.accesses(found, self._asked.subjects)
                    await asyncio.to_thread(self._keep, spool, found, accesses)
            await asyncio.to_thread(spool.sort)
            undo.pop_all()
        return spool

    def _keep(self, spool: Spool, found: Sequence[CandidateAccess], accesses: dict[Policy, Access | None]) -> None:
        for place, candidate in judged(found, accesses, self._asked.question):
            spool.add(place, _encode(candidate))

    def close(self) -> None:
        """Nobody asks any more: Spark stops, and what was found is let go of."""
        self._is_closed = True
        if (task := self._gathering) is None:
            return
        if not task.done():
            task.cancel()
        elif not task.cancelled() and task.exception() is None:
            task.result().close()

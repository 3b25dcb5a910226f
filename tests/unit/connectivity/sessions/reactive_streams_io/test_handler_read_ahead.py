"""What the streams of a session may read ahead of its client (reactive-streams-io, brokers)."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from connectivity.sessions.reactive_streams_io import read_ahead
from connectivity.sessions.reactive_streams_io.read_ahead import (
    LITTLE,
    MOST,
    BudgetedFeed,
    ConnectionBudget,
    ReadAheadBudget,
)
from connectivity.subscriptions.feed import Feed, FeedFailed, Page, PageEnd
from connectivity.transports.base import ReaderStatus
from mappings.errors import INTERNAL_ERROR
from mappings.reactive_streams_io.frames import OnComplete
from mappings.reactive_streams_io.limits import OBJECT, EndpointLimits
from tests.support.in_process.reactive_streams_io import H, RsioHarness, raw, trial
from tests.support.in_process.service import pause, until

pytestmark = pytest.mark.usefixtures("harnesses")


class Store(Feed):
    """A feed whose pages are as large as they may be. `reading` says whose page is being read; it waits for `ready`."""

    def __init__(self, name: str = "", reading: list[str] | None = None) -> None:
        self.name = name
        self.reading = reading if reading is not None else []
        self.ready = asyncio.Event()
        self.ready.set()
        self.failure: FeedFailed | None = None
        self.is_closed = False

    async def page(self, position: Any, limit: int, max_bytes: int) -> Page:
        self.reading.append(self.name)
        await self.ready.wait()
        if self.failure is not None:
            raise self.failure
        return Page([bytes(max_bytes - OBJECT)], position, PageEnd.MORE)

    def wake(self, ready: Any) -> None:
        ready()

    def close(self) -> None:
        self.is_closed = True


async def read(feed: BudgetedFeed) -> int:
    """The size of the next page."""
    page = await feed.page(0, 500, read_ahead.PAGE)
    return read_ahead.size_of(page.elements)


async def test_a_session_reads_up_to_its_bound_and_continues_as_its_client_takes() -> None:
    hall = ConnectionBudget()
    gate, order = ReadAheadBudget(hall), list[str]()
    feeds = [BudgetedFeed(Store(str(number), order), gate) for number in range(20)]
    tasks = [asyncio.create_task(read(feed)) for feed in feeds]
    await pause()
    assert [task.done() for task in tasks] == [True] * 8 + [False] * 12
    assert hall.used_bytes == MOST
    feeds[3].release()
    feeds[3].release()
    await pause()
    assert [task.done() for task in tasks] == [True] * 9 + [False] * 11
    for feed in feeds:
        feed.release()
        await pause()
    for feed in feeds:
        feed.release()
    await pause()
    assert all(task.done() for task in tasks)
    for feed in feeds:
        feed.release()
    assert hall.used_bytes == 0


async def test_streams_have_their_turns_one_after_the_other() -> None:
    gate, order = ReadAheadBudget(ConnectionBudget()), list[str]()
    feeds = {name: BudgetedFeed(Store(name, order), gate) for name in "abcdefghijklmnopqrst"}

    async def go_on(feed: BudgetedFeed) -> None:
        for _ in range(5):
            await read(feed)
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(go_on(feed)) for feed in feeds.values()]
    while not all(task.done() for task in tasks):
        before = len(order)
        for feed in feeds.values():
            feed.release()
        await pause()
        assert len(order) > before or all(task.done() for task in tasks)
    assert max(order[:20].count(name) for name in feeds) <= 2
    assert [order.count(name) for name in feeds] == [5] * 20


async def test_a_read_larger_than_the_bound_is_allowed_when_no_other_feed_waits() -> None:
    gate = ReadAheadBudget(ConnectionBudget())
    large, other = BudgetedFeed(Store(), gate), BudgetedFeed(Store(), gate)
    assert read_ahead.size_of((await large.page(0, 1, 3 * MOST)).elements) == 3 * MOST
    task = asyncio.create_task(read(other))
    await pause()
    assert not task.done()
    large.release()
    assert await task == read_ahead.PAGE


async def test_a_feed_cancelled_or_closed_while_it_waits_does_not_block_other_feeds() -> None:
    hall = ConnectionBudget()
    gate = ReadAheadBudget(hall)
    stores = [Store() for _ in range(11)]
    feeds = [BudgetedFeed(store, gate) for store in stores]
    tasks = [asyncio.create_task(read(feed)) for feed in feeds]
    await pause()
    tasks[8].cancel()
    feeds[9].close()
    await pause()
    assert tasks[8].cancelled()
    assert (await tasks[9], stores[9].reading, stores[9].is_closed) == (0, [], True)
    assert not tasks[10].done()
    feeds[0].release()
    assert await tasks[10] == read_ahead.PAGE
    for feed in feeds:
        feed.release()
    assert hall.used_bytes == 0
    assert "0 bytes held, 0 reading, 0 waiting" in repr(gate)


async def test_a_feed_cancelled_as_its_turn_comes_passes_the_turn_to_the_next_feed() -> None:
    gate = ReadAheadBudget(ConnectionBudget())
    feeds = [BudgetedFeed(Store(), gate) for _ in range(10)]
    tasks = [asyncio.create_task(read(feed)) for feed in feeds]
    await pause()
    feeds[0].release()
    tasks[8].cancel()
    assert await tasks[9] == read_ahead.PAGE
    assert tasks[8].cancelled()


async def test_a_feed_that_is_closed_or_fails_during_a_read_holds_no_budget() -> None:
    hall = ConnectionBudget()
    gate, store = ReadAheadBudget(hall), Store()
    store.ready.clear()
    feed = BudgetedFeed(store, gate)
    task = asyncio.create_task(read(feed))
    await pause()
    feed.close()
    store.ready.set()
    await task
    assert hall.used_bytes == 0
    store.failure = FeedFailed(INTERNAL_ERROR)
    with pytest.raises(FeedFailed):
        await read(BudgetedFeed(store, gate))
    assert "0 bytes held, 0 reading" in repr(gate)


async def test_many_sessions_read_small_pages_and_do_not_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(read_ahead, "MOST_TOGETHER", 3 << 20)
    hall = ConnectionBudget()
    crowd = [ReadAheadBudget(hall) for _ in range(10)]
    assert [await read(BudgetedFeed(Store(), gate)) for gate in crowd] == [read_ahead.PAGE] * 3 + [LITTLE] * 7
    task = asyncio.create_task(read(BudgetedFeed(Store(), crowd[9])))
    await pause()
    assert not task.done()
    task.cancel()


async def test_while_no_client_is_there_little_is_read() -> None:
    gate = ReadAheadBudget(ConnectionBudget())
    gate.leave_alone()
    first, second = BudgetedFeed(Store(), gate), BudgetedFeed(Store(), gate)
    assert await read(first) == LITTLE
    task = asyncio.create_task(read(second))
    await pause()
    assert not task.done()
    gate.meet()
    assert await task == read_ahead.PAGE


# At the desk.


@contextmanager
def at_most(raw: int) -> Iterator[None]:
    """What is done takes no more memory than this, and what it found."""
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < raw, f"{peak - before} octets"


STREAMS = EndpointLimits().subscriptions


@pytest.mark.parametrize(
    ("name", "share"), [("big?bytes=60000", 1), ("range?n=2000", 4), ("fixed?n=100000&size=2000", 1)]
)
async def test_a_client_that_never_reads_is_not_read_ahead_of_without_bound(
    name: str, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small elements take long: with a fourth of the streams, a fourth of the budget, and a fourth of the memory."""
    monkeypatch.setattr(read_ahead, "MOST", MOST // share)
    streams = STREAMS // share
    rsio_harness = await RsioHarness.filled()
    rsio_harness.link.confirms = False
    with at_most((32 << 20) // share):
        rsio_harness.send("a", H, *(trial(name, number, 2000) for number in range(streams)))
        await until(lambda: len(list(rsio_harness.streams)) == streams)
        for _ in range(5):
            await pause()
    rsio_harness.link.confirms = True
    rsio_harness.link.confirm()
    if name.startswith("big"):
        await until(lambda: not list(rsio_harness.streams))
        # The last of them may still be about to leave.
        await until(lambda: completed(rsio_harness) == set(range(streams)))
    rsio_harness.reader("a", ReaderStatus.GONE)
    await until(lambda: hall(rsio_harness).used_bytes == 0)


async def test_a_subscription_cancelled_immediately_leaves_no_state() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", H)
    for _ in range(3):
        rsio_harness.send("a", *(raw(trial("never"), "13 01") for _ in range(300)))
        await pause()
    await until(lambda: list(rsio_harness.streams) == [])
    assert sum(map(len, rsio_harness.streams._scopes.values())) == 0


def completed(rsio_harness: RsioHarness) -> set[int]:
    return {frame.subscriber for frame in rsio_harness.frames("a") if isinstance(frame, OnComplete)}


def hall(rsio_harness: RsioHarness) -> ConnectionBudget:
    desk: Any = rsio_harness.handlers["reactive_streams_io"]
    (room,) = desk._registries.values()
    found: ConnectionBudget = room._connection_budget
    return found

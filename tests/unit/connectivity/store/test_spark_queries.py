"""Wide queries from an event loop: never in its way, and stopped by whoever leaves."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from connectivity.config.settings import Settings
from connectivity.store.spark_queries import AsyncSparkQueries, open_spark_queries
from spark_store.errors import NoSparkQueries, QueryCancelled, QueryRefused
from spark_store.lake.tables import Lake
from spark_store.queries.spark_query import Cancellation, QueryLimits, SparkQueries, SparkQuery
from tests.support.lake.sql_query import sql

QUERY = sql("SELECT 1")


class Slow(SparkQueries):
    """Answers with numbers, each of which takes until it is allowed, or the query is stopped."""

    def __init__(self, numbers: int) -> None:
        super().__init__(Lake(Path()), lambda: "")
        self.numbers = numbers
        self.allowed = threading.Semaphore(0)
        self.requests, self.stopped, self.closed = threading.Event(), threading.Event(), threading.Event()

    def run(  # type: ignore[override]
        self, query: SparkQuery, limits: QueryLimits | None = None, cancellation: Cancellation | None = None
    ) -> Numbers:
        assert cancellation is not None
        return Numbers(self, cancellation)


class Numbers:
    def __init__(self, slow: Slow, cancellation: Cancellation) -> None:
        self._slow, self._cancellation, self._number = slow, cancellation, 0

    def __next__(self) -> int:
        self._slow.requests.set()
        while not self._slow.allowed.acquire(timeout=0.01):
            if self._cancellation.is_set:
                self._slow.stopped.set()
                raise QueryCancelled("stopped")
        if self._number == self._slow.numbers:
            raise StopIteration
        self._number += 1
        return self._number

    def close(self) -> None:
        self._slow.closed.set()


@contextlib.asynccontextmanager
async def asking(slow: Slow) -> AsyncIterator[AsyncSparkQueries]:
    wide = AsyncSparkQueries(slow)
    yield wide
    wide.close()


async def test_batches_come_one_by_one_and_the_loop_continues() -> None:
    slow = Slow(3)
    async with asking(slow) as wide:
        turns = 0

        async def allow() -> None:
            nonlocal turns
            for _ in range(4):
                while not slow.requests.is_set():
                    await asyncio.sleep(0)
                    turns += 1
                slow.requests.clear()
                slow.allowed.release()

        allowing = asyncio.create_task(allow())
        found = [batch async for batch in wide.run(QUERY)]
        await allowing
        assert found == [1, 2, 3]
        assert turns > 0
        assert slow.closed.is_set()


async def test_a_task_that_is_cancelled_stops_its_query() -> None:
    slow = Slow(3)
    async with asking(slow) as wide:

        async def take() -> None:
            async for _ in wide.run(QUERY):
                raise AssertionError("nothing was allowed")

        task = asyncio.create_task(take())
        await asyncio.to_thread(slow.requests.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(slow.stopped.wait, 30)


async def test_a_query_that_is_left_is_closed() -> None:
    slow = Slow(3)
    slow.allowed.release()
    async with asking(slow) as wide:
        async with contextlib.aclosing(wide.run(QUERY)) as batches:
            assert await anext(batches) == 1
        assert slow.closed.is_set()


async def test_errors_come_through(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(3)

    def refuse(*_: object) -> None:
        raise QueryRefused("wrong")

    monkeypatch.setattr(slow, "run", refuse)
    async with asking(slow) as wide:
        with pytest.raises(QueryRefused, match="wrong"):
            await anext(wide.run(QUERY))


async def test_a_spark_query_with_spark_off_raises_an_error_that_names_the_setting(tmp_path: Path) -> None:
    wide = AsyncSparkQueries(open_spark_queries(Settings(data_dir=tmp_path, spark={"mode": "off"})))
    with pytest.raises(NoSparkQueries, match="set spark"):
        await anext(wide.run(QUERY))
    wide.close()

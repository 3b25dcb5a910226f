"""Spark queries from an event loop: they do not block it, and stop when the caller is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from connectivity.store.spark_queries import AsyncSparkQueries
from spark_store.errors import QueryCancelled, QueryRefused
from spark_store.lake.tables import Lake
from spark_store.queries.spark_query import Cancellation, QueryLimits, SparkQueries, SparkQuery
from tests.support.lake.sql_query import sql

QUERY, LIMITS = sql("SELECT 1"), QueryLimits()


class Slow(SparkQueries):
    """Answers when it is allowed, unless the query is stopped."""

    def __init__(self) -> None:
        super().__init__(Lake(Path()))
        self.allowed, self.requests, self.stopped = threading.Event(), threading.Event(), threading.Event()

    def run(self, query: SparkQuery, limits: QueryLimits, cancellation: Cancellation | None = None) -> list[Any]:
        assert cancellation is not None
        self.requests.set()
        while not self.allowed.wait(0.01):
            if cancellation.is_set:
                self.stopped.set()
                raise QueryCancelled("stopped")
        return [1, 2, 3]


@contextlib.asynccontextmanager
async def slow_queries(slow: Slow) -> AsyncIterator[AsyncSparkQueries]:
    queries = AsyncSparkQueries(slow)
    yield queries
    queries.close()


async def test_the_loop_continues_while_a_query_runs() -> None:
    slow = Slow()
    async with slow_queries(slow) as queries:
        query = asyncio.create_task(queries.run(QUERY, LIMITS))
        assert await asyncio.to_thread(slow.requests.wait, 30)
        slow.allowed.set()
        assert len(await query) == 3


async def test_a_task_that_is_cancelled_stops_its_query(caplog: pytest.LogCaptureFixture) -> None:
    slow = Slow()
    async with slow_queries(slow) as queries:
        task = asyncio.create_task(queries.run(QUERY, LIMITS))
        await asyncio.to_thread(slow.requests.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert slow.stopped.is_set()
    gc.collect()
    await asyncio.sleep(0)
    assert caplog.records == []


async def test_errors_come_through(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow()

    def refuse(*_: object) -> None:
        raise QueryRefused("wrong")

    monkeypatch.setattr(slow, "run", refuse)
    async with slow_queries(slow) as queries:
        with pytest.raises(QueryRefused, match="wrong"):
            await queries.run(QUERY, LIMITS)

"""Spark queries over the whole lake, without blocking the event loop.

Each query has a worker thread while it runs. Leaving it before its end, or cancellation, stops it in Spark too.
`spark_store.queries.spark_query` has limits and errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor

from connectivity.config.settings import Settings, SparkMode
from spark_store.lake.tables import Lake
from spark_store.queries.spark_query import (
    AT_ONCE,
    Batch,
    Cancellation,
    QueryLimits,
    QueryResult,
    SparkQueries,
    SparkQuery,
    finder,
)


def open_spark_queries(settings: Settings) -> SparkQueries:
    """Return the Spark queries of a service with these settings."""
    lake = Lake(settings.data_dir)
    return SparkQueries(lake, finder(lake, settings.spark.remote, is_off=settings.spark.mode is SparkMode.OFF))


class AsyncSparkQueries:
    """The Spark queries of one event loop."""

    def __init__(self, queries: SparkQueries, at_once: int = AT_ONCE) -> None:
        self._queries = queries
        self._workers = ThreadPoolExecutor(max_workers=at_once, thread_name_prefix="wide")
        self._open = asyncio.Semaphore(at_once)

    async def run(self, query: SparkQuery, limits: QueryLimits | None = None) -> AsyncGenerator[Batch, None]:
        """Yield the batches of a query. Close it (`contextlib.aclosing`) when leaving before its end.

        Raises SparkQueryError, StoreUnavailable.
        """
        loop, cancellation = asyncio.get_running_loop(), Cancellation()
        limits = limits or QueryLimits()
        # A thread for each query: none waits until the batches of another one are taken.
        async with self._open:
            pending: asyncio.Future[QueryResult] | asyncio.Future[Batch | None] | None = None
            answer: QueryResult | None = None
            try:
                pending = opening = loop.run_in_executor(self._workers, self._queries.run, query, limits, cancellation)
                answer = await asyncio.shield(opening)
                while True:
                    pending = taking = loop.run_in_executor(self._workers, next, answer, None)
                    if (batch := await asyncio.shield(taking)) is None:
                        return
                    yield batch
            finally:
                cancellation.cancel()
                await self._end(pending, answer)

    async def _end(
        self, pending: asyncio.Future[QueryResult] | asyncio.Future[Batch | None] | None, answer: QueryResult | None
    ) -> None:
        """Wait until the thread has ended, and release its resources."""
        if pending is not None and not pending.done():
            await asyncio.wait([pending])
        if pending is not None and not pending.cancelled() and pending.exception() is None:
            found = pending.result()
            answer = found if isinstance(found, QueryResult) else answer
        if answer is not None:
            await asyncio.get_running_loop().run_in_executor(self._workers, answer.close)

    def close(self) -> None:
        """Start no more queries; running ones end when they are closed."""
        self._workers.shutdown(wait=False)

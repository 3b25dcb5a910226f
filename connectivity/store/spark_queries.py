"""The async face of wide queries: questions over all of the lake, asked from the event loop without ever holding it up.

Each query has a worker thread while it runs. Whoever leaves it before its end, or is cancelled, stops it in Spark too; see
`spark_store.queries.spark_query` for limits and errors.
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
    Query,
    QueryLimits,
    QueryResult,
    SparkQueries,
    finder,
)


def wide_queries(settings: Settings) -> SparkQueries:
    """Whom these settings say to ask."""
    lake = Lake(settings.data_dir)
    return SparkQueries(lake, finder(lake, settings.spark.remote, is_off=settings.spark.mode is SparkMode.OFF))


class AsyncSparkQueries:
    """Wide queries of one event loop."""

    def __init__(self, queries: SparkQueries, at_once: int = AT_ONCE) -> None:
        self._queries = queries
        self._workers = ThreadPoolExecutor(max_workers=at_once, thread_name_prefix="wide")
        self._open = asyncio.Semaphore(at_once)

    def __repr__(self) -> str:
        return f"<Wide {self._queries!r}>"

    async def run(self, query: Query, limits: QueryLimits | None = None) -> AsyncGenerator[Batch, None]:
        """The batches of a query, drawn one by one. Close it (`contextlib.aclosing`) when leaving before its end.

        Raises WideQueryError, StoreUnavailable.
        """
        loop, cancellation = asyncio.get_running_loop(), Cancellation()
        limits = limits or QueryLimits()
        # A thread for each that runs: none waits in a queue for another one's batches to be taken.
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
        """Wait until the thread has noticed, and let go of what it has."""
        if pending is not None and not pending.done():
            await asyncio.wait([pending])
        if pending is not None and not pending.cancelled() and pending.exception() is None:
            found = pending.result()
            answer = found if isinstance(found, QueryResult) else answer
        if answer is not None:
            await asyncio.get_running_loop().run_in_executor(self._workers, answer.close)

    def close(self) -> None:
        """Take no more queries; what runs ends when its taker has let go of it."""
        self._workers.shutdown(wait=False)

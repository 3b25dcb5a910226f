"""Spark queries over the whole lake, without blocking the event loop.

Each query has a worker thread while it runs. Its cancellation stops it in Spark too. `spark_store.queries.spark_query` has
limits and errors.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from spark_store.queries.spark_query import Cancellation, QueryLimits, Rows, SparkQueries, SparkQuery

AT_ONCE = 2
"""How many queries run at the same time; others wait."""


class AsyncSparkQueries:
    """The Spark queries of one event loop."""

    def __init__(self, queries: SparkQueries) -> None:
        self._queries = queries
        self._workers = ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix="spark-query")

    async def run(self, query: SparkQuery, limits: QueryLimits) -> Rows:
        """Return all rows of a query. Raises QueryRefused, StoreUnavailable."""
        loop, cancellation = asyncio.get_running_loop(), Cancellation()
        running = loop.run_in_executor(self._workers, self._queries.run, query, limits, cancellation)
        try:
            return await asyncio.shield(running)
        finally:
            cancellation.cancel()
            # The thread stops the query, and releases its session.
            await asyncio.wait([running])
            if not running.cancelled():
                # A canceled caller does not see it, and asyncio would log it.
                running.exception()

    def close(self) -> None:
        """Start no more queries; running ones end when they are closed."""
        self._workers.shutdown(wait=False)

"""Ends the jobs that canceled Spark queries leave behind.

Spark submits jobs of a query from threads of its own. A query that is canceled just before that gets an error at once, but
its job starts a moment later, and would run to its end, in minutes or hours, with no one waiting for the result.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

INTERVAL = 1.0
"""Seconds between two checks; each takes less than a millisecond."""

OPERATION = "SparkConnect_OperationTag_"
"""The beginning of the tag that Spark Connect gives to the jobs of an operation."""

_TAGS = "spark.job.tags"


@contextlib.contextmanager
def abandoned_jobs_ended(spark: SparkSession) -> Iterator[None]:
    """While in use, end the jobs of ended queries, in a thread that checks every `INTERVAL` seconds."""
    over = threading.Event()

    def check() -> None:
        while not over.wait(INTERVAL):
            # Spark's list may have changed while it was copied, or Java may have ended.
            with contextlib.suppress(Py4JError, OSError):
                end_abandoned_jobs(spark)

    thread = threading.Thread(target=check, name="abandoned jobs", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def end_abandoned_jobs(spark: SparkSession) -> list[int]:
    """Cancel each job of a query that has ended; return the IDs of these jobs."""
    context: Any = spark.sparkContext._jsc.sc()
    # The scheduler's own list: that of the status tracker may be ten seconds late, and has no tags.
    # First the jobs: a query is listed before its jobs are, so a job that is found has a query, or had one.
    tags = {
        job.jobId(): set(job.properties().getProperty(_TAGS, "").split(","))
        for job in _listed(context.dagScheduler().activeJobs().toSeq())
    }
    if not tags:
        return []
    running = running_queries(spark)
    of_queries = {job: found for job, found in tags.items() if any(tag.startswith(OPERATION) for tag in found)}
    abandoned = [job for job, found in of_queries.items() if not found & running]
    for job in abandoned:
        context.cancelJob(job)
    return abandoned


def running_queries(spark: SparkSession) -> set[str]:
    """Return the tags of the queries that run."""
    service = getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    return {query.jobTag() for query in _listed(getattr(service, "MODULE$").executionManager().listExecuteHolders())}


def _listed(sequence: Any) -> list[Any]:
    """Return the elements of a Scala sequence."""
    return [sequence.apply(index) for index in range(sequence.size())]

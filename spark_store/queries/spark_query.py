"""Spark queries over the whole lake, over Spark Connect.

No Java runs in this process, and nothing of Spark is imported before the first query. Every query has a time limit, and can
be canceled from any thread; then Spark stops, too. Each has a session of its own, so that its failure affects no other, and
a lower priority than the pipeline's work (see `spark_store.pipeline.session`).

All rows are returned at once, so a query with a large result writes files and returns their names.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from spark_store.errors import (
    QueryCancelled,
    QueryRefused,
    QueryTimeout,
    StoreError,
    StoreUnavailable,
    system_reason,
)
from spark_store.lake.connect_address import read_address
from spark_store.lake.tables import Lake, Table

if TYPE_CHECKING:
    from pyspark.sql import Row
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

T = TypeVar("T")

_INTERRUPT_SECONDS = 0.2
_GRACE_SECONDS = 5.0
"""How long Spark may take to report that it has stopped. Then the connection is closed."""

_POLL_SECONDS = 0.05
_LONGEST_REASON = 600
_ERROR_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""The logger of pyspark that writes errors to standard error; they are raised to the caller only."""

_CLOSED = "closed channel"
_LOST_CODES = ("UNAUTHENTICATED", "UNAVAILABLE", "CANCELLED")
_LOST_TEXTS = (
    "SparkContext was shut down",
    "Cannot call methods on a stopped SparkContext",
    "INVALID_HANDLE.",
    "OPERATION_ABANDONED",
    "OutOfMemoryError",
    "RESPONSE_ALREADY_RECEIVED",
    _CLOSED,
)
"""Codes and texts of Spark for a pipeline that is restarting, has ended or is not there."""

_REMOVED_TEXTS = ("DELTA_VERSION_NOT_FOUND", "FILE_NOT_EXIST")
"""Texts of Spark for versions that an erasure has removed, and for their files."""


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """The limits of a query: seconds, and rows of an export (None: unlimited)."""

    seconds: float = 60.0
    rows: int | None = None


class Cancellation:
    """Stops every query that it was given to, also those to come.

    Any thread may ask for that, a signal handler too.
    """

    def __init__(self) -> None:
        self.is_set = False

    def cancel(self) -> None:
        self.is_set = True


@dataclass(frozen=True, slots=True)
class Tables:
    """The argument of a query: a Spark Connect session, and the lake's tables."""

    session: SparkSession
    lake: Lake

    def read(self, table: Table, version: int | None = None) -> DataFrame:
        reader = self.session.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.load(self.lake.path(table))


def check_limits(limits: QueryLimits, deadline: float, cancellation: Cancellation) -> None:
    """Raise QueryCancelled or QueryTimeout if a query has to stop now; `deadline` in monotonic seconds."""
    if cancellation.is_set:
        raise QueryCancelled("the query was cancelled")
    if time.monotonic() >= deadline:
        raise QueryTimeout(
            f"the query did not end within {limits.seconds:g} s, its limit; narrow it, or allow more time"
        )


SparkQuery: TypeAlias = "Callable[[Tables], DataFrame]"
Rows: TypeAlias = "list[Row]"


class SparkQueries:
    """Queries one lake. Every method may be called from any thread; none belongs on an event loop."""

    def __init__(self, lake: Lake, remote: str | None = None) -> None:
        """`remote`: the address of an external Spark Connect; by default that of the running pipeline."""
        self.lake = lake
        self.remote = remote

    def run(self, query: SparkQuery, limits: QueryLimits, cancellation: Cancellation | None = None) -> Rows:
        """Return all rows of a query.

        Raises QueryRefused, QueryCancelled, QueryTimeout, StoreUnavailable.
        """
        deadline = time.monotonic() + limits.seconds
        check = partial(check_limits, limits, deadline, cancellation or Cancellation())
        with contextlib.ExitStack() as closing:
            check()
            try:
                session = _session(self.remote or read_address(self.lake.connect))
                closing.callback(_release, session)
                answer = _in_thread(lambda: _collect(query, Tables(session, self.lake)))
                closing.callback(_interrupt, session, answer)
                while not wait([answer], _POLL_SECONDS).done:
                    check()
                return answer.result()
            except StoreError:
                raise
            except Exception as error:
                # Errors of pyspark and its transport share no root.
                if not _is_foreign(error):
                    raise
                raise translate_error(error) from error


def translate_error(error: Exception) -> QueryRefused | StoreUnavailable:
    """Return the store's error for an error of pyspark or gRPC."""
    text = str(error)
    code = getattr(getattr(error, "_grpc_status_code", None), "name", None)
    reason = _shorten(text)
    if code in _LOST_CODES or any(said in text for said in _LOST_TEXTS):
        return StoreUnavailable(
            f"expected a pipeline that answers the query to its end, found: {reason}; repeat the query when the pipeline "
            "runs: `connectivity pipeline status` and /health/ready show its state; with spark.remote, check that server"
        )
    if any(said in text for said in _REMOVED_TEXTS):
        return StoreUnavailable(
            f"files of the lake are missing: {reason}; if an erasure has removed them, repeat the query; otherwise restore "
            "the files from a backup"
        )
    if (system := system_reason(text)) is not None:
        return StoreUnavailable(f"Spark cannot execute the query: {system} ({reason})")
    return QueryRefused(f"Spark refuses the query: {reason}")


def _is_foreign(error: Exception) -> bool:
    """Whether pyspark or gRPC raised it; a query may fail by itself."""
    return type(error).__module__.partition(".")[0] in ("pyspark", "grpc") or _CLOSED in str(error)


def _shorten(text: str) -> str:
    """Return Spark's text without Java's stack trace, in one line."""
    if (details := re.search(r'details = "([^"]*)"', text)) is not None:
        text = details[1]
    text = " ".join(text.partition("JVM stacktrace:")[0].split())
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"


def _session(url: str) -> SparkSession:
    """Return a session without retries: the caller decides how long to wait."""
    from pyspark.sql.connect.session import SparkSession

    for name in _ERROR_LOGGERS:
        logging.getLogger(name).disabled = True
    session = SparkSession(url)
    session.client.set_retry_policies([])
    return session


def _collect(query: SparkQuery, tables: Tables) -> Rows:
    # Queries write times as text, and another server may have another time zone.
    tables.session.conf.set("spark.sql.session.timeZone", "UTC")
    return query(tables).collect()


def _in_thread(work: Callable[[], T]) -> Future[T]:
    """Do something in a thread that the process does not wait for when it ends."""
    found: Future[T] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, name="Spark query", daemon=True).start()
    return found


def _interrupt(session: SparkSession, answer: Future[Any]) -> None:
    """Stop a query that still runs; wait briefly until Spark has stopped it.

    Interrupts repeatedly, because the query may be about to begin its next part.
    """
    end = time.monotonic() + _GRACE_SECONDS
    while not answer.done() and time.monotonic() < end:
        wait([_in_thread(session.interruptAll)], _GRACE_SECONDS)
        wait([answer], _INTERRUPT_SECONDS)


def _release(session: SparkSession) -> None:
    """Release the session, with anything that still runs in it; wait briefly."""

    def release() -> None:
        # Results are being acknowledged; a session released before causes an error in Spark's log.
        wait(list(session.client._release_futures), _GRACE_SECONDS)
        session.client.release_session()

    wait([_in_thread(release)], _GRACE_SECONDS)
    with contextlib.suppress(Exception):
        # Ends every call that still waits.
        session.client.close()
    # Else it would be remembered as long as this process lives.
    atexit.unregister(session.client._on_exit)

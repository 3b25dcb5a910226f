"""Spark queries over the whole lake, over Spark Connect, returned as Arrow batches.

No Java runs in this process, and nothing of Spark is imported before the first query. Every query has limits of time (until
its last batch is taken) and rows, and can be canceled from any thread; then Spark stops, too. A query that is not read to
its end must be closed (`QueryResult` is a context manager).

Results wait in the memory of the pipeline's Java process, which refuses larger ones (`ResultTooLarge`). Queries have a lower
priority than the pipeline's work (see `spark_store.pipeline.session`). Each has a session of its own, so that its failure
affects no other.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from spark_store.errors import (
    NoPipeline,
    NoSparkQueries,
    PipelineLost,
    QueryCancelled,
    QueryRefused,
    QueryTimeout,
    ResultTooLarge,
    SparkQueryError,
    StoreError,
    StoreUnavailable,
    TooManyRows,
    system_reason,
)
from spark_store.lake.connect_address import read_address
from spark_store.lake.tables import Lake, Table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

AT_ONCE = 2
"""How many queries of one `SparkQueries` run at the same time; others wait, within their time."""

_INTERRUPT_SECONDS = 0.2
_GRACE_SECONDS = 5.0
"""How long Spark may take to report that it has stopped. Then the connection is closed."""

_LOOK_SECONDS = 0.05
_LONGEST_REASON = 600
_LOUD = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""The logger of pyspark that writes errors to standard error; they are raised to the caller only."""

_CLOSED = "closed channel"
_LOST = (
    "SparkContext was shut down",
    "Cannot call methods on a stopped SparkContext",
    "INVALID_HANDLE.",
    "OPERATION_ABANDONED",
    "OutOfMemoryError",
    "RESPONSE_ALREADY_RECEIVED",
    _CLOSED,
)
"""Texts of Spark for failures of its process, not of the query."""

_REMOVED = ("DELTA_VERSION_NOT_FOUND", "FILE_NOT_EXIST")
"""Texts of Spark for versions that an erasure has removed, and for their files."""


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """The limits of a query: seconds until its last batch is taken, and rows (None: unlimited)."""

    seconds: float = 60.0
    rows: int | None = None


class Cancellation:
    """Stops every query that it was given to, also those to come.

    Any thread may ask for that, a signal handler too.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._listeners: dict[int, Callable[[], None]] = {}

    def cancel(self) -> None:
        self.is_set = True
        for tell in list(self._listeners.values()):
            tell()

    @contextlib.contextmanager
    def telling(self, listener: Callable[[], None]) -> Iterator[None]:
        """Call `listener` if it is asked for meanwhile, or was before."""
        self._listeners[id(listener)] = listener
        try:
            if self.is_set:
                listener()
            yield
        finally:
            self._listeners.pop(id(listener), None)


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


def reason_to_stop(limits: QueryLimits, deadline: float, cancellation: Cancellation) -> SparkQueryError | None:
    """Why a query has to stop now, if it has to; `deadline` in monotonic seconds."""
    if cancellation.is_set:
        return QueryCancelled("the query was cancelled")
    if time.monotonic() >= deadline:
        return QueryTimeout(
            f"the query did not end within {limits.seconds:g} s, its limit; narrow it, or allow more time"
        )
    return None


Batch: TypeAlias = "pa.RecordBatch"
SparkQuery: TypeAlias = "Callable[[Tables], DataFrame]"


class SparkQueries:
    """Queries one lake. Every method may be called from any thread; none belongs on an event loop."""

    def __init__(self, lake: Lake, find: Callable[[], str], at_once: int = AT_ONCE) -> None:
        """`find` returns the address of Spark Connect for each query; see `finder`."""
        self.lake = lake
        self.find = find
        self.slots = threading.BoundedSemaphore(at_once)

    def run(
        self, query: SparkQuery, limits: QueryLimits | None = None, cancellation: Cancellation | None = None
    ) -> QueryResult:
        """Ask. The answer's batches come as they are taken; errors may come with any of them.

        Raises NoSparkQueries, NoPipeline, PipelineLost, QueryRefused, QueryCancelled, QueryTimeout, StoreUnavailable.
        """
        return QueryResult(self, query, limits or QueryLimits(), cancellation or Cancellation())


def finder(lake: Lake, remote: str | None, *, is_off: bool) -> Callable[[], str]:
    """Return a finder of the address: an external Spark's, or that of the running pipeline.

    `is_off`: there is none.
    """

    def find() -> str:
        if remote is not None:
            return remote
        if is_off:
            raise NoSparkQueries(
                "Spark queries need Spark, and spark.mode is off: set spark.mode to embedded or external, or "
                "spark.remote to the address of a Spark Connect server that sees the lake"
            )
        return read_address(lake.connect).url

    return find


class QueryResult:
    """The batches of one query, in order, each taken once: an iterator and a context manager.

    `cancel` may be called from any thread; everything else belongs to the thread that takes the batches.
    """

    def __init__(
        self, queries: SparkQueries, query: SparkQuery, limits: QueryLimits, cancellation: Cancellation
    ) -> None:
        """Use `SparkQueries.run`."""
        self.rows = 0
        """How many rows have been taken."""
        self._limits = limits
        self._cancellation = cancellation
        self._deadline = time.monotonic() + limits.seconds
        self._why: SparkQueryError | None = None
        self._has_begun = False
        self._wake, self._over = threading.Event(), threading.Event()
        self._session: SparkSession | None = None
        self._batches: Generator[pa.RecordBatch, None, None] | None = None
        self._closing = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            # The method is a new object each time it is named.
            wake = self._wake.set
            self._closing.enter_context(cancellation.telling(wake))
            self._acquire_slot(queries.slots)
            threading.Thread(target=self._watch, name="Spark query", daemon=True).start()
            with self._translate_errors():
                self._session = session = _session(queries.find())
                self._closing.callback(_release, session)
                self._check()
                self._batches = _batches(session, query, queries.lake)
            undo.pop_all()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        """Return the next batch. Raises what `SparkQueries.run` raises, and TooManyRows, ResultTooLarge."""
        if self._over.is_set():
            raise StopIteration
        try:
            with self._translate_errors():
                self._check()
                batch = None if self._batches is None else next(self._batches, None)
            if batch is None:
                raise StopIteration
            self._has_begun = True
            self.rows += batch.num_rows
            if self._limits.rows is not None and self.rows > self._limits.rows:
                raise TooManyRows(
                    f"found at least {self.rows} rows, expected at most {self._limits.rows}; narrow the query, or allow more"
                )
        except BaseException:
            self.close()
            raise
        return batch

    def cancel(self) -> None:
        """Stop the query, in Spark too. A waiting thread gets QueryCancelled."""
        self._cancellation.cancel()

    def close(self) -> None:
        """Stop the query if it runs, and release everything. May be repeated."""
        if not self._over.is_set():
            self._over.set()
            self._wake.set()
            if self._batches is not None:
                self._batches.close()
            self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _acquire_slot(self, slots: threading.BoundedSemaphore) -> None:
        while not slots.acquire(timeout=_LOOK_SECONDS):
            self._why = self._reason()
            self._check()
        self._closing.callback(slots.release)

    def _reason(self) -> SparkQueryError | None:
        """Why the query has to stop now, if it has to."""
        return reason_to_stop(self._limits, self._deadline, self._cancellation)

    def _check(self) -> None:
        if self._why is not None:
            raise self._why

    def _watch(self) -> None:
        """Stop the query when its time is up, from a thread of its own."""
        self._wake.wait(max(0.0, self._deadline - time.monotonic()))
        if self._over.is_set():
            return
        self._why = self._reason() or QueryCancelled("the query was cancelled")
        threading.Thread(target=self._interrupt, name="Spark query, stopped", daemon=True).start()
        if not self._over.wait(_GRACE_SECONDS) and self._session is not None:
            _interrupt(self._session)

    def _interrupt(self) -> None:
        """Interrupt repeatedly, because the query may be about to begin its next part."""
        while not self._over.is_set():
            with contextlib.suppress(Exception):
                if self._session is not None:
                    self._session.interruptAll()
            self._over.wait(_INTERRUPT_SECONDS)

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise errors of pyspark and its transport as errors of the store; they share no root."""
        try:
            yield
        except StoreError:
            raise
        except Exception as error:
            if not _is_foreign(error):
                raise
            raise (self._why or translate_error(error, self._has_begun)) from error


def translate_error(error: Exception, has_begun: bool) -> SparkQueryError | StoreUnavailable:
    """Return the store's error for an error of pyspark or gRPC.

    `has_begun`: some results were returned before.
    """
    text = str(error)
    code = getattr(getattr(error, "_grpc_status_code", None), "name", None)
    reason = _shorten(text)
    if "maxResultSize" in text:
        return ResultTooLarge(f"found a result larger than the pipeline can hold in memory ({reason}); split the query")
    if code == "UNAUTHENTICATED":
        return NoPipeline(f"the server does not know this token: {reason}; the pipeline may be restarting")
    if code == "UNAVAILABLE" and not has_begun and "onnect" in text:
        return NoPipeline(
            f"expected a pipeline with Spark queries, found none: {reason}; `connectivity pipeline status` and "
            "/health/ready show its state"
        )
    if code in ("UNAVAILABLE", "CANCELLED") or any(said in text for said in _LOST):
        return PipelineLost(
            f"the pipeline ended during the query: {reason}; repeat the query when the pipeline runs again"
        )
    if any(said in text for said in _REMOVED):
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


# pyspark's public client has neither batches nor deadlines: its internals are used here only.


def _session(url: str) -> SparkSession:
    """Return a session without retries: the caller decides how long to wait."""
    from pyspark.sql.connect.session import SparkSession

    for name in _LOUD:
        logging.getLogger(name).disabled = True
    session = SparkSession(url)
    session.client.set_retry_policies([])
    return session


def _batches(session: SparkSession, query: SparkQuery, lake: Lake) -> Generator[pa.RecordBatch, None, None]:
    import pyarrow as pa

    frame_plan: Any = query(Tables(session, lake))._plan
    plan = frame_plan.to_proto(session.client)
    for part in session.client.to_table_as_iterator(plan, {}):
        if isinstance(part, pa.Table):
            yield from part.to_batches()


def _release(session: SparkSession) -> None:
    """Release the session, with anything that still runs in it; wait briefly."""
    import atexit

    def release() -> None:
        with contextlib.suppress(Exception):
            # Batches are being acknowledged; a session released before causes an error in Spark's log.
            concurrent.futures.wait(list(session.client._release_futures), _GRACE_SECONDS)
            session.client.release_session()

    saying = threading.Thread(target=release, name="Spark query, released", daemon=True)
    saying.start()
    saying.join(_GRACE_SECONDS)
    with contextlib.suppress(Exception):
        session.client.close()
    _interrupt(session)
    # Else it would be remembered as long as this process lives.
    atexit.unregister(session.client._on_exit)


def _interrupt(session: SparkSession) -> None:
    """End every call of the session, wherever it waits."""
    with contextlib.suppress(Exception):
        session.client._channel.close()

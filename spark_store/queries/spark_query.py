"""Wide queries: questions over all of the lake, answered by the pipeline's Spark and taken as Arrow batches.

The client side of Spark Connect. No Java runs in this process, and nothing of Spark is imported before the first query.

Every query has limits. It may take so long, from the call until its last batch was taken; it may find so many rows; and it
can be stopped from any thread. Whichever of these comes first, Spark stops working for it, not only this side. A query that
is not taken to its end has to be closed (`QueryResult` is a context manager), or its time limit will.

Two bounds are of the other side. Whatever a query sends back waits in the memory of the pipeline's Java process until it is
taken here, so that process refuses larger results (`ResultTooLarge`): whoever needs more asks in parts, as
`spark_store.queries.export` does. And queries come after the pipeline's own work (see `spark_store.pipeline.session`).

Every query has a session of its own: that costs next to nothing, and what stops or breaks it touches no other one.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
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
    TooManyRows,
)
from spark_store.lake.connect_address import read_address
from spark_store.lake.tables import TABLES, Lake, Table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession


AT_ONCE = 2
"""How many queries of one `SparkQueries` run at the same time; the others wait, within their time."""

_INTERRUPT_SECONDS = 0.2
_GRACE_SECONDS = 5.0
"""How long Spark may take to say that it has stopped.

After that the line is cut, and Spark finds out by itself.
"""

_LOOK_SECONDS = 0.05
_LONGEST_REASON = 600
_LOUD = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Where pyspark writes every error of a query to standard error: whoever asked is told, and nobody else."""

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
"""What Spark says where not the query is wrong, but the process that answers it."""


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """What a query may cost: seconds until its last batch was taken, and rows (None: any number)."""

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
class Sql:
    """A query as SQL.

    It names the lake's tables `events` and `latest`; values are written into it by `literal`.

    `versions` says for a table which of its versions is meant, if not the newest.
    """

    text: str
    versions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tables:
    """What a query that is a function gets: a session of Spark Connect, and the lake's tables."""

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
        return QueryCancelled("the query was stopped, as asked")
    if time.monotonic() >= deadline:
        return QueryTimeout(
            f"found no end of the query after {limits.seconds:g} s, which is its limit; ask for less, or allow more time"
        )
    return None


Batch: TypeAlias = "pa.RecordBatch"
Query: TypeAlias = "Sql | Callable[[Tables], DataFrame]"


class SparkQueries:
    """Asks one lake. Every method may be called from any thread; none belongs on an event loop."""

    def __init__(self, lake: Lake, find: Callable[[], str], at_once: int = AT_ONCE) -> None:
        """`find` names the address of Spark Connect for each query anew; see `finder`."""
        self.lake = lake
        self.find = find
        self._places = threading.BoundedSemaphore(at_once)

    def __repr__(self) -> str:
        return f"<WideQueries of {self.lake.folder}>"

    def run(
        self, query: Query, limits: QueryLimits | None = None, cancellation: Cancellation | None = None
    ) -> QueryResult:
        """Ask. The answer's batches come as they are taken; errors may come with any of them.

        Raises NoWideQueries, NoPipeline, PipelineLost, QueryRefused, QueryCancelled, TimeIsUp, StoreUnavailable.
        """
        return QueryResult(
            self.lake, self.find, self._places, query, limits or QueryLimits(), cancellation or Cancellation()
        )


def finder(lake: Lake, remote: str | None, *, is_off: bool) -> Callable[[], str]:
    """Where to ask: at the address of an outside Spark, or else of the pipeline that runs now.

    `is_off`: there is none.
    """

    def find() -> str:
        if remote is not None:
            return remote
        if is_off:
            raise NoSparkQueries(
                "wide queries are answered by Spark, and spark.mode is off: set spark.mode to embedded or external, or "
                "spark.remote to the address of a Spark Connect server that sees the lake"
            )
        return read_address(lake.connect).url

    return find


def named_tables(text: str) -> list[Table]:
    """The lake's tables that the text of a query may mean."""
    return [table for table in TABLES if re.search(rf"\b{table.name}\b", text)]


class QueryResult:
    """The batches of one query, in order, each taken once: an iterator and a context manager.

    `cancel` may be called from any thread; everything else belongs to the thread that takes the batches.
    """

    def __init__(
        self,
        lake: Lake,
        find: Callable[[], str],
        places: threading.BoundedSemaphore,
        query: Query,
        limits: QueryLimits,
        cancellation: Cancellation,
    ) -> None:
        """Use `SparkQueries.run`."""
        self.rows = 0
        """How many have been taken."""
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
            self._take_place(places)
            self._watcher = threading.Thread(target=self._watch, name="wide query", daemon=True)
            self._watcher.start()
            with self._translated():
                self._session = session = _session(find())
                self._closing.callback(_release, session)
                self._check()
                self._batches = _batches(session, query, lake)
            undo.pop_all()

    def __repr__(self) -> str:
        return f"<Answer {self.rows} rows, {'over' if self._over.is_set() else 'running'}>"

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        """The next batch. Raises what `SparkQueries.run` does, and TooManyRows, ResultTooLarge."""
        if self._over.is_set():
            raise StopIteration
        try:
            with self._translated():
                self._check()
                batch = None if self._batches is None else next(self._batches, None)
            if batch is None:
                raise StopIteration
            self._has_begun = True
            self.rows += batch.num_rows
            if self._limits.rows is not None and self.rows > self._limits.rows:
                raise TooManyRows(
                    f"found at least {self.rows} rows, expected at most {self._limits.rows}; ask for less, or allow more"
                )
        except BaseException:
            self.close()
            raise
        return batch

    def cancel(self) -> None:
        """Stop: Spark too. Whoever waits for a batch gets QueryCancelled."""
        self._cancellation.cancel()

    def close(self) -> None:
        """Stop what still runs, and let go of everything. May be called again."""
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

    def _take_place(self, places: threading.BoundedSemaphore) -> None:
        while not places.acquire(timeout=_LOOK_SECONDS):
            self._why = self._reason()
            self._check()
        self._closing.callback(places.release)

    def _reason(self) -> SparkQueryError | None:
        """Why the query has to stop now, if it has to."""
        return reason_to_stop(self._limits, self._deadline, self._cancellation)

    def _check(self) -> None:
        if self._why is not None:
            raise self._why

    def _watch(self) -> None:
        """In a thread of its own: stop the query when it is time, wherever the thread that takes batches may be."""
        self._wake.wait(max(0.0, self._deadline - time.monotonic()))
        if self._over.is_set():
            return
        self._why = self._reason() or QueryCancelled("the query was stopped")
        threading.Thread(target=self._interrupt, name="wide query, stopped", daemon=True).start()
        if not self._over.wait(_GRACE_SECONDS) and self._session is not None:
            _cut(self._session)

    def _interrupt(self) -> None:
        """Again and again, because what runs may only be about to begin, or to begin its next part."""
        while not self._over.is_set():
            with contextlib.suppress(Exception):
                if self._session is not None:
                    self._session.interruptAll()
            self._over.wait(_INTERRUPT_SECONDS)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """What pyspark and its transport raise, as errors of ours; they share no root."""
        try:
            yield
        except StoreError:
            raise
        except Exception as error:
            if not _is_foreign(error):
                raise
            raise (self._why or translated(error, self._has_begun)) from error


def translated(error: Exception, has_begun: bool) -> SparkQueryError:
    """An error of pyspark's or gRPC's as ours. `has_begun`: something had been answered before."""
    text = str(error)
    code = getattr(getattr(error, "_grpc_status_code", None), "name", None)
    reason = _shortened(text)
    if "maxResultSize" in text:
        return ResultTooLarge(f"found a result larger than the pipeline may hold at once ({reason}); ask in parts")
    if code == "UNAUTHENTICATED":
        return NoPipeline(
            f"whoever answers there does not know this token: {reason}; the pipeline may be starting anew"
        )
    if code == "UNAVAILABLE" and not has_begun and "onnect" in text:
        return NoPipeline(
            f"expected a pipeline that answers wide queries, found none: {reason}; `connectivity pipeline status` and "
            "/health/ready say how it does"
        )
    if code in ("UNAVAILABLE", "CANCELLED") or any(said in text for said in _LOST):
        return PipelineLost(f"the pipeline ended amid the query: {reason}; ask again when it runs")
    return QueryRefused(f"Spark refuses the query: {reason}")


def _is_foreign(error: Exception) -> bool:
    """Whether pyspark or gRPC raised it; a query that is a function may fail by itself."""
    return type(error).__module__.partition(".")[0] in ("pyspark", "grpc") or _CLOSED in str(error)


def _shortened(text: str) -> str:
    """What Spark says, without Java's trace, in one line."""
    if (details := re.search(r'details = "([^"]*)"', text)) is not None:
        text = details[1]
    text = " ".join(text.partition("JVM stacktrace:")[0].split())
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"


# -- pyspark, whose client shows no batches and no deadlines to the public: what is not is used here alone


def _session(url: str) -> SparkSession:
    """A session. Nothing is tried again: how long to wait is for whoever asks to say."""
    from pyspark.sql.connect.session import SparkSession

    for name in _LOUD:
        logging.getLogger(name).disabled = True
    session = SparkSession(url)
    session.client.set_retry_policies([])
    return session


def _batches(session: SparkSession, query: Query, lake: Lake) -> Generator[pa.RecordBatch, None, None]:
    if isinstance(query, Sql):
        tables = Tables(session, lake)
        for table in named_tables(query.text):
            # Of this session alone, and so of this query.
            tables.read(table, query.versions.get(table.name)).createOrReplaceTempView(table.name)
        frame = session.sql(query.text)
    else:
        frame = query(Tables(session, lake))
    import pyarrow as pa

    frame_plan: Any = frame._plan
    plan = frame_plan.to_proto(session.client)
    for part in session.client.to_table_as_iterator(plan, {}):
        if isinstance(part, pa.Table):
            yield from part.to_batches()


def _release(session: SparkSession) -> None:
    """Let the other side forget the session, with what may still run in it; it is not waited for long."""
    import atexit

    def release() -> None:
        with contextlib.suppress(Exception):
            # What was taken is being acknowledged; a session that is gone by then is an error in Spark's log.
            concurrent.futures.wait(list(session.client._release_futures), _GRACE_SECONDS)
            session.client.release_session()

    saying = threading.Thread(target=release, name="wide query, released", daemon=True)
    saying.start()
    saying.join(_GRACE_SECONDS)
    with contextlib.suppress(Exception):
        session.client.close()
    _cut(session)
    # Else it would be remembered as long as this process lives.
    atexit.unregister(session.client._on_exit)


def _cut(session: SparkSession) -> None:
    """End every call of the session, wherever it waits."""
    with contextlib.suppress(Exception):
        session.client._channel.close()

"""The loop: appends batches to `events`; beside it, a thread merges states and maintains the tables.

A batch is appended every `interval`, `latest` is merged every few minutes, since a merge of random entities rewrites most of
it. When something is durable (`spark_store.lake.durability`), its position is published. The tables alone say where to
begin, at every start; a batch is appended only where they end (`tables.append_events`), so a second writer ends, even if a
lock failed. Spark's Structured Streaming is not used: its checkpoint would be a second position, which a backup or a power
cut can part from the tables.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import msgspec
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from mappings.timestamps import utc_text
from spark_store.errors import LakeUnfit, StoreError, StoreUnavailable, translate_spark_error
from spark_store.journal.erasure import Erasure
from spark_store.journal.reader import JournalReader
from spark_store.lake import durability, reader
from spark_store.lake.check import expect_lake, expect_no_gap
from spark_store.lake.clock import next_reading, uptime
from spark_store.lake.tables import APP, EVENTS, FULL_SNAPSHOTS, LATEST, TABLES
from spark_store.lake.watermark import (
    BatchProgress,
    RetentionRun,
    Watermark,
    forget_failure,
    publish_watermark,
    read_watermark,
)
from spark_store.pipeline import erasure, retention, snapshots, table_maintenance, tables
from spark_store.pipeline.query_jobs import running_queries
from spark_store.pipeline.session import prioritize
from spark_store.pipeline.settings import PipelineSettings
from spark_store.pipeline.table_maintenance import MaintenanceState, due, waited
from spark_store.pipeline.tables import LakeWriter
from spark_store.pipeline.warm_up import warm_up
from spark_store.records import now_text


def first_unmerged(oldest: int, newest: int, appended: int, merged: int, watermark: int) -> int:
    """Return from which of the appended events on states must be merged at a start.

    All are event numbers, 0 for none: the `oldest` known and `newest` one of the journal, the last one in `events`, the
    last one merged into `latest`, and the published watermark. A result above the last one means none. Raises LakeUnfit if
    continuing would lose events, or mix those of two journals.
    """
    if newest < appended:
        raise LakeUnfit(
            f"the lake has events up to {appended}, but the journal only up to {newest}; restore the newer "
            "journal, or move the folder `lake` away, and the pipeline creates a new one"
        )
    expect_no_gap(oldest, appended)
    merged = min(watermark, appended, merged)
    # The entities of trimmed events are unknown: merge all.
    return merged + 1 if merged + 1 >= oldest or merged >= appended else 1


Say = Callable[..., None]
"""Receives an event's name, and its fields."""

_POLL_SECONDS = 0.1
"""The least pause between two checks of the journal."""
_CHECK_SECONDS = 0.5
"""The pause between two checks for erasures and maintenance that is due."""
_WARM_UP_SECONDS = 10.0
"""How long after its start the pipeline warms Spark up: the first batch comes first."""
_RETRY_SECONDS = 600.0
_RETRY_ERASURE_SECONDS = 60.0
"""After how many seconds failed maintenance, or a failed erasure, is retried."""
_NO_ANSWER = "Answer from Java side is empty"
"""The error of Py4J for a Java process that is gone."""
_now = partial(datetime.now, UTC)


class PipelineLoop:
    """One run of the pipeline on the locked lake."""

    def __init__(
        self,
        target: LakeWriter,
        say: Say,
        settings: PipelineSettings,
        stopping: threading.Event,
        clock: Callable[[], datetime] = _now,
    ) -> None:
        """`stopping` may be set at any time, also by a signal: the current batch is finished, none is begun."""
        self._target = target
        self._say = say
        self._settings = settings
        self._stopping = stopping
        self._clock = clock
        self._appending = threading.Lock()
        """Held during a batch, and while rows of `events` are deleted."""
        self._publishing = threading.Lock()
        self._batches = self._compacted = self._compactions = 0
        """Batches of this run, up to which one the tables were compacted, and how often."""
        self._begun = self._merged = time.monotonic()
        self._retry_at: dict[str, float] = {}
        """When failed maintenance may be tried again."""
        self._created = datetime.now(UTC)
        self._watermark = Watermark()
        self._entities = self._newest_snapshot = 0
        """The number of entities, and the newest full snapshot."""
        self._clock_reading = next_reading(None, clock(), uptime())
        self._is_manual = False

    def run(self) -> None:
        """Run until `stopping`, or until everything has been taken (`once`).

        Raises StoreError, also for Spark's errors; after LakeUnfit trying again does not help.
        """
        try:
            newest = self._catch_up()
            if self._settings.once:
                self._follow(lambda: newest, lambda: self._watermark.visible >= newest)
                self._maintain(is_end=True)
            else:
                self._follow_beside_maintenance()
        except (PySparkException, Py4JError, OSError) as error:
            raise translate_error(error) from error

    def _catch_up(self) -> int:
        """Create the tables, finish interrupted work, and find where to continue.

        Returns the number of the journal's newest event.
        """
        target = self._target
        expect_lake(target.lake)
        tables.prepare(target)
        self._watermark = self._last_watermark()
        if (last_run := self._watermark.retention) is not None:
            self._clock_reading = next_reading(last_run.reading, self._clock(), uptime())
        if self._settings.retention.is_forever:
            # It is not tried again.
            self._note("retention", None)
        with JournalReader.open(target.lake.journal) as journal_reader:
            newest = journal_reader.newest()
            appended, merged = (reader.last_transaction(target.lake, table, APP) for table in (EVENTS, LATEST))
            tables.check_same_journal(target, journal_reader, appended)
            self._step_back(min(appended, merged))
            # Read last: nothing above the watermark is trimmed from now on.
            oldest = journal_reader.oldest_known()
        first = first_unmerged(oldest, newest, appended, merged, self._watermark.seq)
        if first <= appended:
            self._say("catching up", first=first, last=appended)
            tables.merge_latest(target, first, appended)
        self._publish(seq=appended, appended=appended, published=now_text())
        self._count()
        self._say("following", seq=appended, newest=newest)
        forget_failure(target.lake.failure)
        return newest

    def _step_back(self, reached: int) -> None:
        """Publish the positions of a table that is not the watermark's.

        It may lack events, or contain erased ones.
        """
        known = self._watermark
        if reached < known.seq:
            self._publish(seq=reached, appended=0)
        if (erased := erasure.last_done(self._target.lake)) < known.erased:
            self._publish(erased=erased, erased_at=None)

    def _last_watermark(self) -> Watermark:
        """Return the last watermark. An unreadable one is ignored: the tables know what they contain."""
        try:
            return read_watermark(self._target.lake.watermark)
        except StoreUnavailable as error:
            self._say("watermark lost", reason=str(error))
            return Watermark()

    def _follow_beside_maintenance(self) -> None:
        ended = threading.Event()
        with ThreadPoolExecutor(1, "maintenance", prioritize, (self._target.spark,)) as threads:
            maintaining = threads.submit(self._maintain_until, ended)
            try:
                self._follow(self._newest, maintaining.done)
            finally:
                ended.set()
        maintaining.result()

    def _follow(self, newest: Callable[[], int], is_over: Callable[[], bool]) -> None:
        """Append what comes, up to the newest event, until `stopping` or `is_over`."""
        while not self._stopping.is_set() and not is_over():
            begun = time.monotonic()
            last = newest()
            if last > self._watermark.visible:
                self._append(min(last, self._watermark.visible + self._settings.max_batch_rows))
            if last <= self._watermark.visible and not is_over():
                self._stopping.wait(max(_POLL_SECONDS, begun + self._settings.interval - time.monotonic()))

    def _newest(self) -> int:
        with JournalReader.open(self._target.lake.journal) as journal_reader:
            return journal_reader.newest()

    def _append(self, last: int) -> None:
        """Append one batch: the events up to this one."""
        with self._appending:
            begun, first = time.monotonic(), self._watermark.visible + 1
            tables.append_events(self._target, first, last)
            batch = BatchProgress(last - first + 1, round(time.monotonic() - begun, 3))
            self._publish(appended=last, published=now_text(), batch=batch)
            self._batches += 1
        self._say("batch", seq=last, rows=batch.rows, seconds=batch.seconds)

    def _maintain_until(self, ended: threading.Event) -> None:
        begun, is_warm = time.monotonic(), not self._settings.answers_queries
        while not ended.wait(_CHECK_SECONDS):
            self._maintain()
            if not is_warm and time.monotonic() - begun >= _WARM_UP_SECONDS and not self._is_behind():
                is_warm = True
                self._warm_up()
        if self._stopping.is_set():
            self._merge(is_end=True)

    def _is_behind(self) -> bool:
        """Whether more events wait than one batch may have."""
        return self._newest() - self._watermark.visible > self._settings.max_batch_rows

    def _warm_up(self) -> None:
        """Warm Spark up, unless a query runs, which does that itself."""
        begun = time.monotonic()
        try:
            if running_queries(self._target.spark):
                return
            warm_up(self._target, self._stopping.is_set)
        except (PySparkException, Py4JJavaError, StoreError, OSError) as error:
            self._say("warm-up failed", reason=str(translate_error(error)))
        else:
            self._say("warmed up", seconds=round(time.monotonic() - begun, 3))

    def _maintain(self, *, is_end: bool = False) -> None:
        """Do what is due: erasures, states, maintenance. Other threads only append, or compact for this one."""
        self._erase()
        self._merge(is_end=is_end)
        self._maintain_tables()

    def _merge(self, *, is_end: bool) -> None:
        """Merge the states of entities whose events were appended since the last merge, if it is due."""
        first, last = self._watermark.seq + 1, self._watermark.visible
        waited = timedelta(seconds=time.monotonic() - self._merged)
        is_many = last - self._watermark.seq >= self._settings.max_batch_rows
        # While more events wait, the next merge would write most of the same entities again.
        is_due = is_end or waited >= self._settings.merge_every or (is_many and not self._is_behind())
        if first > last or not is_due:
            return
        begun = time.monotonic()
        tables.merge_latest(self._target, first, last)
        self._publish(seq=last)
        self._count()
        self._merged = time.monotonic()
        self._say("merged", seq=last, seconds=round(self._merged - begun, 3))

    def _publish(self, **changes: Any) -> None:
        """Make what was written durable, and publish it."""
        durability.sync(self._target.lake)
        with self._publishing:
            self._watermark = msgspec.structs.replace(self._watermark, **changes)
            publish_watermark(self._target.lake.watermark, self._watermark)

    def _remember(self, **changes: Any) -> None:
        """Publish it with the next `_publish`."""
        with self._publishing:
            self._watermark = msgspec.structs.replace(self._watermark, **changes)

    def _erase(self) -> None:
        """Carry out erasures that the journal has done."""
        while self._may_try("erasure") and not self._stopping.is_set():
            with JournalReader.open(self._target.lake.journal) as journal_reader:
                todo = erasure.finished_erasures(journal_reader.erasures(self._watermark.erased))[: erasure.AT_ONCE]
            if not todo:
                return
            ids = [it.id for it in todo]
            failure = self._attempt("erasure", partial(self._erase_these, todo))
            if failure is None:
                self._say("erased", erasures=ids)
            else:
                self._say("erasure failed", erasures=ids, reason=failure)

    def _erase_these(self, todo: Sequence[Erasure]) -> None:
        # A batch that was read before must not bring rows again, nor may its files be removed before they are committed.
        with self._appending:
            erasure.erase(self._target, todo)
        self._remember(erased=todo[-1].id, erased_at=now_text())

    def _may_try(self, kind: str) -> bool:
        return time.monotonic() >= self._retry_at.get(kind, 0.0)

    def _attempt(self, kind: str, work: Callable[[], None]) -> str | None:
        """Do work whose failure keeps no new event out of the lake. Return the failure; it is retried."""
        failure = None
        try:
            work()
        except (PySparkException, Py4JJavaError, StoreError) as error:
            failure = str(translate_error(error))
            self._retry_at[kind] = time.monotonic() + (_RETRY_ERASURE_SECONDS if kind == "erasure" else _RETRY_SECONDS)
        self._note(kind, failure)
        self._count()
        # The disk may be the reason of the failure.
        with contextlib.suppress(StoreError) if failure is not None else contextlib.nullcontext():
            self._publish()
        return failure

    def _count(self) -> None:
        """Read from the tables what decides about maintenance. An unreadable table keeps its last figures."""
        lake = self._target.lake
        with contextlib.suppress(StoreError):
            self._created = reader.created_at(lake, EVENTS) or self._created
            self._entities = reader.rows(lake, LATEST)
            self._newest_snapshot = reader.last_transaction(lake, FULL_SNAPSHOTS, APP)
            self._remember(tables={table.name: reader.size(lake, table) for table in TABLES})

    def _maintain_tables(self) -> None:
        """Carry out maintenance that is due."""
        if self._stopping.is_set():
            return
        watermark, age = self._watermark, timedelta(seconds=time.monotonic() - self._begun)
        state = MaintenanceState(
            waited(watermark, self._created, datetime.now(UTC)),
            timedelta.max if self._settings.once else age,
            self._batches - self._compacted,
            sum(max(0, size.files - watermark.compacted.get(name, 0)) for name, size in watermark.tables.items()),
            watermark.seq - self._newest_snapshot,
            self._entities,
        )
        for kind in filter(self._may_try, due(state, self._settings)):
            begun = time.monotonic()
            failure = self._attempt(kind, self._maintenance[kind])
            if failure is None:
                self._say("maintenance", kind=kind, seconds=round(time.monotonic() - begun, 3))
            else:
                self._say("maintenance failed", reason=failure)

    def carry_out(self, *kinds: str) -> Watermark:
        """Carry out maintenance now, as a manual command does; retention goes by the clock. Raises StoreError.

        A watermark that cannot be read is not replaced: only the next pipeline knows all of it again.
        """
        tables.prepare(self._target)
        self._is_manual, is_known = True, False
        with contextlib.suppress(StoreUnavailable):
            self._watermark = read_watermark(self._target.lake.watermark)
            is_known = True
        for kind in kinds:
            self._maintenance[kind]()
            self._note(kind, None)
        self._count()
        if is_known:
            self._publish()
        return self._watermark

    @property
    def _maintenance(self) -> Mapping[str, Callable[[], None]]:
        return {
            "full_snapshot": self._take_full_snapshot,
            "retention": self._delete_expired,
            "optimize": self._optimize,
            "vacuum": self._vacuum,
        }

    def _note(self, kind: str, failure: str | None) -> None:
        """Note whether this kind of maintenance has succeeded."""
        failures = {it: reason for it, reason in self._watermark.maintenance_failures.items() if it != kind}
        self._remember(maintenance_failures=failures if failure is None else {**failures, kind: failure})

    def _take_full_snapshot(self) -> None:
        """Take a full snapshot of the things, as of the last merge."""
        seq = self._watermark.seq
        self._say("full snapshot", seq=seq, things=snapshots.take_full_snapshot(self._target, seq))
        snapshots.thin(self._target)

    def _delete_expired(self) -> None:
        """Delete expired events by the trusted time, or by the clock."""
        now, run = self._clock(), self._watermark.retention
        if self._is_manual:
            # The trusted time stays.
            until, done = now, RetentionRun(self._clock_reading if run is None else run.reading, 0, utc_text(now))
        else:
            self._clock_reading = reading = next_reading(self._clock_reading, now, uptime())
            until, done = reading.until, RetentionRun(reading, 0)
            if (ahead := reading.ahead) is not None:
                self._say(
                    "clock went ahead", seconds=round(ahead.total_seconds(), 3), trusted=utc_text(reading.trusted)
                )
        # Delta would refuse one of the two: rows are deleted by what the table has.
        with self._appending:
            events = retention.delete_expired(self._target, self._settings.retention, until)
        self._say("expired", events=events)
        self._remember(retention=msgspec.structs.replace(done, events=events))

    def _optimize(self) -> None:
        """Take the snapshots that are due, and compact.

        Batches and merges continue meanwhile, with priority; what they write is compacted next time.
        """
        batches = self._batches
        self._say("snapshots", taken=snapshots.take(self._target))
        # Merges write this table.
        table_maintenance.optimize(self._target, [LATEST])
        others = [table for table in table_maintenance.CLUSTERED if table != LATEST]
        is_large = self._compactions % table_maintenance.LARGE_EVERY == 0
        stable_from = table_maintenance.LARGE if is_large else table_maintenance.SMALL
        with ThreadPoolExecutor(1, "compaction") as threads:
            compaction = threads.submit(table_maintenance.optimize, self._target, others, stable_from)
            while wait([compaction], _CHECK_SECONDS).not_done:
                if not self._is_manual and not self._stopping.is_set():
                    self._merge(is_end=False)
        compaction.result()
        self._compactions += 1
        compacted = {table.name: reader.size(self._target.lake, table).files for table in TABLES}
        self._remember(optimized=now_text(), compacted=compacted)
        self._compacted = batches

    def _vacuum(self) -> None:
        table_maintenance.vacuum(self._target)
        self._remember(vacuumed=now_text())


def translate_error(error: Exception) -> StoreError:
    """Return the store's error for an error of Spark or the system."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, (ConnectionError, Py4JNetworkError)) or _NO_ANSWER in str(error):
        return StoreUnavailable(
            "Spark's Java process ended unexpectedly: it was killed, or had too little memory (spark.memory); the next "
            "start repeats the batch"
        )
    return translate_spark_error(type(error).__name__, str(error))

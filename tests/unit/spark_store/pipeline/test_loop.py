"""The order in which the loop stores, publishes and removes, and how a batch starts. Spark is a fake."""

from __future__ import annotations

import contextlib
import errno
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from mappings.timestamps import utc_text
from spark_store.errors import FULL, LakeBusy, StoreUnavailable
from spark_store.journal.erasure import Erasure
from spark_store.journal.reader import JournalReader
from spark_store.lake import durability, reader
from spark_store.lake.clock import Uptime
from spark_store.lake.tables import APP, ERASURES, EVENTS, LATEST, TABLES, Lake, Table
from spark_store.lake.watermark import TableSize, Watermark, publish_watermark, read_watermark
from spark_store.pipeline import erasure, loop, retention, snapshots, table_maintenance
from spark_store.pipeline import tables as tables_module
from spark_store.pipeline.loop import PipelineLoop
from spark_store.pipeline.retention_rules import RetentionRules
from spark_store.pipeline.settings import PipelineSettings
from spark_store.pipeline.tables import LakeWriter
from tests.support.lake.pipeline_process import DataFolder
from tests.support.lake.twin_changes import trim


class Spark:
    """A fake Spark that records its calls."""

    def __init__(self, done: list[str]) -> None:
        self._done = done

    def sql(self, statement: str) -> Spark:
        self._done.append(statement.split(maxsplit=1)[0])
        return self

    def collect(self) -> list[Any]:
        return []

    def createDataFrame(self, *_: Any) -> None:  # noqa: N802
        return None


@pytest.fixture
def done() -> list[str]:
    return []


@pytest.fixture
def target(tmp_path: Path, done: list[str], monkeypatch: pytest.MonkeyPatch) -> LakeWriter:
    place = Lake(tmp_path)
    place.pipeline.mkdir(parents=True)
    monkeypatch.setattr(durability, "sync", lambda it: done.append(f"sync {it == place}"))
    monkeypatch.setattr(durability, "clean_log", lambda *_: done.append("log"))
    monkeypatch.setattr(snapshots, "thin", lambda _: 0)
    spark: Any = Spark(done)
    return LakeWriter(spark, place)


def loop_of(target: LakeWriter) -> PipelineLoop:
    return PipelineLoop(target, lambda *_, **__: None, PipelineSettings(), threading.Event())


def test_the_lake_is_durable_before_the_watermark_says_so(
    target: LakeWriter, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def publish(*given: Any) -> None:
        done.append("publish")
        publish_watermark(*given)

    monkeypatch.setattr(loop, "publish_watermark", publish)
    loop_of(target)._publish(seq=7)
    assert done == ["sync True", "publish"]
    assert read_watermark(target.lake.watermark).seq == 7


def test_a_lake_that_is_not_durable_moves_no_watermark(target: LakeWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_: Lake) -> None:
        raise StoreUnavailable("the disk refuses")

    monkeypatch.setattr(durability, "sync", refuses)
    with pytest.raises(StoreUnavailable):
        loop_of(target)._publish(seq=7)
    assert not target.lake.watermark.exists()


def test_files_are_removed_only_after_their_replacement_is_durable(
    target: LakeWriter, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = len(TABLES)
    monkeypatch.setattr(erasure, "_clean", lambda *_: done.append("clean"))
    monkeypatch.setattr(erasure, "drop_shuffles", lambda _: done.append("shuffles"))
    monkeypatch.setattr(LakeWriter, "read", lambda *_: SimpleNamespace(where=lambda _: "no rows"))
    monkeypatch.setattr(
        erasure, "append_once", lambda _, table, rows, *its: done.append(f"{rows}, {its} in {table.name}")
    )
    monkeypatch.setattr(erasure, "shorten_log", lambda *_: None)
    monkeypatch.setattr(erasure, "delete_rows", lambda *_: done.append("delete"))
    monkeypatch.setattr(erasure, "write_checkpoint", lambda *_: done.append("checkpoint"))
    erasure.erase(target, [Erasure(4, "thing", "acme:lamp", 5, "t", "anna", "t", None)])
    noted = [f"no rows, {(ERASURES, 4)} in {table.name}" for table in TABLES]
    deleted = [*["delete"] * tables, *["checkpoint"] * tables]
    assert done == [*deleted, "sync True", *["clean"] * tables, "shuffles", *noted]
    done.clear()
    table_maintenance.vacuum(target)
    assert done == ["sync True", *["VACUUM", "log"] * tables]


@pytest.mark.parametrize("older", [*TABLES, None])
def test_an_erasure_that_a_table_lacks_is_repeated(
    older: Table | None, target: LakeWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table restored from a backup has erased entities again, whichever table, even without new events."""
    DataFolder(target.lake.data_dir).write(50)
    publish_watermark(target.lake.watermark, Watermark(45, erased=3, erased_at="t"))
    found = {"prepare": None, "check_same_journal": None}
    for name, value in found.items():
        monkeypatch.setattr(tables_module, name, lambda *_, value=value: value)

    def noted(_: Lake, table: Table, app: str) -> int:
        return {ERASURES: 2 if table == older else 4, APP: 45}[app]

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(reader, "last_transaction", noted)
    monkeypatch.setattr(PipelineLoop, "_count", killed)
    with pytest.raises(KeyboardInterrupt):
        loop_of(target)._catch_up()
    kept = read_watermark(target.lake.watermark)
    assert (kept.seq, kept.erased, kept.erased_at) == ((45, 3, "t") if older is None else (45, 2, None))


def test_events_trimmed_before_a_restored_table_is_detected_are_still_merged(
    target: LakeWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service trims up to the watermark, so the watermark is published before the merge is planned."""
    data_folder, known = DataFolder(target.lake.data_dir), []
    data_folder.write(50)
    publish_watermark(target.lake.watermark, Watermark(45))

    def trimmed(*_: Any) -> None:
        trim(data_folder, 30)

    def merged(_: LakeWriter, first: int, last: int) -> None:
        known.append((read_watermark(target.lake.watermark).seq, first, last))
        raise KeyboardInterrupt

    found = {
        "prepare": lambda _: None,
        "check_same_journal": trimmed,
    }
    for name, call in found.items():
        monkeypatch.setattr(tables_module, name, call)
    monkeypatch.setattr(tables_module, "merge_latest", merged)
    reached = {(EVENTS.name, APP): 45, (LATEST.name, APP): 20}
    monkeypatch.setattr(reader, "last_transaction", lambda _, table, app: reached.get((table.name, app), 0))
    with pytest.raises(KeyboardInterrupt):
        loop_of(target)._catch_up()
    assert known == [(20, 1, 45)]


@pytest.mark.parametrize(("once", "age", "expected"), [(False, 50, []), (False, 70, ["vacuum"]), (True, 0, ["vacuum"])])
def test_maintenance_that_no_process_lived_long_enough_for_is_done_soon_after_a_start(
    once: bool, age: float, expected: list[str], target: LakeWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    hour_ago = utc_text(datetime.now(UTC) - timedelta(hours=1))
    monkeypatch.setattr(PipelineLoop, "_count", lambda _: None)
    running = PipelineLoop(
        target,
        lambda event, **fields: events.append(fields["kind"] if event == "maintenance" else event),
        PipelineSettings(once=once),
        threading.Event(),
    )
    running._watermark = Watermark(5, vacuumed=hour_ago)
    running._begun -= age
    running._maintain_tables()
    assert events == expected


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(111, "Connection refused"),
        Py4JNetworkError("Error while sending or receiving"),
        Py4JError("An error occurred while calling o1.sql: Answer from Java side is empty"),
    ],
)
def test_a_killed_java_process_is_reported_with_a_message_of_the_pipeline(error: Exception) -> None:
    assert "Java process ended unexpectedly: it was killed, or had too little memory" in str(
        loop.translate_error(error)
    )


@pytest.mark.parametrize(("newest", "batches"), [(0, []), (3, [3]), (25, [10, 20, 25])])
def test_a_single_run_moves_the_existing_events_and_then_runs_maintenance(
    newest: int, batches: list[int], target: LakeWriter, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[int] = []

    def append(running: PipelineLoop, last: int) -> None:
        moved.append(last)
        running._watermark = Watermark(appended=last)

    monkeypatch.setattr(PipelineLoop, "_catch_up", lambda _: newest)
    monkeypatch.setattr(PipelineLoop, "_append", append)
    for name in ("_erase", "_maintain_tables"):
        monkeypatch.setattr(PipelineLoop, name, lambda _, name=name: done.append(name))
    monkeypatch.setattr(PipelineLoop, "_merge", lambda _, *, is_end: done.append(f"merge {is_end}"))
    options = PipelineSettings(max_batch_rows=10, once=True)
    PipelineLoop(target, lambda *_, **__: None, options, threading.Event()).run()
    assert moved == batches
    assert done == ["_erase", "merge True", "_maintain_tables"]


class CountingLoop:
    """A loop whose batches and merges are counted instead of done."""

    def __init__(self, target: LakeWriter, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.batches: list[tuple[int, int]] = []
        self.merges: list[tuple[int, int]] = []
        monkeypatch.setattr(tables_module, "append_events", lambda _, *given: self.batches.append(given))
        monkeypatch.setattr(tables_module, "merge_latest", lambda _, *given: self.merges.append(given))
        monkeypatch.setattr(PipelineLoop, "_count", lambda _: None)
        self.stopping = threading.Event()
        self.loop = PipelineLoop(target, lambda *_, **__: None, PipelineSettings(**options), self.stopping)


def test_states_are_merged_when_they_have_waited_or_are_many(
    target: LakeWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge of random entities rewrites most of the table, so it does not follow each batch.

    The journal keeps the states to merge.
    """
    moving = CountingLoop(target, monkeypatch, max_batch_rows=100)
    monkeypatch.setattr(moving.loop, "_newest", lambda: 162)
    moving.loop._append(60)
    moving.loop._merge(is_end=False)
    assert moving.merges == []
    kept = read_watermark(target.lake.watermark)
    assert (kept.seq, kept.appended, kept.visible) == (0, 60, 60)
    moving.loop._append(160)
    moving.loop._merge(is_end=False)
    assert moving.merges == [(1, 160)], "as many as a batch has"
    moving.loop._append(161)
    moving.loop._merged -= PipelineSettings().merge_every.total_seconds()
    moving.loop._merge(is_end=False)
    assert moving.merges == [(1, 160), (161, 161)], "they have waited"
    moving.loop._merged -= 1000
    moving.loop._merge(is_end=True)
    assert moving.merges == [(1, 160), (161, 161)], "there is nothing to merge"
    moving.loop._append(162)
    moving.loop._merge(is_end=True)
    assert moving.merges[-1] == (162, 162)
    assert moving.batches == [(1, 60), (61, 160), (161, 161), (162, 162)]
    kept = read_watermark(target.lake.watermark)
    assert (kept.seq, kept.appended) == (162, 162)


def test_many_states_wait_while_more_than_a_batch_of_events_waits(
    target: LakeWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the pipeline catches up, the next merge would write most of the same entities again."""
    moving = CountingLoop(target, monkeypatch, max_batch_rows=100)
    monkeypatch.setattr(moving.loop, "_newest", lambda: 1000)
    moving.loop._append(899)
    moving.loop._merge(is_end=False)
    assert moving.merges == []
    moving.loop._append(900)
    moving.loop._merge(is_end=False)
    assert moving.merges == [(1, 900)]
    moving.loop._append(901)
    monkeypatch.setattr(moving.loop, "_newest", lambda: 5000)
    moving.loop._merged -= PipelineSettings().merge_every.total_seconds()
    moving.loop._merge(is_end=False)
    assert moving.merges == [(1, 900), (901, 901)], "they have waited"


def test_batches_follow_each_other_while_more_waits_and_else_after_the_interval(
    target: LakeWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving = CountingLoop(target, monkeypatch, max_batch_rows=10, interval=3600)
    waits: list[float | None] = []

    def wait(seconds: float | None = None) -> bool:
        waits.append(seconds)
        moving.stopping.set()
        return True

    monkeypatch.setattr(moving.loop, "_newest", lambda: 25)
    monkeypatch.setattr(moving.stopping, "wait", wait)
    moving.loop._follow(lambda: 25, lambda: False)
    assert moving.batches == [(1, 10), (11, 20), (21, 25)]
    assert waits == [pytest.approx(3600, abs=60)]


def test_a_failed_merge_ends_the_run(target: LakeWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """It happens in a thread; the error is that of the run."""
    moving = CountingLoop(target, monkeypatch, interval=0)

    def fails(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("a file of latest is missing")

    monkeypatch.setattr(loop, "prioritize", lambda _: None)
    monkeypatch.setattr(PipelineLoop, "_catch_up", lambda _: 0)
    monkeypatch.setattr(PipelineLoop, "_newest", lambda _: 5)
    monkeypatch.setattr(PipelineLoop, "_maintain", fails)
    with pytest.raises(StoreUnavailable, match="a file of latest is missing"):
        moving.loop.run()
    assert moving.batches == [(1, 5)]


@pytest.mark.parametrize(
    ("answers_queries", "running", "expected"),
    [
        (True, set[str](), ["merge", "merge", "warm up", "merge"]),
        (True, {"a query"}, ["merge"] * 3),
        (False, set[str](), ["merge"] * 3),
    ],
)
def test_spark_is_warmed_up_once_for_queries_when_no_more_than_a_batch_waits(
    answers_queries: bool, running: set[str], expected: list[str], target: LakeWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving = CountingLoop(target, monkeypatch, max_batch_rows=10, answers_queries=answers_queries)
    ends, newest, done = iter([False, False, False, True]), iter([11, 10]), list[str]()
    ended: Any = threading.Event()
    monkeypatch.setattr(ended, "wait", lambda _: next(ends))
    monkeypatch.setattr(loop, "_WARM_UP_SECONDS", 0.0)
    monkeypatch.setattr(loop, "running_queries", lambda _: running)
    monkeypatch.setattr(loop, "warm_up", lambda *_: done.append("warm up"))
    monkeypatch.setattr(PipelineLoop, "_newest", lambda _: next(newest))
    monkeypatch.setattr(PipelineLoop, "_maintain", lambda _: done.append("merge"))
    moving.loop._maintain_until(ended)
    assert done == expected


@pytest.mark.parametrize("failing", ["warm_up", "running_queries"])
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (StoreUnavailable("no worker"), "no worker"),
        (OSError(errno.ENOSPC, "No space left on device"), f"No space left on device; {FULL}"),
    ],
)
def test_a_failed_warm_up_is_logged_and_the_pipeline_continues(
    failing: str, error: Exception, reason: str, target: LakeWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "running_queries", lambda _: set())
    events: list[tuple[str, dict[str, Any]]] = []

    def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr(loop, failing, fails)
    PipelineLoop(
        target, lambda event, **it: events.append((event, it)), PipelineSettings(), threading.Event()
    )._warm_up()
    assert [event for event, _ in events] == ["warm-up failed"]
    assert events[0][1]["reason"].startswith(reason)


@pytest.mark.parametrize(("is_fenced", "merges"), [(False, [(1, 5)]), (True, [])])
def test_states_are_merged_when_a_run_is_stopped_but_not_after_an_error(
    is_fenced: bool, merges: list[tuple[int, int]], target: LakeWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving = CountingLoop(target, monkeypatch, interval=0)
    newest = iter([5, 9])

    def append(_: LakeWriter, first: int, __: int) -> None:
        if first > 5:
            raise LakeBusy("another pipeline has appended")
        if not is_fenced:
            moving.stopping.set()

    monkeypatch.setattr(loop, "prioritize", lambda _: None)
    monkeypatch.setattr(tables_module, "append_events", append)
    monkeypatch.setattr(PipelineLoop, "_catch_up", lambda _: 0)
    monkeypatch.setattr(PipelineLoop, "_newest", lambda _: next(newest))
    monkeypatch.setattr(PipelineLoop, "_maintain", lambda _: None)
    with pytest.raises(LakeBusy) if is_fenced else contextlib.nullcontext():
        moving.loop.run()
    assert moving.merges == merges


def test_full_snapshots_and_compaction_do_not_wait_for_a_batch_but_deletions_do(
    target: LakeWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: queue.SimpleQueue[str] = queue.SimpleQueue()
    monkeypatch.setattr(snapshots, "take_full_snapshot", lambda *_: done.put("full snapshot"))
    monkeypatch.setattr(snapshots, "take", lambda _: 0)
    monkeypatch.setattr(table_maintenance, "optimize", lambda _: done.put("optimize"))
    monkeypatch.setattr(table_maintenance, "vacuum", lambda _: done.put("vacuum"))
    monkeypatch.setattr(retention, "delete_expired", lambda *_: done.put("retention"))
    monkeypatch.setattr(reader, "size", lambda *_: TableSize(1, 1))
    monkeypatch.setattr(PipelineLoop, "_count", lambda _: None)
    running = loop_of(target)
    running._watermark = Watermark(300_000)
    with ThreadPoolExecutor(1) as threads:
        with running._appending:
            for kind in ("full_snapshot", "optimize", "vacuum"):
                threads.submit(running._maintenance[kind]).result(30)
            assert [done.get(timeout=30) for _ in range(3)] == ["full snapshot", "optimize", "vacuum"]
            waiting = threads.submit(running._maintenance["retention"])
            assert not waiting.done()
            assert done.empty()
        waiting.result(30)
    assert done.get(timeout=30) == "retention"


def test_a_moment_that_cannot_be_kept_keeps_no_event_out(target: LakeWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    def refuses(*_: Any) -> int:
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(snapshots, "take_full_snapshot", refuses)
    filling = PipelineLoop(target, lambda event, **_: events.append(event), PipelineSettings(), threading.Event())
    filling._watermark = Watermark(300_000)
    monkeypatch.setattr(PipelineLoop, "_count", lambda _: None)
    filling._maintain_tables()
    assert events == ["maintenance failed"]
    filling._maintain_tables()
    assert events == ["maintenance failed"], "not tried again at once"
    filling._retry_at["full_snapshot"] = 0.0
    filling._maintain_tables()
    assert events == ["maintenance failed"] * 2


def test_other_maintenance_does_not_wait_for_one_that_fails(
    target: LakeWriter, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any) -> int:
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(snapshots, "take_full_snapshot", refuses)
    monkeypatch.setattr(PipelineLoop, "_count", lambda _: None)
    filling = loop_of(target)
    filling._watermark = Watermark(300_000)
    filling._begun -= 3600
    filling._created = datetime(2000, 1, 1, tzinfo=UTC)
    filling._maintain_tables()
    assert done.count("VACUUM") == len(TABLES)
    assert list(read_watermark(target.lake.watermark).maintenance_failures) == ["full_snapshot"]


def test_many_erasures_are_noted_as_they_are_done(target: LakeWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ends need not complete all of them, and the next one continues."""
    DataFolder(target.lake.data_dir).write(1)
    asked = [Erasure(number, "thing", f"acme:lamp-{number}", 5, "t", "anna", "t", None) for number in range(1, 121)]
    erased: list[tuple[int, int]] = []
    stopping = threading.Event()
    running = PipelineLoop(target, lambda *_, **__: None, PipelineSettings(), stopping)

    def erase(_: LakeWriter, erasures: Sequence[Erasure]) -> None:
        erased.append((erasures[0].id, erasures[-1].id))
        if erased[-1][1] == 100:
            stopping.set()

    monkeypatch.setattr(JournalReader, "erasures", lambda _, after: asked[after:])
    monkeypatch.setattr(erasure, "erase", erase)
    monkeypatch.setattr(PipelineLoop, "_count", lambda _: None)
    running._erase()
    assert erased == [(1, 50), (51, 100)]
    assert read_watermark(target.lake.watermark).erased == 100


def test_an_erasure_is_done_although_the_tables_cannot_be_counted_afterwards(
    target: LakeWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any) -> None:
        raise StoreUnavailable("too many open files")

    DataFolder(target.lake.data_dir).write(1)
    asked = [Erasure(7, "thing", "acme:lamp", 5, "t", "anna", "t", None)]
    monkeypatch.setattr(JournalReader, "erasures", lambda _, after: [it for it in asked if it.id > after])
    monkeypatch.setattr(erasure, "erase", lambda *_: None)
    monkeypatch.setattr(reader, "created_at", refuses)
    loop_of(target)._erase()
    found = read_watermark(target.lake.watermark)
    assert (found.erased, found.maintenance_failures) == (7, {})


def test_retention_goes_by_the_time_that_is_trusted_also_after_a_restart(
    target: LakeWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    DataFolder(target.lake.data_dir)
    begun, wrong, forgotten = time.time(), 0.0, []
    events: list[tuple[str, dict[str, Any]]] = []

    def delete_expired(_: LakeWriter, __: RetentionRules, now: datetime) -> int:
        forgotten.append(now.timestamp())
        return 0

    def report(event: str, **fields: Any) -> None:
        events.append((event, fields))

    def started() -> PipelineLoop:
        found = PipelineLoop(target, report, PipelineSettings(), threading.Event(), lambda: begun + wrong)
        with pytest.raises(StoreUnavailable, match="as far as needed"):
            found._catch_up()
        return found

    def retain(running: PipelineLoop) -> None:
        assert running._attempt("retention", running._maintenance["retention"]) is None

    def no_further(*_: Any) -> int:
        raise StoreUnavailable("as far as needed")

    monkeypatch.setattr(retention, "delete_expired", delete_expired)
    monkeypatch.setattr(tables_module, "prepare", lambda _: {})
    monkeypatch.setattr(reader, "last_transaction", no_further)
    monkeypatch.setattr(PipelineLoop, "_count", lambda _: None)
    running = started()
    retain(running)
    assert [event for event, _ in events] == ["expired"]
    wrong = 400.0 * 86400
    retain(running)
    assert forgotten == pytest.approx([begun, begun], abs=600)
    event, fields = events[1]
    assert (event, fields["seconds"]) == ("clock went ahead", pytest.approx(wrong, abs=600))
    looked = read_watermark(target.lake.watermark).retention
    assert looked is not None
    assert utc_text(looked.reading.trusted) == fields["trusted"]
    # Retention by hand used the clock, which is wrong.
    at = utc_text(datetime.fromtimestamp(begun + wrong, UTC))
    by_hand = msgspec.structs.replace(looked, by_hand=at)
    kept = read_watermark(target.lake.watermark)
    publish_watermark(target.lake.watermark, msgspec.structs.replace(kept, retention=by_hand))
    # Another process measures from where this one was; for a machine that was off, as much as a day is trusted.
    retain(started())
    assert forgotten[2] == pytest.approx(begun, abs=600)
    for seconds in (20.0, 30.0):
        monkeypatch.setattr(loop, "uptime", lambda seconds=seconds: Uptime("another start", seconds))
        retain(started())
        assert forgotten[-1] == pytest.approx(begun + 86400, abs=600)
    # A clock that is behind expires nothing more, and the trusted time stays.
    wrong = -86400.0
    retain(started())
    assert forgotten[-1] == pytest.approx(begun - 86400, abs=600)
    wrong = 0.0
    retain(started())
    assert forgotten[-1] == pytest.approx(begun, abs=600)


def test_a_kind_of_maintenance_that_failed_is_reported_until_it_has_gone_well(
    target: LakeWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    is_damaged = True

    def optimize(_: LakeWriter) -> None:
        if is_damaged:
            raise StoreUnavailable("a damaged file")

    def failures() -> list[str]:
        events.clear()
        running._maintain_tables()
        return [f"{kind}: {why}" for kind, why in read_watermark(target.lake.watermark).maintenance_failures.items()]

    monkeypatch.setattr(loop, "due", lambda *_: ["optimize", "vacuum"])
    monkeypatch.setattr(snapshots, "take", lambda _: 0)
    monkeypatch.setattr(table_maintenance, "optimize", optimize)
    monkeypatch.setattr(reader, "size", lambda *_: TableSize(1, 1))
    monkeypatch.setattr(PipelineLoop, "_count", lambda _: None)
    running = PipelineLoop(target, lambda event, **_: events.append(event), PipelineSettings(), threading.Event())
    assert failures() == ["optimize: a damaged file"]
    assert events == ["snapshots", "maintenance failed", "maintenance"], (
        "old files were removed, and nothing was compacted"
    )
    is_damaged = False
    assert failures() == ["optimize: a damaged file"]
    assert events == ["maintenance"], "it is not retried at once"
    running._retry_at.clear()
    assert failures() == []

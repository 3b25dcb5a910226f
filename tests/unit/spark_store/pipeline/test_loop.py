"""The order in which the loop stores, publishes and removes, and how a batch starts. Spark is a fake."""

from __future__ import annotations

import contextlib
import errno
import threading
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from mappings.timestamps import utc_text
from spark_store.errors import FULL, LakeBusy, StoreUnavailable
from spark_store.journal.erasure import Erasure
from spark_store.lake import durability, reader
from spark_store.lake.tables import APP, ERASURES, EVENTS, LATEST, TABLES, Lake, Table
from spark_store.lake.watermark import TableSize, Watermark, publish_watermark, read_watermark
from spark_store.pipeline import erasure, loop, snapshots, table_maintenance
from spark_store.pipeline import tables as tables_module
from spark_store.pipeline.loop import PipelineLoop
from spark_store.pipeline.settings import PipelineSettings
from spark_store.pipeline.tables import LakeWriter
from tests.support.lake.fake_pipeline import CountingLoop, loop_of
from tests.support.lake.pipeline_process import DataFolder
from tests.support.lake.twin_changes import trim
from tests.support.wait import wait_until_sync


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


def test_states_are_merged_while_events_are_compacted_but_not_while_states_are(
    target: LakeWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving = CountingLoop(target, monkeypatch, merge_every=timedelta(0))
    moving.loop._append(3)

    def optimize(_: LakeWriter, tables: list[Table], *__: int) -> None:
        if EVENTS in tables:
            wait_until_sync(lambda: moving.merges)
        assert bool(moving.merges) is (LATEST not in tables)

    monkeypatch.setattr(loop, "_CHECK_SECONDS", 0.001)
    monkeypatch.setattr(snapshots, "take", lambda _: 0)
    monkeypatch.setattr(table_maintenance, "optimize", optimize)
    monkeypatch.setattr(reader, "size", lambda *_: TableSize(1, 1))
    moving.loop._optimize()
    assert moving.merges == [(1, 3)]

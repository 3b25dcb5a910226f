"""Maintenance beside batches: what waits for what, and what a failure changes. Spark is a fake."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from mappings.timestamps import utc_text
from spark_store.errors import StoreUnavailable
from spark_store.journal.erasure import Erasure
from spark_store.journal.reader import JournalReader
from spark_store.lake import reader
from spark_store.lake.clock import Uptime
from spark_store.lake.tables import TABLES
from spark_store.lake.watermark import TableSize, Watermark, publish_watermark, read_watermark
from spark_store.pipeline import erasure, loop, retention, snapshots, table_maintenance
from spark_store.pipeline import tables as tables_module
from spark_store.pipeline.loop import PipelineLoop
from spark_store.pipeline.retention_rules import RetentionRules
from spark_store.pipeline.settings import PipelineSettings
from spark_store.pipeline.table_maintenance import LARGE, SMALL
from spark_store.pipeline.tables import LakeWriter
from tests.support.lake.fake_pipeline import loop_of
from tests.support.lake.pipeline_process import DataFolder


def test_full_snapshots_and_compaction_do_not_wait_for_a_batch_but_deletions_do(
    target: LakeWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: queue.SimpleQueue[str] = queue.SimpleQueue()
    monkeypatch.setattr(snapshots, "take_full_snapshot", lambda *_: done.put("full snapshot"))
    monkeypatch.setattr(snapshots, "take", lambda _: 0)
    monkeypatch.setattr(table_maintenance, "optimize", lambda *_: done.put("optimize"))
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
            assert [done.get(timeout=30) for _ in range(4)] == ["full snapshot", "optimize", "optimize", "vacuum"]
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
        found = PipelineLoop(
            target, report, PipelineSettings(), threading.Event(), lambda: datetime.fromtimestamp(begun + wrong, UTC)
        )
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


def test_one_of_sixteen_compactions_joins_what_the_others_have_made(
    target: LakeWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches wait for the tasks of a compaction, and one of 256 MiB takes minutes."""
    found: list[int] = []
    monkeypatch.setattr(snapshots, "take", lambda _: 0)
    monkeypatch.setattr(table_maintenance, "optimize", lambda _, __, *stable_from: found.extend(stable_from))
    monkeypatch.setattr(reader, "size", lambda *_: TableSize(1, 1))
    running = loop_of(target)
    for _ in range(18):
        running._optimize()
    assert found == [LARGE, *[SMALL] * 15, LARGE, SMALL]


def test_a_kind_of_maintenance_that_failed_is_reported_until_it_has_gone_well(
    target: LakeWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    is_damaged = True

    def optimize(*_: Any) -> None:
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

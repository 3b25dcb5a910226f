"""The pipeline as a process: stopped, left by its parent, refused."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from pyspark.sql import SparkSession

from spark_store.errors import LakeBusy, LakeUnfit, SchemaTooNew, StoreError, StoreUnavailable
from spark_store.journal.schema import STEPS
from spark_store.lake import reader
from spark_store.lake.clock import next_reading, uptime
from spark_store.lake.status import read_status
from spark_store.lake.tables import EVENTS, Lake
from spark_store.lake.watermark import (
    RetentionRun,
    TableSize,
    Watermark,
    publish_watermark,
    read_failure,
    read_watermark,
)
from spark_store.pipeline import __main__ as module
from spark_store.pipeline import retention, session, snapshots, table_maintenance, tables
from spark_store.pipeline.__main__ import (
    EXIT_BUSY,
    EXIT_FAILED,
    EXIT_MISSING,
    EXIT_UNFIT,
    EXIT_UNUSABLE,
    main,
)
from spark_store.pipeline.session import lake_lock
from spark_store.pipeline.tables import LakeWriter
from tests.support.lake.pipeline_process import WITHIN, DataFolder, PipelineProcess, given
from tests.support.lake.pipeline_tables import write_events, write_lake
from tests.support.lake.twin_changes import tamper
from tests.support.wait import wait_until_sync


@pytest.fixture
def data_folder(tmp_path: Path) -> DataFolder:
    return DataFolder(tmp_path / "data")


@pytest.mark.spark
@pytest.mark.soak(shard="lake-processes")
def test_a_pipeline_follows_is_alone_and_ends_with_its_parent(spark: SparkSession, data_folder: DataFolder) -> None:
    data_folder.write(10)
    with PipelineProcess(data_folder, "run", "--with-parent") as process:
        process.wait_for("batch", seq=10)
        data_folder.write(5)
        process.wait_for("batch", seq=15)
        with pytest.raises(LakeBusy, match="held by another pipeline"), lake_lock(spark, data_folder.lake, 0):
            raise AssertionError("two at once")
        (java,) = process.java()
        assert process.process.stdin is not None
        process.process.stdin.close()
        assert process.wait() == 0, process.output()
        assert [it["event"] for it in process.messages()][-1] == "stopped"
        assert "log level" not in process.output(), "Spark has its level from the file"
        wait_until_sync(lambda: not java.is_running() or java.status() == psutil.STATUS_ZOMBIE, WITHIN)
    with lake_lock(spark, data_folder.lake, 0):
        data_folder.assert_equal()


@pytest.mark.soak(shard="lake-processes")
@pytest.mark.spark
def test_the_next_start_removes_scratch_files_of_a_killed_java(tmp_path: Path) -> None:
    data_folder = DataFolder(tmp_path / "Daten für später")
    data_folder.write(10)
    with PipelineProcess(data_folder, "run") as process:
        process.wait_for("batch", seq=10)
        (java,) = process.java()
        (folder,) = [it for it in data_folder.lake.scratch.iterdir() if it.is_dir()]
        assert f"-Djava.io.tmpdir={folder}" in java.cmdline()
        assert any(folder.glob("blockmgr-*"))
        # One at a time: each would delete files that the other has just written.
        process.process.send_signal(signal.SIGSTOP)
        java.kill()
        process.process.kill()
        process.wait()
    assert any(folder.glob("blockmgr-*"))
    with PipelineProcess(data_folder, "run", *given(once=True)) as process:
        assert process.wait() == 0, process.output()
    wait_until_sync(lambda: [it.name for it in data_folder.lake.scratch.iterdir()] == ["lock"], WITHIN)


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_a_machine_without_java_gets_an_error_with_the_missing_part(
    data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(data_folder.folder / "nowhere"))
    assert main(["optimize", "--data-dir", str(data_folder.folder)]) == EXIT_MISSING
    assert "expected Java 17 or later" in printed(capsys)
    assert (
        main(["optimize", "--data-dir", str(data_folder.folder), *given(jars=str(data_folder.folder))]) == EXIT_MISSING
    )
    assert "`connectivity pipeline install`" in printed(capsys)


def test_a_busy_lake_lock_is_not_recorded_as_a_pipeline_failure(
    data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(error: StoreError) -> int:
        def run(_given: object) -> int:
            raise error

        monkeypatch.setitem(module._ACTIONS, "run", run)
        return main(["run", "--data-dir", str(data_folder.folder)])

    data_folder.lake.pipeline.mkdir(parents=True)
    assert fails(LakeBusy("another one")) == EXIT_BUSY
    assert read_failure(data_folder.lake.failure) is None
    assert fails(LakeUnfit("look at it")) == EXIT_UNFIT
    assert fails(LakeBusy("another one")) == EXIT_BUSY
    failure = read_failure(data_folder.lake.failure)
    assert failure is not None
    assert failure.reason == "look at it"


@pytest.mark.parametrize(
    "master",
    ["foo", "local[", "local[x]", "", "spark://head:7077", "k8s://https://head:6443", "yarn", "local-cluster[2,1,1]"],
)
def test_design_8_26_a_spark_master_whose_workers_may_be_elsewhere_is_refused(
    master: str, data_folder: DataFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.dumps({"master": master})
    assert main(["run", "--data-dir", str(data_folder.folder), "--settings", document]) == EXIT_UNUSABLE
    assert f"spark.master: found {master}, expected local, local[N] or local[*]: the journal is an SQLite" in printed(
        capsys
    )


@pytest.mark.parametrize("document", ["{", "[]", '{"interval": "soon"}', '{"pause": 1}'])
def test_invalid_settings_end_with_2(
    document: str, data_folder: DataFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--data-dir", str(data_folder.folder), "--settings", document]) == EXIT_UNUSABLE
    assert '"event": "failed", "reason": "--settings: ' in printed(capsys)


@pytest.mark.parametrize("action", ["optimize", "retention", "rebuild"])
def test_a_manual_action_checks_the_lock_before_it_starts_spark(
    action: str, data_folder: DataFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(session, "start_session", started)
    monkeypatch.setattr(module, "_MANUAL_LOCK_SECONDS", 0.01)
    data_folder.lake.pipeline.mkdir(parents=True)
    holder = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(data_folder.lake.lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert main([action, "--data-dir", str(data_folder.folder)]) == EXIT_BUSY
        assert "found a lock held by another pipeline" in printed(capsys)
        process.communicate(b"\n")
    with pytest.raises(AssertionError, match="Spark was started"):
        main([action, "--data-dir", str(data_folder.folder)])


@pytest.mark.parametrize("options", [["optimize"], ["retention"], ["retention", "--preview"], ["rebuild"]])
def test_a_manual_action_without_a_journal_fails_and_creates_no_folder(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "start_session", lambda *_: pytest.fail("Spark was started"))
    folder = tmp_path / "fresh"
    assert main([*options, "--data-dir", str(folder)]) == EXIT_FAILED
    assert "found no journal; start the service once, or name the settings file with --settings" in printed(capsys)
    assert not folder.exists()


def test_a_lake_that_lost_its_journal_can_still_be_compacted(
    data_folder: DataFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_: object) -> None:
        raise StoreUnavailable("Spark was started")

    monkeypatch.setattr(session, "start_session", started)
    data_folder.write(3)
    write_lake(data_folder.folder)
    data_folder.lake.journal.unlink()
    assert main(["optimize", "--data-dir", str(data_folder.folder)]) == EXIT_FAILED
    assert "Spark was started" in printed(capsys)


def test_of_a_journal_without_a_lake_nothing_would_go(
    data_folder: DataFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "start_session", lambda *_: pytest.fail("Spark was started"))
    data_folder.write(3)
    rules = given(retention={"default": {"age": "PT1S"}})
    assert main(["retention", "--preview", "--data-dir", str(data_folder.folder), *rules]) == 0
    assert printed(capsys) == '{"event": "preview", "namespaces": []}\n'
    assert not data_folder.lake.folder.exists()


@pytest.fixture
def by_hand(data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch) -> DataFolder:
    """Everything that is done by hand takes no time and changes nothing."""
    data_folder.lake.pipeline.mkdir(parents=True)
    monkeypatch.setattr(reader, "size", lambda *_: TableSize(4, 700))
    monkeypatch.setattr(
        module, "_target", lambda *_, **__: contextlib.nullcontext(SimpleNamespace(lake=data_folder.lake))
    )
    monkeypatch.setattr(tables, "prepare", lambda _: None)
    monkeypatch.setattr(table_maintenance, "optimize", lambda *_: None)
    monkeypatch.setattr(table_maintenance, "vacuum", lambda _: None)
    monkeypatch.setattr(retention, "delete_expired", lambda *_: 17)
    monkeypatch.setattr(snapshots, "take", lambda _: 0)
    monkeypatch.setattr(reader, "rows", lambda *_: 3)
    monkeypatch.setattr(reader, "created_at", lambda *_: None)
    monkeypatch.setattr(reader, "last_transaction", lambda *_: 0)
    return data_folder


def test_maintenance_by_hand_is_shown_in_the_status(by_hand: DataFolder) -> None:
    failures = {"optimize": "a damaged file", "full_snapshot": "another one"}
    publish_watermark(by_hand.lake.watermark, Watermark(3, erased=2, maintenance_failures=failures))
    assert main(["optimize", "--data-dir", str(by_hand.folder)]) == 0
    found = read_watermark(by_hand.lake.watermark)
    assert found.optimized is not None
    assert found.vacuumed is not None
    assert (found.seq, found.erased, found.maintenance_failures) == (3, 2, {"full_snapshot": "another one"})
    assert (found.tables["events"], found.compacted["events"]) == (TableSize(4, 700), 4)


@pytest.mark.parametrize(
    "before", [RetentionRun(next_reading(None, datetime(2030, 1, 15, tzinfo=UTC), uptime()), 3), None]
)
def test_a_manual_retention_run_is_recorded_in_the_watermark(before: RetentionRun | None, by_hand: DataFolder) -> None:
    publish_watermark(by_hand.lake.watermark, Watermark(3, retention=before))
    rules = given(retention={"default": {"age": "PT1S"}})
    for _ in range(2):
        assert main(["retention", "--data-dir", str(by_hand.folder), *rules]) == 0
    found = read_watermark(by_hand.lake.watermark).retention
    assert found is not None
    assert found.by_hand is not None
    assert datetime.now(UTC) - datetime.fromisoformat(found.by_hand) < timedelta(hours=1)
    assert found.events == 17
    assert before is None or found.reading == before.reading


def test_a_manual_action_leaves_an_unreadable_watermark_unchanged(by_hand: DataFolder) -> None:
    by_hand.lake.watermark.write_text("half of")
    assert main(["optimize", "--data-dir", str(by_hand.folder)]) == 0
    assert by_hand.lake.watermark.read_text() == "half of"


@pytest.mark.parametrize("options", [["optimize"], ["retention"], ["rebuild"], ["run"], ["retention", "--preview"]])
def test_every_writing_action_repairs_the_lake_log_first(
    options: list[str], data_folder: DataFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reading action does not change it."""
    data_folder.write(3)
    write_lake(data_folder.folder)
    os.utime(data_folder.lake.watermark, ns=(1, 1))
    write_events(data_folder.folder, [])
    newest = Path(data_folder.lake.path(EVENTS)) / "_delta_log" / f"{1:020}.json"
    os.truncate(newest, 0)

    def ready(*_: object) -> None:
        assert newest.exists() is ("--preview" in options)
        raise StoreUnavailable("as far as needed")

    spark = SimpleNamespace(version="4", stop=lambda: None)
    monkeypatch.setattr(session, "start_session", lambda *_: spark)
    monkeypatch.setattr(session, "lake_lock", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(LakeWriter, "of", ready)
    assert main([*options, "--data-dir", str(data_folder.folder)]) == EXIT_FAILED
    output = printed(capsys)
    assert "as far as needed" in output
    assert ('"event": "log repaired"' in output) is ("--preview" not in options)


def test_the_status_is_known_without_spark(data_folder: DataFolder) -> None:
    data_folder.write(3)
    assert read_status(data_folder.lake, datetime.now(UTC))["lag_events"] == 3
    with pytest.raises(StoreUnavailable, match="found no journal"):
        read_status(Lake(data_folder.folder / "nowhere"), datetime.now(UTC))


def test_a_comparison_prints_each_difference_and_ends_with_1(
    data_folder: DataFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    data_folder.write(5)
    write_lake(data_folder.folder)
    arguments = ["verify", "--data-dir", str(data_folder.folder)]
    assert main(arguments) == 0
    assert '"event": "verified", "first": 1, "last": 5, "entities": 5, "differences": 0' in printed(capsys)
    write_events(data_folder.folder, [row for row in data_folder.table(EVENTS) if row["seq"] != 4])
    assert main(arguments) == EXIT_FAILED
    assert printed(capsys).splitlines()[-2:] == [
        '{"event": "difference", "table": "events", "what": "missing in the lake", "entity": "acme.site:lamp-3", '
        '"revision": 1, "seq": 4}',
        '{"event": "verified", "first": 1, "last": 5, "entities": 4, "differences": 1, "shown": 1, "waiting": 0, '
        '"erasures_pending": 0, "indexed": 5, "unindexed": 0}',
    ]


def test_the_pipeline_status_shows_the_last_failure(data_folder: DataFolder) -> None:
    data_folder.lake.pipeline.mkdir(parents=True)
    tamper(data_folder, "PRAGMA user_version = 99")
    with pytest.raises(SchemaTooNew):
        read_status(data_folder.lake, datetime.now(UTC))
    tamper(data_folder, f"PRAGMA user_version = {len(STEPS)}")
    with PipelineProcess(data_folder, "run", *given(jars=str(data_folder.folder))) as process:
        assert process.wait() == EXIT_MISSING, process.output()
    assert read_status(data_folder.lake, datetime.now(UTC))["failure"]["exit_code"] == EXIT_MISSING

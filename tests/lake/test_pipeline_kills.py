"""Exactly once: driver, Java process and service are killed at every point of a batch.

The points are in `tests.support.lake.fault_injection`. After each kill a checker process reads the lake as it is: it has the
beginning of the journal, without gap or repeat. At the end all events are moved, and both are compared in full.
"""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from tests.support.lake.checker import assert_whole
from tests.support.lake.fault_injection import VARIABLE, FaultPoint
from tests.support.lake.pipeline_process import QUICK_JAVA, TRIES, WITHIN, DataFolder, PipelineProcess, given, take_all
from tests.support.lake.pipeline_service import PipelineService
from tests.support.wait import wait_until_sync

pytestmark = pytest.mark.spark

VICTIMS = ("driver", "java", "service")
SHORT = [(point, VICTIMS[number % 3]) for number, point in enumerate(FaultPoint)]
"""Every point once, with the victims in turn."""


def options(point: FaultPoint) -> tuple[str, str]:
    """Return options for small batches, and for a compaction or snapshots where these are the fault point."""
    compacting, keeping = point is FaultPoint.DURING_COMPACTION, point is FaultPoint.DURING_FULL_SNAPSHOT
    batches, events = 2 if compacting else 1000, 1 if keeping else 1_000_000
    return given(max_batch_rows=20, optimize_batches=batches, full_snapshot_events=events, answers_queries=False)


def die(
    data_folder: DataFolder, point: FaultPoint, victim: str, monkeypatch: pytest.MonkeyPatch, *, at_start: bool = False
) -> None:
    """Write new events, and run until the kill.

    It comes within their batch, or, `at_start`, before the first batch.
    """
    trigger = data_folder.folder / "kill"
    monkeypatch.setenv(VARIABLE, f"{point.value}:{victim}:{trigger}")
    if victim == "service":
        die_with_service(data_folder, point, trigger)
    else:
        for _ in range(TRIES):
            if has_died(data_folder, point, victim, trigger, at_start=at_start):
                break
            assert trigger.exists()
    assert not trigger.exists(), f"{point} was not reached"
    monkeypatch.delenv(VARIABLE)


def begin_batch(data_folder: DataFolder, trigger: Path) -> None:
    trigger.touch()
    data_folder.write(50)


def has_died(data_folder: DataFolder, point: FaultPoint, victim: str, trigger: Path, *, at_start: bool) -> bool:
    """Run a pipeline until the kill. Returns False if the machine was too busy, so try again."""
    if at_start:
        begin_batch(data_folder, trigger)
    with PipelineProcess(data_folder, "run", *options(point)) as process:
        if not at_start:
            process.wait_for("following")
            begin_batch(data_folder, trigger)
        code = process.wait()
        if process.is_starved:
            return False
        assert code == (-signal.SIGKILL if victim == "driver" else 1), process.output()
        return True


def die_with_service(data_folder: DataFolder, point: FaultPoint, trigger: Path) -> None:
    """The pipeline kills the service that started it, and ends after its current batch."""
    with PipelineService.begin(data_folder.folder.parent, *options(point)) as service:
        service.wait_for_pipeline()
        begin_batch(data_folder, trigger)
        process = service.process
        assert process is not None
        wait_until_sync(lambda: process.poll() is not None, WITHIN)
        assert process.returncode == -signal.SIGKILL, service.log()
        wait_until_sync(lambda: not pipelines_of(data_folder), WITHIN)


def pipelines_of(data_folder: DataFolder) -> list[psutil.Process]:
    """The pipelines that work on the data folder."""
    return [process for process in psutil.process_iter(["cmdline", "status"]) if is_pipeline_of(data_folder, process)]


def is_pipeline_of(data_folder: DataFolder, process: psutil.Process) -> bool:
    words = process.info["cmdline"] or ()
    is_pipeline = any("spark_store.pipeline" in word for word in words)
    return is_pipeline and str(data_folder.folder) in words and process.info["status"] != psutil.STATUS_ZOMBIE


def series(
    spark: SparkSession, data_folder: DataFolder, kills: list[tuple[FaultPoint, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill after kill on one lake, with new events before each."""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", QUICK_JAVA)
    for point, victim in kills:
        die(data_folder, point, victim, monkeypatch)
        assert_whole(data_folder.folder, after_kill=True)
    take_all(spark, data_folder, full_snapshot_events=1)
    assert_whole(data_folder.folder)


@pytest.fixture
def data_folder(tmp_path: Path) -> DataFolder:
    return DataFolder(tmp_path / "data")


@pytest.mark.soak(shard="lake-kills")
def test_a_kill_at_any_point_loses_nothing_and_repeats_nothing(
    spark: SparkSession, data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    series(spark, data_folder, SHORT, monkeypatch)


@pytest.mark.soak(shard="lake-kills")
def test_a_kill_while_a_pipeline_catches_up_loses_nothing_and_repeats_nothing(
    spark: SparkSession, data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill that left a batch in the tables and not in the watermark."""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", QUICK_JAVA)
    die(data_folder, FaultPoint.BEFORE_WATERMARK, "driver", monkeypatch)
    for point, victim in ((FaultPoint.AFTER_MERGE, "java"), (FaultPoint.BEFORE_WATERMARK, "driver")):
        die(data_folder, point, victim, monkeypatch, at_start=True)
        assert_whole(data_folder.folder, after_kill=True)
    take_all(spark, data_folder)
    assert_whole(data_folder.folder)


@pytest.mark.soak(shard="lake-kills")
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("point", list(FaultPoint))
def test_ten_kills_at_each_point(
    point: FaultPoint, victim: str, spark: SparkSession, data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    series(spark, data_folder, [(point, victim)] * 10, monkeypatch)

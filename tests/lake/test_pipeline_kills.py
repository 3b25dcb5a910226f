"""Exactly once, shown: driver, Java process and service are killed at every point of a batch, and the lake is the journal.

The points are in `spark_store.pipeline.crashes`. After each kill the checker, a process of its own, looks at the lake as it
was left: the journal's beginning, without hole or repeat. At the end everything is moved, and both are compared in full.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from spark_store.pipeline.crashes import VARIABLE, Point
from spark_store.pipeline.maintenance import Upkeep
from tests.support.lake.checker import assert_whole
from tests.support.lake.pipeline_process import QUICK_JAVA, TRIES, WITHIN, DataFolder, PipelineProcess, take_all
from tests.support.service_process import ServiceProcess
from tests.support.wait import wait_until_sync

pytestmark = pytest.mark.spark

VICTIMS = ("driver", "java", "service")
SHORT = [(point, VICTIMS[number % 3]) for number, point in enumerate(Point)]
"""Every point once, the victims by turns."""


def options(point: Point) -> list[str]:
    """Small batches, so that a crash is amid others; a compaction or a moment where that is the point."""
    compacting, keeping = point is Point.DURING_COMPACTION, point is Point.DURING_MOMENT
    batches, events = "2" if compacting else "1000", "1" if keeping else "1000000"
    return ["--batch-rows", "20", "--optimize-batches", batches, "--moment-events", events]


class SmallBatches(ServiceProcess):
    """A service whose pipeline gets some options more."""

    def meant(self, point: Point) -> None:
        self.program = (
            sys.executable,
            "-c",
            "from connectivity import pipeline\n"
            "plain = pipeline.command\n"
            f"pipeline.command = lambda *given: plain(*given) + {options(point)!r}\n"
            "from connectivity.cli.console import main\n"
            "main()",
        )


def die(site: DataFolder, point: Point, victim: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run until the kill, and see that it was one."""
    trigger = site.folder / "kill"
    trigger.touch()
    monkeypatch.setenv(VARIABLE, f"{point.value}:{victim}:{trigger}")
    if victim == "service":
        die_with_service(site, point)
    else:
        for _ in range(TRIES):
            if has_died(site, point, victim):
                break
            assert trigger.exists()
    assert not trigger.exists(), f"{point} was not reached"
    monkeypatch.delenv(VARIABLE)


def has_died(site: DataFolder, point: Point, victim: str) -> bool:
    """Of the kill; False where the machine was too busy for that, and it is to be tried again."""
    with PipelineProcess(site, "run", "--once", *options(point)) as process:
        code = process.wait()
        if process.is_starved:
            return False
        assert code == (-signal.SIGKILL if victim == "driver" else 1), process.output()
        return True


def die_with_service(site: DataFolder, point: Point) -> None:
    """The pipeline kills the service that started it, and ends by itself after the batch that it is at."""
    service = SmallBatches(site.folder.parent, {"spark": {"mode": "embedded", "master": "local[2]"}})
    service.meant(point)
    (site.folder.parent / "connections").mkdir(exist_ok=True)
    with service:
        service.start_again()
        process = service.process
        assert process is not None
        wait_until_sync(lambda: process.poll() is not None, WITHIN)
        assert process.returncode == -signal.SIGKILL, service.log()
        wait_until_sync(lambda: not pipelines_of(site), WITHIN)


def pipelines_of(site: DataFolder) -> list[psutil.Process]:
    """The pipelines that work on the data folder, whoever started them."""
    found = psutil.process_iter(["cmdline", "status"])
    return [
        process
        for process in found
        if "spark_store.pipeline" in (words := process.info["cmdline"] or ())
        and str(site.folder) in words
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def series(
    spark: SparkSession, site: DataFolder, kills: list[tuple[Point, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill after kill on one lake, with new events before each."""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", QUICK_JAVA)
    for point, victim in kills:
        site.write(50)
        die(site, point, victim, monkeypatch)
        assert_whole(site.folder, amid=True)
    take_all(spark, site, upkeep=Upkeep(moment_events=1))
    assert_whole(site.folder)


@pytest.fixture
def site(tmp_path: Path) -> DataFolder:
    return DataFolder(tmp_path / "data")


@pytest.mark.slow(reason="a pipeline process with a Java of its own is started")
def test_a_driver_that_is_killed_between_append_and_watermark_loses_nothing_and_repeats_nothing(
    spark: SparkSession, site: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    series(spark, site, [(Point.BEFORE_WATERMARK, "driver")], monkeypatch)


@pytest.mark.soak(shard="lake-kills")
def test_a_kill_at_any_point_loses_nothing_and_repeats_nothing(
    spark: SparkSession, site: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    series(spark, site, SHORT, monkeypatch)


@pytest.mark.soak(shard="lake-kills")
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("point", list(Point))
def test_ten_kills_at_each_point(
    point: Point, victim: str, spark: SparkSession, site: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    series(spark, site, [(point, victim)] * 10, monkeypatch)

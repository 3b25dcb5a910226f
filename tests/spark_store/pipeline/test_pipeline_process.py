"""The pipeline as a process: killed at every point of a batch, told to stop, left by its parent, refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from spark_store.errors import LakeBusy
from spark_store.pipeline.__main__ import EXIT_MISSING, EXIT_UNUSABLE, main
from spark_store.pipeline.crashes import VARIABLE, Point
from spark_store.session import lake_lock
from spark_store.watermark import read_watermark
from tests.helpers import wait_until_sync
from tests.spark_store.pipeline.site import WITHIN, PipelineProcess, Site, take_all

KILLS = [(point, ("driver", "java")[number % 2]) for number, point in enumerate(Point)]
"""Every point once, the victims by turns."""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "data")


def die(site: Site, point: Point, victim: str) -> None:
    """Run until the kill, and see that it was one."""
    trigger = site.folder / "kill"
    trigger.touch()
    # Small batches and a compaction after two of them, so that a crash is amid others.
    options = ["--batch-rows", "20", "--optimize-batches", "2", "--once"]
    with PipelineProcess(site, "run", *options, **{VARIABLE: f"{point.value}:{victim}:{trigger}"}) as process:
        code = process.wait()
        assert not trigger.exists(), f"{point} was not reached:\n{process.output()}"
        assert code == (-signal.SIGKILL if victim == "driver" else 1), process.output()


def series(spark: SparkSession, site: Site, kills: list[tuple[Point, str]]) -> None:
    """Kill after kill on one lake, with new events before each; then whatever is left is moved, and all is compared."""
    for point, victim in kills:
        site.write(50)
        die(site, point, victim)
    take_all(spark, site)
    site.assert_equal()


@pytest.mark.spark
def test_a_kill_at_any_point_loses_nothing_and_repeats_nothing(spark: SparkSession, site: Site) -> None:
    series(spark, site, KILLS)


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.parametrize("victim", ["driver", "java"])
@pytest.mark.parametrize("point", list(Point))
def test_ten_kills_at_each_point(point: Point, victim: str, spark: SparkSession, site: Site) -> None:
    series(spark, site, [(point, victim)] * 10)


@pytest.mark.spark
def test_a_pipeline_follows_is_alone_and_ends_with_its_parent(spark: SparkSession, site: Site) -> None:
    site.write(10)
    with PipelineProcess(site, "run", "--with-parent") as process:
        process.wait_for("batch", seq=10)
        site.write(5)
        process.wait_for("batch", seq=15)
        with pytest.raises(LakeBusy, match="held by another pipeline"), lake_lock(spark, site.lake, 0):
            raise AssertionError("two at once")
        (java,) = process.java()
        assert process.process.stdin is not None
        process.process.stdin.close()
        assert process.wait() == 0, process.output()
        assert [it["event"] for it in process.said()][-1] == "stopped"
        wait_until_sync(lambda: not java.is_running() or java.status() == psutil.STATUS_ZOMBIE, WITHIN)
    with lake_lock(spark, site.lake, 0):
        site.assert_equal()


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_design_8_26_a_cluster_that_may_not_see_the_journal_is_refused(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--data-dir", str(site.folder), "--master", "spark://head:7077"]) == EXIT_UNUSABLE
    assert "expected a master local[…], found spark://head:7077" in said(capsys)


def test_a_machine_without_java_is_told_what_is_missing(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(site.folder / "nowhere"))
    assert main(["verify", "--data-dir", str(site.folder)]) == EXIT_MISSING
    assert "expected Java 17 or later" in said(capsys)
    assert main(["verify", "--data-dir", str(site.folder), "--jars", str(site.folder)]) == EXIT_MISSING
    assert "`make install`" in said(capsys)


def test_the_status_is_known_without_spark(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.write(3)
    assert main(["status", "--data-dir", str(site.folder)]) == 0
    assert '"lag_events": 3' in said(capsys)
    assert main(["status", "--data-dir", str(site.folder / "nowhere")]) == 1
    assert "unable to open" in said(capsys)


class Cluster:
    """A standalone master and two workers, from pyspark's own jars."""

    def __init__(self, folder: Path) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        self._command = ["java", "-Xmx256m", "-cp", str(home / "jars" / "*")]
        self._variables = {
            "SPARK_HOME": str(home),
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        }
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *arguments: str) -> str:
        """The address that a daemon says it listens at."""
        log = self._folder / f"{name}.log"
        with log.open("wb") as file:
            self._processes.append(
                subprocess.Popen(
                    [*self._command, *arguments],
                    stdout=file,
                    stderr=file,
                    env={**os.environ, **self._variables},
                )
            )
        wait_until_sync(lambda: "spark://" in log.read_text() or "registered with master" in log.read_text(), WITHIN)
        text = log.read_text()
        return text[text.index("spark://") :].split()[0].rstrip(",.")

    def close(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait(WITHIN)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Any]:
    made = Cluster(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.soak
@pytest.mark.spark
def test_a_cluster_whose_workers_see_the_folder_fills_the_lake(site: Site, cluster: Cluster) -> None:
    package = "org.apache.spark.deploy"
    master = cluster.start(
        "master", f"{package}.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"
    )
    for number in range(2):
        folder = ("--work-dir", str(site.folder / f"work-{number}"))
        worker = (
            *folder,
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--webui-port",
            "0",
            "--cores",
            "1",
            "--memory",
            "600m",
        )
        cluster.start(f"worker-{number}", f"{package}.worker.Worker", *worker, master)
    site.write(30_000)
    options = ["--master", master, "--shared-data-dir", "--once"]
    for key, value in (("spark.executor.memory", "512m"), ("spark.driver.host", "127.0.0.1")):
        options += ["--setting", f"{key}={value}"]
    with PipelineProcess(site, "run", *options, PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1") as process:
        assert process.wait() == 0, process.output()
    assert read_watermark(site.lake.watermark).seq == 30_000
    site.assert_equal()

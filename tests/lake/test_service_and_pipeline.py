"""The service and its pipeline: events reach the lake after a kill of either process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_store.lake.tables import EVENTS
from spark_store.lake.watermark import read_watermark
from tests.support.lake.checker import check
from tests.support.lake.fault_injection import VARIABLE, FaultPoint
from tests.support.lake.pipeline_process import QUICK_JAVA, WITHIN, DataFolder, given, take_all
from tests.support.lake.pipeline_service import PipelineService
from tests.support.lake.pipeline_tables import write_all_tables
from tests.support.service_process import ServiceProcess
from tests.support.wait import wait_until_sync

CHEAP = given(
    answers_queries=False,
    spark={
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.default.parallelism": "1",
    },
)
"""Options of a pipeline for `make test`: fewer tasks, and no Spark queries."""


@pytest.mark.slow(reason="a service with a pipeline process and its Java is started")
@pytest.mark.spark
def test_when_a_pipeline_of_the_service_is_killed_between_append_and_watermark_nothing_is_lost_or_repeated(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JDK_JAVA_OPTIONS", QUICK_JAVA)
    data_folder, trigger = DataFolder(tmp_path / "data"), tmp_path / "kill"
    monkeypatch.setenv(VARIABLE, f"{FaultPoint.BEFORE_WATERMARK.value}:driver:{trigger}")
    data_folder.write(20)
    write_all_tables(data_folder.folder)
    with PipelineService.begin(tmp_path, *CHEAP) as service:
        assert b'"lake":"starting"' in service.get("/health/ready")[1], "the service does not wait for its pipeline"
        service.wait_for_pipeline()
        (first,) = service.pipelines()
        trigger.touch()
        data_folder.write(20)
        wait_until_sync(lambda: not trigger.exists() and not first.is_running(), WITHIN)
        assert read_watermark(data_folder.lake.watermark).seq == 20
        assert len(data_folder.table(EVENTS)) == 40, "the batch is in the tables"
        assert check(data_folder.folder, after_kill=True) == []
        # The service starts another pipeline. A stream in this process replaces it, because that is cheaper.
        wait_until_sync(lambda: [it["event"] for it in service.records()].count("pipeline started") == 2, WITHIN)
        assert service.get("/health/ready")[0] == 200
        kill_with_pipelines(service)
    assert ("catching up", {"first": 21, "last": 40}) in take_all(spark, data_folder)
    data_folder.assert_equal()


def kill_with_pipelines(service: PipelineService) -> None:
    """Kill a service and its pipelines, so that it starts no other one."""
    os.kill(service.pid, signal.SIGSTOP)
    for pipeline in service.pipelines():
        pipeline.kill()
    service.kill()


def wait_for_states(data_folder: DataFolder, last: int) -> None:
    """Wait until the pipeline has merged the states up to this event, which follows after it was appended."""
    wait_until_sync(lambda: read_watermark(data_folder.lake.watermark).seq == last, WITHIN)


@pytest.mark.soak(shard="lake-processes")
@pytest.mark.spark
def test_the_service_fills_the_lake_after_a_kill_of_either_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JDK_JAVA_OPTIONS", QUICK_JAVA)
    data_folder = DataFolder(tmp_path / "data")
    data_folder.write(20)
    with PipelineService.begin(tmp_path) as service:
        assert service.metric("connectivity_lake_lag_events") == 20, "the service does not wait for its pipeline"
        wait_for_states(data_folder, 20)
        assert b'"lake":"following"' in service.get("/health/ready")[1]
        data_folder.assert_equal()
        export = [sys.executable, "-m", "connectivity", "history", "export", "--out", str(tmp_path / "all.parquet")]
        variables = {**os.environ, "CONNECTIVITY_DATA_DIR": str(data_folder.folder)}
        subprocess.run([*export, "acme.site:lamp-3"], env=variables, check=True, capture_output=True, timeout=WITHIN)
        assert pq.read_table(tmp_path / "all.parquet").column("revision").to_pylist() == [1, 2, 3]
        # The pipeline is killed: the service keeps running, and starts another one.
        (first,) = service.pipelines()
        first.kill()
        data_folder.write(20)
        wait_for_states(data_folder, 40)
        assert service.get("/health/ready")[0] == 200
        data_folder.assert_equal()
        events = {it["event"] for it in service.records()}
        assert events >= {"pipeline started", "pipeline following", "pipeline ended"}
        # The service is killed: its pipeline ends too.
        (second,) = service.pipelines()
        assert second.pid != first.pid
        service.kill()
        wait_until_sync(lambda: not second.is_running(), WITHIN)
    assert len(DeltaTable(data_folder.lake.path(EVENTS)).to_pyarrow_table()) == 40


@pytest.mark.slow(reason="the pipeline of a service has a low priority, and other tests run beside it")
def test_a_machine_without_java_keeps_everything_in_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with ServiceProcess.start(tmp_path, [], spark={"mode": "embedded"}) as service:
        wait_until_sync(lambda: b"stopped: expected Java 17 or later" in service.get("/health/ready")[1], WITHIN)
        assert service.get("/health/ready")[0] == 200
        os.kill(service.pid, signal.SIGTERM)
        assert service.process is not None
        assert service.process.wait(WITHIN) == 0
    records = [it for it in service.records() if it["event"] == "pipeline cannot run: the journal keeps everything"]
    assert [it["level"] for it in records] == ["error"]

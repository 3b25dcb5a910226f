"""The service and its pipeline: the journal flows into the lake, whoever of the two is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from spark_store.tables import EVENTS
from tests.support.lake.pipeline_process import QUICK_JAVA, WITHIN, DataFolder
from tests.support.service_process import ServiceProcess
from tests.support.wait import wait_until_sync

pytestmark = pytest.mark.spark


def pipelines(service: ServiceProcess) -> list[psutil.Process]:
    return [it for it in psutil.Process(service.pid).children() if "spark_store.pipeline" in " ".join(it.cmdline())]


@pytest.mark.slow(reason="two pipeline processes with a Java each are started")
def test_the_service_fills_the_lake_whoever_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JDK_JAVA_OPTIONS", QUICK_JAVA)
    site = DataFolder(tmp_path / "data")
    site.write(20)
    with ServiceProcess.start(tmp_path, [], spark={"mode": "embedded", "master": "local[2]"}) as service:
        assert service.metric("connectivity_lake_lag_events") == 20, "the service does not wait for its pipeline"
        wait_until_sync(lambda: service.metric("connectivity_lake_lag_events") == 0, WITHIN)
        assert b'"lake":"following"' in service.get("/health/ready")[1]
        site.assert_equal()
        export = [sys.executable, "-m", "connectivity", "history", "export", "--out", str(tmp_path / "all.parquet")]
        variables = {**os.environ, "CONNECTIVITY_DATA_DIR": str(site.folder)}
        subprocess.run([*export, "acme.site:lamp-3"], env=variables, check=True, capture_output=True, timeout=WITHIN)
        assert pq.read_table(tmp_path / "all.parquet").column("revision").to_pylist() == [1, 2, 3]
        # The pipeline is killed: the service goes on, and another one comes.
        (first,) = pipelines(service)
        first.kill()
        site.write(20)
        wait_until_sync(lambda: service.metric("connectivity_lake_lag_events") == 0, WITHIN)
        assert service.get("/health/ready")[0] == 200
        site.assert_equal()
        events = {it["event"] for it in service.records()}
        assert events >= {"pipeline started", "pipeline following", "pipeline ended"}
        # The service is killed: its pipeline ends by itself.
        (second,) = pipelines(service)
        assert second.pid != first.pid
        service.kill()
        wait_until_sync(lambda: not second.is_running(), WITHIN)
    assert len(DeltaTable(site.lake.path(EVENTS)).to_pyarrow_table()) == 40


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
    said = [it for it in service.records() if it["event"] == "pipeline cannot run: the journal keeps everything"]
    assert [it["level"] for it in said] == ["error"]

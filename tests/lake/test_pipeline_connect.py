"""A pipeline as a process that answers wide queries: where, beside its own work, and until it ends."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from spark_store.errors import NoPipeline, PipelineLost
from spark_store.queries.spark_query import QueryLimits, SparkQueries, Sql, finder
from tests.support.lake.pipeline_process import WITHIN, DataFolder, PipelineProcess
from tests.support.wait import wait_until_sync

pytestmark = pytest.mark.spark

ONE_THEN_NOTHING = Sql(
    "SELECT id FROM range(0, 1, 1, 1) UNION ALL SELECT id FROM range(0, 1000000000000000, 1, 2) WHERE xxhash64(id) = 1"
)
"""A row at once, and minutes until the next."""

EXPORT_WITH_SPARK = """
from connectivity.cli.main import main
from spark_store.queries import export

export.MOST_ROWS = 0
main()
"""


def exporting(data_folder: DataFolder, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", EXPORT_WITH_SPARK, "history", "export", *map(str, arguments), "--json"]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "CONNECTIVITY_DATA_DIR": str(data_folder.folder)},
    )


@pytest.mark.soak(shard="lake-processes")
def test_a_pipeline_answers_while_it_works_until_it_ends(data_folder: DataFolder, tmp_path: Path) -> None:
    data_folder.write(10)
    queries = SparkQueries(data_folder.lake, finder(data_folder.lake, None, is_off=False))
    # What a pipeline that was killed has left behind.
    data_folder.lake.pipeline.mkdir(parents=True)
    data_folder.lake.connect.write_text('{"url": "sc://localhost:1/;token=old", "pid": 1}')
    with (
        pytest.raises(NoPipeline, match="expected a pipeline with Spark queries"),
        queries.run(Sql("SELECT 1")) as answer,
    ):
        next(answer)
    with PipelineProcess(data_folder, "run", "--interval", "0.2", "--master", "local[2]") as process:
        process.wait_for("batch", seq=10)
        assert stat.S_IMODE(data_folder.lake.connect.stat().st_mode) == 0o600
        (java,) = process.java()
        token = queries.find().partition("token=")[2]
        assert token not in process.output() + " ".join(java.cmdline()) + " ".join(
            psutil.Process(process.process.pid).cmdline()
        )

        # From the command line; and stopped there.
        done = exporting(data_folder, "--out", tmp_path / "all.parquet")
        out, err = done.communicate(timeout=WITHIN)
        assert done.returncode == 0, err
        assert json.loads(out)["rows"] == pq.read_table(tmp_path / "all.parquet").num_rows == 10
        stopped = exporting(data_folder, "--out", tmp_path / "none.parquet")
        wait_until_sync(lambda: list(tmp_path.glob(".none.parquet.*")) or stopped.poll() is not None, WITHIN)
        stopped.send_signal(signal.SIGINT)
        out, err = stopped.communicate(timeout=WITHIN)
        assert (stopped.returncode, out) == (130, ""), err
        assert not list(tmp_path.glob("*none*"))

        # A query with as many long tasks as there are cores does not stop the pipeline's own work.
        with queries.run(ONE_THEN_NOTHING, QueryLimits(WITHIN)) as answer:
            assert next(answer).num_rows == 1
            data_folder.write(5)
            process.wait_for("batch", seq=15)
            java.kill()
            with pytest.raises(PipelineLost, match="ended during the query"):
                next(answer)
        assert process.wait() == 1, process.output()
    assert not data_folder.lake.connect.exists()
    with pytest.raises(NoPipeline, match="no such file"):
        queries.run(Sql("SELECT 1"))

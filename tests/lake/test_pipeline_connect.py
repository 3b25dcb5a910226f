"""A pipeline process that answers Spark queries: its address, its work meanwhile, and its end."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from spark_store.errors import StoreUnavailable
from spark_store.lake.connect_address import read_address
from spark_store.queries.spark_query import QueryLimits, SparkQueries
from tests.support.lake.pipeline_process import WITHIN, DataFolder, PipelineProcess, given
from tests.support.lake.sql_query import sql

pytestmark = pytest.mark.spark

MINUTES = sql("SELECT id FROM range(0, 1000000000000000, 1, 2) WHERE xxhash64(id) = 1")
"""Work for minutes."""


@pytest.mark.soak(shard="lake-processes")
def test_a_pipeline_answers_while_it_works_until_it_ends(data_folder: DataFolder) -> None:
    data_folder.write(10)
    queries = SparkQueries(data_folder.lake)
    # As left behind by a killed pipeline.
    data_folder.lake.pipeline.mkdir(parents=True)
    data_folder.lake.connect.write_text('"sc://localhost:1/;token=old"')
    with pytest.raises(StoreUnavailable, match="expected a pipeline that answers"):
        queries.run(sql("SELECT 1"), QueryLimits())
    with PipelineProcess(data_folder, "run", *given(master="local[2]")) as process:
        process.wait_for("batch", seq=10)
        assert stat.S_IMODE(data_folder.lake.connect.stat().st_mode) == 0o600
        (java,) = process.java()
        token = read_address(data_folder.lake.connect).partition("token=")[2]
        assert token not in process.output() + " ".join(java.cmdline()) + " ".join(
            psutil.Process(process.process.pid).cmdline()
        )

        # A query with as many long tasks as there are cores does not stop the pipeline's own work.
        with ThreadPoolExecutor() as threads:
            answer = threads.submit(queries.run, MINUTES, QueryLimits(WITHIN))
            data_folder.write(5)
            process.wait_for("batch", seq=15)
            assert not answer.done()
            java.kill()
            with pytest.raises(StoreUnavailable, match="expected a pipeline that answers"):
                answer.result(WITHIN)
        assert process.wait() == 1, process.output()
    assert not data_folder.lake.connect.exists()
    with pytest.raises(StoreUnavailable, match="no such file"):
        queries.run(sql("SELECT 1"), QueryLimits())

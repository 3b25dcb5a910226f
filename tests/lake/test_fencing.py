"""Two writers of one lake, as after a lock has failed: no event is doubled, and the later one ends."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_store.pipeline.loop import PipelineLoop
from spark_store.pipeline.settings import PipelineSettings
from spark_store.pipeline.tables import LakeWriter
from tests.support.dice import dice
from tests.support.lake.fault_injection import FaultPoint
from tests.support.lake.pipeline_process import DataFolder, take_all
from tests.support.lake.pipeline_tables import write_all_tables
from tests.support.lake.writer_process import LakeWriterProcess

pytestmark = pytest.mark.spark


def take_one_batch(spark: SparkSession, data_folder: DataFolder, rows: int) -> None:
    """Move so many events, and leave the others."""
    stopping = threading.Event()

    def say(event: str, **_: Any) -> None:
        if event == "batch":
            stopping.set()

    writer = LakeWriter.of(spark, data_folder.folder)
    PipelineLoop(writer, say, PipelineSettings(max_batch_rows=rows, once=True), stopping).run()


@pytest.mark.slow(reason="a second Spark")
def test_a_writer_that_was_stopped_over_a_batch_doubles_nothing(spark: SparkSession, data_folder: DataFolder) -> None:
    """The other one has moved a part of its events meanwhile, or more than those."""
    data_folder.write(10)
    write_all_tables(data_folder.folder)
    with LakeWriterProcess(data_folder) as late:
        for pause, rows in ((FaultPoint.BEFORE_READ, 20), (FaultPoint.BEFORE_COMMIT, 60)):
            data_folder.write(30)
            late.begin(pause)
            data_folder.write(20)
            take_one_batch(spark, data_folder, rows)
            assert late.resume().startswith("LakeBusy: ")
        data_folder.write(10)
        late.begin()
        assert late.resume() == "done", "alone again, it goes on"
    data_folder.assert_equal()


@pytest.mark.soak(shard="fencing")
def test_a_writer_that_was_stopped_anywhere_doubles_nothing(spark: SparkSession, data_folder: DataFolder) -> None:
    ends, random = [], dice("fencing")
    with LakeWriterProcess(data_folder) as late:
        for _ in range(3):
            data_folder.write(20)
            late.begin()
            begun = time.monotonic()
            assert late.resume() == "done"
            seconds = time.monotonic() - begun
        for _ in range(100):
            data_folder.write(random.randint(1, 40))
            late.begin()
            time.sleep(random.uniform(0, 1.5 * seconds))
            late.pause()
            data_folder.write(random.randint(1, 40))
            take_one_batch(spark, data_folder, random.randint(1, 60))
            ends.append(late.resume().partition(":")[0])
            take_all(spark, data_folder)
            data_folder.assert_equal()
    assert {"done", "LakeBusy"} == set(ends), "some were stopped within their batch, some after it"

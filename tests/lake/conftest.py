"""One real Spark for all tests of the pipeline, in this process. It answers Spark queries too."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from spark_store.lake.connect_address import local_address
from spark_store.pipeline.session import ConnectOptions, SessionOptions, connect_port, java_pid, start_session
from tests.support.dice import THOROUGH
from tests.support.lake.pipeline_process import QUICK_JAVA, DataFolder

_CONNECT = ConnectOptions()

_CHEAP = {
    # Expressions are interpreted. To write and compile code for each takes longer than a few rows do.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # One task where the product has two.
    "spark.default.parallelism": "1",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",
    # A result that is too large is found out sooner.
    "spark.driver.maxResultSize": str(32 << 20),
}
"""Settings of the session in `make test`: they save a third of its CPU time. The product does not have them, nor does
`make soak`; nor do the pipeline processes of tests."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Use a data folder of your own."""
    before = os.environ.get("JDK_JAVA_OPTIONS")
    os.environ["JDK_JAVA_OPTIONS"] = QUICK_JAVA
    try:
        with warnings.catch_warnings():
            # What its own files do as they are imported is none of ours.
            warnings.simplefilter("ignore")
            session = start_session(
                SessionOptions(master="local[2]", connect=_CONNECT, settings={} if THOROUGH else _CHEAP)
            )
    finally:
        if before is None:
            del os.environ["JDK_JAVA_OPTIONS"]
        else:
            os.environ["JDK_JAVA_OPTIONS"] = before
    yield session
    session.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(60)
    SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(scope="session")
def address(spark: SparkSession) -> str:
    """Where it answers wide queries."""
    return local_address(connect_port(spark), _CONNECT.token, java_pid(spark)).url


@pytest.fixture
def data_folder(tmp_path: Path) -> DataFolder:
    return DataFolder(tmp_path / "data")

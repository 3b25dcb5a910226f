"""One real Spark for all tests of the pipeline, in this process. It answers Spark queries too."""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from spark_store.lake.connect_address import local_address
from spark_store.pipeline.query_jobs import abandoned_jobs_ended
from spark_store.pipeline.session import connect_port, start_session
from spark_store.pipeline.settings import PipelineSettings
from tests.support.dice import THOROUGH
from tests.support.lake.pipeline_process import CHEAP, QUICK_JAVA, DataFolder

_TOKEN = secrets.token_urlsafe(32)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Use a data folder of your own."""
    before = os.environ.get("JDK_JAVA_OPTIONS")
    os.environ["JDK_JAVA_OPTIONS"] = QUICK_JAVA
    try:
        with warnings.catch_warnings():
            # Warnings of PySpark's own modules during import do not concern these tests.
            warnings.simplefilter("ignore")
            session = start_session(PipelineSettings(master="local[2]", spark={} if THOROUGH else CHEAP), _TOKEN)
    finally:
        if before is None:
            del os.environ["JDK_JAVA_OPTIONS"]
        else:
            os.environ["JDK_JAVA_OPTIONS"] = before
    with abandoned_jobs_ended(session):
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
    """The address of the Spark queries."""
    return local_address(connect_port(spark), _TOKEN)


@pytest.fixture
def data_folder(tmp_path: Path) -> DataFolder:
    return DataFolder(tmp_path / "data")

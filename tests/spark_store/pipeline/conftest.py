"""One real Spark for all tests of the pipeline, in this process."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from spark_store.session import SessionOptions, start_session
from tests.spark_store.pipeline.site import QUICK_JAVA, Site


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Use a data folder of your own."""
    before = os.environ.get("JDK_JAVA_OPTIONS")
    os.environ["JDK_JAVA_OPTIONS"] = QUICK_JAVA
    try:
        with warnings.catch_warnings():
            # What its own files do as they are imported is none of ours.
            warnings.simplefilter("ignore")
            session = start_session(SessionOptions(master="local[2]"))
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


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "data")

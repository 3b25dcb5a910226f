"""The Java process of a Spark session."""

from __future__ import annotations

from pyspark.sql import SparkSession


def java_pid(spark: SparkSession) -> int:
    """Its process id."""
    return int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]

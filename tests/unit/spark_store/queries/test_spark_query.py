"""Spark queries without Spark: the address, the meaning of errors, and cancellation."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from spark_store.errors import (
    QueryCancelled,
    QueryRefused,
    QueryTimeout,
    StoreError,
    StoreUnavailable,
)
from spark_store.lake.tables import Lake
from spark_store.queries.spark_query import (
    Cancellation,
    QueryLimits,
    SparkQueries,
    translate_error,
)
from tests.support.lake.sql_query import sql
from tests.support.table import each_row


def test_without_a_running_pipeline_the_next_step_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="expected the address of a running pipeline"):
        SparkQueries(Lake(tmp_path)).run(sql("SELECT 1"), QueryLimits(60))


@each_row(
    ("text", "expected", "said"),
    [
        (
            'status = StatusCode.UNAVAILABLE\ndetails = "failed to connect to all addresses"',
            StoreUnavailable,
            "with spark.remote, check that server",
        ),
        (
            'status = StatusCode.UNAVAILABLE\ndetails = "Stream removed (Socket closed)"',
            StoreUnavailable,
            "when the pipeline runs",
        ),
        (
            'status = StatusCode.UNAUTHENTICATED\ndetails = "Invalid authentication token"',
            StoreUnavailable,
            "found: Invalid authentication token; ",
        ),
        ('status = StatusCode.CANCELLED\ndetails = "RST_STREAM"', StoreUnavailable, "when the pipeline runs"),
        ("[INVALID_HANDLE.SESSION_NOT_FOUND] gone", StoreUnavailable, "when the pipeline runs"),
        ("Job 7 cancelled because SparkContext was shut down", StoreUnavailable, "when the pipeline runs"),
        ("[DELTA_VERSION_NOT_FOUND] Cannot time travel Delta table to version 0.", StoreUnavailable, "are missing"),
        ("[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file", StoreUnavailable, "are missing"),
        ("OSError: [Errno 28] Error writing bytes to file. No space left on device", StoreUnavailable, "free space"),
        (
            "PermissionError: [Errno 13] Failed to open local file '/data/x': Permission denied",
            StoreUnavailable,
            "check the owner",
        ),
        ("[PARSE_SYNTAX_ERROR] near 'selec'.\n\nJVM stacktrace:\n\tat org.apache", QueryRefused, "PARSE_SYNTAX_ERROR"),
    ],
)
def test_errors_of_spark_are_distinguished(text: str, expected: type[StoreError], said: str) -> None:
    import grpc  # type: ignore[import-untyped]

    named = text.partition("StatusCode.")[2].partition("\n")[0]
    code = grpc.StatusCode[named] if named else grpc.StatusCode.INTERNAL
    found = translate_error(SparkConnectGrpcException(message=text, grpc_status_code=code))
    assert type(found) is expected
    assert said in str(found)
    assert "org.apache" not in str(found)


def test_a_query_that_was_stopped_before_it_began_looks_for_no_pipeline(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    queries = SparkQueries(Lake(tmp_path))
    with pytest.raises(QueryTimeout, match=r"within 0 s"):
        queries.run(sql("SELECT 1"), QueryLimits(0))
    cancellation = Cancellation()
    cancellation.cancel()
    with pytest.raises(QueryCancelled):
        queries.run(sql("SELECT 1"), QueryLimits(60), cancellation)
    assert set(threading.enumerate()) <= before


def test_importing_the_service_imports_no_spark() -> None:
    """So it does not make the start slower."""
    modules = "connectivity.service, connectivity.store.spark_queries"
    script = f"import sys, {modules}; print({{'pyspark', 'grpc'}} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert shown.stdout.strip() == "set()"

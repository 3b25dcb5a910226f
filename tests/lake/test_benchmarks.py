"""A short form of every benchmark with Spark, so that none breaks unseen. Their results are of no interest here."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from spark_store.pipeline import __main__ as pipeline
from spark_store.pipeline import session
from tests.bench import cold_history, lake, spark_first_page
from tests.bench.__main__ import measured
from tests.bench.harness import FULL
from tests.support.lake.pipeline_process import WITHIN, given
from tests.support.short_benchmarks import LONG_WITH_SPARK, WITH_SPARK, assert_measured

pytestmark = pytest.mark.spark

OF_SCALE = {"lake-scale": 100_000_000, "lake-random": 600, "lake-large": 1_000, "lake-long-ids": 5_000_000}
"""The sizes of the long runs: events, seconds, megabytes, events."""


@pytest.fixture
def in_this_process(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the programs that need Spark in this process, with its Spark: each start of Java takes twenty seconds."""
    messages: list[lake.PipelineMessage] = []
    stopping: list[threading.Event] = []

    def run(module: str, *arguments: object, **_: object) -> dict[str, Any]:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert importlib.import_module(f"tests.bench.{module}").main([str(it) for it in arguments]) == 0
        found: dict[str, Any] = json.loads(printed.getvalue().splitlines()[-1])
        return found

    def run_pipeline(action: str, folder: Path, *options: str) -> None:
        assert pipeline.main([action, "--data-dir", str(folder), *options]) == 0

    @contextlib.contextmanager
    def follow(folder: Path, *options: str) -> Iterator[tuple[psutil.Process, list[lake.PipelineMessage]]]:
        at_once = given(merge_every=0, answers_queries=False)
        following = threading.Thread(target=pipeline.main, args=([*lake.arguments(folder), *options, *at_once],))
        following.start()
        process = psutil.Process()
        monkeypatch.setattr(process, "is_running", following.is_alive)
        try:
            yield process, messages
        finally:
            for it in stopping:
                it.set()
            following.join(WITHIN)

    monkeypatch.setattr(spark, "stop", lambda: None)
    monkeypatch.setattr(session, "start_session", lambda *_: spark)
    monkeypatch.setattr(spark_first_page, "start_session", lambda _: spark)
    monkeypatch.setattr(pipeline, "say", lambda event, **fields: messages.append({"event": event, **fields}))
    monkeypatch.setattr(pipeline, "stop_at_signals", stopping.append)
    monkeypatch.setattr(pipeline, "_watch_parent", lambda _: None)
    monkeypatch.setattr(cold_history, "LAKES", tmp_path)
    monkeypatch.setattr(cold_history, "run", run)
    monkeypatch.setattr(cold_history, "pipeline", run_pipeline)
    monkeypatch.setattr(lake, "pipeline", follow)


@pytest.mark.slow(reason="Spark writes a lake of its own")
@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("name", WITH_SPARK)
def test_a_short_benchmark_with_spark_returns_figures(name: str) -> None:
    assert_measured(name)


@pytest.mark.soak(shard="lake")
@pytest.mark.parametrize("name", [*WITH_SPARK, *LONG_WITH_SPARK])
def test_a_benchmark_with_spark_returns_figures(name: str) -> None:
    """With processes of its own."""
    assert_measured(name)


@pytest.mark.soak(shard="lake-scale")
@pytest.mark.parametrize("name", OF_SCALE)
def test_a_benchmark_of_scale_returns_figures(name: str) -> None:
    figures = 0
    for figure in measured(name, FULL, OF_SCALE[name]):
        print(figure.row(), flush=True)
        figures += 1
    assert figures

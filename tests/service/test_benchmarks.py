"""A short form of every benchmark, so that none breaks unseen. What they measure is of no interest here."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext

import pytest
from _pytest.mark.structures import ParameterSet

from tests.bench.__main__ import BENCHMARKS, measured
from tests.bench.harness import FULL, SHORT
from tests.support.brokers.kafka import Kafka
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.lake.pipeline_process import QUICK_JAVA

OVER_BROKERS = ("amqp-next", "amqp-drain", "kafka-next", "kafka-drain", "three", "api")
WITH_SPARK = ("lake-memory", "cold-first", "cold-replay", "lake-export")
LONG_WITH_SPARK = (
    *("lake-fill", "lake-soon", "compaction", "search-as-of", "search-as-of-all"),
    *("lake-scale", "lake-random", "lake-large", "lake-long-ids"),
)
"""Their short form still takes half a minute or more: Spark starts, or batches follow each other."""

OF_SCALE = {"lake-scale": 100_000_000, "lake-random": 600, "lake-large": 1_000, "lake-long-ids": 5_000_000}
"""The sizes of the long runs: events, seconds, megabytes, events."""


def apart(names: Iterable[str]) -> list[ParameterSet]:
    """Each benchmark may run on a worker of its own."""
    return [pytest.param(name, marks=pytest.mark.xdist_group(f"bench-{name}")) for name in names]


def assert_measured(name: str) -> None:
    """Check that the benchmark returns rows, each with a figure."""
    figures = list(measured(name, SHORT))
    assert figures
    for figure in figures:
        assert any(map(str.isdigit, figure.measured)), figure
        assert "nan" not in figure.measured, figure


@pytest.mark.broker("mosquitto")
@pytest.mark.parametrize("name", apart(sorted(BENCHMARKS.keys() - {*OVER_BROKERS, *WITH_SPARK, *LONG_WITH_SPARK})))
def test_a_short_benchmark_returns_figures(name: str) -> None:
    assert_measured(name)


@pytest.mark.broker("rabbitmq")
@pytest.mark.broker("kafka")
@pytest.mark.parametrize("name", apart(OVER_BROKERS))
def test_a_short_benchmark_over_shared_brokers_returns_figures(
    name: str, rabbitmq: RabbitMQ, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RabbitMQ, "start", lambda: nullcontext(rabbitmq))
    monkeypatch.setattr(Kafka, "start", lambda: nullcontext(kafka))
    assert_measured(name)


@pytest.mark.spark
@pytest.mark.slow(reason="a pipeline starts")
@pytest.mark.parametrize("name", WITH_SPARK)
def test_a_short_benchmark_with_spark_returns_figures(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JDK_JAVA_OPTIONS", QUICK_JAVA)
    assert_measured(name)


@pytest.mark.spark
@pytest.mark.soak(shard="lake")
@pytest.mark.parametrize("name", LONG_WITH_SPARK)
def test_a_long_benchmark_with_spark_returns_figures(name: str) -> None:
    assert_measured(name)


@pytest.mark.spark
@pytest.mark.soak(shard="lake-scale")
@pytest.mark.parametrize("name", OF_SCALE)
def test_a_benchmark_of_scale_returns_figures(name: str) -> None:
    figures = 0
    for figure in measured(name, FULL, OF_SCALE[name]):
        print(figure.row(), flush=True)
        figures += 1
    assert figures

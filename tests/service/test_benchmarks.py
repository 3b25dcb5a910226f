"""A short form of every benchmark without Spark, so that no change breaks one. The results are not checked."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from tests.bench import cold_history
from tests.bench.__main__ import BENCHMARKS, main
from tests.support.brokers.kafka import Kafka
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.lake.pipeline_tables import write_all_tables
from tests.support.short_benchmarks import LONG_WITH_SPARK, WITH_SPARK, assert_measured

OVER_BROKERS = ("amqp-next", "amqp-drain", "kafka-next", "kafka-drain", "three", "api")
OVER_A_LAKE = ("cold-replay", "lake-export")


def apart(names: Iterable[str]) -> list[ParameterSet]:
    """Each benchmark may run on a worker of its own."""
    return [pytest.param(name, marks=pytest.mark.xdist_group(f"bench-{name}")) for name in names]


def test_an_unknown_benchmark_is_refused_before_any_is_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rsio-sizes", "drains", "lake-fills=100"]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("benchmark: found drains, lake-fills=100, expected some of: replay, frames, next, ")


@pytest.mark.broker("mosquitto")
@pytest.mark.parametrize(
    "name", apart(sorted(BENCHMARKS.keys() - {*OVER_BROKERS, *OVER_A_LAKE, *WITH_SPARK, *LONG_WITH_SPARK}))
)
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


@pytest.mark.parametrize("name", apart(OVER_A_LAKE))
def test_a_short_benchmark_over_a_lake_returns_figures(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They read what Spark writes in the benchmark `cold-first`."""
    monkeypatch.setattr(cold_history, "LAKES", tmp_path)
    monkeypatch.setattr(cold_history, "pipeline", lambda _action, folder, *_options: write_all_tables(folder))
    assert_measured(name)

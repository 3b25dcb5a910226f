"""Connections are added, changed, closed, opened and deleted, and nobody else is harmed.

A load changes and replays things over three brokers at once. Meanwhile an operator is at work on other connections on the
same brokers. The load's links stand all the time, no delivery of it is lost, and none is carried out or answered again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kill_series.connection_churn import Churn
from tests.support.kill_series.grounds import Ground, KafkaGround, MosquittoGround, RabbitGround
from tests.support.kill_series.trial import Trial

STEPS, STEPS_IN_SOAK = 15, 200

pytestmark = [pytest.mark.broker("mosquitto"), pytest.mark.broker("rabbitmq"), pytest.mark.broker("kafka")]


@pytest.fixture(scope="module")
def grounds() -> Iterator[list[Ground]]:
    grounds: list[Ground] = [MosquittoGround(), RabbitGround(), KafkaGround()]
    yield grounds
    for ground in grounds:
        ground.close()


def operate(folder: Path, grounds: list[Ground], steps: int) -> str:
    with Trial(folder, *grounds) as trial:
        trial.wait_for(50)
        churn = Churn(trial.service, grounds, random.Random(), "churn")
        for _ in range(steps):
            churn.step()
        trial.wait_for(50)
        verdict = trial.verdict()
        for connection in trial.connections:
            links = [
                it for it in trial.service.records() if it["event"] == "connected" and it["connection"] == connection
            ]
            assert len(links) == 1, links
            assert trial.service.metric(
                "connectivity_deliveries_total", connection=connection, outcome="answered_again"
            ) == 0  # fmt: skip
        return f"{churn}: {verdict}"


def test_operators_harm_no_other_connection(grounds: list[Ground], tmp_path: Path) -> None:
    print(operate(tmp_path, grounds, STEPS))


@pytest.mark.soak
def test_the_same_through_200_changes(grounds: list[Ground], tmp_path: Path) -> None:
    print(operate(tmp_path, grounds, STEPS_IN_SOAK))

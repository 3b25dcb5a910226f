"""Connections are added, changed, closed, opened and deleted without an effect on others.

A load changes and replays things, in the long series over three brokers at once. Meanwhile an operator changes other
connections to the same brokers. The load's links stay up, and none of its deliveries is lost, carried out or answered again.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.support.dice import dice
from tests.support.kill_series.connection_churn import ConnectionChurn
from tests.support.kill_series.load import Producer
from tests.support.kill_series.series import KillSeries
from tests.support.kill_series.series_broker import (
    AmqpKillSeriesBroker,
    BrokerOfKind,
    KafkaKillSeriesBroker,
    KillSeriesBroker,
    MqttKillSeriesBroker,
)

STEPS, MANY_STEPS = 6, 200


@pytest.fixture
def series_brokers(shared_broker: BrokerOfKind) -> list[KillSeriesBroker]:
    return [
        shared_broker(MqttKillSeriesBroker),
        shared_broker(AmqpKillSeriesBroker),
        shared_broker(KafkaKillSeriesBroker),
    ]


def operate(folder: Path, series_brokers: list[KillSeriesBroker], steps: int) -> str:
    with KillSeries(folder, *series_brokers, producers=(Producer.ENVELOPE, Producer.NONE)) as series:
        series.wait_for(50)
        churn = ConnectionChurn(series.service, series_brokers, dice("churn"), f"churn-{secrets.token_hex(4)}")
        for _ in range(steps):
            churn.step()
        series.wait_for(50)
        decision = series.decision()
        for connection in series.connections:
            links = [
                it for it in series.service.records() if it["event"] == "connected" and it["connection"] == connection
            ]
            assert len(links) == 1, links
        assert series.redelivered == 0, decision
        return f"{churn}: {decision}"


@pytest.mark.slow(reason="an operator waits for each change beside a load")
@pytest.mark.broker("mosquitto")
def test_operators_harm_no_other_connection(shared_broker: BrokerOfKind, tmp_path: Path) -> None:
    print(operate(tmp_path, [shared_broker(MqttKillSeriesBroker)], STEPS))


@pytest.mark.soak(shard="kills-operators")
@pytest.mark.broker("mosquitto")
@pytest.mark.broker("rabbitmq")
@pytest.mark.broker("kafka")
def test_the_same_through_200_changes(series_brokers: list[KillSeriesBroker], tmp_path: Path) -> None:
    print(operate(tmp_path, series_brokers, MANY_STEPS))

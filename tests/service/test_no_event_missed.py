"""Guarantees of targets hold through kills of the service and of the target's broker.

A load changes things over one broker, and requests an acknowledgement of each change by a target on another one, where a
client receives all events. A separate checker compares responses to the load, received events and histories. It is first
shown to catch each kind of fault (Ditto connections, targets; acknowledgements).
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.dice import dice
from tests.support.kill_series.checker import Entry, findings
from tests.support.kill_series.log import Log, ReceivedEvent
from tests.support.kill_series.series import KillSeries
from tests.support.kill_series.series_broker import (
    AmqpKillSeriesBroker,
    BrokerOfKind,
    KillSeriesBroker,
    MqttKillSeriesBroker,
)

ROUNDS = 20

HISTORY = {"device-0": [Entry(1, "/", {}), Entry(2, "/attributes/n", 5), Entry(3, "/attributes/n", 10)]}


def found_in(*received: tuple[int, int | None], acknowledged: tuple[int, ...] = ()) -> list[str]:
    log = Log({5: "device-0", 10: "device-0"}, {5: {2}, 10: {3}}, acknowledged=set(acknowledged))
    log.received = [ReceivedEvent("device-0", revision, n) for revision, n in received]
    return [it.text for it in findings(log, HISTORY, {"device-0": 10})]


def test_the_checker_finds_nothing_where_all_was_received_some_of_it_again() -> None:
    assert found_in((1, None), (2, 5), (2, 5), (3, 10), (2, 5), (3, 10), acknowledged=(5, 10)) == []


@pytest.mark.parametrize(
    ("received", "acknowledged", "expected"),
    [
        pytest.param([(1, None), (2, 5)], (), "received up to 2", id="loss at the end"),
        pytest.param([(1, None), (3, 10)], (), "at 3 came after 1", id="gap"),
        pytest.param([(1, None), (3, 10), (2, 5)], (), "at 3 came after 1", id="order"),
        pytest.param([(1, None), (2, 5), (2, 6), (3, 10)], (), "has the value 6", id="another value"),
        pytest.param(
            [(1, None), (2, 5)], (5, 10), "10 was acknowledged and not received", id="acknowledged, not received"
        ),
        pytest.param([], (5,), "was received up to 0", id="nothing received"),
    ],
)
def test_the_checker_catches_a_fault_at_a_target(
    received: list[tuple[int, int | None]], acknowledged: tuple[int, ...], expected: str
) -> None:
    assert any(expected in finding for finding in found_in(*received, acknowledged=acknowledged))


def kill_all(folder: Path, load: KillSeriesBroker, target: KillSeriesBroker, rounds: int) -> str:
    """Kill the service, also while the target's broker is down: events stored then arrive later."""
    chances = dice("targets")
    with KillSeries(folder, load, target_broker=target) as series:
        for _ in range(rounds):
            series.kill_service_after(chances.randrange(50, 300))
            series.wait_for(20)
            kill_while_away(series, target, chances, 60)
            series.wait_for(50)
        return series.decision()


def kill_while_away(series: KillSeries, target: KillSeriesBroker, chances: random.Random, most: int) -> None:
    """Kill the service while the target's broker is down, after fewer than `most` responses.

    Then start both in turn.
    """
    with series.broker_away(target):
        series.wait_for(chances.randrange(1, most))
        series.kill_service()
        if is_first := chances.random() < 0.5:
            series.service.start_again(ready=False)
            series.wait_for(chances.randrange(1, 20))
    if not is_first:
        series.service.start_again(ready=False)


@pytest.mark.slow(reason="the service and a real broker end and start under load")
@pytest.mark.broker("mosquitto")
def test_stored_and_acknowledged_events_arrive_in_order(
    shared_broker: BrokerOfKind, killed_broker: BrokerOfKind, tmp_path: Path
) -> None:
    target = killed_broker(MqttKillSeriesBroker)
    with KillSeries(tmp_path, shared_broker(MqttKillSeriesBroker), target_broker=target) as series:
        series.wait_for(20)
        kill_while_away(series, target, dice("targets"), 10)
        series.wait_for(20)
        print(series.decision())


@pytest.mark.soak(shard="kills-amqp")
def test_the_same_through_many_kills(shared_broker: BrokerOfKind, killed_broker: BrokerOfKind, tmp_path: Path) -> None:
    print(kill_all(tmp_path, shared_broker(AmqpKillSeriesBroker), killed_broker(MqttKillSeriesBroker), ROUNDS))

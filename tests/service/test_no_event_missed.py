"""Guarantees of targets hold through kills of the service and of the broker that a target publishes to.

A load changes things over one broker, and requests an acknowledgement of each change by a target on another one, where
a client receives all events. A separate checker compares responses to the load, received events and histories. It is
first shown to catch what it is for (Ditto connections, targets; acknowledgements).
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.dice import dice
from tests.support.kill_series.checker import Entry, findings
from tests.support.kill_series.log import Log, ReceivedEvent
from tests.support.kill_series.trial import Trial
from tests.support.kill_series.trial_broker import (
    AmqpKillSeriesBroker,
    BrokerOfKind,
    KillSeriesBroker,
    MqttKillSeriesBroker,
)

ROUNDS = 20

HISTORY = {"device-0": [Entry(1, "/", {}), Entry(2, "/attributes/n", 5), Entry(3, "/attributes/n", 10)]}


def found_in(*received: tuple[int, int | None], promised: tuple[int, ...] = ()) -> list[str]:
    log = Log({5: "device-0", 10: "device-0"}, {5: {2}, 10: {3}}, promised=set(promised))
    log.received = [ReceivedEvent("device-0", revision, n) for revision, n in received]
    return [it.text for it in findings(log, HISTORY, {"device-0": 10})]


def test_the_checker_finds_nothing_where_all_was_received_some_of_it_again() -> None:
    assert found_in((1, None), (2, 5), (2, 5), (3, 10), (2, 5), (3, 10), promised=(5, 10)) == []


@pytest.mark.parametrize(
    ("received", "promised", "expected"),
    [
        pytest.param([(1, None), (2, 5)], (), "heard of up to 2", id="loss at the end"),
        pytest.param([(1, None), (3, 10)], (), "at 3 came after 1", id="gap"),
        pytest.param([(1, None), (3, 10), (2, 5)], (), "at 3 came after 1", id="order"),
        pytest.param([(1, None), (2, 5), (2, 6), (3, 10)], (), "said 6", id="another value"),
        pytest.param([(1, None), (2, 5)], (5, 10), "10 was acknowledged and not heard of", id="a broken promise"),
        pytest.param([], (5,), "was heard of up to 0", id="nothing at all"),
    ],
)
def test_the_checker_catches_a_fault_at_a_target(
    received: list[tuple[int, int | None]], promised: tuple[int, ...], expected: str
) -> None:
    assert any(expected in finding for finding in found_in(*received, promised=promised))


def kill_all(folder: Path, load: KillSeriesBroker, target: KillSeriesBroker, rounds: int) -> str:
    """Kill the service while all is well, and while the target's broker is away: events stored then are received later."""
    chances = dice("targets")
    with Trial(folder, load, hearer=target) as trial:
        for _ in range(rounds):
            trial.kill_service_after(chances.randrange(50, 300))
            trial.wait_for(20)
            kill_while_away(trial, target, chances, 60)
            trial.wait_for(50)
        return trial.decision()


def kill_while_away(trial: Trial, target: KillSeriesBroker, chances: random.Random, most: int) -> None:
    """Kill the service while the target's broker is away, after fewer than `most` answers; then start both in turn."""
    with trial.broker_away(target):
        trial.wait_for(chances.randrange(1, most))
        trial.kill_service()
        if is_first := chances.random() < 0.5:
            trial.service.start_again(ready=False)
            trial.wait_for(chances.randrange(1, 20))
    if not is_first:
        trial.service.start_again(ready=False)


@pytest.mark.slow(reason="the service and a real broker end and start under load")
@pytest.mark.broker("mosquitto")
def test_stored_and_acknowledged_events_arrive_in_order(
    shared_broker: BrokerOfKind, killed_broker: BrokerOfKind, tmp_path: Path
) -> None:
    target = killed_broker(MqttKillSeriesBroker)
    with Trial(tmp_path, shared_broker(MqttKillSeriesBroker), hearer=target) as trial:
        trial.wait_for(20)
        kill_while_away(trial, target, dice("targets"), 10)
        trial.wait_for(20)
        print(trial.decision())


@pytest.mark.soak(shard="kills-amqp")
def test_the_same_through_many_kills(shared_broker: BrokerOfKind, killed_broker: BrokerOfKind, tmp_path: Path) -> None:
    print(kill_all(tmp_path, shared_broker(AmqpKillSeriesBroker), killed_broker(MqttKillSeriesBroker), ROUNDS))

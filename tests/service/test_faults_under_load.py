"""Faults under load: reads of the store fail, handlers raise, and operators edit the connections that carry the load.

Every command is answered, with an error if it met a fault, and no delivery stalls its source; what was answered is in the
history once and in order. The faults are injected by the test (`tests.support.kill_series.faults`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.dice import dice
from tests.support.kill_series.connection_edits import ConnectionEdits
from tests.support.kill_series.each_broker import EACH_BROKER
from tests.support.kill_series.trial import Trial
from tests.support.kill_series.trial_broker import (
    BrokerOfKind,
    KillSeriesBroker,
    MqttKillSeriesBroker,
)

EDITS, KILLS, ANSWERS = 50, 50, 100


def fail(folder: Path, trial_broker: KillSeriesBroker, rounds: int) -> None:
    """Let some commands be answered while things fail; between two rounds, kill the service."""
    with Trial(folder, trial_broker, is_faulty=True) as trial:
        trial.wait_for(4 * ANSWERS)
        moments = dice("faults", trial_broker.kind)
        for _ in range(rounds):
            trial.kill_service_after(moments.randrange(1, ANSWERS))
        trial.wait_for(ANSWERS)
        print(trial.decision())
        assert trial.faults


def edit(folder: Path, trial_broker: KillSeriesBroker, steps: int) -> None:
    with Trial(folder, trial_broker) as trial:
        edits = ConnectionEdits(trial.service, trial.documents, dice("edits", trial_broker.kind))
        moments = dice("moments", trial_broker.kind)
        for _ in range(steps):
            trial.wait_for(moments.randrange(1, ANSWERS))
            edits.step()
            trial.kills["edits"] += 1
        trial.wait_for(1)
        print(trial.decision())


@pytest.mark.broker("mosquitto")
def test_failing_reads_and_handlers_stall_no_source(shared_broker: BrokerOfKind, tmp_path: Path) -> None:
    fail(tmp_path, shared_broker(MqttKillSeriesBroker), 0)


@EACH_BROKER
def test_failing_reads_and_handlers_stall_no_source_through_kills(
    shared_broker: BrokerOfKind, tmp_path: Path, kind: type[KillSeriesBroker]
) -> None:
    fail(tmp_path, shared_broker(kind), KILLS)


@pytest.mark.broker("mosquitto")
def test_edits_of_a_connection_lose_no_command_and_no_retrieve_of_the_past(
    shared_broker: BrokerOfKind, tmp_path: Path
) -> None:
    edit(tmp_path, shared_broker(MqttKillSeriesBroker), 3)


@EACH_BROKER
def test_many_edits_of_a_connection_lose_no_command_and_no_retrieve_of_the_past(
    shared_broker: BrokerOfKind, tmp_path: Path, kind: type[KillSeriesBroker]
) -> None:
    edit(tmp_path, shared_broker(kind), EDITS)

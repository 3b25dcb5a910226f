"""Faults under load: store reads fail, handlers raise, and operators edit the loaded connections.

Every command is answered, with an error if it met a fault, and no delivery stalls its source; what was answered is in the
history once and in order. The faults are injected by the test (`tests.support.kill_series.faults`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.dice import dice
from tests.support.kill_series.connection_edits import ConnectionEdits
from tests.support.kill_series.each_broker import EACH_BROKER
from tests.support.kill_series.series import KillSeries
from tests.support.kill_series.series_broker import (
    BrokerOfKind,
    KillSeriesBroker,
    MqttKillSeriesBroker,
)

EDITS, KILLS, ANSWERS = 50, 50, 100


def fail(folder: Path, series_broker: KillSeriesBroker, rounds: int) -> None:
    """Let some commands be answered while things fail; between two rounds, kill the service."""
    with KillSeries(folder, series_broker, is_faulty=True) as series:
        series.wait_for(4 * ANSWERS)
        draws = dice("faults", series_broker.kind)
        for _ in range(rounds):
            series.kill_service_after(draws.randrange(1, ANSWERS))
        series.wait_for(ANSWERS)
        print(series.decision())
        assert series.faults


def edit(folder: Path, series_broker: KillSeriesBroker, steps: int) -> None:
    with KillSeries(folder, series_broker) as series:
        edits = ConnectionEdits(series.service, series.documents, dice("edits", series_broker.kind))
        draws = dice("draws", series_broker.kind)
        for _ in range(steps):
            series.wait_for(draws.randrange(1, ANSWERS))
            edits.step()
            series.kills["edits"] += 1
        series.wait_for(1)
        print(series.decision())


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

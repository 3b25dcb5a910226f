"""Kills under load: every confirmed change is in the history once, and no replay misses an event.

On each broker the service is killed (SIGKILL), the broker is killed and restarted, and the link between them is cut or falls
silent, while commands, retrieves of the past and replays are in progress. Load and checker are processes. The checker is
first shown to catch each kind of fault; see `test_kill_series_checker`, too.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.support.dice import dice
from tests.support.kill_series.checker import LONGEST_WAIT
from tests.support.kill_series.each_broker import EACH_BROKER
from tests.support.kill_series.series import KillSeries
from tests.support.kill_series.series_broker import (
    AmqpKillSeriesBroker,
    BrokerOfKind,
    KafkaKillSeriesBroker,
    KillSeriesBroker,
    Mqtt5KillSeriesBroker,
    MqttKillSeriesBroker,
)
from tests.support.wait import wait_until_sync

KILLS, RESTARTS, CUTS, ROUNDS = 150, 30, 40, 10
"""The number of kills in each long series."""
BURST = 150
"""The number of commands in progress when a broker ends."""
NOTICED_WITHIN = 90.0


# ── the checker as a process ──────────────────────────────────────────────────────────────────────────────────────────


IN_SOAK = pytest.mark.soak(shard="kills-mqtt")


@pytest.mark.slow(reason="a load, the service twice and the checker, each a process")
@pytest.mark.broker("mosquitto")
@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        # The entity's revision is changed too, or the service would notice the missing event.
        pytest.param(
            "UPDATE entities SET revision = revision - 1 "
            "WHERE key = (SELECT entity FROM entries ORDER BY seq DESC LIMIT 1); "
            "DELETE FROM entries WHERE seq = (SELECT max(seq) FROM entries)",
            "lost",
            id="loss",
            marks=IN_SOAK,
        ),
        pytest.param("DELETE FROM entries WHERE revision = 3", "gap", id="gap", marks=IN_SOAK),
        pytest.param(
            "UPDATE entries SET value = (SELECT value FROM entries AS e WHERE e.entity = entries.entity "
            "AND e.revision = 2) WHERE revision = 3",
            "2 times",
            id="repeat",
            marks=IN_SOAK,
        ),
        pytest.param(
            "UPDATE entries SET revision = -revision WHERE revision IN (3, 4); "
            "UPDATE entries SET revision = revision + 7 WHERE revision < 0",
            "was written after",
            id="reordering",
        ),
    ],
)
def test_the_checker_process_catches_a_fault_planted_in_the_journal(
    shared_broker: BrokerOfKind, tmp_path: Path, statement: str, expected: str
) -> None:
    with KillSeries(tmp_path, shared_broker(MqttKillSeriesBroker)) as series:
        series.wait_for(50)
        series.decision()
        with sqlite3.connect(series.service.data / "journal.db") as journal:
            before = journal.total_changes
            journal.executescript(statement)
            assert journal.total_changes > before
        journal.close()
        series.service.start_again()
        checked = series.check()
        assert checked.returncode == 1
        assert expected in checked.stdout
        series.plant_stall(LONGEST_WAIT)
        assert "expected 60 s at most" in series.check().stdout


ALL: list[type[KillSeriesBroker]] = [MqttKillSeriesBroker, AmqpKillSeriesBroker, KafkaKillSeriesBroker]


# ── the service is killed ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow(reason="three brokers and three loads, whose every answer is waited for")
@pytest.mark.broker("mosquitto")
@pytest.mark.broker("rabbitmq")
@pytest.mark.broker("kafka")
def test_a_kill_of_the_service_between_three_brokers_loses_nothing(shared_broker: BrokerOfKind, tmp_path: Path) -> None:
    """The same things are changed over all three brokers: one history."""
    with KillSeries(tmp_path, *map(shared_broker, ALL)) as series:
        series.kill_service_after(dice("kill").randrange(1, 50))
        series.wait_for(1)
        print(series.decision())


@EACH_BROKER
def test_many_kills_of_the_service_lose_nothing_and_repeat_nothing(
    shared_broker: BrokerOfKind, tmp_path: Path, kind: type[KillSeriesBroker]
) -> None:
    draws = dice("kills", kind.kind)
    with KillSeries(tmp_path, shared_broker(kind)) as series:
        for _ in range(KILLS):
            series.kill_service_after(draws.randrange(1, 200))
        print(series.decision())


# ── the broker is killed ──────────────────────────────────────────────────────────────────────────────────────────────


def restart_broker(folder: Path, series_broker: KillSeriesBroker, restarts: int, most: int) -> None:
    """Each after at most so many answers, by SIGTERM and by SIGKILL, while many commands are on their way."""
    draws = dice("restarts", series_broker.kind)
    with KillSeries(folder, series_broker, in_flight=BURST) as series:
        for number in range(restarts):
            series.wait_for(draws.randrange(1, most))
            series.restart_broker_in_burst(series_broker, draws.uniform(0, 0.15), gently=number % 2 == 0)
            if number % 3 == 2:
                # No command waits through more than three outages.
                series.wait_until_replaced()
        series.wait_for(1)
        decision = series.decision()
        print(decision)
        # The service has lived on, and with it every subscription.
        assert " 0 failed" in decision, series.service.log()


@pytest.mark.slow(reason="a real broker ends and starts")
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(AmqpKillSeriesBroker, marks=pytest.mark.broker("rabbitmq"), id="amqp"),
        pytest.param(KafkaKillSeriesBroker, marks=pytest.mark.broker("kafka"), id="kafka"),
    ],
)
def test_8_5_replays_continue_and_nothing_is_lost_when_the_broker_restarts(
    killed_broker: BrokerOfKind, tmp_path: Path, kind: type[KillSeriesBroker]
) -> None:
    restart_broker(tmp_path, killed_broker(kind), 1, 50)


@EACH_BROKER
def test_8_5_replays_continue_and_nothing_is_lost_when_the_broker_restarts_many_times(
    killed_broker: BrokerOfKind, tmp_path: Path, kind: type[KillSeriesBroker]
) -> None:
    restart_broker(tmp_path, killed_broker(kind), RESTARTS, 400)


def kill_forgetful_broker(folder: Path, series_broker: KillSeriesBroker, kills: int) -> None:
    draws = dice("forgetful", series_broker.kind)
    with KillSeries(folder, series_broker, is_lossy=True) as series:
        for _ in range(kills):
            series.wait_for(draws.randrange(1, 100))
            series.kill_forgetful(series_broker)
        series.wait_for(1)
        print(series.decision())


@pytest.mark.broker("mosquitto")
def test_keyed_commands_are_carried_out_once_when_a_broker_that_forgets_is_killed(
    killed_broker: BrokerOfKind, tmp_path: Path
) -> None:
    """Mosquitto forgets sessions and messages on SIGKILL: clients send again, and the service reconnects."""
    kill_forgetful_broker(tmp_path, killed_broker(MqttKillSeriesBroker), 1)


@pytest.mark.soak(shard="kills-mqtt")
@pytest.mark.parametrize("kind", [MqttKillSeriesBroker, Mqtt5KillSeriesBroker])
def test_the_same_through_many_kills_of_the_broker(
    killed_broker: BrokerOfKind, tmp_path: Path, kind: type[KillSeriesBroker]
) -> None:
    kill_forgetful_broker(tmp_path, killed_broker(kind), RESTARTS)


# ── the link breaks ───────────────────────────────────────────────────────────────────────────────────────────────────


@EACH_BROKER
def test_8_14_cuts_and_silence_of_the_link_leave_no_gap_and_no_other_order(
    shared_broker: BrokerOfKind, tmp_path: Path, kind: type[KillSeriesBroker]
) -> None:
    """Reset, or silent in one or both directions until the service reconnects.

    Messages on a silent link arrive late or never.
    """
    series_broker, chances = shared_broker(kind), dice("cuts", kind.kind)
    with series_broker.proxy() as proxy, KillSeries(tmp_path, series_broker, proxies={series_broker: proxy}) as series:
        for _ in range(CUTS):
            series.wait_for(chances.randrange(1, 200))
            if chances.random() < 0.7:
                proxy.cut()
                continue
            attempts = len(proxy.attempts)
            to_broker, to_client = chances.choice([(True, True), (True, False), (False, True)])
            proxy.stall(to_broker=to_broker, to_client=to_client)
            wait_until_sync(lambda attempts=attempts: len(proxy.attempts) > attempts, NOTICED_WITHIN)  # type: ignore[misc]
            if chances.random() < 0.5:
                proxy.cut()
            proxy.flow()
        series.wait_for(1)
        print(series.decision())


# ── all faults together ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.soak(shard="kills-kafka")
def test_kills_of_the_service_and_of_three_brokers_in_turn_lose_nothing(
    killed_broker: BrokerOfKind, tmp_path: Path
) -> None:
    series_brokers, chances = [killed_broker(kind) for kind in ALL], dice("kills of all")
    with KillSeries(tmp_path, *series_brokers) as series:
        for _ in range(ROUNDS):
            for series_broker in chances.sample(series_brokers, len(series_brokers)):
                series.restart_broker_after(chances.randrange(1, 100), series_broker, gently=chances.random() < 0.5)
            series.kill_service_after(chances.randrange(1, 100))
            # A broker that is away while the service dies, and while it is asked to end.
            series.wait_for(chances.randrange(1, 100))
            with series.broker_away(chances.choice(series_brokers), gently=chances.random() < 0.5):
                if chances.random() < 0.5:
                    series.kill_service()
                else:
                    series.service.stop()
                series.service.start_again(ready=False)
        series.wait_for(1)
        print(series.decision())

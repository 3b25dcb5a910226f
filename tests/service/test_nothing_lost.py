"""Kills under load: what was answered is in the history exactly once, and whoever replays misses nothing.

On each broker the service is killed (SIGKILL), the broker is killed and started again, the link between them is cut or
falls silent, and all of it while commands and replays are on their way. Load and checker are processes of their own
(tests/kill). The checker is first shown to catch what it is for.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.dice import dice
from tests.support.kill_series.checker import Entry, findings
from tests.support.kill_series.log import Item, Log, Replay
from tests.support.kill_series.trial import Trial
from tests.support.kill_series.trial_broker import (
    AmqpKillSeriesBroker,
    KafkaKillSeriesBroker,
    KillSeriesBroker,
    Mqtt5KillSeriesBroker,
    MqttKillSeriesBroker,
)
from tests.support.wait import wait_until_sync

KILLS, RESTARTS, CUTS, ROUNDS = 100, 20, 40, 10
"""Of each long trial."""
NOTICED_WITHIN = 90.0

HISTORY = [Entry(1, "/", {}), Entry(2, "/attributes/n", 0), Entry(3, "/attributes/n", 5)]
SENT, ANSWERED = {0: "device-0", 5: "device-0"}, {0: {2}, 5: {3}}

EACH = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(MqttKillSeriesBroker, marks=pytest.mark.soak(shard="kills-mqtt"), id="mqtt"),
        pytest.param(Mqtt5KillSeriesBroker, marks=pytest.mark.soak(shard="kills-mqtt"), id="mqtt-5"),
        pytest.param(AmqpKillSeriesBroker, marks=pytest.mark.soak(shard="kills-amqp"), id="amqp"),
        pytest.param(KafkaKillSeriesBroker, marks=pytest.mark.soak(shard="kills-kafka"), id="kafka"),
    ],
)

Start = Callable[[type[KillSeriesBroker]], KillSeriesBroker]


# ── the checker ───────────────────────────────────────────────────────────────────────────────────────────────────────


def found_in(history: list[Entry], state: object = 5, log: Log | None = None) -> list[str]:
    return findings(log or Log(dict(SENT), dict(ANSWERED)), {"device-0": history}, {"device-0": state})


def replayed(*items: tuple[int, str], start: int = 1, known: int = 3, demanded: int = 10, end: str = "complete") -> Log:
    """A log with one replay of HISTORY: revisions and digests. `end` of "" is none."""
    values = {entry.revision: entry.value for entry in HISTORY}
    got = [Item(revision, values.get(revision), digest) for revision, digest in items]
    ends = [(len(got), end)] if end else []
    return Log(dict(SENT), dict(ANSWERED), {}, {"load/1": Replay("device-0", start, known, demanded, got, ends)})


def test_the_checker_accepts_a_whole_history() -> None:
    assert found_in(HISTORY) == []


@pytest.mark.parametrize(
    ("history", "state", "expected"),
    [
        pytest.param(HISTORY[:2], 0, "5 was answered and is lost", id="loss at the end"),
        pytest.param([HISTORY[0], HISTORY[2]], 5, "gap or disorder in the revisions around 3", id="gap"),
        pytest.param([*HISTORY, Entry(4, "/attributes/n", 5)], 5, "5 was written 2 times", id="repeat"),
        pytest.param(HISTORY, 0, "the state says 0, its history ends with 5", id="state is not the fold"),
        pytest.param([*HISTORY[:2], Entry(3, "/x", 1), Entry(4, "/attributes/n", 5)], 5, "stands at 4", id="moved"),
    ],
)
def test_the_checker_catches_a_planted_fault(history: list[Entry], state: object, expected: str) -> None:
    assert any(expected in finding for finding in found_in(history, state))


def test_the_checker_catches_a_command_that_was_sent_and_never_carried_out() -> None:
    log = Log({**SENT, 10: "device-0"}, dict(ANSWERED))
    assert found_in(HISTORY, 5, log) == ["device-0: 10 was sent and is lost"]


def test_the_checker_catches_two_different_answers_to_one_command() -> None:
    log = Log(dict(SENT), {0: {2}, 5: {3, 4}})
    assert found_in(HISTORY, 5, log) == ["5 was answered in two ways, as [3, 4]"]


@pytest.mark.parametrize(
    "log",
    [
        pytest.param(replayed((1, "a"), (2, "b"), (3, "c")), id="whole"),
        pytest.param(replayed((1, "a"), (2, "b"), (1, "a"), (2, "b"), (3, "c")), id="sent again, byte for byte"),
        pytest.param(replayed((1, "a"), end="streaming.subscription.not.found"), id="ended with a failure"),
    ],
)
def test_the_checker_accepts_a_replay(log: Log) -> None:
    assert found_in(HISTORY, 5, log) == []


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        pytest.param(replayed((1, "a"), (3, "c")), "3 came after 1", id="gap"),
        pytest.param(replayed((2, "b"), (1, "a"), (3, "c")), "2 came after 0", id="order"),
        pytest.param(replayed((1, "a"), (2, "b"), (2, "x"), (3, "c")), "2 came again and was another", id="repeat"),
        pytest.param(replayed((1, "a"), (2, "b")), "complete at 2, when 3 had been answered", id="loss at the end"),
        pytest.param(replayed((1, "a"), (2, "b"), (3, "c"), demanded=2), "2 were asked for", id="too many"),
        pytest.param(replayed((1, "a"), end=""), "has not ended", id="no terminal signal"),
    ],
)
def test_the_checker_catches_a_fault_in_a_replay(log: Log, expected: str) -> None:
    assert any(expected in finding for finding in found_in(HISTORY, 5, log))


def test_the_checker_catches_an_event_after_the_end() -> None:
    log = replayed((1, "a"), (2, "b"), (3, "c"))
    log.replays["load/1"].ends = [(2, "streaming.subscription.not.found")]
    assert found_in(HISTORY, 5, log) == ["replay load/1: 3 came after the end"]


def test_the_checker_catches_an_event_that_the_history_reports_otherwise() -> None:
    log = replayed((1, "a"), (2, "b"), (3, "c"))
    log.replays["load/1"].items[1] = Item(2, 7, "b")
    assert found_in(HISTORY, 5, log) == ["replay load/1: 2 said 7, the history says 0"]


# ── the checker as a process ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow(reason="a load, the service twice and the checker, each a process")
@pytest.mark.broker("mosquitto")
@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        # Its entity's revision goes too: the service itself would tell an event that is missing behind it.
        pytest.param(
            "UPDATE entities SET revision = revision - 1 "
            "WHERE key = (SELECT entity FROM entries ORDER BY seq DESC LIMIT 1); "
            "DELETE FROM entries WHERE seq = (SELECT max(seq) FROM entries)",
            "lost",
            id="loss",
            marks=pytest.mark.soak(shard="kills-mqtt"),
        ),
        pytest.param(
            "DELETE FROM entries WHERE revision = 3", "gap", id="gap", marks=pytest.mark.soak(shard="kills-mqtt")
        ),
        pytest.param(
            "UPDATE entries SET value = (SELECT value FROM entries AS e WHERE e.entity = entries.entity "
            "AND e.revision = 2) WHERE revision = 3",
            "2 times",
            id="repeat",
        ),
    ],
)
def test_the_checker_process_catches_a_fault_planted_in_the_journal(
    shared_broker: Start, tmp_path: Path, statement: str, expected: str
) -> None:
    with Trial(tmp_path, shared_broker(MqttKillSeriesBroker)) as trial:
        trial.wait_for(50)
        trial.decision()
        trial.service.stop()
        with sqlite3.connect(trial.service.data / "journal.db") as journal:
            before = journal.total_changes
            journal.executescript(statement)
            assert journal.total_changes > before
        journal.close()
        trial.service.start_again()
        checked = trial.check()
        assert checked.returncode == 1
        assert expected in checked.stdout


ALL: list[type[KillSeriesBroker]] = [MqttKillSeriesBroker, AmqpKillSeriesBroker, KafkaKillSeriesBroker]


# ── the service is killed ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow(reason="three brokers and three loads, whose every answer is waited for")
@pytest.mark.broker("mosquitto")
@pytest.mark.broker("rabbitmq")
@pytest.mark.broker("kafka")
def test_a_kill_of_the_service_between_three_brokers_loses_nothing(shared_broker: Start, tmp_path: Path) -> None:
    """The same things are changed over all three brokers: one history."""
    with Trial(tmp_path, *map(shared_broker, ALL)) as trial:
        trial.kill_service_after(dice("kill").randrange(1, 50))
        trial.wait_for(1)
        print(trial.decision())


@EACH
def test_a_hundred_kills_of_the_service_lose_nothing_and_repeat_nothing(
    shared_broker: Start, tmp_path: Path, kind: type[KillSeriesBroker]
) -> None:
    moments = dice("kills", kind.kind)
    with Trial(tmp_path, shared_broker(kind)) as trial:
        for _ in range(KILLS):
            trial.kill_service_after(moments.randrange(1, 400))
        print(trial.decision())


# ── the broker is killed ──────────────────────────────────────────────────────────────────────────────────────────────


def restart_broker(folder: Path, trial_broker: KillSeriesBroker, restarts: int, most: int) -> None:
    """Each after at most so many answers."""
    moments = dice("restarts", trial_broker.kind)
    with Trial(folder, trial_broker, is_keyed=trial_broker.client_resends) as trial:
        for _ in range(restarts):
            trial.restart_broker_after(moments.randrange(1, most), trial_broker)
        trial.wait_for(1)
        decision = trial.decision()
        print(decision)
        # The service has lived on, and with it every subscription.
        assert " 0 failed" in decision, trial.service.log()


@pytest.mark.slow(reason="a real broker ends and starts")
@pytest.mark.usefixtures("own_rabbitmq")
@pytest.mark.broker("rabbitmq")
def test_8_5_replays_continue_and_nothing_is_lost_when_the_broker_is_killed(
    killed_broker: Start, tmp_path: Path
) -> None:
    restart_broker(tmp_path, killed_broker(AmqpKillSeriesBroker), 1, 50)


@EACH
def test_8_5_replays_continue_and_nothing_is_lost_when_the_broker_is_killed_twenty_times(
    killed_broker: Start, tmp_path: Path, kind: type[KillSeriesBroker]
) -> None:
    restart_broker(tmp_path, killed_broker(kind), RESTARTS, 400)


# ── the link breaks ───────────────────────────────────────────────────────────────────────────────────────────────────


@EACH
def test_8_14_cuts_and_silence_of_the_link_leave_no_gap_and_no_other_order(
    shared_broker: Start, tmp_path: Path, kind: type[KillSeriesBroker]
) -> None:
    """Reset, or silent in one direction or in both until the service makes a new link. What a silent link held back comes
    late then, or never."""
    trial_broker, chances = shared_broker(kind), dice("cuts", kind.kind)
    with trial_broker.proxy() as proxy, Trial(tmp_path, trial_broker, proxies={trial_broker: proxy}) as trial:
        for _ in range(CUTS):
            trial.wait_for(chances.randrange(1, 200))
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
        trial.wait_for(1)
        print(trial.decision())


# ── all at once ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.soak(shard="kills-kafka")
def test_kills_of_the_service_and_of_three_brokers_in_turn_lose_nothing(killed_broker: Start, tmp_path: Path) -> None:
    trial_brokers, chances = [killed_broker(kind) for kind in ALL], dice("kills of all")
    with Trial(tmp_path, *trial_brokers, is_keyed=True) as trial:
        for _ in range(ROUNDS):
            for trial_broker in chances.sample(trial_brokers, len(trial_brokers)):
                trial.restart_broker_after(chances.randrange(1, 100), trial_broker)
            trial.kill_service_after(chances.randrange(1, 100))
            # A broker that is away while the service dies, and while it is asked to end.
            trial.wait_for(chances.randrange(1, 100))
            away = chances.choice(trial_brokers)
            away.knock_down()
            if chances.random() < 0.5:
                trial.service.kill()
            else:
                trial.service.stop()
            trial.service.start_again(ready=False)
            away.start_again()
        trial.wait_for(1)
        print(trial.decision())

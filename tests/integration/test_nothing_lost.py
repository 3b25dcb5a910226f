"""SIGKILL at random moments under load: what was answered is in the history exactly once, and nothing else is there twice.

The load and the checker are processes of their own (tests/kill). The checker is first shown to catch what it is for.
"""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.brokers.mosquitto import Mosquitto
from tests.helpers import wait_until_sync
from tests.integration.documents import client, connection, policy_for, source
from tests.kill.checker import Entry, Log, findings
from tests.kill.load import THINGS
from tests.service import ServiceProcess

KILLS = 10
KILLS_IN_SOAK = 100

HISTORY = [Entry(1, "/", {}), Entry(2, "/attributes/n", 0), Entry(3, "/attributes/n", 5)]
LOG = Log({0: "device-0", 5: "device-0"}, {0: 2, 5: 3}, {})


def found_in(history: list[Entry], state: object = 5, log: Log = LOG) -> list[str]:
    return findings(log, {"device-0": history}, {"device-0": state})


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
    log = Log({0: "device-0", 5: "device-0", 10: "device-0"}, {0: 2, 5: 3}, {})
    assert found_in(HISTORY, 5, log) == ["device-0: 10 was sent and is lost"]


class Trial:
    """A service under load that is killed again and again, and the checker's verdict."""

    def __init__(self, folder: Path, broker: Mosquitto) -> None:
        self.broker, self.log = broker, folder / "answers.log"
        subject = "acme:load"
        site = connection(
            broker,
            source("load", subject),
            {**source("load", subject), "addresses": ["load/check"], "replyTarget": {"address": "load/checked"}},
        )
        self.service = ServiceProcess.start(folder, [site])
        with client(broker, "load") as maker:
            for number in range(THINGS):
                maker.ask_for(
                    f"acme.kill/device-{number}/things/twin/commands/create", value={"_policy": policy_for(subject)}
                )
        self.load = subprocess.Popen(
            [sys.executable, "-m", "tests.kill.load", broker.host, str(broker.port), str(self.log)]
        )

    def answers(self) -> int:
        return self.log.read_bytes().count(b'"answered"') if self.log.exists() else 0

    def kill_after(self, more: int) -> None:
        """SIGKILL as soon as `more` further answers are in the log; then start again."""
        target = self.answers() + more
        wait_until_sync(lambda: self.answers() >= target, 60)
        self.service.kill()
        self.service.start_again(ready=False)

    def finish(self) -> None:
        self.load.send_signal(signal.SIGTERM)
        assert self.load.wait(90) == 0, "the load was not answered to the end"

    def check(self) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tests.kill.checker", self.broker.host, str(self.broker.port), str(self.log)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def close(self) -> None:
        if self.load.poll() is None:
            self.load.kill()
            self.load.wait()
        self.service.__exit__(None, None, None)


def kill_again_and_again(folder: Path, kills: int) -> None:
    dice = random.Random()
    with Mosquitto.start() as broker:
        trial = Trial(folder, broker)
        try:
            for _ in range(kills):
                trial.kill_after(dice.randrange(0, 400))
            trial.finish()
            verdict = trial.check()
            assert verdict.returncode == 0, verdict.stdout + verdict.stderr + trial.service.log()
        finally:
            trial.close()


@pytest.mark.broker("mosquitto")
def test_ten_kills_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, KILLS)


@pytest.mark.soak
@pytest.mark.broker("mosquitto")
def test_a_hundred_kills_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, KILLS_IN_SOAK)


@pytest.mark.broker("mosquitto")
@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        pytest.param("DELETE FROM entries WHERE seq = (SELECT max(seq) FROM entries)", "lost", id="loss"),
        pytest.param("DELETE FROM entries WHERE revision = 3", "gap", id="gap"),
        pytest.param(
            "UPDATE entries SET value = (SELECT value FROM entries AS e WHERE e.entity = entries.entity "
            "AND e.revision = 2) WHERE revision = 3",
            "2 times",
            id="repeat",
        ),
    ],
)
def test_the_checker_process_catches_a_fault_planted_in_the_journal(
    tmp_path: Path, statement: str, expected: str
) -> None:
    with Mosquitto.start() as broker:
        trial = Trial(tmp_path, broker)
        try:
            wait_until_sync(lambda: trial.answers() >= 50, 60)
            trial.finish()
            assert trial.check().returncode == 0
            trial.service.stop()
            with sqlite3.connect(trial.service.data / "journal.db") as journal:
                assert journal.execute(statement).rowcount > 0
            journal.close()
            trial.service.start_again()
            verdict = trial.check()
            assert verdict.returncode == 1
            assert expected in verdict.stdout
        finally:
            trial.close()

"""Every change reported as stored survives a SIGKILL at any moment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.dice import dice
from tests.support.kill_series.operator import Asked, State, decision, expected, prepare
from tests.support.wait import wait_until_sync


class Operator:
    """A process that changes connections until it is killed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.errors = folder, folder / "operator.log", folder / "operator.err"
        prepare(folder)

    def killed_after(self, answers: int, seed: int) -> list[str]:
        """Work until so many more commands are answered, then kill the process; return the checker's verdict."""
        before = self._answers()
        with self.errors.open("ab") as errors:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.support.kill_series.operator",
                    str(self.folder),
                    str(seed),
                    str(self.log),
                ],
                stdout=errors,
                stderr=errors,
            )
        try:
            wait_until_sync(lambda: process.poll() is not None or self._answers() >= before + answers, 60)
            assert process.poll() is None, self.errors.read_text(encoding="utf-8")[-4000:]
        finally:
            process.kill()
            process.wait(15)
        return decision(self.folder, self.log)

    def _answers(self) -> int:
        return self.log.read_text(encoding="utf-8").count('"done"') if self.log.exists() else 0


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.soak(shard="kills-operators"))])
def test_a_change_answered_as_stored_survives_a_kill(tmp_path: Path, kills: int) -> None:
    operator = Operator(tmp_path)
    rng = dice("kills of operators", kills)
    for seed in range(kills):
        assert operator.killed_after(rng.randint(5, 60), seed) == []


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        ([], [State(None, None)]),
        ([("begun", "put")], [State(None, None), State("t", "open")]),
        ([("begun", "put"), ("done", "put")], [State("t", "open")]),
        ([("begun", "put"), ("done", "put"), ("begun", "close")], [State("t", "open"), State("t", "closed")]),
        ([("begun", "put"), ("done", "put"), ("begun", "delete"), ("done", "delete")], [State(None, None)]),
        ([("begun", "put"), ("refused", "put")], [State(None, None)]),
        (
            [("begun", "put"), ("begun", "close"), ("done", "close")],
            [State(None, "closed"), State("t", "closed")],
        ),
    ],
)
def test_the_expected_states_follow_from_the_answers_in_the_log(
    tmp_path: Path, lines: list[tuple[str, str]], wanted: list[State]
) -> None:
    log = tmp_path / "log"
    text = "".join(f'["{what}", "{action}", "depot", "t"]\n' for what, action in lines)
    log.write_text(text + '["begun", "pu', encoding="utf-8")
    assert expected(log)["depot"] == wanted


def test_the_verdict_finds_a_loss(tmp_path: Path) -> None:
    operator = Operator(tmp_path)
    operator.log.write_text('["begun", "put", "depot", "t"]\n["done", "put", "depot", "t"]\n', encoding="utf-8")
    assert len(decision(tmp_path, operator.log)) == 1
    assert Asked("put", "depot", "t").topic == "t"

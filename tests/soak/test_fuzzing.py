"""Fuzzing by coverage: short runs that show that each target works and finds failures, and long ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzzing.targets import MINUTES, TARGETS
from tests.support.paths import ROOT

pytestmark = pytest.mark.soak(shard="fuzzing")

PLANTED = """
from tests.fuzzing import __main__
from tests.fuzzing.target import target

def find(data):
    assert data[:1] != b"t"

__main__.load = lambda name: target(find, [b"a"])
__main__.main(["rsio-names", "-runs=100000"])
"""


def fuzzed(folder: Path, *command: str, within: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Return how a run ended; a failing input is saved in the folder."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "HOME": str(folder)},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=within,
        check=False,
    )


@pytest.mark.parametrize(("target", "runs"), [("rsio-frames", 300), ("rsio-sessions", 10)])
def test_a_target_can_be_fuzzed(target: str, runs: int, tmp_path: Path) -> None:
    ended = fuzzed(tmp_path, "-m", "tests.fuzzing", target, f"-runs={runs}")
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert "DONE" in ended.stderr


def test_an_unknown_target_is_refused_and_the_known_ones_are_named(tmp_path: Path) -> None:
    ended = fuzzed(tmp_path, "-m", "tests.fuzzing", "dito")
    assert ended.returncode == 2
    assert ended.stderr.startswith("target: found dito, expected one of: rsio-frames, ")


def test_an_input_that_fails_is_found_and_saved(tmp_path: Path) -> None:
    ended = fuzzed(tmp_path, "-c", PLANTED)
    assert ended.returncode != 0
    (crash,) = tmp_path.glob("crash-*")
    assert crash.read_bytes()[:1] == b"t"


@pytest.mark.parametrize("target", TARGETS)
def test_no_input_fails_in_the_time_of_a_target(target: str, tmp_path: Path) -> None:
    seconds = round(MINUTES * 60)
    ended = fuzzed(tmp_path, "-m", "tests.fuzzing", target, f"-max_total_time={seconds}", within=seconds + 300.0)
    assert ended.returncode == 0, ended.stderr[-4000:]

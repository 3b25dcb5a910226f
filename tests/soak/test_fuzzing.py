"""Fuzzing by coverage: short runs which show that it can be begun and finds something, and long ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.soak(shard="fuzzing")

PLANTED = """
from tests.fuzzing import __main__, targets

def found(data):
    assert data[:1] != b"t"

targets.TARGETS["names"] = found
__main__.main("names", "-runs=100000")
"""


def fuzzed(folder: Path, *command: str, within: float = 60.0) -> subprocess.CompletedProcess[str]:
    """What a run ends with; what it finds lies in the folder."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=within,
        check=False,
    )


@pytest.mark.parametrize(("target", "runs"), [("octets", 300), ("desk", 10)])
def test_a_target_can_be_fuzzed(target: str, runs: int, tmp_path: Path) -> None:
    ended = fuzzed(tmp_path, "-m", "tests.fuzzing", target, f"-runs={runs}")
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert "DONE" in ended.stderr


def test_an_input_that_crashes_a_target_is_found_and_saved(tmp_path: Path) -> None:
    ended = fuzzed(tmp_path, "-c", PLANTED)
    assert ended.returncode != 0
    (crash,) = tmp_path.glob("crash-*")
    assert crash.read_bytes()[:1] == b"t"


@pytest.mark.parametrize("target", ["octets", "names", "talk", "desk"])
def test_nothing_is_found_in_ten_minutes(target: str, tmp_path: Path) -> None:
    ended = fuzzed(tmp_path, "-m", "tests.fuzzing", target, "-max_total_time=600", within=900.0)
    assert ended.returncode == 0, ended.stderr[-4000:]

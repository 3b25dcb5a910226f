"""A test that hangs ends the run, and shows where each of its threads and child processes is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

ENDS_WITHIN = 120.0

HANGS = """
import asyncio
import subprocess
import sys
import threading
import pytest

@pytest.fixture
def resource(request):
    yield
    if "teardown" in request.node.name:
        threading.Event().wait()

def test_call():
    threading.Event().wait()

def test_failed_teardown(resource):
    assert False

def test_passed_teardown(resource):
    pass

def test_child():
    program = "import threading\\ndef wait_in_child():\\n    threading.Event().wait()\\nwait_in_child()"
    subprocess.run([sys.executable, "-c", program])

def test_task():
    async def wait_in_task():
        await asyncio.Event().wait()
    asyncio.run(wait_in_task())
"""


def run_hanging(folder: Path, name: str, seconds: float) -> str:
    """Run this test, which ends with exit code 1; return its standard error."""
    file = folder / "test_it.py"
    file.write_text(HANGS, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.conftest",
        "-p",
        "no:schemathesis",
        "-o",
        f"hang_seconds={seconds}",
        f"{file}::{name}",
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=ENDS_WITHIN, check=False)
    assert ended.returncode == 1, ended.stdout
    assert "Timeout" in ended.stderr
    assert str(file) in ended.stderr
    return ended.stderr


@pytest.mark.parametrize("name", ["test_call", "test_failed_teardown", "test_passed_teardown"])
def test_a_test_that_hangs_ends_the_run_and_its_place_is_shown(tmp_path: Path, name: str) -> None:
    run_hanging(tmp_path, name, 0.5)


def test_the_stack_of_a_child_process_is_shown(tmp_path: Path) -> None:
    assert "wait_in_child (" in run_hanging(tmp_path, "test_child", 4)


def test_the_stack_of_a_task_is_shown(tmp_path: Path) -> None:
    assert "in wait_in_task" in run_hanging(tmp_path, "test_task", 0.5)

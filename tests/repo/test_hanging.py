"""A test that hangs ends: it is said where it stands, and it has failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

ENDS_WITHIN = 60.0

HANGS = """
import threading
import pytest

@pytest.fixture
def brief(request):
    yield
    if "teardown" in request.node.name:
        threading.Event().wait()

def test_call():
    threading.Event().wait()

def test_failed_teardown(brief):
    assert False

def test_passed_teardown(brief):
    pass
"""


@pytest.mark.parametrize("name", ["test_call", "test_failed_teardown", "test_passed_teardown"])
def test_a_test_that_hangs_ends_and_it_is_said_where_it_stood(tmp_path: Path, name: str) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(HANGS, encoding="utf-8")
    options = ["-o", "faulthandler_timeout=0.2", "-o", "faulthandler_exit_on_timeout=true"]
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", *options, f"{file}::{name}"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=ENDS_WITHIN, check=False)
    assert ended.returncode == 1, ended.stdout
    assert "Timeout" in ended.stderr
    assert str(file) in ended.stderr

"""The same answer as text or as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from connectivity.cli.output import complain, print_problems
from connectivity.errors import Problem
from connectivity.files import FileProblem

PROBLEM = FileProblem(Path("a.yaml"), Problem("uri", '"ä"', "a port", "did you mean b?"))


def test_a_problem_is_a_line_of_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_problems([PROBLEM, PROBLEM], as_json=False)
    assert capsys.readouterr().out == 'a.yaml: uri: found "ä", expected a port (did you mean b?)\n' * 2


def test_design_8_08_a_problem_is_an_object_of_five_members(capsys: pytest.CaptureFixture[str]) -> None:
    print_problems([PROBLEM], as_json=True)
    expected = {"file": "a.yaml", "path": "uri", "found": '"ä"', "expected": "a port", "hint": "did you mean b?"}
    assert json.loads(capsys.readouterr().out) == [expected]


def test_a_complaint_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    complain("no")
    assert capsys.readouterr() == ("", "no\n")

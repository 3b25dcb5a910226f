"""The same answer as text or as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from connectivity.cli.output import (
    colorize,
    print_error,
    print_fields,
    print_json,
    print_json_line,
    print_problems,
    print_table,
)
from connectivity.errors import Problem
from connectivity.management.files import FileProblem
from mappings.texts import escape_control_characters

PROBLEM = FileProblem(Path("a.yaml"), Problem("uri", '"ä"', "a port", "did you mean b?"))


def test_a_problem_is_a_line_of_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_problems([PROBLEM, PROBLEM], as_json=False)
    assert capsys.readouterr().out == 'a.yaml: uri: found "ä", expected a port (did you mean b?)\n' * 2


def test_design_8_08_a_problem_is_an_object_of_five_members(capsys: pytest.CaptureFixture[str]) -> None:
    print_problems([PROBLEM], as_json=True)
    expected = {"file": "a.yaml", "path": "uri", "found": '"ä"', "expected": "a port", "hint": "did you mean b?"}
    assert json.loads(capsys.readouterr().out) == [expected]


def test_a_complaint_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("no")
    assert capsys.readouterr() == ("", "no\n")


def test_terminal_control_characters_are_shown_as_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    odd = "a\x1b[2J\x9b31m\r\n\u202eb\x00ä"
    assert escape_control_characters(odd) == "a\\x1b[2J\\x9b31m\\r\\n\\u202eb\\x00ä"
    print_table([{"id": odd, "n": 1, "none": None, "many": [odd[0]]}])
    print_fields({"a_b": odd})
    print_error(f"first\nsecond {odd[1:4]}")
    out, err = capsys.readouterr()
    assert not {"\x1b", "\x9b", "\r", "\u202e", "\x00"} & set(out + err)
    assert err == "first\nsecond \\x1b[2\n"


def test_json_output_escapes_terminal_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    odd = {"a\x9b": "a\x1b[2J\x9b31m\x7f\r\n\u202eb\u2028ä"}
    print_json(odd)
    print_json_line(odd)
    print_problems([FileProblem(Path("a.yaml"), Problem("uri", "\x9b31m", "a port", None))], as_json=False)
    out = capsys.readouterr().out
    assert not {"\x1b", "\x9b", "\x7f", "\r", "\u202e", "\u2028"} & set(out)
    assert json.loads("".join(out.splitlines()[:3])) == json.loads(out.splitlines()[3]) == odd
    assert "ä" in out


def test_a_table_that_is_no_terminals_is_as_wide_as_it_must_be(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([{"id": "x" * 300, "is": "open"}, {"id": "y", "is": None}])
    heading, long, short = capsys.readouterr().out.splitlines()
    assert (heading.split(), long.split(), short.split()) == (["id", "is"], ["x" * 300, "open"], ["y", "–"])
    assert colorize("open") == "open", "no terminal, no colour"


def test_an_object_of_many_is_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_json_line({"a": "ä\n"})
    assert capsys.readouterr().out == '{"a": "ä\\n"}\n'

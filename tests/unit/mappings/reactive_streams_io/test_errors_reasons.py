"""Why something failed, as a line: reactive-streams-io, error and reason strings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappings.errors import Fault
from mappings.reactive_streams_io import errors

LINES = [
    (
        "404 things:thing.notfound The Thing 'a:b' could not be found.",
        Fault(404, "things:thing.notfound", "The Thing 'a:b' could not be found."),
    ),
    ("404 no such stream", Fault(404, "", "no such stream")),
    ("500 gone", Fault(500, "", "gone")),
    ("410", Fault(410, "", "")),
    ("gone", Fault(500, "", "gone")),
    ("", Fault(500, "", "")),
    ("999 x", Fault(500, "", "999 x")),
]


@pytest.mark.parametrize(("line", "fault"), LINES, ids=[line for line, _ in LINES])
def test_a_line_is_taken_apart(line: str, fault: Fault) -> None:
    assert errors.read(line) == fault


def test_a_fault_becomes_a_line_and_a_fault_again() -> None:
    line, fault = LINES[0]
    assert errors.write(fault) == line
    assert errors.read(errors.write(Fault(429, "rsio:subscriptions.limit", "No\nmore."))).message == "No\nmore."


@given(st.text(max_size=30), st.integers(0, 40))
def test_a_long_line_is_cut_between_two_characters(text: str, most: int) -> None:
    shown = text.encode("utf-8", "replace").decode()
    cut = errors.truncate(text, most)
    assert shown.startswith(cut)
    assert len(cut.encode()) <= most
    assert len(shown.encode()) <= most or len(shown[: len(cut) + 1].encode()) > most


def test_our_lines_are_bounded() -> None:
    assert len(errors.write(Fault(400, "x:y", "é" * 5000)).encode()) == 4096

"""The number of function calls that the service needs for a message has a maximum."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.message_path import measure

pytestmark = pytest.mark.broker("mosquitto")

MOST = {"subscribe": 104, "request with one next": 100, "its confirm": 8, "modify": 155}
"""Two thirds of 156, 151, 13 and 233, the calls before the path was shortened."""


def test_a_message_needs_at_most_so_many_calls(tmp_path: Path) -> None:
    """`python -m tests.bench.message_path calls` lists them."""
    assert {name: max(len(calls), MOST[name]) for name, calls in measure(tmp_path).items()} == MOST

"""No test leaves an unclosed event loop, because its garbage collection would fail another test."""

from __future__ import annotations

import asyncio

import pytest


def test_there_is_no_event_loop_outside_of_a_test_that_runs_in_one() -> None:
    with pytest.raises(RuntimeError, match="no current event loop"):
        asyncio.get_event_loop()

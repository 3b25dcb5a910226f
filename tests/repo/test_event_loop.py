"""Tests leave no event loop behind: one that is collected unclosed fails whichever test runs just then."""

from __future__ import annotations

import asyncio

import pytest


def test_there_is_no_event_loop_outside_of_a_test_that_runs_in_one() -> None:
    with pytest.raises(RuntimeError, match="no current event loop"):
        asyncio.get_event_loop()

"""Subscriptions whose feed does not answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from connectivity.subscriptions.feed import Feed, Page
from mappings.errors import INTERNAL_ERROR
from mappings.model.signals import HistoryQuery, Subscribe, SubscriptionKind
from tests.support.in_process.subscription_harness import LAMP, SubscriptionHarness
from tests.support.wait import wait_until


class SilentFeed(Feed):
    """A history whose pages never come."""

    is_prompt = True

    async def page(self, position: Any, limit: int, max_bytes: int) -> Page:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


@pytest.mark.parametrize("headers", [{}, {"timeout": "10ms"}])
async def test_b7_a_history_whose_first_page_does_not_come_in_time_fails(headers: dict[str, str]) -> None:
    """Within `open_timeout`, or the `timeout` of the subscribe."""
    harness = SubscriptionHarness(SilentFeed, open_timeout=60.0 if headers else 0.01)
    peer = harness.peer
    harness.streams.subscribe(Subscribe(SubscriptionKind.HISTORY, HistoryQuery(LAMP), headers, demand=1), peer)
    await wait_until(lambda: harness.failures())
    (failed,) = harness.failures()
    assert failed == INTERNAL_ERROR

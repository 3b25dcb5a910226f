"""The time limits of subscriptions: for the first page, for idleness, and for late requests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from connectivity.subscriptions.feed import Feed, Page
from mappings.errors import INTERNAL_ERROR
from mappings.model.signals import EndReason, HistoryQuery, Subscribe, SubscriptionKind
from tests.support.in_process.fakes import LiveFeed
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


@pytest.mark.parametrize("idle_timeout", [1.5, 2, 5])
async def test_case_63_a_request_within_the_idle_timeout_is_never_too_late(idle_timeout: float) -> None:
    """Wherever between two sweeps it comes."""
    harness = SubscriptionHarness(LiveFeed, idle_timeout=idle_timeout)
    key = harness.subscribe()
    for tenth in range(1, 400):
        harness.clock.advance(0.1)
        if tenth % 10 == 2:
            harness.streams.sweep()
        if tenth % int(10 * idle_timeout - 1) == 0:
            await harness.request(key, 1)
    assert harness.failures() == []
    harness.pass_time(idle_timeout + 2)
    assert harness.failures() == [EndReason.IDLE]


async def test_the_time_limits_of_a_subscription_begin_after_the_event_loop_was_blocked() -> None:
    harness = SubscriptionHarness(LiveFeed, idle_timeout=2, after_life=2)
    harness.clock.advance(10)
    ended, idle = harness.subscribe(), harness.subscribe()
    harness.cancel(ended)
    harness.streams.sweep()
    assert harness.failures() == [], "it is not idle yet"
    await harness.request(ended, 1)
    assert harness.failures() == [EndReason.CANCELLED], "it is not forgotten yet"
    harness.pass_time(4)
    assert harness.failures() == [EndReason.CANCELLED, EndReason.IDLE]
    await harness.request(ended, 1)
    await harness.request(idle, 1)
    assert harness.failures()[2:] == [EndReason.NOT_FOUND, EndReason.CANCELLED]

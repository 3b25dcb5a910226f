"""The memory of an idle subscription has a maximum: a service may hold a hundred thousand."""

from __future__ import annotations

import gc
import tracemalloc

from tests.support.in_process.fakes import ListFeed
from tests.support.in_process.subscription_harness import SubscriptionHarness

MOST = 525
"""Bytes, without those of the feed."""


async def test_an_idle_subscription_takes_few_bytes() -> None:
    feed, count = ListFeed([]), 2_000
    harness = SubscriptionHarness(lambda: feed, idle_timeout=1000, max_per_user=2 * count)
    harness.subscribe()
    gc.collect()
    tracemalloc.start()
    for number in range(count):
        harness.subscribe(f"subscriber-{number:05}")
        harness.reply.signals.clear()
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / count <= MOST

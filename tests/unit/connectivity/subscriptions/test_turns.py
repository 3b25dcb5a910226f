"""Turns of subscriptions in the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter

from connectivity.subscriptions.feed import Page
from connectivity.subscriptions.manager import SIDE_BY_SIDE, Subscriber
from mappings.model.signals import HistoryQuery, Subscribe, SubscriptionKind
from tests.support.in_process.fakes import KeepingReply, ListFeed
from tests.support.in_process.subscription_harness import LAMP, READER, SubscriptionHarness
from tests.support.wait import wait_until


async def test_few_subscriptions_read_pages_in_one_turn_of_the_event_loop() -> None:
    """For any number with demand: a filtered page takes about a millisecond."""
    turns = 0
    read: Counter[int] = Counter()

    class Slow(ListFeed):
        async def page(self, position: int, limit: int, max_bytes: int) -> Page:
            read[turns] += 1
            return await super().page(position, limit, max_bytes)

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.get_running_loop().create_task(count_turns())
    harness = SubscriptionHarness(lambda: Slow(range(10)), page_items=5)
    replies = [KeepingReply(str(number)) for number in range(20)]
    for reply in replies:
        peer = Subscriber(reply, READER, reply.connection_id)
        harness.streams.subscribe(Subscribe(SubscriptionKind.HISTORY, HistoryQuery(LAMP), {}, demand=10), peer)
    await wait_until(lambda: all("Complete" in reply.names for reply in replies))
    assert (max(read.values()), read.total()) == (SIDE_BY_SIDE, 40)
    turning.cancel()

"""When a subscription ends: after the last confirm, or when its feed yields nothing."""

from __future__ import annotations

import asyncio

import pytest

from connectivity.errors import PublishFailed
from connectivity.subscriptions.feed import Page, PageEnd
from mappings.model.signals import EndReason
from tests.support.in_process.fakes import Element, ListFeed
from tests.support.in_process.subscription_harness import SubscriptionHarness


class HungFeed(ListFeed):
    """A feed whose page never comes."""

    async def page(self, position: int, limit: int, max_bytes: int) -> Page:
        await asyncio.Event().wait()
        raise AssertionError("nothing sets the event")


class BarrenFeed(ListFeed):
    """A feed in which nothing matches: pages without elements, and no end."""

    async def page(self, position: int, limit: int, max_bytes: int) -> Page:
        return Page((), position + 1, PageEnd.MORE)


class GapFeed(ListFeed):
    """A filtered history whose last page is empty."""

    async def page(self, position: int, limit: int, max_bytes: int) -> Page:
        return Page((), 2, PageEnd.END) if position else Page([Element(1)], 1, PageEnd.MORE)


class SparseFeed(ListFeed):
    """A filtered history: its first element matches, as does the one at `match`, if there is one. It has a hundred."""

    match = 0

    async def page(self, position: int, limit: int, max_bytes: int) -> Page:
        self.pages.append((position, limit))
        if position == 0:
            return Page([Element(1)], 1, PageEnd.UNDECIDED)
        if position == self.match - 1:
            return Page([Element(self.match)], 100, PageEnd.END) if limit else Page((), position, PageEnd.MORE)
        following = position + 33
        return Page((), following, PageEnd.UNDECIDED if following < 100 else PageEnd.END)


class SparseFeedWithTwo(SparseFeed):
    match = 35


async def test_complete_follows_the_last_match_without_demand_although_many_others_follow() -> None:
    harness = SubscriptionHarness(lambda: SparseFeed([]))
    await harness.request(harness.subscribe(), 1)
    assert harness.reply.names == ["Created", "Next", "Complete"]


async def test_without_demand_no_match_is_sent_but_known_to_follow() -> None:
    harness = SubscriptionHarness(lambda: SparseFeedWithTwo([]))
    key = harness.subscribe()
    await harness.request(key, 1)
    (feed,) = harness.opened
    assert isinstance(feed, SparseFeed)
    assert (harness.reply.elements, feed.pages) == ([1], [(0, 1), (1, 0), (34, 0)])
    harness.pass_time(10)
    assert harness.reply.names == ["Created", "Next"]
    await harness.request(key, 1)
    assert (harness.reply.elements, harness.reply.names[-1]) == ([1, 35], "Complete")


@pytest.mark.parametrize("error", [None, PublishFailed("too large", status=413)], ids=["confirmed", "refused"])
async def test_b5_an_empty_last_page_does_not_send_complete_before_the_elements_are_confirmed(
    error: PublishFailed | None,
) -> None:
    harness = SubscriptionHarness(lambda: GapFeed([]))
    key = harness.subscribe()
    harness.reply.confirms = False
    await harness.request(key, 10)
    assert harness.reply.names == ["Created", "Next"]
    harness.pass_time(3600)
    assert harness.reply.names == ["Created", "Next"], "elements that wait for the broker are not idleness"
    harness.reply.postings[-1].confirm(error)
    await harness.settle()
    assert harness.reply.names == ["Created", "Next", "Complete" if error is None else "Failed"]


@pytest.mark.parametrize("feed", [HungFeed, BarrenFeed])
async def test_b7_a_feed_that_yields_nothing_for_the_idle_time_ends_the_subscription(feed: type[ListFeed]) -> None:
    harness = SubscriptionHarness(lambda: feed([]))
    await harness.request(harness.subscribe(), 1)
    harness.pass_time(59)
    assert harness.reply.names == ["Created"]
    harness.pass_time(3)
    await harness.settle()
    assert harness.failures() == [EndReason.IDLE]
    assert all(subscription.pump is None for subscription in harness.streams)


async def test_waiting_for_a_page_with_a_timeout_of_its_own_is_not_idleness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HungFeed, "has_timeout", True)
    harness = SubscriptionHarness(lambda: HungFeed([]))
    key = harness.subscribe()
    await harness.request(key, 1)
    harness.pass_time(3600)
    assert harness.failures() == []
    harness.cancel(key)

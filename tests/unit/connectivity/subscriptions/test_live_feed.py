"""Live feeds: durable events in order and without gaps for many followers; rules for endless feeds.

The store is a real one on a journal in memory; pages are read as the subscription manager reads them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from connectivity.subscriptions import live_feed as module
from connectivity.subscriptions.feed import PageEnd
from connectivity.subscriptions.live_feed import LiveFeeds
from mappings.model.signals import Failed
from spark_store.errors import StoreUnavailable
from spark_store.records import PublishedEvent
from tests.support.in_process.live_feeds import MUCH, FollowedStore, awaited, drawn
from tests.support.in_process.service import until
from tests.support.journal_entries import LAMP, POLICY, change


@pytest.fixture
async def harness() -> AsyncIterator[FollowedStore]:
    made = FollowedStore()
    yield made
    await made.close()


# which events a follower gets


async def test_a_feed_starts_after_the_events_decided_before_it(harness: FollowedStore) -> None:
    await harness.store_up_to(3)
    harness.disk.hold()
    under_way = harness.store.commits.submit([change(LAMP, 4)])
    feed = harness.following.feed(LAMP)
    assert await drawn(feed) == ([], 0)
    harness.disk.release()
    await under_way
    await harness.reported(LAMP, 4)
    assert await drawn(feed) == ([], 0), "it was decided before"
    await harness.store_up_to(6)
    await awaited(feed)
    assert await drawn(feed) == ([5, 6], 6)


async def test_events_that_are_not_durable_are_not_sent(harness: FollowedStore) -> None:
    await harness.store_up_to(2)
    feed = harness.following.feed(LAMP)
    harness.disk.hold()
    under_way = harness.store.commits.submit([change(LAMP, 3)])
    assert await drawn(feed) == ([], 0)
    assert harness.following._lines[LAMP].newest == 2
    harness.disk.release()
    await under_way
    await awaited(feed)
    assert await drawn(feed) == ([3], 3)


async def test_a_history_and_then_live_without_gap_or_repeat(harness: FollowedStore) -> None:
    await harness.store_up_to(10)
    feed = harness.following.feed(LAMP, 4)
    found, position = await drawn(feed, limit=4)
    assert found == [5, 6, 7, 8, 9, 10]
    await harness.store_up_to(12)
    await awaited(feed)
    assert await drawn(feed, position) == ([11, 12], 12)


async def test_no_event_is_lost_between_history_and_live_whenever_a_commit_occurs(harness: FollowedStore) -> None:
    """One task stores as fast as possible while a follower catches up from the beginning."""
    await harness.store_up_to(50)
    subscriber = harness.subscriber(after=0)
    for last in range(51, 151, 3):
        await harness.store_up_to(last)
    await until(lambda: len(subscriber.revisions) >= 150)
    assert subscriber.revisions == list(range(1, 151))


async def test_a_commit_pending_at_the_beginning_is_sent(harness: FollowedStore) -> None:
    """There was no follower when the event was written."""
    await harness.store_up_to(2)
    harness.disk.hold()
    under_way = harness.store.commits.submit([change(LAMP, 3)])
    await until(lambda: harness.store.commits._written)
    feed = harness.following.feed(LAMP, 2)
    assert await drawn(feed) == ([], 0)
    harness.disk.release()
    await under_way
    await awaited(feed)
    assert await drawn(feed) == ([3], 3)


async def test_feeds_of_different_entities_are_separate(harness: FollowedStore) -> None:
    lamp, policy = harness.following.feed(LAMP), harness.following.feed(POLICY)
    await harness.store.commits.submit([change(LAMP, 1), change(POLICY, 1), change(LAMP, 2)])
    await awaited(lamp)
    assert await drawn(lamp) == ([1, 2], 2)
    assert await drawn(policy) == ([1], 1)


async def test_followers_that_keep_up_share_the_events_in_memory(harness: FollowedStore) -> None:
    await harness.store_up_to(3)
    feeds = [harness.following.feed(LAMP) for _ in range(3)]
    await harness.store_up_to(5)
    await harness.reported(LAMP, 5)
    pages = [await feed.page(0, 100, MUCH) for feed in feeds]
    assert {page.then for page in pages} == {PageEnd.WAIT}
    assert [event.revision for event in pages[0].elements] == [4, 5]
    for page in pages:
        assert all(one is other for one, other in zip(page.elements, pages[0].elements, strict=True))
    assert harness.disk.pages == 0


async def test_a_follower_that_lags_after_the_memory_reads_the_history(
    harness: FollowedStore, monkeypatch: Any
) -> None:
    harness.following = LiveFeeds(harness.store, most=16)
    slow, fast = harness.following.feed(LAMP), harness.following.feed(LAMP)
    position, seen = 0, []
    for last in range(5, 101, 5):
        await harness.store_up_to(last)
        await harness.reported(LAMP, last)
        found, position = await drawn(fast, position)
        seen += found
    assert seen == list(range(1, 101))
    assert harness.disk.pages == 0
    assert len(harness.following._buffered) <= 16
    assert sum(len(line.events) for line in harness.following._lines.values()) <= 16
    assert (await drawn(slow, limit=7))[0] == list(range(1, 101))
    assert harness.disk.pages > 0


async def test_the_memory_is_bounded_in_bytes_over_all_entities(harness: FollowedStore) -> None:
    harness.following = LiveFeeds(harness.store, most_bytes=100)
    lamp, policy = harness.following.feed(LAMP), harness.following.feed(POLICY)
    for last in range(1, 41):
        await harness.store.commits.submit([change(LAMP, last, b'"0123456789"'), change(POLICY, last)])
    await harness.reported(POLICY, 40)
    assert 0 < harness.following._bytes <= 100
    assert len(harness.following._buffered) < 12
    assert (await drawn(lamp))[0] == (await drawn(policy))[0] == list(range(1, 41))


async def test_a_page_is_bounded_by_limit_and_bytes(harness: FollowedStore) -> None:
    feed = harness.following.feed(LAMP)
    await harness.store.commits.submit([change(LAMP, revision, b'"0123456789"') for revision in range(1, 6)])
    await harness.reported(LAMP, 5)
    page = await feed.page(0, 2, MUCH)
    assert ([event.revision for event in page.elements], page.position, page.then) == ([1, 2], 2, PageEnd.MORE)
    page = await feed.page(2, 10, 20)
    assert ([event.revision for event in page.elements], page.then) == ([3, 4], PageEnd.MORE)
    page = await feed.page(4, 10, 1)
    assert [event.revision for event in page.elements] == [5], "one event is never too large"


# first and last followers


async def test_a_follower_that_is_closed_twice_leaves_once(harness: FollowedStore) -> None:
    first, second, other = (harness.following.feed(entity) for entity in (LAMP, LAMP, POLICY))
    first.close()
    first.close()
    assert harness.following.followers(LAMP) == 1
    second.close()
    second.close()
    assert (harness.following.followers(LAMP), harness.following.followers(POLICY)) == (0, 1)
    other.close()


async def test_without_followers_no_events_are_kept(harness: FollowedStore) -> None:
    feed = harness.following.feed(LAMP)
    await harness.store_up_to(3)
    await harness.reported(LAMP, 3)
    feed.close()
    assert not harness.store.tail.is_followed
    assert (len(harness.following._buffered), harness.following._bytes, harness.following._lines) == (0, 0, {})
    await harness.store_up_to(6)
    again = harness.following.feed(LAMP, 2)
    assert await drawn(again) == ([3, 4, 5, 6], 6)


async def test_a_closed_feed_does_not_call_its_waiter(harness: FollowedStore) -> None:
    feed, other = harness.following.feed(LAMP), harness.following.feed(LAMP)
    feed.wake(lambda: pytest.fail("a closed feed called its waiter"))
    await harness.store_up_to(1)
    feed.close()
    await awaited(other)


async def test_many_followers_are_woken_in_batches_so_that_the_event_loop_can_run(harness: FollowedStore) -> None:
    woken: list[int] = []
    feeds = [harness.following.feed(LAMP) for _ in range(100)]
    for number, feed in enumerate(feeds):
        feed.wake(partial(woken.append, number))
    await harness.store_up_to(1)
    steps: list[int] = []
    while len(woken) < 100:
        await asyncio.sleep(0)
        steps.append(len(woken))
    assert woken == list(range(100))
    assert max(later - earlier for earlier, later in pairwise(steps)) <= module.WAKE_BATCH


# failures


async def test_a_feed_does_not_start_after_a_decided_event_that_was_never_stored(harness: FollowedStore) -> None:
    """Another event may be stored with the same revision."""
    await harness.store_up_to(3)
    harness.disk.hold()
    lost = harness.store.commits.submit([change(LAMP, 4, b'"lost"')])
    feed = harness.following.feed(LAMP)
    position = (await feed.page(0, 10, MUCH)).position
    harness.disk.full = True
    harness.disk.release()
    with pytest.raises(StoreUnavailable):
        await lost
    harness.disk.full = False
    await harness.store.commits.wait_available()
    await harness.store.commits.submit([change(LAMP, 4, b'"another"'), change(LAMP, 5)])
    await harness.reported(LAMP, 5)
    assert await drawn(feed, position) == ([4, 5], 5)


async def test_a_feed_does_not_start_after_an_event_that_cannot_be_stored(harness: FollowedStore) -> None:
    await harness.store_up_to(3)
    harness.disk.rejected = {b'"bad"'}
    refused = harness.store.commits.submit([change(LAMP, 4, b'"bad"')])
    feed = harness.following.feed(LAMP)
    with pytest.raises(ValueError, match="bad"):
        await refused
    await harness.store_up_to(4)
    await harness.reported(LAMP, 4)
    assert await drawn(feed) == ([4], 4)


async def test_events_of_a_commit_with_a_lost_result_are_sent(harness: FollowedStore) -> None:
    await harness.store_up_to(3)
    feed = harness.following.feed(LAMP)
    harness.disk.loses_answers = True
    with pytest.raises(StoreUnavailable):
        await harness.store.commits.submit([change(LAMP, 4)])
    harness.disk.loses_answers = False
    await awaited(feed)
    assert await drawn(feed) == ([4], 4)


async def test_an_unreadable_store_is_read_again_later(harness: FollowedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.01)
    feed = harness.following.feed(LAMP)
    after: Callable[..., Any] = harness.store.tail.after
    tries: list[int] = []

    def unreadable(seq: int, limit: int) -> list[PublishedEvent]:
        tries.append(seq)
        if len(tries) < 3:
            raise StoreUnavailable("the disk is gone")
        return list(after(seq, limit))

    monkeypatch.setattr(harness.store.tail, "after", unreadable)
    await harness.store_up_to(2)
    await awaited(feed)
    assert await drawn(feed) == ([1, 2], 2)
    assert len(tries) == 3


async def test_erased_events_are_not_sent_from_memory(harness: FollowedStore) -> None:
    """After an erasure no event may be sent that the history no longer has."""
    feed = harness.following.feed(LAMP)
    await harness.store_up_to(3)
    await harness.reported(LAMP, 3)
    harness.store.tail.forget()
    assert await drawn(feed) == ([1, 2, 3], 3)
    assert harness.disk.pages > 0


# engine rules on a feed without end


async def test_rs_1_01_no_more_than_requested_is_sent(harness: FollowedStore) -> None:
    subscriber = harness.subscriber(demand=2)
    await harness.store_up_to(5)
    await until(lambda: len(subscriber.revisions) == 2)
    subscriber.request(1)
    await until(lambda: len(subscriber.revisions) == 3)
    await harness.store_up_to(7)
    await harness.reported(LAMP, 7)
    assert subscriber.revisions == [1, 2, 3]
    subscriber.request(10)
    await until(lambda: len(subscriber.revisions) == 7)
    await harness.store_up_to(9)
    await until(lambda: len(subscriber.revisions) == 9)
    assert subscriber.revisions == list(range(1, 10))


async def test_rs_1_07_nothing_follows_a_cancel(harness: FollowedStore) -> None:
    subscriber, other = harness.subscriber(), harness.subscriber()
    await harness.store_up_to(1)
    await until(lambda: subscriber.revisions == other.revisions == [1])
    subscriber.cancel()
    await harness.store_up_to(2)
    await until(lambda: other.revisions == [1, 2])
    assert subscriber.reply.names == ["Created", "Next"]
    assert harness.following.followers(LAMP) == 1


async def test_a_session_is_not_idle_while_nothing_happens(harness: FollowedStore) -> None:
    """The session's own lifetime decides when it ends."""
    subscriber = harness.subscriber()
    harness.clock.advance(3600)
    harness.streams.sweep()
    await harness.store_up_to(1)
    await until(lambda: subscriber.revisions == [1])
    subscriber.cancel()
    for _ in range(5):
        harness.clock.advance(1)
        harness.streams.sweep()
    assert list(harness.streams._scopes) == [], "what has ended is forgotten"


async def test_no_page_is_read_while_the_broker_accepts_nothing(harness: FollowedStore) -> None:
    subscriber = harness.subscriber()
    subscriber.reply.is_stalled = True
    await harness.store_up_to(1)
    await until(lambda: subscriber.revisions == [1])
    await harness.store_up_to(5)
    await harness.reported(LAMP, 5)
    assert subscriber.revisions == [1]
    subscriber.reply.is_stalled = False
    subscriber.reply.postings[-1].take()
    await until(lambda: subscriber.revisions == [1, 2, 3, 4, 5])


async def test_a_feed_that_cannot_be_opened_fails_alone(harness: FollowedStore) -> None:
    other = harness.subscriber()
    harness.disk.unreadable = True
    subscriber = harness.subscriber(POLICY)
    assert isinstance(subscriber.reply.signals[-1], Failed)
    assert harness.following.followers(POLICY) == 0
    harness.disk.unreadable = False
    await harness.store_up_to(1)
    await until(lambda: other.revisions == [1])


async def test_a_thousand_followers_get_an_event_once_each(harness: FollowedStore) -> None:
    subscribers = [harness.subscriber() for _ in range(1000)]
    await harness.store_up_to(2)
    await until(lambda: all(len(one.revisions) == 2 for one in subscribers))
    first = subscribers[0].reply.elements
    for subscriber in subscribers:
        assert subscriber.revisions == [1, 2]
        assert all(one is other for one, other in zip(subscriber.reply.elements, first, strict=True))
    assert harness.disk.pages == 0

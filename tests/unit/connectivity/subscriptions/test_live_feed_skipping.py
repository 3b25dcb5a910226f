"""Followers that lag: which events they skip, and that clients can still get every event."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectivity.subscriptions.feed import PageEnd
from connectivity.subscriptions.live_feed import LagTolerance
from tests.support.dice import examples
from tests.support.in_process.live_feeds import MUCH, FollowedStore, drawn
from tests.support.in_process.service import until
from tests.support.journal_entries import LAMP, change


@pytest.fixture
async def harness() -> AsyncIterator[FollowedStore]:
    made = FollowedStore()
    yield made
    await made.close()


@pytest.mark.parametrize(
    ("events", "bytes", "is_over"),
    [
        (1000, 0, False),
        (1001, 0, True),
        (2, 1 << 20, False),
        (2, (1 << 20) + 1, True),
        (1, 1 << 30, False),
        (0, 0, False),
    ],
)
def test_too_much_lag_is_a_number_of_events_or_of_bytes(events: int, bytes: int, *, is_over: bool) -> None:
    assert LagTolerance().is_over(events, bytes) is is_over


async def test_case_b11_skipped_events_precede_the_next_event_that_is_sent(harness: FollowedStore) -> None:
    harness.follow_with(LagTolerance(events=4))
    subscriber = harness.subscriber(may_skip=True)
    await harness.store_up_to(1)
    await until(lambda: subscriber.revisions == [1])
    subscriber.reply.is_stalled = True
    await harness.store_up_to(2)
    await until(lambda: subscriber.revisions == [1, 2])
    await harness.store_up_to(8)
    await harness.reported(LAMP, 8)
    harness.clock.advance(2)
    subscriber.reply.is_stalled = False
    subscriber.reply.postings[-1].take()
    await until(lambda: 8 in subscriber.revisions)
    assert subscriber.revisions == [1, 2, 8], "the predecessor of 8 is 7, so its client asks for 3 to 7: these five"
    await harness.store_up_to(9)
    await until(lambda: subscriber.revisions == [1, 2, 8, 9])
    assert [figure.values[()] for figure in harness.following.figures()] == [1, 1, 5]


async def test_a_burst_alone_skips_no_events(harness: FollowedStore) -> None:
    """After a pause of any length."""
    harness.follow_with(LagTolerance(events=4))
    subscriber = harness.subscriber(may_skip=True)
    await harness.store_up_to(1)
    await until(lambda: subscriber.revisions == [1])
    harness.clock.advance(3600)
    await harness.store_up_to(300)
    await until(lambda: len(subscriber.revisions) >= 300)
    assert subscriber.revisions == list(range(1, 301))


async def test_a_follower_with_little_demand_skips_by_bytes_as_well(harness: FollowedStore) -> None:
    harness.follow_with(LagTolerance(bytes=120))
    subscriber = harness.subscriber(demand=1, may_skip=True)
    await harness.store.commits.submit([change(LAMP, revision, b'"%b"' % (b"x" * 48)) for revision in range(1, 4)])
    await until(lambda: subscriber.revisions == [1])
    harness.clock.advance(2)
    subscriber.request(1)
    await until(lambda: len(subscriber.revisions) == 2)
    assert subscriber.revisions == [1, 2], "two were left, which are not too many bytes"
    harness.clock.advance(2)
    await harness.store.commits.submit([change(LAMP, revision, b'"%b"' % (b"x" * 48)) for revision in range(4, 7)])
    await harness.reported(LAMP, 6)
    subscriber.request(1)
    await until(lambda: len(subscriber.revisions) == 3)
    await harness.store.commits.submit([change(LAMP, 7, b'"%b"' % (b"x" * 48))])
    await harness.reported(LAMP, 7)
    harness.clock.advance(2)
    subscriber.request(2)
    await until(lambda: len(subscriber.revisions) == 4)
    assert subscriber.revisions == [1, 2, 3, 7], "too many bytes have waited for two seconds"


async def test_a_follower_that_catches_up_in_between_gets_every_event(harness: FollowedStore) -> None:
    harness.follow_with(LagTolerance(events=4))
    feed, position, seen = harness.following.feed(LAMP, may_skip=True), 0, []
    for last in range(10, 101, 10):
        await harness.store_up_to(last)
        await harness.reported(LAMP, last)
        harness.clock.advance(1.5)
        while position < last - 2:
            page = await feed.page(position, 4, MUCH)
            position = page.position
            seen += [event.revision for event in page.elements]
    assert seen == list(range(1, position + 1))


async def test_a_follower_that_may_not_skip_gets_every_event(harness: FollowedStore) -> None:
    harness.follow_with(LagTolerance(events=4))
    await harness.store_up_to(50)
    feed = harness.following.feed(LAMP, 0)
    harness.clock.advance(3600)
    assert (await drawn(feed, limit=3))[0] == list(range(1, 51))


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4), st.sampled_from((0, 1, 3))), max_size=30))
async def test_a_client_that_requests_gaps_ends_up_with_every_event(course: list[tuple[int, int, int]]) -> None:
    """Store some events, take some, let time pass; at last take all that are left."""
    harness = FollowedStore()
    harness.follow_with(LagTolerance(events=3))
    known: list[int] = []
    position = 0

    async def take(limit: int) -> PageEnd:
        nonlocal position
        page = await feed.page(position, limit, MUCH)
        for event in page.elements:
            # Like a client, request the events between the last one and the predecessor.
            known.extend(range(len(known) + 1, event.revision))
            known.append(event.revision)
        position = page.position
        return page.then

    feed = harness.following.feed(LAMP, may_skip=True)
    last = 0
    for stored, taken, seconds in course:
        if stored:
            await harness.store_up_to(last := last + stored)
            await harness.reported(LAMP, last)
        if taken:
            await take(taken)
        harness.clock.advance(seconds)
    while await take(10) is not PageEnd.WAIT:
        pass
    assert known == list(range(1, last + 1))
    await harness.store.close()

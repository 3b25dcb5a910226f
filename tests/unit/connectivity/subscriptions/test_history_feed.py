"""The feed of a history: fixed bounds, pages, and the end."""

from __future__ import annotations

import asyncio
import json
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime
from typing import Any

import pytest

from connectivity.store.store import Store
from connectivity.subscriptions.feed import FeedFailed, PageEnd
from connectivity.subscriptions.history_feed import HistoryFeed
from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event, HistoryQuery
from spark_store.errors import QueryError, StoreUnavailable
from spark_store.history.replay import evolve
from spark_store.records import Change
from tests.support.cpu_budget import at_most
from tests.support.in_process.service import Disk, pause, until
from tests.support.replayed import fold
from tests.support.temporary_journal import TemporaryJournal

LAMP = EntityId(EntityType.THING, "acme.site", "lamp-7")
NOW = datetime(2030, 1, 15, tzinfo=UTC)


def event(revision: int) -> Event:
    stamp = f"2030-01-15T07:30:{revision:02}.000000Z"
    if revision == 1:
        value = json.dumps({"thingId": str(LAMP), "policyId": str(LAMP), "attributes": {"n": 0}}).encode()
        return Event(LAMP, 1, stamp, "created", "/", value, b"{}")
    return Event(LAMP, revision, stamp, "modified", "/attributes/n", b"%d" % revision, b"{}")


@pytest.fixture
def journal() -> TemporaryJournal:
    made = TemporaryJournal()
    events = [event(revision) for revision in range(1, 11)]
    made.append([Change(tuple(events), (fold(events),))])
    return made


async def test_pages_follow_each_other_and_the_last_one_is_marked(journal: TemporaryJournal) -> None:
    feed = HistoryFeed.open(Store(journal), HistoryQuery(LAMP), NOW)
    first = await feed.page(0, 7, 1 << 20)
    assert ([item.revision for item in first.elements], first.then) == (list(range(1, 8)), PageEnd.MORE)
    last = await feed.page(first.position, 7, 1 << 20)
    assert ([item.revision for item in last.elements], last.then) == ([8, 9, 10], PageEnd.END)


async def test_the_bound_is_fixed_when_the_feed_is_opened(journal: TemporaryJournal) -> None:
    feed = HistoryFeed.open(Store(journal), HistoryQuery(LAMP), NOW)
    later = event(11)
    before = journal.snapshot(LAMP)
    journal.append([Change((later,), (evolve(before, later),))])
    page = await feed.page(0, 100, 1 << 20)
    assert (len(page.elements), page.then) == (10, PageEnd.END)


async def test_an_empty_history_ends_at_once(journal: TemporaryJournal) -> None:
    unknown = EntityId(EntityType.THING, "acme.site", "nobody")
    page = await HistoryFeed.open(Store(journal), HistoryQuery(unknown), NOW).page(0, 10, 1 << 20)
    assert (list(page.elements), page.then) == ([], PageEnd.END)


def test_an_invalid_filter_is_reported_when_the_feed_is_opened(journal: TemporaryJournal) -> None:
    with pytest.raises(QueryError):
        HistoryFeed.open(Store(journal), HistoryQuery(LAMP, filter="eq("), NOW)


async def test_a_filter_that_compares_very_much_in_an_event_fails_soon() -> None:
    """Two hundred comparisons of an array of 90 KB took twenty seconds. No other client was served."""
    journal = TemporaryJournal()
    large = Event(LAMP, 2, event(2).timestamp, "modified", "/attributes/n", b"[%b]" % b",".join([b"1"] * 45_000), b"{}")
    events = event(1), large
    journal.append([Change(events, (fold(events),))])
    many = ",".join(["gt(attributes/n,'z')"] * 200)
    feed = opened(journal, filter=f"or({many})")
    with at_most(1), pytest.raises(FeedFailed) as caught:
        await feed.page(0, 10, 1 << 20)
    assert caught.value.fault.error == "rql.expression.invalid"
    numbers = ",".join(["eq(attributes/n,1)"] * 30)
    page = await opened(journal, filter=f"or(gt(attributes/n,'z'),{numbers})").page(0, 10, 1 << 20)
    assert [found.revision for found in page.elements] == [2]


async def test_a_history_has_the_events_before_one_of_which_its_filter_compares_very_much() -> None:
    journal = TemporaryJournal()
    large = Event(LAMP, 3, event(3).timestamp, "modified", "/attributes/n", b"[%b]" % b",".join([b"1"] * 45_000), b"{}")
    events = event(1), event(2), large
    journal.append([Change(events, (fold(events),))])
    comparisons = ",".join(["gt(attributes/n,'z')"] * 3)
    feed = opened(journal, filter=f"not(or({comparisons}))")
    page = await feed.page(0, 10, 1 << 20)
    assert ([found.revision for found in page.elements], page.position, page.then) == ([1, 2], 2, PageEnd.MORE)
    with pytest.raises(FeedFailed, match="bytes of arrays and texts at revision 3, expected at most"):
        await feed.page(page.position, 10, 1 << 20)


def opened(journal: TemporaryJournal, **query: Any) -> HistoryFeed:
    return HistoryFeed.open(Store(journal), HistoryQuery(LAMP, **query), NOW)


def append(journal: TemporaryJournal, revision: int) -> Change:
    """Append the next change, which is not durable yet."""
    later = event(revision)
    return Change((later,), (evolve(journal.snapshot(LAMP), later),))


async def revisions(feed: HistoryFeed, position: int = 0, limit: int = 100) -> list[int]:
    return [item.revision for item in (await feed.page(position, limit, 1 << 20)).elements]


async def test_the_page_with_the_last_event_is_the_end(journal: TemporaryJournal) -> None:
    assert (await opened(journal).page(0, 10, 1 << 20)).then is PageEnd.END
    assert (await opened(journal).page(0, 9, 1 << 20)).then is PageEnd.MORE


async def test_relative_bounds_are_fixed_at_the_opening(journal: TemporaryJournal) -> None:
    feed = opened(journal, from_revision=-2)
    journal.append([append(journal, 11)])
    assert await revisions(feed) == [9, 10]


async def test_case_36_filtered_events_use_no_demand(journal: TemporaryJournal) -> None:
    feed = opened(journal, filter="ge(attributes/n,8)")
    page = await feed.page(0, 2, 1 << 20)
    assert [item.revision for item in page.elements] == [8, 9]
    assert await revisions(feed, page.position, 2) == [10]


async def test_a_page_without_demand_looks_for_a_further_match() -> None:
    """Each page examines some events only, and the last requested match is far from the end."""
    journal = TemporaryJournal()
    events = [event(1), *(event(2)._replace(revision=number, value=b"%d" % number) for number in range(2, 401))]
    journal.append([Change(tuple(events), (fold(events),))])
    for filter, follows in (("lt(attributes/n,4)", False), ("or(lt(attributes/n,4),eq(attributes/n,399))", True)):
        feed = opened(journal, filter=filter)
        page = await feed.page(0, 3, 1 << 20)
        assert ([item.revision for item in page.elements], page.then) == ([1, 2, 3], PageEnd.UNDECIDED)
        while page.then is PageEnd.UNDECIDED:
            page = await feed.page(page.position, 0, 1 << 20)
            assert list(page.elements) == []
        assert page.then is (PageEnd.MORE if follows else PageEnd.END)
        assert await revisions(feed, page.position) == ([399] if follows else [])


async def test_case_12_an_empty_range_ends_at_once(journal: TemporaryJournal) -> None:
    page = await opened(journal, from_revision=9, to_revision=5).page(0, 10, 1 << 20)
    assert (list(page.elements), page.then) == ([], PageEnd.END)


async def test_a_page_is_bounded_in_bytes_too(journal: TemporaryJournal) -> None:
    page = await opened(journal).page(0, 10, 1)
    assert (len(page.elements), page.then) == (1, PageEnd.MORE)


async def test_reading_twice_returns_the_same_page(journal: TemporaryJournal) -> None:
    feed = opened(journal)
    assert await feed.page(3, 2, 1 << 20) == await feed.page(3, 2, 1 << 20)


async def test_a_store_that_is_closed_is_unavailable(journal: TemporaryJournal) -> None:
    feed = opened(journal)
    await feed.store.close()
    with pytest.raises(StoreUnavailable):
        await feed.page(0, 10, 1 << 20)


async def test_events_decided_before_the_opening_are_waited_for() -> None:
    disk = Disk()
    disk.append([Change((event(1),), (fold([event(1)]),))])
    store = Store(disk)
    disk.hold()
    commits = disk.commits
    store.commits.submit([append(disk, 2)])
    await until(lambda: disk.commits > commits)
    feed = HistoryFeed.open(store, HistoryQuery(LAMP, from_revision=2), NOW)
    waiting = asyncio.create_task(revisions(feed))
    await pause()
    assert not waiting.done()
    disk.release()
    assert await waiting == [2]
    await store.close()


@pytest.mark.parametrize(
    ("asked", "found"), [({"before": 4_070_908_800 * 10**9}, [1, 2]), ({"after": 4_070_908_800 * 10**9}, [])]
)
async def test_timestamps_also_select_events_decided_before_the_opening(
    asked: dict[str, Any], found: list[int]
) -> None:
    """A modify and a subscribe in one batch; the year 2099 is after both events."""
    disk = Disk()
    disk.append([Change((event(1),), (fold([event(1)]),))])
    store = Store(disk)
    durable = store.commits.submit([append(disk, 2)])
    feed = HistoryFeed.open(store, HistoryQuery(LAMP, **asked), NOW)
    assert not durable.done()
    page = await feed.page(0, 10, 1 << 20)
    assert ([item.revision for item in page.elements], page.then) == (found, PageEnd.END)
    await store.close()


def test_a_history_never_waits(journal: TemporaryJournal) -> None:
    woken: list[str] = []
    opened(journal).wake(lambda: woken.append("at once"))
    assert woken == ["at once"]


def test_a_feed_is_one_small_object_that_does_not_change(journal: TemporaryJournal) -> None:
    """There may be 100,000 of them."""
    feed = opened(journal)
    assert not hasattr(feed, "__dict__")
    with pytest.raises(FrozenInstanceError):
        feed.first = 2  # type: ignore[misc]

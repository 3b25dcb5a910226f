"""The feed of a history: bounds fixed at the subscribe, pages, and their end."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from connectivity.feeds import Then
from connectivity.history import HistoryFeed
from connectivity.store import Store
from mappings.ids import EntityId, EntityType
from mappings.signals import Event, HistoryQuery
from spark_store.errors import QueryError
from spark_store.memory import MemoryJournal
from spark_store.records import Change
from spark_store.replay import evolve, fold

LAMP = EntityId(EntityType.THING, "acme.site", "lamp-7")
NOW = datetime(2030, 1, 15, tzinfo=UTC)


def event(revision: int) -> Event:
    stamp = f"2030-01-15T07:30:{revision:02}.000000Z"
    if revision == 1:
        value = json.dumps({"thingId": str(LAMP), "policyId": str(LAMP), "attributes": {"n": 0}}).encode()
        return Event(LAMP, 1, stamp, "created", "/", value, b"{}")
    return Event(LAMP, revision, stamp, "modified", "/attributes/n", b"%d" % revision, b"{}")


@pytest.fixture
def journal() -> MemoryJournal:
    made = MemoryJournal()
    events = [event(revision) for revision in range(1, 11)]
    made.append([Change(tuple(events), (fold(events),))])
    return made


async def test_pages_follow_each_other_and_the_last_one_says_so(journal: MemoryJournal) -> None:
    feed = HistoryFeed.open(Store(journal), HistoryQuery(LAMP), NOW)
    first = await feed.page(0, 7, 1 << 20)
    assert ([item.revision for item in first.elements], first.then) == (list(range(1, 8)), Then.MORE)
    last = await feed.page(first.position, 7, 1 << 20)
    assert ([item.revision for item in last.elements], last.then) == ([8, 9, 10], Then.END)


async def test_the_bound_is_fixed_when_the_feed_is_opened(journal: MemoryJournal) -> None:
    feed = HistoryFeed.open(Store(journal), HistoryQuery(LAMP), NOW)
    later = event(11)
    before = journal.snapshot(LAMP)
    journal.append([Change((later,), (evolve(before, later),))])
    page = await feed.page(0, 100, 1 << 20)
    assert (len(page.elements), page.then) == (10, Then.END)


async def test_a_history_of_nothing_ends_at_once(journal: MemoryJournal) -> None:
    unknown = EntityId(EntityType.THING, "acme.site", "nobody")
    page = await HistoryFeed.open(Store(journal), HistoryQuery(unknown), NOW).page(0, 10, 1 << 20)
    assert (list(page.elements), page.then) == ([], Then.END)


def test_an_unreadable_filter_is_found_when_the_feed_is_opened(journal: MemoryJournal) -> None:
    with pytest.raises(QueryError):
        HistoryFeed.open(Store(journal), HistoryQuery(LAMP, filter="eq("), NOW)

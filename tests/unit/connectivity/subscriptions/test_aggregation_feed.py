"""Aggregations without brokers: rows in pages, with the permissions of the subscriber."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest

from connectivity.subscriptions.aggregation_feed import AggregationFeed, FullScan, RowBudget
from connectivity.subscriptions.feed import FeedFailed, PageEnd
from connectivity.subscriptions.search_feed import SearchWorker
from connectivity.twins.access import ThingRights
from mappings.model.signals import SearchQuery
from spark_store.errors import BudgetExceeded, StoreUnavailable
from spark_store.rql.query import Budget, ReadRights, SearchHit, SortKey, ThingQuery
from spark_store.search.aggregation import GroupAccumulator, read_aggregation
from tests.support.clock import Clock
from tests.support.in_process.search_client import Searcher, has_thing
from tests.support.in_process.service import ConnectionHarness, source

pytestmark = pytest.mark.usefixtures("harnesses")

ALL = {"grant": ["READ", "WRITE"], "revoke": []}
READ = {"grant": ["READ"], "revoke": []}
HIDDEN = {"grant": [], "revoke": ["READ"]}
BY_ROOM = {"groupBy": {"room": "attributes/room"}, "measures": {"all": {"sum": "attributes/size"}}}


def entries(**guest: Any) -> dict[str, Any]:
    """Return policy entries of the owner and of a guest: `entries(**{"thing:/attributes": READ})`."""
    found = {
        "OWNER": {
            "subjects": {"acme:owner": {"type": "test"}},
            "resources": {"thing:/": ALL, "policy:/": ALL, "message:/": ALL},
        }
    }
    if guest:
        found["GUEST"] = {"subjects": {"acme:guest": {"type": "test"}}, "resources": guest}
    return {"entries": found}


@pytest.fixture
def harness() -> ConnectionHarness:
    return ConnectionHarness(source(), source("guests", "acme:guest"))


async def registries(harness: ConnectionHarness, number: int, **guest: Any) -> None:
    """Create things in three rooms in turn; `size` is the number of the thing."""
    for each in range(number):
        attributes = {"room": ("attic", "cellar", "hall")[each % 3], "size": each}
        await has_thing(harness, f"lamp-{each:03}", {"attributes": attributes}, policy=entries(**guest))


async def test_rows_come_in_pages_that_were_requested(harness: ConnectionHarness) -> None:
    await registries(harness, 9)
    searcher = Searcher(harness)
    key = await searcher.subscribe(None, "size(2)", aggregation=BY_ROOM)
    assert await searcher.request(key) == [
        [{"room": "attic", "count": 3, "all": 9}, {"room": "cellar", "count": 3, "all": 12}]
    ]
    assert searcher.messages(key) == ["created", "next"]
    assert (await searcher.request(key))[1:] == [[{"room": "hall", "count": 3, "all": 15}]]
    assert searcher.messages(key) == ["created", "next", "next", "complete"]


async def test_nothing_is_read_before_the_first_request(harness: ConnectionHarness) -> None:
    await registries(harness, 1)
    searcher = Searcher(harness)
    key = await searcher.subscribe(aggregation={})
    assert harness.search.pages == []
    assert await searcher.request(key, 9) == [[{"count": 1}]]
    assert searcher.messages(key) == ["created", "next", "complete"]


async def test_without_a_match_groups_are_complete_without_a_page_and_a_count_is_zero(
    harness: ConnectionHarness,
) -> None:
    searcher = Searcher(harness)
    key = await searcher.subscribe(aggregation=BY_ROOM)
    assert await searcher.request(key) == []
    assert searcher.messages(key) == ["created", "complete"]
    key = await searcher.subscribe(aggregation={})
    assert await searcher.request(key) == [[{"count": 0}]]


async def test_only_things_that_match_filter_and_namespaces_are_counted(harness: ConnectionHarness) -> None:
    await registries(harness, 9)
    searcher = Searcher(harness)
    key = await searcher.subscribe("gt(attributes/size,3)", aggregation={}, namespaces=["acme.site"])
    assert await searcher.request(key) == [[{"count": 5}]]
    key = await searcher.subscribe("gt(attributes/size,3)", aggregation={}, namespaces=["acme.lab"])
    assert await searcher.request(key) == [[{"count": 0}]]


async def test_all_matches_are_scanned_in_slices(harness: ConnectionHarness) -> None:
    harness.search.slice = 4
    await registries(harness, 30)
    searcher = Searcher(harness)
    key = await searcher.subscribe(None, "sort(-attributes/size)", aggregation=BY_ROOM)
    (page,) = await searcher.request(key)
    assert [row["count"] for row in page] == [10, 10, 10]
    assert sum(row["all"] for row in page) == sum(range(30))
    assert len(harness.search.pages) == 8
    assert {looked.thread[:6] for looked in harness.search.pages} == {"search"}


async def test_rows_are_computed_outside_the_event_loop(
    harness: ConnectionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exact means of 10,000 groups take a second."""
    await registries(harness, 3)
    threads, rows = set[threading.Thread](), GroupAccumulator.rows

    def noted(tally: GroupAccumulator) -> list[dict[str, Any]]:
        threads.add(threading.current_thread())
        return rows(tally)

    monkeypatch.setattr(GroupAccumulator, "rows", noted)
    searcher = Searcher(harness)
    await searcher.request(await searcher.subscribe(aggregation=BY_ROOM))
    assert len(threads) == 1
    assert threading.main_thread() not in threads


async def test_errors_of_a_scan_fail_the_subscription(harness: ConnectionHarness) -> None:
    await registries(harness, 3)
    searcher = Searcher(harness)
    for error in (BudgetExceeded(5.0),):
        harness.search.error = error
        key = await searcher.subscribe(aggregation={})
        assert await searcher.request(key) == []
        failure = searcher.failure(key)
        assert (failure["status"], failure["error"]) == (503, "thing-search:budget.exceeded")
        assert "The search did not read all matches within 60 s." in failure["message"]
    harness.search.error = StoreUnavailable("a bad day")
    key = await searcher.subscribe(aggregation={})
    await searcher.request(key)
    assert searcher.failure(key)["error"] == "thing-search:store.unavailable"


async def test_the_time_of_a_scan_is_limited_for_any_number_of_matches(harness: ConnectionHarness) -> None:
    await registries(harness, 9)
    harness.search.slice = 1
    asked = harness.searching.understand(SearchQuery(), ("acme:owner",))
    everything = FullScan(harness.searching, asked.question, asked.subjects, 1e-9)
    feed = AggregationFeed(everything, read_aggregation({}), 25, RowBudget())
    with pytest.raises(FeedFailed) as failed:
        await feed.prepare()
    assert failed.value.fault.error == "thing-search:budget.exceeded"
    assert len(harness.search.pages) == 1


async def test_all_slices_of_a_scan_are_of_one_request(
    harness: ConnectionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await registries(harness, 9)
    harness.search.slice = 4
    budgets, page = [], harness.search.page

    def recorded(question: ThingQuery, rights: ReadRights, after: SortKey | None, limit: int, budget: Budget) -> Any:
        budgets.append(budget)
        return page(question, rights, after, limit, budget)

    monkeypatch.setattr(harness.search, "page", recorded)
    asked = harness.searching.understand(SearchQuery(), ("acme:owner",))
    await FullScan(harness.searching, asked.question, asked.subjects, 60.0).read(lambda *_: None)
    assert len(budgets) == 3
    assert len(set(map(id, budgets))) == 1


async def test_the_time_limit_of_a_scan_also_applies_between_the_matches_of_a_slice(harness: ConnectionHarness) -> None:
    await registries(harness, 9)
    clock = Clock()
    harness.searching.pace.now = clock.now
    asked = harness.searching.understand(SearchQuery(), ("acme:owner",))
    added = []

    def rest(seconds: float) -> None:
        clock.advance(seconds)

    def add(hit: SearchHit, _worker: SearchWorker, _rights: ThingRights) -> None:
        added.append(hit.thing_id)
        clock.advance(1.0)

    harness.searching.pace.sleep = rest
    with pytest.raises(FeedFailed):
        await FullScan(harness.searching, asked.question, asked.subjects, 3.5).read(add)
    assert len(added) == 4


@pytest.mark.parametrize(
    ("aggregation", "code", "answer"),
    [
        ([], "thing-search:aggregation.invalid", "found an array"),
        ("x", "thing-search:aggregation.invalid", "found a string"),
        ({"by": {}}, "thing-search:aggregation.invalid", "found 'by'"),
        ({"groupBy": {"x": "foo"}}, "rql.expression.invalid", "Unknown property name: foo"),
    ],
)
async def test_an_invalid_aggregation_fails_at_the_first_request(
    harness: ConnectionHarness, aggregation: Any, code: str, answer: str
) -> None:
    searcher = Searcher(harness)
    key = await searcher.subscribe(aggregation=aggregation)
    assert searcher.messages(key) == ["created"]
    assert await searcher.request(key) == []
    assert (searcher.failure(key)["status"], searcher.failure(key)["error"]) == (400, code)
    assert answer in searcher.failure(key)["message"]


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"filter": "eq("}, "rql.expression.invalid"),
        ({"options": "size(0)"}, "thing-search:search.option.invalid"),
    ],
)
async def test_an_invalid_search_fails_like_a_search_for_things(
    harness: ConnectionHarness, more: dict[str, Any], code: str
) -> None:
    searcher = Searcher(harness)
    key = await searcher.subscribe(aggregation={}, **more)
    await searcher.request(key)
    assert searcher.failure(key)["error"] == code


async def test_the_past_cannot_be_aggregated(harness: ConnectionHarness) -> None:
    from connectivity.subscriptions.aggregation_feed import open_search

    query = SearchQuery(aggregation=b"{}", at=1)
    answer = open_search(harness.searching, RowBudget(), query, {}, ("acme:owner",), 60.0)
    assert getattr(answer, "error", None) == "thing-search:aggregation.invalid"
    query, headers = SearchQuery(aggregation=b"{}"), {"at-historical-timestamp": "2030-01-15T07:30:00Z"}
    answer = open_search(harness.searching, RowBudget(), query, headers, ("acme:owner",), 60.0)
    assert getattr(answer, "error", None) == "thing-search:aggregation.invalid"


async def test_too_many_groups_are_refused(harness: ConnectionHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectivity.subscriptions.aggregation_feed.MOST_GROUPS", 4)
    await registries(harness, 5)
    searcher = Searcher(harness)
    key = await searcher.subscribe(aggregation={"groupBy": {"id": "thingId"}})
    await searcher.request(key)
    failure = searcher.failure(key)
    assert (failure["status"], failure["error"]) == (413, "thing-search:aggregation.toolarge")


async def test_rows_that_are_not_received_are_limited_for_each_user(
    harness: ConnectionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connectivity.subscriptions.aggregation_feed.MOST_ROW_BYTES", 800)
    monkeypatch.setattr("connectivity.subscriptions.aggregation_feed.MOST_ROW_BYTES_TOGETHER", 3000)
    await registries(harness, 9)
    searcher = Searcher(harness)
    ids = {"groupBy": {"id": "thingId"}}
    first, second, third = [await searcher.subscribe(None, "size(1)", aggregation=ids) for _ in range(3)]
    await searcher.request(first)
    await searcher.request(second)
    await searcher.request(third)
    failure = searcher.failure(third)
    assert (failure["status"], failure["error"]) == (429, "thing-search:aggregation.limit")
    assert "At most 800 are kept for the same subjects, 3000 for all." in failure["message"]
    assert failure["message"].startswith("The rows have 333 bytes, and 666 bytes of rows")
    searcher.cancel(first)
    key = await searcher.subscribe(None, "size(1)", aggregation=ids)
    assert len(await searcher.request(key)) == 1
    await searcher.request(second, 8)
    assert searcher.end(second) == "complete"
    assert harness.row_budget._by_user == {("acme:owner",): 333}


def test_rows_of_all_users_together_leave_some_room_for_each() -> None:
    kept = RowBudget()
    for number in range(100):
        with contextlib.suppress(FeedFailed):
            kept.add((f"acme:user-{number}",), 30 << 20)
    with pytest.raises(FeedFailed):
        kept.add(("acme:other",), 20 << 20)
    kept.add(("acme:other",), 1 << 20)


def test_the_rows_that_a_user_has_count_once_towards_the_limit_of_all_users() -> None:
    kept = RowBudget()
    for number in range(8):
        kept.add((f"acme:user-{number}",), 30 << 20)
    kept.add(("acme:user-0",), 2 << 20)
    kept.add(("acme:other",), 14 << 20)
    with pytest.raises(FeedFailed):
        kept.add(("acme:other",), 1)


async def test_the_bytes_of_a_page_of_rows_are_limited(harness: ConnectionHarness) -> None:
    await registries(harness, 12)
    asked = harness.searching.understand(SearchQuery(), ("acme:owner",))
    everything = FullScan(harness.searching, asked.question, asked.subjects, 60.0)
    feed = AggregationFeed(everything, read_aggregation({"groupBy": {"id": "thingId"}}), 25, RowBudget())
    await feed.prepare()
    position, sizes, then = 0, [], PageEnd.MORE
    while then is not PageEnd.END:
        page = await feed.page(position, 9, 100)
        sizes += [element.count(b"count") for element in page.elements]
        assert sum(map(len, page.elements)) < 200
        position, then = page.position, page.then
    assert sum(sizes) == 12
    assert max(sizes) < 4


# --- permissions


@pytest.fixture
def guest(harness: ConnectionHarness) -> Searcher:
    return Searcher(harness, 1)


async def rows(searcher: Searcher, aggregation: Any) -> Any:
    key = await searcher.subscribe(aggregation=aggregation)
    pages = await searcher.request(key)
    assert searcher.end(key) == "complete", searcher.failure(key)
    return [row for page in pages for row in page]


async def test_things_without_read_permission_are_not_counted(harness: ConnectionHarness, guest: Searcher) -> None:
    await registries(harness, 3)
    assert await rows(guest, {}) == [{"count": 0}]
    assert await rows(guest, BY_ROOM) == []


async def test_values_without_read_permission_are_missing(harness: ConnectionHarness, guest: Searcher) -> None:
    await registries(harness, 3, **{"thing:/attributes/room": READ})
    assert await rows(guest, BY_ROOM) == [
        {"room": "attic", "count": 1, "all": 0},
        {"room": "cellar", "count": 1, "all": 0},
        {"room": "hall", "count": 1, "all": 0},
    ]


async def test_a_revoked_path_makes_no_group_and_adds_nothing(harness: ConnectionHarness, guest: Searcher) -> None:
    await registries(harness, 3, **{"thing:/": READ, "thing:/attributes/room": HIDDEN})
    assert await rows(guest, BY_ROOM) == [{"room": None, "count": 3, "all": 3}]


async def test_a_special_field_needs_its_own_permission_although_it_is_shown(
    harness: ConnectionHarness, guest: Searcher
) -> None:
    """As in a filter; the policy applies even if the policy ID itself is not readable."""
    measures = {"measures": {"newest": {"max": "_revision"}, "all": {"sum": "attributes/size"}}}
    await registries(harness, 1, **{"thing:/attributes": READ})
    assert await rows(guest, measures) == [{"count": 1, "newest": None, "all": 0}]
    await has_thing(harness, "lamp-9", {"attributes": {"size": 9}}, policy=entries(**{"thing:/": READ}))
    assert await rows(guest, measures) == [{"count": 2, "newest": 1, "all": 9}]
    await has_thing(
        harness,
        "lamp-8",
        {"attributes": {"size": 8}},
        policy=entries(**{"thing:/attributes": READ, "thing:/_revision": READ}),
    )
    assert await rows(guest, measures) == [{"count": 3, "newest": 1, "all": 17}]


async def test_long_arrays_end_at_the_limit_of_groups(harness: ConnectionHarness) -> None:
    """Long arrays in several groupings reach the limit of groups, in a worker thread."""
    long = list(range(3_000))
    await has_thing(harness, "lamp-1", {"attributes": {"a": long, "b": long}})
    searcher = Searcher(harness)
    key = await searcher.subscribe(aggregation={"groupBy": {"a": "attributes/a", "b": "attributes/b"}})
    await searcher.request(key)
    assert searcher.failure(key)["error"] == "thing-search:aggregation.toolarge"

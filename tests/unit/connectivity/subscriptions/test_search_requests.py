"""Searches over HTTP: pages with cursors, counts, plans, and refused searches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from connectivity.errors import OperationRefused
from connectivity.security.on_behalf import BehalfAudit
from connectivity.subscriptions.search_queue import SearchQueue
from connectivity.subscriptions.search_requests import (
    NO_THINGS,
    CursorCipher,
    HttpSearch,
    SearchCursor,
    SearchRequests,
)
from spark_store.errors import BudgetExceeded, InvalidOption, StoreUnavailable
from spark_store.records import AuditEntry
from spark_store.rql.options import read_options
from spark_store.rql.order import TypeRank
from spark_store.rql.query import SortValue
from tests.support.in_process.search_client import has_thing
from tests.support.in_process.service import NOW, ConnectionHarness, source, until
from tests.support.wait import PATIENCE

pytestmark = pytest.mark.usefixtures("harnesses")

OWNER = HttpSearch(("acme:owner",))
PLACE = (SortValue(TypeRank.NUMBER, 4), SortValue(TypeRank.TEXT, "acme.site:lamp-ä"))
CURSOR = SearchCursor(
    NOW.timestamp(),
    "exists(attributes/a)",
    None,
    ("acme.site",),
    (("document", ("attributes", "size"), True), ("document", ("thingId",), False)),
    tuple((int(each.rank), each.value) for each in PLACE),
    25,
)


@pytest.fixture
def harness() -> ConnectionHarness:
    return ConnectionHarness(source())


@pytest.fixture
def searches(harness: ConnectionHarness) -> SearchRequests:
    return searches_of(harness)


def searches_of(
    harness: ConnectionHarness, now: Callable[[], datetime] = lambda: NOW, noted: list[AuditEntry] | None = None
) -> SearchRequests:
    async def note(entry: AuditEntry) -> None:
        if noted is None:
            raise StoreUnavailable(f"no room for {entry.by}")
        noted.append(entry)

    return SearchRequests(harness.searching, now, page_bytes=1 << 20, count_timeout=60.0, audit=BehalfAudit(now, note))


async def lamps(harness: ConnectionHarness, number: int) -> None:
    for each in range(number):
        await has_thing(harness, f"lamp-{each:03}", {"attributes": {"size": each, "odd": bool(each % 2)}})


async def all_pages(searches: SearchRequests, inquiry: HttpSearch) -> list[list[Any]]:
    """Return every page, each with the cursor of the one before."""
    options, pages = inquiry.options, []
    while True:
        found = await searches.things(inquiry)
        pages.append(json.loads(found.items))
        if found.cursor is None:
            return pages
        inquiry = replace(
            inquiry, options=f"{options},cursor({found.cursor})" if options else f"cursor({found.cursor})"
        )


async def error_of(answer: Any) -> tuple[int, str]:
    with pytest.raises(OperationRefused) as error:
        await answer
    return error.value.fault.status, error.value.fault.error


async def test_too_many_searches_of_the_same_subjects_are_refused(
    harness: ConnectionHarness, searches: SearchRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lamps(harness, 1)
    monkeypatch.setattr(harness.searching, "searches", SearchQueue(100, 1, 0))
    harness.search.gate.clear()
    running = asyncio.create_task(searches.things(OWNER))
    await until(lambda: harness.searching.searches.running.total() == 1)
    for answer in (searches.things(OWNER), searches.count(OWNER)):
        assert await error_of(answer) == (429, "thing-search:search.limit")
    other = asyncio.create_task(searches.count(HttpSearch(("acme:other",))))
    harness.search.gate.set()
    assert len(json.loads((await running).items)) == 1
    assert await other == 0


async def test_each_cursor_leads_to_the_next_page_until_the_last(
    harness: ConnectionHarness, searches: SearchRequests
) -> None:
    await lamps(harness, 7)
    pages = await all_pages(searches, replace(OWNER, options="size(3),sort(-attributes/size)"))
    assert [[thing["attributes"]["size"] for thing in page] for page in pages] == [[6, 5, 4], [3, 2, 1], [0]]


async def test_without_options_a_page_has_25_things(harness: ConnectionHarness, searches: SearchRequests) -> None:
    await lamps(harness, 26)
    assert [len(page) for page in await all_pages(searches, OWNER)] == [25, 1]


async def test_a_full_last_page_has_no_cursor(harness: ConnectionHarness, searches: SearchRequests) -> None:
    await lamps(harness, 2)
    assert (await searches.things(replace(OWNER, options="size(2)"))).cursor is None


async def test_a_search_without_matches_returns_an_empty_page(
    harness: ConnectionHarness, searches: SearchRequests
) -> None:
    await lamps(harness, 1)
    assert await searches.things(HttpSearch(("acme:stranger",))) == NO_THINGS
    for namespaces in ({"acme.lab"}, ()):
        assert await searches.things(replace(OWNER, namespaces=frozenset(namespaces))) == NO_THINGS
    assert await searches.things(replace(OWNER, options="size(3)", filter="eq(thingId,1)")) == NO_THINGS
    for options in ("limit(0,0)", "limit(1,5)", "limit(700,5)"):
        assert await searches.things(replace(OWNER, options=options)) == NO_THINGS


async def test_pages_by_offset(harness: ConnectionHarness, searches: SearchRequests) -> None:
    await lamps(harness, 30)
    for options, numbers, next_offset in (
        (None, range(25), 25),
        ("sort(+thingId)", range(25), 25),
        ("size(25)", range(25), None),
        ("size(200)", range(30), None),
        ("limit(0,10)", range(10), 10),
        ("limit(10,10)", range(10, 20), 20),
        ("limit(20,10)", range(20, 30), -1),
        ("limit(20,11),sort(+thingId)", range(20, 30), -1),
        ("limit(25,200)", range(25, 30), -1),
        ("limit(0,10),size(12)", range(12), 12),
        ("size(12),limit(3,10)", range(3, 13), 13),
    ):
        found = await searches.things(replace(OWNER, options=options))
        assert [thing["attributes"]["size"] for thing in json.loads(found.items)] == list(numbers), options
        assert found.next_offset == next_offset, options
        assert (found.cursor is None) is ("limit" in (options or "") or options == "size(200)")


async def test_without_size_the_last_page_is_marked_as_the_last(
    harness: ConnectionHarness, searches: SearchRequests
) -> None:
    await lamps(harness, 2)
    found = await searches.things(OWNER)
    assert (found.cursor, found.next_offset) == (None, -1)


async def test_a_limit_skips_more_things_than_are_read_at_once(
    harness: ConnectionHarness, searches: SearchRequests
) -> None:
    harness.search.slice = 2
    await lamps(harness, 9)
    found = await searches.things(replace(OWNER, options="limit(5,3)"))
    assert [thing["attributes"]["size"] for thing in json.loads(found.items)] == [5, 6, 7]
    assert found.next_offset == 8


async def test_only_the_selected_fields_are_returned(harness: ConnectionHarness, searches: SearchRequests) -> None:
    await lamps(harness, 1)
    found = await searches.things(replace(OWNER, selection={"thingId": {}, "_revision": {}}))
    assert json.loads(found.items) == [{"thingId": "acme.site:lamp-000", "_revision": 1}]


async def test_matches_are_counted_in_slices(harness: ConnectionHarness, searches: SearchRequests) -> None:
    await lamps(harness, 9)
    harness.search.slice = 2
    assert await searches.count(OWNER) == 9
    assert len(harness.search.pages) == 5
    assert await searches.count(replace(OWNER, filter="eq(attributes/odd,true)")) == 4
    for namespaces in ({"acme.lab"}, ()):
        assert await searches.count(replace(OWNER, namespaces=frozenset(namespaces))) == 0
    assert await searches.count(HttpSearch(("acme:stranger",))) == 0


async def test_a_plan_describes_how_the_first_page_is_found(
    harness: ConnectionHarness, searches: SearchRequests
) -> None:
    await lamps(harness, 3)
    found = await searches.plan(replace(OWNER, options="size(2)"))
    assert found == {
        "accessPath": "all things, sorted",
        "order": "+thingId",
        "things": 3,
        "candidates": None,
        "isIndexed": False,
        "text": "all things, sorted; 3 things, order +thingId\nthe index is being built: all states are "
        "scanned\nevery thing\ncandidates: too many for a list",
    }
    assert await error_of(searches.plan(replace(OWNER, filter="eq("))) == (400, "rql.expression.invalid")


async def test_the_plan_of_an_empty_list_of_namespaces_has_no_candidates(
    harness: ConnectionHarness, searches: SearchRequests
) -> None:
    await lamps(harness, 3)
    found = await searches.plan(replace(OWNER, namespaces=frozenset()))
    assert (found["accessPath"], found["things"], found["candidates"]) == ("all candidates, sorted", 3, 0)
    assert found["text"] == "all candidates, sorted; 3 things, order +thingId\nnothing\ncandidates: 0"


async def test_time_now_is_the_same_for_all_pages(harness: ConnectionHarness) -> None:
    """`time:now` has the value of the first page."""
    await lamps(harness, 3)
    clock = iter([NOW, NOW + timedelta(days=365), NOW + timedelta(days=730)])
    searches = searches_of(harness, lambda: next(clock))
    pages = await all_pages(searches, replace(OWNER, filter="gt(_modified,time:now-1h)", options="size(1)"))
    assert [len(page) for page in pages] == [1, 1, 1]
    assert next(clock) == NOW + timedelta(days=365)


@pytest.mark.parametrize(
    "change",
    [
        {"filter": "ge(attributes/size,0)"},
        {"subjects": ("acme:owner", "acme:guest")},
        {"options": "size(2),sort(-attributes/size),cursor(CURSOR)"},
        {"options": "size(2),cursor(CURSOR"},
        {"options": "size(2),cursor(x)"},
        {"options": "size(2),cursor()"},
        {"options": "size(2),cursor(Ä)"},
        {"options": "size(2),cursor(CURSORA)"},
        {"options": "size(2),cursor(CURSOR),cursor(CURSOR)"},
    ],
)
async def test_a_cursor_is_valid_for_its_own_search_only(
    harness: ConnectionHarness, searches: SearchRequests, change: dict[str, Any]
) -> None:
    await lamps(harness, 5)
    inquiry = replace(OWNER, options="size(2)")
    cursor = (await searches.things(inquiry)).cursor
    assert cursor is not None
    other = {"options": "size(2),cursor(CURSOR)", **change}
    other["options"] = other["options"].replace("CURSOR", cursor)
    assert await error_of(searches.things(replace(inquiry, **other))) == (400, "thing-search:search.option.invalid")


async def test_a_cursor_given_alone_continues_its_search(harness: ConnectionHarness, searches: SearchRequests) -> None:
    await lamps(harness, 40)
    inquiry = replace(
        OWNER,
        filter="gt(attributes/size,3)",
        namespaces=frozenset({"acme.site"}),
        options="size(2),sort(-attributes/size)",
    )
    first = await searches.things(inquiry)
    again = replace(inquiry, options=f"cursor({first.cursor})")
    for wanted in (
        replace(again, filter=None, namespaces=None),
        replace(again, namespaces=frozenset({"acme.lab"})),
        replace(again, namespaces=frozenset()),
        replace(again, options=f"cursor({first.cursor}),sort(-attributes/size,+thingId)"),
        replace(again, options=f"size(2),cursor({first.cursor})"),
    ):
        found = await searches.things(wanted)
        assert [thing["attributes"]["size"] for thing in json.loads(found.items)] == [37, 36]
        assert (found.cursor is None, found.next_offset) == (False, None)


async def test_cursors_given_alone_lead_to_all_pages_of_one_size(
    harness: ConnectionHarness, searches: SearchRequests
) -> None:
    await lamps(harness, 7)
    sizes, options = [], "size(3)"
    while options:
        found = await searches.things(replace(OWNER, options=options))
        sizes.append(len(json.loads(found.items)))
        options = f"cursor({found.cursor})" if found.cursor else ""
    assert sizes == [3, 3, 1]


async def test_a_size_given_with_a_cursor_is_that_of_the_following_pages(
    harness: ConnectionHarness, searches: SearchRequests
) -> None:
    await lamps(harness, 12)
    cursor = (await searches.things(replace(OWNER, options="size(2)"))).cursor
    for options, numbers in ((f"size(4),cursor({cursor})", range(2, 6)), ("cursor(NEXT)", range(6, 10))):
        found = await searches.things(replace(OWNER, options=options.replace("NEXT", str(cursor))))
        assert [thing["attributes"]["size"] for thing in json.loads(found.items)] == list(numbers)
        cursor = found.cursor


async def test_a_long_filter_is_repeated_with_its_cursor(harness: ConnectionHarness, searches: SearchRequests) -> None:
    await lamps(harness, 3)
    inquiry = replace(OWNER, filter=f'ne(thingId,"{"x" * 20_000}")', options="size(1)")
    cursor = (await searches.things(inquiry)).cursor
    again = replace(inquiry, options=f"cursor({cursor})")
    assert [it["thingId"][-1] for it in json.loads((await searches.things(again)).items)] == ["1"]
    for filter in (None, 'ne(thingId,"x")'):
        assert (await error_of(searches.things(replace(again, filter=filter))))[0] == 400


async def test_the_page_size_and_fields_may_change_between_pages(
    harness: ConnectionHarness, searches: SearchRequests
) -> None:
    await lamps(harness, 5)
    cursor = (await searches.things(replace(OWNER, options="size(2)"))).cursor
    found = await searches.things(replace(OWNER, options=f"cursor({cursor}),size(9)", selection={"thingId": {}}))
    assert [thing["thingId"][-1] for thing in json.loads(found.items)] == ["2", "3", "4"]
    assert found.cursor is None


@pytest.mark.parametrize(
    ("inquiry", "error"),
    [
        (replace(OWNER, filter="eq("), (400, "rql.expression.invalid")),
        (replace(OWNER, filter="eq(foo,1)"), (400, "rql.expression.invalid")),
        (replace(OWNER, filter="eq(", namespaces=frozenset()), (400, "rql.expression.invalid")),
        (replace(OWNER, options="size(0)"), (400, "thing-search:search.option.invalid")),
        (replace(OWNER, options="limit(0,201)"), (400, "thing-search:search.option.invalid")),
        (replace(OWNER, options="sort(+foo)"), (400, "thing-search:search.option.invalid")),
    ],
)
async def test_an_invalid_search_is_refused_without_reading(
    harness: ConnectionHarness, searches: SearchRequests, inquiry: HttpSearch, error: tuple[int, str]
) -> None:
    assert await error_of(searches.things(inquiry)) == error
    assert await error_of(searches.count(inquiry)) == error
    assert harness.search.pages == []


async def test_errors_of_a_search_are_returned(harness: ConnectionHarness, searches: SearchRequests) -> None:
    harness.search.error = BudgetExceeded(5.0)
    assert await error_of(searches.things(OWNER)) == (503, "thing-search:budget.exceeded")
    assert await error_of(searches.count(OWNER)) == (503, "thing-search:budget.exceeded")
    harness.search.error = StoreUnavailable("a bad day")
    assert await error_of(searches.things(OWNER)) == (503, "api:store.unavailable")
    assert await error_of(searches.count(OWNER)) == (503, "api:store.unavailable")


async def test_a_search_that_exceeds_its_timeout_is_refused(
    harness: ConnectionHarness, searches: SearchRequests
) -> None:
    harness.search.gate.clear()
    inquiry = replace(OWNER, seconds=0.01)
    try:
        for answer in (searches.things(inquiry), searches.count(inquiry)):
            assert await error_of(answer) == (503, "thing-search:budget.exceeded")
    finally:
        harness.search.gate.set()
    await lamps(harness, 1)
    assert await asyncio.wait_for(searches.count(OWNER), PATIENCE) == 1


async def test_a_search_during_shutdown_is_refused(harness: ConnectionHarness, searches: SearchRequests) -> None:
    await lamps(harness, 1)
    harness.search.gate.clear()
    looking = [asyncio.create_task(searches.count(OWNER)) for _ in range(3)]
    await until(lambda: len(harness.search.pages) == 2)
    closing = asyncio.create_task(harness.searching.close())
    assert await error_of(asyncio.wait_for(looking[2], PATIENCE)) == (503, "api:store.unavailable")
    assert await error_of(searches.things(OWNER)) == (503, "api:store.unavailable")
    harness.search.gate.set()
    assert await asyncio.wait_for(asyncio.gather(*looking[:2]), PATIENCE) == [1, 1]
    await closing


# --- searches in the name of others


async def test_a_search_in_the_name_of_others_is_audited_once_an_hour(harness: ConnectionHarness) -> None:
    await lamps(harness, 1)
    moment, noted = NOW, list[AuditEntry]()
    searches = searches_of(harness, lambda: moment, noted)
    await searches.things(OWNER)
    assert noted == []
    anna = replace(OWNER, subjects=("acme:owner", "acme:guest"), instead="anna")
    await searches.things(anna)
    names = "acme:guest, acme:owner"
    assert noted == [AuditEntry(NOW.isoformat(), "anna", "search on behalf of others", "", None, names)]
    moment += timedelta(minutes=59)
    await searches.count(replace(anna, filter="exists(thingId)"))
    assert len(noted) == 1
    moment += timedelta(minutes=1)
    await searches.count(anna)
    await searches.plan(replace(anna, subjects=("acme:owner",)))
    await searches.things(replace(anna, instead="bert"))
    assert [(entry.by, entry.details) for entry in noted[1:]] == [
        ("anna", names),
        ("anna", "acme:owner"),
        ("bert", names),
    ]


async def test_a_search_that_cannot_be_audited_is_not_executed(harness: ConnectionHarness) -> None:
    searches = searches_of(harness)
    for _ in range(2):
        assert await error_of(searches.things(replace(OWNER, instead="anna"))) == (503, "api:store.unavailable")
    assert harness.search.pages == []
    assert json.loads((await searches.things(OWNER)).items) == []


# --- the cipher of cursors


def test_the_contents_of_a_cursor_can_be_read_again() -> None:
    cursors = CursorCipher()
    assert cursors.open(cursors.seal(CURSOR, b"about"), b"about") == CURSOR
    assert CURSOR.sort_key == PLACE
    assert CURSOR.sort_fields == read_options("sort(-attributes/size,+thingId)").order


def test_a_cursor_may_be_after_all_things_of_a_value() -> None:
    """Such a place has ranks before and after all others."""
    place = ((int(TypeRank.TEXT), "hall"), (-1, None), (99, None), (int(TypeRank.TEXT), "\U0010ffff"))
    cursors = CursorCipher()
    found = cursors.open(cursors.seal(msgspec.structs.replace(CURSOR, place=place), b""), b"")
    assert found.sort_key == tuple(SortValue(rank, value) for rank, value in place)


def test_a_cursor_reveals_nothing_and_cannot_be_forged() -> None:
    cursors = CursorCipher()
    texts = {cursors.seal(CURSOR, b"about") for _ in range(20)}
    assert len(texts) == 20
    for text in texts:
        with pytest.raises(InvalidOption):
            CursorCipher().open(text, b"about")
        with pytest.raises(InvalidOption):
            cursors.open(text, b"other")


def test_every_changed_character_of_a_cursor_is_detected() -> None:
    cursors = CursorCipher()
    text = cursors.seal(CURSOR, b"about")
    for index in range(len(text) - 1):
        changed = text[:index] + ("A" if text[index] != "A" else "B") + text[index + 1 :]
        with pytest.raises(InvalidOption):
            cursors.open(changed, b"about")


def test_values_that_are_too_long_for_a_cursor_are_refused_rather_than_cut() -> None:
    with pytest.raises(InvalidOption):
        CursorCipher().seal(msgspec.structs.replace(CURSOR, place=((TypeRank.TEXT, "x" * 20_000),)), b"")


def test_numbers_and_timestamps_in_cursors_are_exact() -> None:
    values = (2**63 - 1, 0.1, None, True)
    cursor = msgspec.structs.replace(
        CURSOR,
        now=datetime(2030, 1, 15, 7, 30, 0, 123457, tzinfo=UTC).timestamp(),
        place=tuple((TypeRank.NUMBER, value) for value in values),
    )
    cursors = CursorCipher()
    found = cursors.open(cursors.seal(cursor, b""), b"")
    assert found == cursor
    assert [type(each.value) for each in found.sort_key] == [int, float, type(None), bool]

"""Histories: the meaning of a query, and pages. Case numbers: streaming-subscription test cases.

The lamp has revisions 1 (created, counter 0) to 101 (counter 100), one a second.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event, HistoryQuery
from spark_store.errors import QueryError
from spark_store.history.history import (
    SCAN_COMPARISONS,
    SCAN_ROWS,
    SCAN_WORK,
    HistoryPage,
    TrimmedRange,
    open_range,
    page,
)
from spark_store.journal.journal import Journal
from spark_store.records import Change, Snapshot, Times
from tests.support.dice import examples
from tests.support.journal_entries import LAMP, MUCH, POLICY, NanoClock, change, event, revisions, snapshot, timestamp
from tests.support.lake.tables import span
from tests.support.reference_journal import MemoryJournal

EVENTS = 101
SECOND = 1_000_000_000


def nanoseconds(text: str) -> int:
    instant = datetime.fromisoformat(text)
    return int(instant.timestamp()) * SECOND + instant.microsecond * 1000


def created(entity: EntityId) -> Event:
    return Event(entity, 1, timestamp(1), "created", "/", b'{"attributes":{"counter":0}}', b"{}")


def fill(journal: Journal, entity: EntityId, last: int, step: int = 1) -> None:
    """Created with counter 0, then modified to step, 2 · step, …"""
    journal.append([Change((created(entity),), (snapshot(entity, 1),))])
    journal.append([change(entity, n, str((n - 1) * step).encode()) for n in range(2, last + 1)])


def trim_sqlite(journal: Journal, before: int) -> None:
    assert isinstance(journal, Journal)
    connection = sqlite3.connect(journal.path)
    with connection:
        connection.execute("DELETE FROM entries WHERE revision < ?", (before,))
    connection.close()


def trim_memory(journal: Journal, before: int) -> None:
    assert isinstance(journal, MemoryJournal)
    for entries in journal._entries.values():
        entries[:] = [found for found in entries if found.revision >= before]


@pytest.fixture(params=["sqlite", "memory"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Journal]:
    made = MemoryJournal() if request.param == "memory" else Journal.open(tmp_path / "journal.db")
    fill(made, LAMP, EVENTS)
    yield made
    made.close()


@pytest.fixture
def trim(journal: Journal) -> Callable[[int], None]:
    if isinstance(journal, MemoryJournal):
        return lambda before: trim_memory(journal, before)
    return lambda before: trim_sqlite(journal, before)


def read(journal: Journal, query: HistoryQuery, limit: int = 500) -> list[int]:
    """Return the revisions of all pages; only the page with the last event is marked as the last."""
    range = open_range(journal, query)
    position, found = 0, []
    while True:
        one = page(journal, range, position, limit, MUCH)
        assert len(one.events) <= limit
        found += revisions(one.events)
        if one.ended:
            assert one.events or not found
            return found
        assert one.events
        position = one.position


def query(first: int = 0, last: int | None = None, **more: object) -> HistoryQuery:
    return HistoryQuery(LAMP, first, last, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [1, 7, 101, 500])
def test_case_01_a_query_without_bounds_is_the_whole_history(journal: Journal, limit: int) -> None:
    assert read(journal, query(), limit) == span(1, 101)
    first, *others = page(journal, open_range(journal, query()), 0, 500, MUCH).events
    assert (first.action, first.revision) == ("created", 1)
    assert {found.action for found in others} == {"modified"}
    assert [found.value for found in others] == [str(found.revision - 1).encode() for found in others]


def test_case_02_and_03_from_zero_is_from_the_oldest(journal: Journal) -> None:
    assert read(journal, HistoryQuery(LAMP)) == read(journal, query(0)) == span(1, 101)


@pytest.mark.parametrize("limit", [1, 25, 200])
def test_case_04_a_filter_looks_at_each_event(journal: Journal, limit: int) -> None:
    assert read(journal, query(filter="ge(attributes/counter,50)"), limit) == span(51, 101)


def test_case_05_revisions_and_filter_together(journal: Journal) -> None:
    other = EntityId(EntityType.THING, "acme.site", "lamp-8")
    fill(journal, other, 51, step=2)
    range = open_range(journal, HistoryQuery(other, 5, 9, filter="ne(attributes/counter,12)"))
    found = page(journal, range, 0, 10, MUCH)
    assert [one.value for one in found.events] == [b"8", b"10", b"14", b"16"]
    assert found.ended


def test_case_06_a_span_of_time_around_everything(journal: Journal) -> None:
    around = query(after=nanoseconds(timestamp(1)) - 300 * SECOND, before=nanoseconds(timestamp(101)) + SECOND)
    assert read(journal, around) == span(1, 101)


def test_case_07_after_is_exclusive(journal: Journal) -> None:
    assert read(journal, query(after=nanoseconds(timestamp(5)))) == span(6, 101)
    assert read(journal, query(after=nanoseconds(timestamp(5)) - 1)) == span(5, 101)
    assert read(journal, query(after=nanoseconds(timestamp(5)) + 1)) == span(6, 101)


def test_case_08_before_is_exclusive(journal: Journal) -> None:
    assert read(journal, query(before=nanoseconds(timestamp(5)))) == span(1, 4)
    assert read(journal, query(before=nanoseconds(timestamp(5)) + 1)) == span(1, 5)
    assert read(journal, query(before=nanoseconds(timestamp(5)) - 1)) == span(1, 4)


def test_case_09_from_minus_one_is_the_last_event(journal: Journal) -> None:
    assert read(journal, query(-1)) == [101]


def test_case_10_from_minus_fifty_is_the_last_fifty(journal: Journal) -> None:
    assert read(journal, query(-50)) == span(52, 101)


@pytest.mark.parametrize(
    ("first", "last", "found"),
    [(0, 0, span(1, 101)), (0, -1, span(1, 100)), (-10, -5, span(92, 96)), (-10, 95, span(92, 95))],
)
def test_case_11_a_last_revision_of_zero_or_below_is_relative_to_the_newest(
    journal: Journal, first: int, last: int, found: list[int]
) -> None:
    assert read(journal, query(first, last)) == found


@pytest.mark.parametrize(("first", "last"), [(9, 5), (1, -200), (102, None), (-5, -90)])
def test_case_12_from_above_to_is_empty(journal: Journal, first: int, last: int | None) -> None:
    assert page(journal, open_range(journal, query(first, last)), 0, 1, MUCH) == HistoryPage([], 0, True)


def test_case_13_from_beyond_the_newest_is_empty(journal: Journal) -> None:
    assert read(journal, query(500)) == []
    assert read(journal, query(10**30, 10**31)) == []


def test_case_14_the_last_500_of_fewer_events_are_all(journal: Journal) -> None:
    assert read(journal, query(-500)) == span(1, 101)


def test_case_15_revisions_and_times_together(journal: Journal) -> None:
    seventh = nanoseconds(timestamp(7))
    assert read(journal, query(5, 9, after=seventh - 1, before=seventh + 1)) == [7]


def test_a_plain_revision_is_inclusive(journal: Journal) -> None:
    assert read(journal, query(1, 1)) == [1]
    assert read(journal, query(5, 9)) == span(5, 9)
    assert read(journal, query(100, 2**63 - 1)) == [100, 101]


def test_instants_between_events(journal: Journal) -> None:
    between = nanoseconds(timestamp(5)) + SECOND // 2
    assert read(journal, query(after=between)) == span(6, 101)
    assert read(journal, query(before=between)) == span(1, 5)
    assert read(journal, query(after=between, before=between)) == []


@pytest.mark.parametrize("instant", [0, -(2**63), 2**63 - 1, 10**40, -(10**40)])
def test_instants_beyond_the_history_and_the_calendar(journal: Journal, instant: int) -> None:
    is_past = instant < nanoseconds(timestamp(1))
    assert read(journal, query(after=instant)) == (span(1, 101) if is_past else [])
    assert read(journal, query(before=instant)) == ([] if is_past else span(1, 101))


def test_no_to_revision_is_up_to_the_newest(journal: Journal) -> None:
    assert read(journal, query(100)) == [100, 101]


def test_a_page_of_trimmed_events_returns_the_trimmed_range(journal: Journal, trim: Callable[[int], None]) -> None:
    trim(41)
    assert page(journal, open_range(journal, query()), 0, 10, MUCH) == HistoryPage(
        [], 0, False, TrimmedRange(1, 40, False, 1)
    )
    within = open_range(journal, query(5, 30))
    for one in (within, open_range(journal, query(5, 30, filter="exists(attributes/counter)"))):
        assert page(journal, one, 0, 10, MUCH) == HistoryPage([], 0, False, TrimmedRange(5, 30, True, 5))
        assert page(journal, one, 20, 10, MUCH) == HistoryPage([], 20, False, TrimmedRange(21, 30, True, 5))
    assert revisions(page(journal, open_range(journal, query()), 40, 10, MUCH).events) == span(41, 50)
    assert read(journal, query(-61)) == span(41, 101)


def test_a_range_trimmed_while_it_is_read_reports_it(journal: Journal, trim: Callable[[int], None]) -> None:
    range = open_range(journal, query(1, 30))
    first = page(journal, range, 0, 10, MUCH)
    trim(41)
    assert page(journal, range, first.position, 10, MUCH) == HistoryPage([], 10, False, TrimmedRange(11, 30, True, 1))


def test_times_become_revisions_where_the_journal_can_report(journal: Journal, trim: Callable[[int], None]) -> None:
    trim(41)

    def opened(after: int | None, before: int | None) -> tuple[int, int, Times | None]:
        found = open_range(
            journal,
            query(
                after=None if after is None else nanoseconds(timestamp(after)),
                before=None if before is None else nanoseconds(timestamp(before)),
            ),
        )
        return found.first, found.last, found.times

    assert opened(50, 60) == (51, 59, None)
    assert opened(41, None) == (42, 101, None)
    assert opened(40, None) == (1, 101, Times(timestamp(40), None))
    assert opened(None, 42) == (1, 41, None)
    assert opened(None, 41) == (1, 40, Times(None, timestamp(41)))
    assert opened(20, 60) == (1, 59, Times(timestamp(20), None))
    assert opened(20, 30) == (1, 40, Times(timestamp(20), timestamp(30)))


@pytest.mark.parametrize("demand", [101, 102, 500])
def test_case_35_the_page_with_the_last_event_knows_that_it_is_the_last(journal: Journal, demand: int) -> None:
    found = page(journal, open_range(journal, query()), 0, demand, MUCH)
    assert (len(found.events), found.ended) == (101, True)


@pytest.mark.parametrize("more", [{}, {"filter": "ge(attributes/counter,50)"}])
def test_case_35_one_less_than_there_are_has_not_ended(journal: Journal, more: dict[str, Any]) -> None:
    found = page(journal, open_range(journal, query(52, **more)), 0, 49, MUCH)
    assert (len(found.events), found.ended, found.position) == (49, False, 100)
    assert revisions(page(journal, open_range(journal, query(52, **more)), 100, 1, MUCH).events) == [101]


def test_case_35_with_a_filter_the_end_is_known_although_others_follow(journal: Journal) -> None:
    """The last match is not the last event."""
    found = page(journal, open_range(journal, query(filter="lt(attributes/counter,10)")), 0, 10, MUCH)
    assert (revisions(found.events), found.ended) == (span(1, 10), True)


def test_case_36_filtered_out_events_use_no_demand(journal: Journal) -> None:
    found = page(journal, open_range(journal, query(filter='like(attributes/counter,"*0")')), 0, 11, MUCH)
    assert (revisions(found.events), found.ended) == ([1, 11, 21, 31, 41, 51, 61, 71, 81, 91, 101], True)


# bounds of a range


def test_an_entity_without_events_is_empty(journal: Journal) -> None:
    unknown = EntityId(EntityType.THING, "acme.site", "nobody")
    for first, last in [(0, None), (-5, None), (-5, -2), (1, 0), (3, 7)]:
        assert page(journal, open_range(journal, HistoryQuery(unknown, first, last)), 0, 5, MUCH).ended


def test_events_appended_after_opening_are_not_in_the_range(journal: Journal) -> None:
    range = open_range(journal, query(100))
    journal.append([change(LAMP, 102)])
    assert revisions(page(journal, range, 0, 10, MUCH).events) == [100, 101]


def test_a_newest_revision_that_is_not_durable_yet_is_waited_for(journal: Journal) -> None:
    """The range does not end before it."""
    range = open_range(journal, query(-2), newest=102)
    assert (range.first, range.last) == (101, 102)
    early = page(journal, range, 0, 10, MUCH)
    assert (revisions(early.events), early.ended) == ([101], False)
    assert page(journal, range, 101, 10, MUCH) == HistoryPage([], 101, False)
    journal.append([change(LAMP, 102)])
    late = page(journal, range, 101, 10, MUCH)
    assert (revisions(late.events), late.ended) == ([102], True)


def test_a_filter_that_cannot_be_read_is_a_query_error(journal: Journal) -> None:
    for text in ("eq(", "", "eq(attributes/x)"):
        with pytest.raises(QueryError) as error:
            open_range(journal, query(filter=text))
        assert error.value.fault.status == 400


def test_the_filter_of_a_policy_always_passes_but_must_be_readable(journal: Journal) -> None:
    fill(journal, POLICY, 3)
    assert read(journal, HistoryQuery(POLICY, filter="eq(attributes/counter,1)")) == [1, 2, 3]
    with pytest.raises(QueryError):
        open_range(journal, HistoryQuery(POLICY, filter="eq("))


def test_times_in_a_filter_are_those_of_the_subscribe(journal: Journal) -> None:
    now = datetime.fromisoformat(timestamp(50)).astimezone(UTC)
    range = open_range(journal, query(filter="lt(_modified,time:now)"), now)
    assert revisions(page(journal, range, 0, 500, MUCH).events) == span(1, 49)


# pages


def test_a_page_stops_at_the_byte_budget(journal: Journal) -> None:
    range = open_range(journal, query(11, 40))
    found = page(journal, range, 0, 500, 20)
    assert (revisions(found.events), found.ended) == (span(11, 15), False)
    assert revisions(page(journal, range, found.position, 500, 20).events) == span(16, 20)


@pytest.mark.parametrize("text", [None, "exists(thingId)"])
def test_one_event_is_never_too_large(journal: Journal, text: str | None) -> None:
    range = open_range(journal, query(11, 12, filter=text))
    found = page(journal, range, 0, 500, 1)
    assert (revisions(found.events), found.ended) == ([11], False)
    found = page(journal, range, found.position, 500, 1)
    assert (revisions(found.events), found.ended) == ([12], True)


def test_a_page_with_a_filter_reads_a_bounded_number_of_events(tmp_path: Path) -> None:
    """Such a page is empty, has not ended, and the next one continues after it."""
    journal = Journal.open(tmp_path / "journal.db")
    last = 3 * SCAN_ROWS + 10
    fill(journal, LAMP, last)
    range = open_range(journal, query(filter=f"gt(attributes/counter,{last - 3})"))
    found = page(journal, range, 0, 1, MUCH)
    assert found == HistoryPage([], SCAN_ROWS, False)
    position, pages = found.position, 1
    while not (found := page(journal, range, position, 5, MUCH)).ended:
        assert found.events == []
        position, pages = found.position, pages + 1
    assert (revisions(found.events), pages) == ([last - 1, last], 3)
    journal.close()


@pytest.mark.parametrize(("comparisons", "rows"), [(1, SCAN_ROWS), (20, SCAN_ROWS), (200, SCAN_COMPARISONS // 200)])
def test_a_page_reads_fewer_events_for_a_filter_with_more_comparisons(comparisons: int, rows: int) -> None:
    journal = MemoryJournal()
    fill(journal, LAMP, SCAN_ROWS + 5)
    text = f"and({','.join(['eq(attributes/counter,-1)'] * comparisons)})"
    assert page(journal, open_range(journal, query(filter=text)), 0, 5, MUCH) == HistoryPage([], rows, False)


def test_a_page_with_a_filter_reads_a_bounded_number_of_bytes() -> None:
    """Bytes of events times comparisons; one event at least. The last page is still found."""
    journal = MemoryJournal()
    value = f"[{','.join(map(str, range(20_000)))}]".encode()
    journal.append([Change((event(LAMP, n, value),), (snapshot(LAMP, n),)) for n in range(1, 31)])
    light = open_range(journal, query(filter="eq(attributes/counter,-1)"))
    assert page(journal, light, 0, 5, MUCH) == HistoryPage([], SCAN_WORK // len(value) + 1, False)
    heavy = open_range(journal, query(filter=f"or({','.join(['eq(attributes/counter,-1)'] * 50)})"))
    assert page(journal, heavy, 0, 5, MUCH) == HistoryPage([], 1, False)
    assert page(journal, heavy, 29, 5, MUCH) == HistoryPage([], 30, True)


@pytest.mark.parametrize("filter", [None, "gt(attributes/counter,100)"])
def test_events_that_become_durable_while_a_page_is_read_are_not_trimmed_ones(
    journal: Journal, filter: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread commits."""
    latest, late = journal.latest, [change(LAMP, 102, b"101"), change(LAMP, 103, b"102")]

    def commit_before(entity: EntityId) -> int:
        if late:
            journal.append(late)
            late.clear()
        return latest(entity)

    undurable = open_range(journal, query(1, 103, filter=filter), newest=103)
    monkeypatch.setattr(journal, "latest", commit_before)
    found = page(journal, undurable, EVENTS, 10, MUCH)
    assert (revisions(found.events), found.ended, found.trimmed) == ([102, 103], True, None)


def test_instants_are_made_revisions_when_everything_is_durable(journal: Journal) -> None:
    """The time of an event is unknown before it is durable. Before, between and after such events."""
    far, last = nanoseconds("2099-01-01T00:00:00+00:00"), nanoseconds(timestamp(102))
    asked = {
        "to the future": (query(101, before=far), [101, 102, 103]),
        "from the future": (query(101, after=far), []),
        "between": (query(101, after=last - 1, before=last + 1), [102]),
        "from between": (query(100, after=last), [103]),
        "with a filter": (query(101, before=far, filter="ge(attributes/counter,101)"), [102, 103]),
        "durable": (query(100, 101, before=far), [100, 101]),
    }
    ranges = {name: open_range(journal, one, newest=103) for name, (one, _) in asked.items()}
    for name, range in ranges.items():
        early = page(journal, range, 0, 10, MUCH)
        assert early == HistoryPage([], 0, False) or name == "durable"
    journal.append([change(LAMP, 102), change(LAMP, 103)])
    journal.append([change(LAMP, 104)])
    found = {name: page(journal, range, 0, 10, MUCH) for name, range in ranges.items()}
    assert {name: revisions(one.events) for name, one in found.items()} == {
        name: one for name, (_, one) in asked.items()
    }
    assert all(one.ended for one in found.values())
    assert revisions(page(journal, ranges["to the future"], 101, 1, MUCH).events) == [102]


def test_a_limit_of_zero_checks_whether_more_follows(journal: Journal) -> None:
    """A reader without demand can learn of the end; the position shows whether more events follow."""
    range = open_range(journal, query(filter="eq(attributes/counter,60)"))
    waiting = page(journal, range, 0, 0, MUCH)
    assert (waiting.events, waiting.position, waiting.ended) == ([], 60, False)
    assert page(journal, range, 60, 0, MUCH) == HistoryPage([], 60, False, has_more=True)
    assert page(journal, range, 61, 0, MUCH) == HistoryPage([], 101, True)
    whole = open_range(journal, query())
    assert page(journal, whole, 100, 0, MUCH) == HistoryPage([], 100, False, has_more=True)
    assert page(journal, whole, 101, 0, MUCH) == HistoryPage([], 101, True)


@settings(max_examples=examples(60), deadline=None)
@given(
    first=st.integers(-60, 60),
    last=st.none() | st.integers(-60, 60),
    after=st.none() | st.integers(0, 50),
    before=st.none() | st.integers(0, 50),
    divisor=st.none() | st.integers(0, 9),
    limit=st.integers(1, 45),
    size=st.integers(1, 60),
)
def test_all_pages_together_hold_exactly_the_events_the_query_selects(
    first: int, last: int | None, after: int | None, before: int | None, divisor: int | None, limit: int, size: int
) -> None:
    """Compared with a walk over all events that takes the definition word by word."""
    newest = 40
    base = nanoseconds(timestamp(0))
    asked = HistoryQuery(
        LAMP,
        first,
        last,
        None if after is None else base + after * SECOND,
        None if before is None else base + before * SECOND,
        None if divisor is None else f'like(attributes/counter,"*{divisor}")',
    )
    lowest = first if first >= 0 else newest + first + 1
    highest = newest if last is None else last if last > 0 else newest + last
    expected = [
        n
        for n in range(1, newest + 1)
        if lowest <= n <= highest
        and (after is None or n > after)
        and (before is None or n < before)
        and (divisor is None or (n - 1) % 10 == divisor)
    ]
    range_ = open_range(JOURNAL, asked)
    position, found, ended = 0, [], False
    while not ended:
        events, position, ended, *_ = page(JOURNAL, range_, position, limit, size)
        found += revisions(events)
    assert found == expected


JOURNAL = MemoryJournal(NanoClock())
fill(JOURNAL, LAMP, 40)


def test_a_range_is_small() -> None:
    """A hundred thousand idle subscriptions hold one each."""
    range = open_range(JOURNAL, query(1, 40))
    assert not hasattr(range, "__dict__")
    assert sys.getsizeof(range) + sys.getsizeof(2**40) * 2 <= 150


def test_timestamps_are_found_by_halving(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long history is not walked through."""
    looks: list[int] = []
    events = JOURNAL.events

    def counted(*arguments: int) -> list[Event]:
        looks.append(arguments[1])
        return events(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(JOURNAL, "events", counted)
    range = open_range(JOURNAL, query(after=nanoseconds(timestamp(17)), before=nanoseconds(timestamp(23))))
    assert (range.first, range.last) == (18, 22)
    assert len(looks) <= 12


def test_deletions_and_other_fields_pass_a_filter_that_denies(journal: Journal) -> None:
    """`ne` matches every event that does not carry the field."""
    gone = Event(LAMP, 102, timestamp(102), "deleted", "/", None, b"{}")
    journal.append([Change((gone,), (Snapshot(LAMP, 102, timestamp(1), timestamp(102), None, None),))])
    journal.append([Change((event(LAMP, 103, b"1", "/attributes/other"),), (snapshot(LAMP, 103),))])
    assert read(journal, query(100, filter="ne(attributes/counter,99)")) == [101, 102, 103]

"""Histories in the lake, in the journal, or in both: readers do not notice the retention boundary.

The case numbers are those of the streaming-subscription test cases.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from connectivity.store.erasure_repository import steps
from mappings.ids import EntityId, EntityType, partition_entity
from mappings.model.signals import Event, HistoryQuery
from spark_store.errors import HistoryUnavailable
from spark_store.history.history import TrimmedRange, cold_page, open_range, page
from spark_store.journal import erasure
from spark_store.journal.journal import Journal
from spark_store.lake.history_reader import LakeHistory
from spark_store.lake.tables import EVENTS, Lake
from spark_store.records import Change
from tests.support.dice import examples
from tests.support.journal_entries import LAMP, LATER, MUCH, TANK, change, published, revisions, timestamp
from tests.support.lake.tables import append_events, compact, forget, span
from tests.support.reference_journal import MemoryJournal
from tests.support.temporary_journal import events_after

SECOND = 1_000_000_000
NEIGHBOUR = EntityId(EntityType.THING, "acme.site", "lamp-8")


class TrimmedHistory(NamedTuple):
    """A journal and a lake that together have everything."""

    journal: Journal
    cold: LakeHistory
    lake: Lake


def trim(journal: Journal, last: int) -> None:
    """Remove the events up to this number from the journal."""
    while journal.trim(last, LATER, 100):
        journal.commit()


def read(trimmed: TrimmedHistory, query: HistoryQuery, limit: int = 500, size: int = MUCH) -> list[Event]:
    """Read all pages; the page with the last event must say that it is the last."""
    range = open_range(trimmed.journal, query)
    position, found = 0, []
    while True:
        one = page(trimmed.journal, range, position, limit, size)
        if one.trimmed is not None:
            assert one.events == []
            one = cold_page(trimmed.cold, range, one.trimmed, limit, size, trimmed.journal.last_trimmed())
        assert len(one.events) <= limit
        assert one.position > position or one.ended
        found += one.events
        if one.ended:
            return found
        position = one.position


@pytest.fixture
def trimmed(tmp_path: Path) -> Iterator[TrimmedHistory]:
    """A history of 101 revisions, one a second, the first 40 of them in the lake only."""
    journal = Journal.open(tmp_path / "journal.db")
    journal.append([change(LAMP, revision) for revision in range(1, 102)])
    lake = Lake(tmp_path)
    events = journal.events(LAMP, 1, 101, 101, MUCH)
    append_events(lake, list(enumerate(events[:30], 1)), rows=10)
    append_events(lake, list(enumerate(events[30:60], 31)), rows=10)
    trim(journal, 40)
    yield TrimmedHistory(journal, LakeHistory(lake), lake)
    journal.close()


def nanoseconds(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * SECOND + 250_000_000


@pytest.mark.parametrize("limit", [1, 7, 40, 500])
def test_a_replay_runs_across_the_border(trimmed: TrimmedHistory, limit: int) -> None:
    found = read(trimmed, HistoryQuery(LAMP), limit)
    assert revisions(found) == span(1, 101)
    assert [one.value for one in found] == [str(revision - 1).encode() for revision in span(1, 101)]
    assert [one.timestamp for one in found] == [timestamp(revision) for revision in span(1, 101)]


@pytest.mark.parametrize("limit", [1, 7, 500])
def test_the_messages_of_a_stream_are_read_across_the_border(trimmed: TrimmedHistory, limit: int) -> None:
    """Offsets, contents and times are those published; no message is from the other partition."""
    other = partition_entity("acme.site:hall/tank/1")
    wanted: list[Event] = []
    for offset in span(1, 30):
        message = published(TANK, offset, b'"{\\"v\\":%d}"' % offset, b'{"ts":%d}' % (1_700_000_000_000 - offset))
        trimmed.journal.append([message, published(other, offset)])
        wanted += message.events
    last = 101 + 2 * 20
    append_events(trimmed.lake, [each[:2] for each in events_after(trimmed.journal, 60, last - 60, MUCH)], rows=4)
    trim(trimmed.journal, last)
    assert read(trimmed, HistoryQuery(TANK), limit) == wanted
    assert read(trimmed, HistoryQuery(TANK, from_revision=15, to_revision=25), limit) == wanted[14:25]


@pytest.mark.parametrize("limit", [1, 30, 500])
def test_a_filter_works_across_the_border(trimmed: TrimmedHistory, limit: int) -> None:
    assert revisions(read(trimmed, HistoryQuery(LAMP, filter="ge(attributes/counter,30)"), limit)) == span(31, 101)
    assert (
        revisions(read(trimmed, HistoryQuery(LAMP, filter='like(attributes/counter,"*7")'), limit)) == span(8, 98)[::10]
    )


def test_case_35_the_last_event_of_a_cold_range_is_known_as_the_last(trimmed: TrimmedHistory) -> None:
    for last in (20, 40):
        range = open_range(trimmed.journal, HistoryQuery(LAMP, 1, last))
        first = page(trimmed.journal, range, 0, last, MUCH)
        assert first.trimmed is not None
        assert cold_page(trimmed.cold, range, first.trimmed, last, MUCH, 40).ended
        assert not cold_page(trimmed.cold, range, first.trimmed, last - 1, MUCH, 40).ended


def test_case_20_events_removed_by_retention_are_not_reported_as_missing(trimmed: TrimmedHistory) -> None:
    forget(trimmed.lake, "revision <= 20")
    assert revisions(read(trimmed, HistoryQuery(LAMP))) == span(21, 101)
    assert revisions(read(trimmed, HistoryQuery(LAMP, -90), 7)) == span(21, 101)
    assert revisions(read(trimmed, HistoryQuery(LAMP, 5, 10))) == []
    forget(trimmed.lake, "revision <= 60")
    assert revisions(read(trimmed._replace(cold=LakeHistory(trimmed.lake)), HistoryQuery(LAMP))) == span(41, 101)


@pytest.mark.parametrize("limit", [3, 500])
@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (HistoryQuery(LAMP), span(1, 101)),
        (HistoryQuery(LAMP, filter="ge(attributes/counter,0)"), span(1, 101)),
        (HistoryQuery(LAMP, to_revision=33), span(1, 33)),
        (HistoryQuery(LAMP, before=nanoseconds(timestamp(16))), span(1, 15)),
    ],
    ids=["all", "filter", "to", "before"],
)
def test_a_replay_that_has_started_is_not_disturbed_by_retention_compaction_and_vacuum(
    trimmed: TrimmedHistory, asked: HistoryQuery, expected: list[int], limit: int
) -> None:
    """Not by several of them either, while the files stay that retention has deleted rows of."""
    found, deletions = [], iter(["revision <= 20", "revision <= 30", "revision <= 40"])
    range, position = open_range(trimmed.journal, asked), 0
    while True:
        one = page(trimmed.journal, range, position, limit, MUCH)
        if one.trimmed is not None:
            one = cold_page(trimmed.cold, range, one.trimmed, limit, MUCH, 40)
        if (condition := next(deletions, None)) is not None:
            forget(trimmed.lake, condition)
            table = DeltaTable(trimmed.lake.path(EVENTS))
            table.optimize.compact()
            table.vacuum(retention_hours=24, dry_run=False, enforce_retention_duration=False)
            trimmed.cold.reaches()
        found += revisions(one.events)
        position = one.position
        if one.ended:
            break
    assert found == expected
    # A new replay begins at the oldest event that still exists.
    assert 1 not in revisions(read(trimmed, asked))


def test_a_replay_with_removed_files_fails_instead_of_skipping_events(trimmed: TrimmedHistory) -> None:
    trimmed.cold.reaches()
    range = open_range(trimmed.journal, HistoryQuery(LAMP))
    forget(trimmed.lake, "revision <= 20")
    compact(trimmed.lake)
    later = page(trimmed.journal, range, 10, 5, MUCH)
    assert later.trimmed is not None
    with pytest.raises(HistoryUnavailable, match="the lake lacks revisions 11 to 20"):
        cold_page(trimmed.cold, range, later.trimmed, 5, MUCH, 40)


def test_a_replay_that_retention_overtakes_fails_rather_than_to_leave_out_events(trimmed: TrimmedHistory) -> None:
    """Where the reader was restarted meanwhile."""
    range = open_range(trimmed.journal, HistoryQuery(LAMP))
    forget(trimmed.lake, "revision <= 20")
    later = page(trimmed.journal, range, 10, 5, MUCH)
    assert later.trimmed is not None
    with pytest.raises(HistoryUnavailable, match="the lake lacks revisions 11 to 20"):
        cold_page(trimmed.cold, range, later.trimmed, 5, MUCH, 40)


@pytest.mark.parametrize("limit", [7, 500])
@pytest.mark.parametrize("condition", ["revision >= 25 AND revision <= 60", "revision >= 25 AND revision <= 30"])
@pytest.mark.parametrize(
    "asked",
    [
        HistoryQuery(LAMP),
        HistoryQuery(LAMP, filter="ge(attributes/counter,0)"),
        HistoryQuery(LAMP, after=nanoseconds(timestamp(3))),
        HistoryQuery(LAMP, before=nanoseconds(timestamp(36))),
    ],
    ids=["all", "filter", "after", "before"],
)
def test_events_that_the_lake_has_lost_after_others_are_reported(
    trimmed: TrimmedHistory, limit: int, condition: str, asked: HistoryQuery
) -> None:
    forget(trimmed.lake, condition)
    with pytest.raises(
        HistoryUnavailable,
        match=r"the lake lacks revisions 25 to|expected one row in the lake for each revision from \d+ to \d+",
    ):
        read(trimmed, asked, limit)


def test_events_lost_by_the_lake_at_the_end_of_a_file_are_reported(trimmed: TrimmedHistory) -> None:
    """The events after them are not skipped."""
    trimmed = trimmed._replace(cold=LakeHistory(trimmed.lake))
    forget(trimmed.lake, "revision >= 31 AND revision <= 34")
    asked = open_range(trimmed.journal, HistoryQuery(LAMP))
    first = page(trimmed.journal, asked, 0, 30, MUCH)
    assert first.trimmed is not None
    found = cold_page(trimmed.cold, asked, first.trimmed, 30, MUCH, 40)
    assert (revisions(found.events), found.position, found.ended) == (span(1, 30), 30, False)
    with pytest.raises(HistoryUnavailable, match="the lake lacks revisions 31 to 34"):
        read(trimmed, HistoryQuery(LAMP), 30)


def test_a_replay_that_retention_overtakes_wholly_fails_too(trimmed: TrimmedHistory) -> None:
    """At the beginning of a range it is the beginning that has gone, and nothing is missed."""
    asked = open_range(trimmed.journal, HistoryQuery(LAMP))
    forget(trimmed.lake, "revision <= 60")
    for position, is_beginning in ((0, True), (10, False)):
        later = page(trimmed.journal, asked, position, 5, MUCH)
        assert later.trimmed is not None
        if is_beginning:
            assert cold_page(trimmed.cold, asked, later.trimmed, 5, MUCH, 40).position == 40
        else:
            with pytest.raises(HistoryUnavailable, match="the lake lacks revisions 11 to 40"):
                cold_page(trimmed.cold, asked, later.trimmed, 5, MUCH, 40)


def test_a_lake_without_the_trimmed_events_is_reported(trimmed: TrimmedHistory) -> None:
    trim(trimmed.journal, 70)
    with pytest.raises(HistoryUnavailable, match="up to 70, found events up to 60"):
        read(trimmed, HistoryQuery(LAMP))


def test_a_filter_that_matches_the_last_cold_event_knows_the_end(trimmed: TrimmedHistory) -> None:
    asked = HistoryQuery(LAMP, 1, 40, filter="ge(attributes/counter,30)")
    range = open_range(trimmed.journal, asked)
    first = page(trimmed.journal, range, 0, 10, MUCH)
    assert first.trimmed is not None
    found = cold_page(trimmed.cold, range, first.trimmed, 9, MUCH, 40)
    assert (revisions(found.events), found.ended) == (span(31, 39), False)
    found = cold_page(trimmed.cold, range, first.trimmed, 10, MUCH, 40)
    assert (revisions(found.events), found.ended) == (span(31, 40), True)


def test_case_35_the_last_event_before_a_cold_instant_is_known_as_the_last(trimmed: TrimmedHistory) -> None:
    range = open_range(trimmed.journal, HistoryQuery(LAMP, before=nanoseconds(timestamp(8))))
    first = page(trimmed.journal, range, 0, 7, MUCH)
    assert first.trimmed is not None
    found = cold_page(trimmed.cold, range, first.trimmed, 7, MUCH, 40)
    assert (revisions(found.events), found.ended) == (span(1, 7), True)
    found = cold_page(trimmed.cold, range, first.trimmed, 6, MUCH, 40)
    assert (revisions(found.events), found.ended) == (span(1, 6), False)


def test_compaction_between_two_pages_does_not_disturb(trimmed: TrimmedHistory) -> None:
    range = open_range(trimmed.journal, HistoryQuery(LAMP))
    position, found = 0, []
    while not (one := page(trimmed.journal, range, position, 3, MUCH)).ended:
        if one.trimmed is not None:
            one = cold_page(trimmed.cold, range, one.trimmed, 3, MUCH, 40)
            compact(trimmed.lake)
        found += revisions(one.events)
        position = one.position
    assert found + revisions(one.events) == span(1, 101)


# erased rows


@pytest.fixture
def again(tmp_path: Path) -> Iterator[Journal]:
    """The lamp was erased at revision 5 and created again; there is no lake."""
    journal = Journal.open(tmp_path / "journal.db")
    journal.append([change(LAMP, revision) for revision in range(1, 6)])
    record = journal.within(lambda it: erasure.begin(it, "thing", LAMP.id, timestamp(5), "operator"))
    for step in steps(record):
        journal.within(step)
    journal.append([change(LAMP, revision) for revision in range(6, 12)])
    yield journal
    journal.close()


@pytest.mark.parametrize("limit", [2, 500])
@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (HistoryQuery(LAMP), span(6, 11)),
        (HistoryQuery(LAMP, filter="ge(attributes/counter,7)"), span(8, 11)),
        (HistoryQuery(LAMP, filter="lt(attributes/counter,2)"), []),
        (HistoryQuery(LAMP, 2, 4), []),
        (HistoryQuery(LAMP, 2, 5, filter="ge(attributes/counter,0)"), []),
        (HistoryQuery(LAMP, 3, 8), span(6, 8)),
        (HistoryQuery(LAMP, -2), span(10, 11)),
        (HistoryQuery(LAMP, after=nanoseconds(timestamp(2))), span(6, 11)),
        (HistoryQuery(LAMP, after=nanoseconds(timestamp(8))), span(9, 11)),
        (HistoryQuery(LAMP, before=nanoseconds(timestamp(9))), span(6, 8)),
        (HistoryQuery(LAMP, after=nanoseconds(timestamp(1)), before=nanoseconds(timestamp(4))), []),
    ],
)
def test_a_history_starts_after_the_erased_events_without_reading_the_lake(
    again: Journal, asked: HistoryQuery, expected: list[int], limit: int
) -> None:
    range = open_range(again, asked)
    position, found, is_over = 0, [], False
    while not is_over:
        events, position, is_over, trimmed, _ = page(again, range, position, limit, MUCH)
        assert trimmed is None
        found += revisions(events)
    assert found == expected


def test_events_trimmed_after_an_erasure_are_read_from_the_lake(again: Journal, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    append_events(lake, list(enumerate(again.events(LAMP, 6, 8, 9, MUCH), 6)))
    trim(again, 8)
    trimmed = TrimmedHistory(again, LakeHistory(lake), lake)
    found = page(again, open_range(again, HistoryQuery(LAMP)), 0, 10, MUCH)
    assert found.trimmed == TrimmedRange(6, 8, False, 6)
    assert revisions(read(trimmed, HistoryQuery(LAMP))) == span(6, 11)
    # Retention has taken the beginning.
    forget(lake, "revision <= 7")
    assert revisions(read(trimmed._replace(cold=LakeHistory(lake)), HistoryQuery(LAMP))) == span(8, 11)


# everything, at random


class History(NamedTuple):
    """Events of two entities as they came in, and after how many of them something was done."""

    changes: list[Change]
    trimmed: int
    batches: list[int]


@st.composite
def histories(draw: st.DrawFn) -> History:
    newest = {LAMP: 0, NEIGHBOUR: 0}
    now = datetime(2030, 1, 15, tzinfo=UTC)
    changes = []
    for _ in range(draw(st.integers(1, 60))):
        entity = LAMP if draw(st.integers(0, 3)) else NEIGHBOUR
        newest[entity] += 1
        now += timedelta(microseconds=draw(st.sampled_from((0, 0, 1, 999, 1000, 1_000_000))))
        made = change(entity, newest[entity], str(draw(st.integers(0, 9))).encode())
        text = f"{now.isoformat(timespec='microseconds')[:-6]}Z"
        changes.append(Change((made.events[0]._replace(timestamp=text),), made.snapshots))
    moved = draw(st.integers(0, len(changes)))
    trimmed = draw(st.integers(0, moved))
    edges = sorted({moved, *draw(st.lists(st.integers(1, max(1, moved)), max_size=3))} - {0})
    return History(changes, trimmed, [edge for edge in edges if edge <= moved])


@settings(max_examples=examples(60), deadline=None)
@given(
    history=histories(),
    first=st.integers(-70, 70),
    last=st.none() | st.integers(-70, 70),
    after=st.none() | st.integers(-5, 70),
    before=st.none() | st.integers(-5, 70),
    nudge=st.sampled_from((-1, 0, 1)),
    digit=st.none() | st.integers(0, 9),
    limit=st.integers(1, 45),
    size=st.sampled_from((1, 40, MUCH)),
    rows=st.integers(1, 30),
)
def test_a_trimmed_journal_and_its_lake_answer_as_the_whole_journal_does(
    history: History,
    first: int,
    last: int | None,
    after: int | None,
    before: int | None,
    nudge: int,
    digit: int | None,
    limit: int,
    size: int,
    rows: int,
) -> None:
    whole, trimmed = MemoryJournal(), MemoryJournal()
    events = [one.events[0] for one in history.changes]

    def instant(place: int | None) -> int | None:
        """Return the time of an event, or a nanosecond beside it."""
        if place is None:
            return None
        text = events[min(max(place, 0), len(events) - 1)].timestamp
        return (int(datetime.fromisoformat(text).timestamp() * 1000) // 1000 * SECOND) + int(text[20:26]) * 1000 + nudge

    asked = HistoryQuery(
        LAMP, first, last, instant(after), instant(before), None if digit is None else f"eq(attributes/counter,{digit})"
    )
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder))
        begin = 0
        for edge in history.batches:
            append_events(lake, list(enumerate(events[begin:edge], begin + 1)), rows)
            begin = edge
        for journal in (whole, trimmed):
            journal.append(history.changes)
        trim(trimmed, history.trimmed)
        cold = LakeHistory(lake)
        assert read(TrimmedHistory(trimmed, cold, lake), asked, limit, size) == read(
            TrimmedHistory(whole, cold, lake), asked, limit, size
        )

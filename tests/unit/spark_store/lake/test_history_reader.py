"""Reading one entity's events and snapshots out of the lake's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from spark_store.errors import HistoryUnavailable
from spark_store.lake import history_reader, table_scan
from spark_store.lake.history_reader import LakeHistory
from spark_store.lake.tables import EVENTS, Lake
from spark_store.records import Snapshot, Times
from tests.support.journal_entries import LAMP, MUCH, POLICY, event, revisions, snapshot, timestamp
from tests.support.lake.tables import OTHER, append_events, append_snapshots, fill, forget, read, span


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def test_events_come_back_as_the_bytes_that_the_journal_had(lake: Lake) -> None:
    odd = EntityId(EntityType.THING, "acme.site", "lampe-ü-" + "x" * 240)
    events = [
        Event(
            odd, 1, timestamp(1), "created", "/", '{"a":1.50,"b":12345678901234567890,"ü":"\\u00e9"}'.encode(), b"{}"
        ),
        Event(
            odd, 2, "2030-01-15T00:00:02.000001Z", "deleted", "/attributes/a~1b", None, b'{"ditto-originator":"x:y"}'
        ),
        Event(odd, 3, "2030-01-15T00:00:02.000000Z".replace("02", "03"), "merged", "/", b"null", b"{}"),
    ]
    append_events(lake, list(enumerate(events, 1)))
    found = LakeHistory(lake).events(odd, 1, 9, 10, MUCH)
    assert (found.events, found.is_all) == (events, True)


def test_of_an_erased_entity_nothing_is_shown_up_to_the_event_of_the_erasure(lake: Lake) -> None:
    """Also of already decoded events; a later re-creation is shown."""
    fill(lake, 1, 9, (LAMP, OTHER))
    append_snapshots(lake, [snapshot(LAMP, 4), snapshot(OTHER, 4)])
    erased: dict[EntityId, int] = {}
    opened = LakeHistory(lake, erased)
    assert read(opened, 1, 9, 3) == span(1, 3)
    # The numbers of LAMP's events are the odd ones.
    erased[LAMP] = 12
    assert read(opened, 4, 9) == span(7, 9)
    assert read(opened, 1, 6) == []
    assert opened.snapshot(LAMP, 9) is None
    assert opened.last_before(LAMP, 6, timestamp(9)) == 0
    assert revisions(opened.events(OTHER, 1, 9, 100, MUCH).events) == span(1, 9)
    del erased[LAMP]
    assert read(opened, 1, 9) == span(1, 9)


def test_pages_follow_each_other_over_files_and_row_groups(lake: Lake) -> None:
    fill(lake, 1, 45)
    fill(lake, 46, 90)
    opened = LakeHistory(lake)
    found: list[int] = []
    while True:
        events, is_all = opened.events(LAMP, len(found) + 1, 88, 7, MUCH)
        found += revisions(events)
        assert len(events) == 7 or is_all
        if is_all:
            break
    assert found == span(1, 88)


def test_events_decoded_beyond_a_page_are_used_for_the_next_page(lake: Lake) -> None:
    fill(lake, 1, 90)
    opened = LakeHistory(lake, clock=lambda: 0.0)
    assert read(opened, 1, 90, limit=20) == span(1, 20)
    assert read(opened, 21, 90, limit=20) == span(21, 40)
    for file in Path(lake.path(EVENTS)).glob("*.parquet"):
        file.unlink()
    assert read(opened, 41, 90, limit=40) == span(41, 80)
    assert read(opened, 81, 90, limit=40) == span(81, 90)
    with pytest.raises(HistoryUnavailable):
        read(opened, 81, 90, limit=40)


@pytest.fixture
def read_row_groups(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Return the list to which each read adds the file and the number of its row groups."""
    found: list[tuple[str, int]] = []
    read_file = table_scan._read

    def noting(path: str, number: int, *rest: Any) -> Any:
        found.append((path, number))
        return read_file(path, number, *rest)

    monkeypatch.setattr(table_scan, "_read", noting)
    return found


def test_a_first_page_reads_only_the_file_that_it_is_in(lake: Lake, read_row_groups: list[tuple[str, int]]) -> None:
    for first in (1, 31, 61):
        fill(lake, first, first + 29)
    assert read(LakeHistory(lake), 1, 90, limit=20) == span(1, 20)
    assert read(LakeHistory(lake), 61, 90, limit=20) == span(61, 80)
    assert len({path for path, _ in read_row_groups}) == 2


def test_a_first_page_in_two_files_reads_both(lake: Lake, read_row_groups: list[tuple[str, int]]) -> None:
    for first in (1, 31, 61):
        fill(lake, first, first + 29)
    assert read(LakeHistory(lake), 21, 90, limit=20) == span(21, 40)
    assert len({path for path, _ in read_row_groups}) == 2


def test_page_by_page_each_row_group_is_read_once(lake: Lake, read_row_groups: list[tuple[str, int]]) -> None:
    for first in (1, 31, 61):
        fill(lake, first, first + 29)
    opened = LakeHistory(lake, clock=lambda: 0.0)
    found: list[int] = []
    while len(found) < 90:
        found += read(opened, len(found) + 1, 90, limit=20)
    assert found == span(1, 90)
    assert len(read_row_groups) == len(set(read_row_groups))


def test_the_read_ahead_for_next_pages_is_bounded(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_reader, "WAITING_BYTES", 1)
    fill(lake, 1, 90)
    opened = LakeHistory(lake)
    assert read(opened, 1, 90, limit=40) + read(opened, 41, 90, limit=60) == span(1, 90)
    assert opened._ahead == {}


def test_a_page_ends_with_the_event_that_fills_it(lake: Lake) -> None:
    fill(lake, 1, 30)
    # `9` and `{}` are three bytes, `10` and `{}` are four.
    events, is_all = LakeHistory(lake).events(LAMP, 10, 30, 100, 3)
    assert (revisions(events), is_all) == ([10], False)
    assert revisions(LakeHistory(lake).events(LAMP, 10, 30, 100, 8).events) == [10, 11, 12]


def test_large_events_are_read_a_few_at_a_time(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_reader, "AHEAD_BYTES", 5000)
    large = [(n, event(LAMP, n, b'"' + b"%d" % n * 1000 + b'"')) for n in range(1, 30)]
    append_events(lake, large, rows=2)
    opened = LakeHistory(lake)
    events, is_all = opened.events(LAMP, 1, 29, 100, MUCH)
    assert 1 <= len(events) < 29
    assert not is_all
    assert revisions(opened.events(LAMP, len(events) + 1, 29, 1, MUCH).events) == [len(events) + 1]


def test_the_read_ahead_of_a_long_history_among_young_entities_is_kept_for_the_next_pages(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, read_row_groups: list[tuple[str, int]]
) -> None:
    """Each row group has the first event of an entity: by its bounds, it may have any event of the history."""
    monkeypatch.setattr(history_reader, "AHEAD_BYTES", 20_000)
    monkeypatch.setattr(history_reader, "WAITING_BYTES", 50_000)
    for start in range(1, 91, 10):
        large = [(n, event(LAMP, n, b'"' + b"x" * 1000 + b'"')) for n in range(start, start + 10)]
        append_events(lake, [*large, (start, event(EntityId(EntityType.THING, "acme.site", f"new-{start}"), 1))])
    opened = LakeHistory(lake, clock=lambda: 0.0)
    found: list[int] = []
    while len(found) < 90:
        found += read(opened, len(found) + 1, 90, limit=2)
    assert found == span(1, 90)
    assert len(read_row_groups) < 90


def test_same_ids_of_another_type_are_another_entity(lake: Lake) -> None:
    fill(lake, 1, 5, (LAMP, POLICY))
    assert {found.entity for found in LakeHistory(lake).events(POLICY, 1, 9, 10, MUCH).events} == {POLICY}


def test_a_history_starts_at_the_oldest_existing_event(lake: Lake) -> None:
    fill(lake, 1, 60)
    forget(lake, "revision <= 41")
    opened = LakeHistory(lake)
    assert read(opened, 1, 60, limit=10) == span(42, 51)
    assert opened.events(LAMP, 1, 60, 19, MUCH).is_all
    assert opened.events(LAMP, 1, 41, 10, MUCH) == ([], True)
    assert opened.events(EntityId(EntityType.THING, "acme.site", "nobody"), 1, 60, 10, MUCH) == ([], True)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (Times(timestamp(5), None), span(6, 20)),
        (Times(None, timestamp(5)), span(1, 4)),
        (Times(timestamp(5), timestamp(9)), span(6, 8)),
        (Times("2030-01-15T00:00:05.249999Z", "2030-01-15T00:00:05.250001Z"), [5]),
        (Times("", "A"), span(1, 20)),
        (Times("A", None), []),
        (Times(None, ""), []),
    ],
)
def test_times_are_exclusive(lake: Lake, times: Times, expected: list[int]) -> None:
    fill(lake, 1, 10)
    fill(lake, 11, 20)
    opened = LakeHistory(lake)
    assert read(opened, 1, 20, times=times) == expected
    assert opened.events(LAMP, 1, 20, max(1, len(expected)), MUCH, times=times).is_all


def test_a_missing_revision_in_the_middle_is_reported(lake: Lake) -> None:
    fill(lake, 1, 20)
    forget(lake, "revision = 7")
    with pytest.raises(
        HistoryUnavailable, match="expected one row in the lake for each revision from 1 to 20, found 19"
    ):
        LakeHistory(lake).events(LAMP, 1, 20, 100, MUCH)


def test_a_duplicate_revision_is_reported(lake: Lake) -> None:
    fill(lake, 1, 20)
    fill(lake, 20, 20)
    with pytest.raises(HistoryUnavailable, match="from 1 to 20, found 21"):
        LakeHistory(lake).events(LAMP, 1, 20, 100, MUCH)


def test_a_missing_table_is_reported(lake: Lake) -> None:
    with pytest.raises(HistoryUnavailable, match="expected a Delta table that can be read"):
        LakeHistory(lake).events(LAMP, 1, 20, 100, MUCH)
    with pytest.raises(HistoryUnavailable, match="expected a Delta table that can be read"):
        LakeHistory(lake).reaches()


# states


def test_the_oldest_event_of_a_range_is_found_for_any_start(lake: Lake) -> None:
    fill(lake, 1, 40)
    opened = LakeHistory(lake)
    assert [opened.oldest(LAMP, *bounds) for bounds in ((1, 40), (7, 9), (41, 50), (9, 7))] == [1, 7, 0, 0]
    assert opened.oldest(POLICY, 1, 40) == 0
    before = opened.deletions()
    fill(lake, 41, 42)
    assert opened.deletions() == before
    forget(lake, f"entity = '{LAMP.id}' AND revision <= 22")
    assert opened.deletions() == before + 1
    assert [opened.oldest(each, 1, 40) for each in (LAMP, OTHER)] == [23, 1]


def test_the_nearest_snapshot_is_found(lake: Lake) -> None:
    opened = LakeHistory(lake)
    assert opened.snapshot(LAMP, 99) is None
    kept = [snapshot(LAMP, revision, {"n": 1.5, "r": revision}) for revision in (10, 20, 30)]
    gone = Snapshot(LAMP, 40, timestamp(1), timestamp(40), None, "acme.site:policy")
    append_snapshots(lake, [*kept, gone, snapshot(OTHER, 25), snapshot(POLICY, 26)])
    assert opened.snapshot(LAMP, 9) is None
    assert [opened.snapshot(LAMP, revision) for revision in (10, 29, 30, 99)] == [kept[0], kept[1], kept[2], gone]
    assert opened.snapshot(LAMP, 99, timestamp(30)) == kept[1]
    assert opened.snapshot(LAMP, 99, "") is None

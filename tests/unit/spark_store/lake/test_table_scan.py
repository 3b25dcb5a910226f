"""A table that is read while others write it, compact it, replace it, or damage it."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from mappings.ids import EntityType
from spark_store.errors import HistoryUnavailable
from spark_store.lake.history_reader import LakeHistory
from spark_store.lake.table_scan import ScanFilter, _Bounds, _File, footer_of
from spark_store.lake.tables import EVENTS, Lake
from spark_store.records import Times
from tests.support.journal_entries import LAMP, MUCH, event, revisions
from tests.support.lake.tables import OTHER, Clock, append_events, compact, corrupt_page, fill, read, span


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def test_new_events_are_read_when_needed_or_after_the_refresh_interval(lake: Lake) -> None:
    fill(lake, 1, 10)
    clock = Clock()
    opened = LakeHistory(lake, clock=clock)
    assert read(opened, 1, 30) == span(1, 10)
    fill(lake, 11, 20)
    assert read(opened, 1, 30) == span(1, 10)
    assert read(opened, 1, 30, reaching=40) == span(1, 20)
    fill(lake, 21, 30)
    clock.now = 2
    assert read(opened, 1, 30) == span(1, 30)


def test_a_table_that_does_not_reach_so_far_is_reported(lake: Lake) -> None:
    fill(lake, 1, 10)
    opened = LakeHistory(lake)
    assert opened.reaches() == 20
    with pytest.raises(HistoryUnavailable, match="expected every event up to 21, found events up to 20"):
        read(opened, 1, 30, reaching=21)


def test_a_log_without_statistics_of_a_file_is_read_again_when_it_has_grown(lake: Lake) -> None:
    fill(lake, 1, 10)
    (commit,) = Path(lake.path(EVENTS), "_delta_log").glob("*.json")
    actions = [msgspec.json.decode(line) for line in commit.read_bytes().splitlines()]
    for action in actions:
        action.get("add", {}).pop("stats", None)
    commit.write_bytes(b"\n".join(map(msgspec.json.encode, actions)))
    opened = LakeHistory(lake)
    assert read(opened, 1, 20) == span(1, 10)
    fill(lake, 11, 20)
    assert read(opened, 1, 20, reaching=40) == span(1, 20)


def test_a_table_version_with_removed_files_is_still_readable(lake: Lake) -> None:
    for first in range(1, 41, 4):
        fill(lake, first, first + 3)
    clock = Clock()
    opened = LakeHistory(lake, clock=clock)
    assert read(opened, 1, 40, limit=2) == [1, 2]
    before = set(Path(lake.path(EVENTS)).glob("*.parquet"))
    compact(lake)
    assert not before & set(Path(lake.path(EVENTS)).glob("*.parquet")), "nothing was removed"
    fresh = LakeHistory(lake, clock=clock)
    assert read(fresh, 1, 40) == span(1, 40)
    compact(lake)
    assert read(opened, 5, 40) == span(5, 40)


def test_a_log_that_was_shortened_behind_its_reader_is_opened_again(lake: Lake) -> None:
    fill(lake, 1, 10)
    clock = Clock()
    opened = LakeHistory(lake, clock=clock)
    assert read(opened, 1, 30) == span(1, 10)
    fill(lake, 11, 20)
    fill(lake, 21, 30)
    table = DeltaTable(lake.path(EVENTS))
    table.create_checkpoint()
    for number in range(table.version()):
        Path(lake.path(EVENTS), "_delta_log", f"{number:020}.json").unlink()
    clock.now = 2
    assert read(opened, 1, 30) == span(1, 30)


def test_a_lake_that_was_replaced_by_another_one_is_read(lake: Lake) -> None:
    fill(lake, 1, 30)
    opened = LakeHistory(lake, clock=Clock())
    assert read(opened, 1, 3) == span(1, 3)
    shutil.rmtree(lake.path(EVENTS))
    with pytest.raises(HistoryUnavailable):
        read(opened, 10, 40)
    fill(lake, 1, 40)
    assert read(opened, 10, 40) == span(10, 40)


@pytest.mark.parametrize("versions", [1, 3, 5])
def test_how_far_another_table_reaches_that_was_put_in_place_is_reported_at_once(lake: Lake, versions: int) -> None:
    """It may have fewer versions than the one that is known, as many, or more."""
    for first in (1, 11, 21):
        fill(lake, first, first + 9)
    opened = LakeHistory(lake)
    assert opened.reaches() == 60
    shutil.rmtree(lake.path(EVENTS))
    for first in range(1, versions + 1):
        fill(lake, first, first, (OTHER,))
    assert opened.reaches() == versions
    assert all(Path(file.path).exists() for file in opened._events.newest().files), "two tables were mixed"
    assert read(opened, 1, 40) == []
    fill(lake, versions + 1, versions + 4, (OTHER,))
    assert opened.reaches() == versions + 4


@pytest.mark.parametrize("folder", ["", "_delta_log"], ids=["table", "log"])
@pytest.mark.parametrize("is_empty", [False, True], ids=["no folder", "empty folder"])
def test_a_table_with_a_missing_folder_raises_history_unavailable(folder: str, is_empty: bool, lake: Lake) -> None:
    fill(lake, 1, 10)
    opened = LakeHistory(lake)
    assert opened.reaches() == 20
    place = Path(lake.path(EVENTS), folder)
    aside = place.with_name("aside")
    place.rename(aside)
    if is_empty:
        place.mkdir()
    for _ in range(2):
        with pytest.raises(HistoryUnavailable, match="expected a Delta table that can be read"):
            opened.reaches()
    if is_empty:
        place.rmdir()
    aside.rename(place)
    assert opened.reaches() == 20


def test_a_half_written_file_is_reported_and_other_files_apply(lake: Lake) -> None:
    fill(lake, 1, 10)
    (good,) = Path(lake.path(EVENTS)).glob("*.parquet")
    fill(lake, 11, 20)
    (bad,) = set(Path(lake.path(EVENTS)).glob("*.parquet")) - {good}
    bad.write_bytes(bad.read_bytes()[:200])
    opened = LakeHistory(lake)
    assert read(opened, 1, 10) == span(1, 10)
    with pytest.raises(HistoryUnavailable, match="expected a file that can be read"):
        read(opened, 11, 20)


def test_a_corrupt_page_raises_history_unavailable(lake: Lake) -> None:
    fill(lake, 1, 10)
    assert read(LakeHistory(lake), 1, 10) == span(1, 10)
    corrupt_page(Path(lake.path(EVENTS)))
    footer_of.cache_clear()
    with pytest.raises(HistoryUnavailable, match=r"expected a file that can be read, found: .*page integrity"):
        read(LakeHistory(lake), 1, 10)


def test_a_file_with_a_truncated_newest_time_in_the_log_is_scanned() -> None:
    """Spark's log has times in whole milliseconds."""
    cut = datetime(2030, 1, 15, 7, 30, 0, 250_000, tzinfo=UTC)
    file = _File("a.parquet", 9, _Bounds(None, None, 1, 9), cut, cut)

    def may_hold(after: str | None, before: str | None = None) -> bool:
        return file.may_hold(ScanFilter.of(LAMP, Times(after, before)), 1, 9)

    assert may_hold("2030-01-15T07:30:00.250000Z")
    assert may_hold("2030-01-15T07:30:00.250900Z")
    assert not may_hold("2030-01-15T07:30:00.251000Z")
    assert may_hold(None, "2030-01-15T07:30:00.250001Z")
    assert not may_hold(None, "2030-01-15T07:30:00.250000Z")


@pytest.mark.parametrize("has_statistics", [True, False], ids=["with statistics", "without statistics"])
@pytest.mark.parametrize("step", [1, 7], ids=["sorted", "not sorted"])
def test_the_row_groups_of_an_entity_are_found_in_a_file_of_any_order(
    step: int, has_statistics: bool, tmp_path: Path
) -> None:
    numbers = [number * step % 60 for number in range(60)]
    ids = [f"acme.site:{number // 7:02}" for number in numbers]
    rows = {"entity_type": ["thing"] * 60, "entity": ids, "revision": [number % 7 for number in numbers]}
    pq.write_table(pa.table(rows), tmp_path / "file.parquet", row_group_size=4, write_statistics=has_statistics)
    footer = footer_of(str(tmp_path / "file.parquet"))
    for entity in [*sorted(set(ids)), "acme.site", "acme.site:030", "acme.site:99"]:
        found = {number for number, _ in footer.holding(entity, 2, 5)}
        wanted = {place // 4 for place, id in enumerate(ids) if id == entity and 2 <= numbers[place] % 7 <= 5}
        assert wanted <= found
        assert step > 1 or not has_statistics or len(found) <= 3


def test_a_thing_and_a_policy_with_the_same_id_are_told_apart_in_every_row_group(lake: Lake) -> None:
    """Types are only read where a row group has several."""
    policy = LAMP._replace(type=EntityType.POLICY)
    things = [(number, event(LAMP, number)) for number in span(1, 6)]
    policies = [(10 + number, event(policy, number)) for number in span(1, 9)]
    append_events(lake, [*things[:4], *policies[:6]], rows=3)
    append_events(lake, [*things[4:], *policies[6:]])
    opened = LakeHistory(lake)
    found = [revisions(opened.events(entity, 1, 9, 10, MUCH).events) for entity in (LAMP, policy)]
    assert found == [span(1, 6), span(1, 9)]


def test_many_threads_may_read_while_the_table_is_compacted(lake: Lake) -> None:
    for first in range(1, 61, 3):
        fill(lake, first, first + 2)
    opened = LakeHistory(lake)

    def replays(_: int) -> list[list[int]]:
        return [read(opened, 1, 60, limit=60) for _ in range(10)]

    with ThreadPoolExecutor(8) as threads:
        running = [threads.submit(replays, number) for number in range(8)]
        for first in range(61, 70, 3):
            fill(lake, first, first + 2)
            compact(lake)
        assert all(found == span(1, 60) for one in running for found in one.result(60))

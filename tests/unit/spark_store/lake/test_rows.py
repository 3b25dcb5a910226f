"""Rows of the lake in bulk, as the journal has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_store.errors import StoreUnavailable
from spark_store.journal.reader import JournalReader
from spark_store.lake import rows as lake_rows
from spark_store.lake.reader import open_table
from spark_store.lake.rows import EntityRange, MemoryBound, MemoryBoundExceeded
from spark_store.lake.tables import EVENTS, Lake
from tests.support.lake.pipeline_process import DataFolder
from tests.support.lake.pipeline_tables import write_events, write_lake
from tests.support.lake.twin_changes import eventful


@pytest.fixture
def data_folder(tmp_path: Path) -> DataFolder:
    data_folder = DataFolder(tmp_path / "data")
    eventful(data_folder)
    write_lake(data_folder.folder)
    return data_folder


def test_rows_are_the_journals_byte_for_byte(data_folder: DataFolder) -> None:
    with JournalReader.open(data_folder.lake.journal) as follower:
        assert lake_rows.events_between(data_folder.lake, 1, 99) == list(follower.entries(1, 99))
        assert lake_rows.events_between(data_folder.lake, 7, 9) == list(follower.entries(7, 9))
        assert sorted(lake_rows.latest_states(data_folder.lake), key=str) == sorted(follower.states(1, 0), key=str)
    wanted = ["acme.site:lamp-1", "acme.site:lamp-3"]
    assert sorted(row.entity for row in lake_rows.latest_states(data_folder.lake, wanted)) == wanted
    events = [(row.entity, row.revision) for row in lake_rows.events_of(data_folder.lake, wanted)]
    assert events == [(wanted[0], n) for n in range(1, 8)] + [(wanted[1], n) for n in range(1, 6)]


@pytest.mark.parametrize("step", [1, 3, 100])
def test_a_history_is_the_same_however_few_events_are_read_at_once(data_folder: DataFolder, step: int) -> None:
    found = lake_rows.history(data_folder.lake, "thing", "acme.site:lamp-1", 6, MemoryBound(step, 1_000))
    assert list(found) == [
        row for row in lake_rows.events_of(data_folder.lake, ["acme.site:lamp-1"]) if row.revision <= 6
    ]


@pytest.mark.parametrize("bytes", [0, 60, 1_000])
def test_a_history_is_the_same_however_few_bytes_are_read_at_once(data_folder: DataFolder, bytes: int) -> None:
    found = lake_rows.history(data_folder.lake, "thing", "acme.site:lamp-1", 6, MemoryBound(100, bytes))
    assert list(found) == [
        row for row in lake_rows.events_of(data_folder.lake, ["acme.site:lamp-1"]) if row.revision <= 6
    ]


def test_revisions_that_are_not_there_cost_nothing(data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention has taken a thousand million of them, and a hole is amid the others."""
    rows = [row for row in data_folder.table(EVENTS) if row["entity"] == "acme.site:lamp-1" and row["revision"] != 4]
    add = {1: 10**9, 2: 10**9, 3: 10**9, 5: 2 * 10**9, 6: 2 * 10**9, 7: 2 * 10**9}
    write_events(data_folder.folder, [{**row, "revision": row["revision"] + add[row["revision"]]} for row in rows])
    read: list[object] = []

    def noted(*of: Any) -> Any:
        read.append(of)
        return open_table(*of)

    monkeypatch.setattr(lake_rows, "open_table", noted)
    found = lake_rows.history(data_folder.lake, "thing", "acme.site:lamp-1", 2 * 10**9 + 7, MemoryBound(2, 1_000))
    assert [row.revision % 10**9 for row in found] == [1, 2, 3, 5, 6, 7]
    assert len(read) < 10


def test_more_than_may_be_held_is_refused(data_folder: DataFolder) -> None:
    of = ["acme.site:lamp-1"]
    events = lake_rows.events_of(data_folder.lake, of)
    most = MemoryBound(len(events), sum(map(lake_rows.size, events)))
    assert lake_rows.events_of(data_folder.lake, of, most) == events
    for bound in (most._replace(rows=most.rows - 1), most._replace(bytes=most.bytes - 1)):
        with pytest.raises(MemoryBoundExceeded):
            lake_rows.events_of(data_folder.lake, of, bound)


def test_entity_sizes_are_ordered_by_id_across_types(data_folder: DataFolder) -> None:
    with JournalReader.open(data_folder.lake.journal) as follower:
        rows = sorted(follower.states(1, 0), key=lambda row: row.entity)
        assert list(follower.sizes("")) == [(row.entity, row.revision, len(row.state or b"")) for row in rows]
        assert [id for id, *_ in follower.sizes("acme.site:lamp-6")] == [
            "acme.site:lamp-6", "acme.site:lamp-7", "acme.site:owner",
        ]  # fmt: skip


def test_a_part_is_all_of_its_entities(data_folder: DataFolder) -> None:
    part = EntityRange("acme.site:lamp-2", "acme.site:lamp-4")
    assert {row.entity for row in lake_rows.events_of(data_folder.lake, part)} == {
        "acme.site:lamp-2",
        "acme.site:lamp-3",
    }
    assert len(list(lake_rows.states_in(data_folder.lake, part))) == 2
    assert len(lake_rows.events_of(data_folder.lake, EntityRange(None, None))) == 48
    assert len(list(lake_rows.states_in(data_folder.lake, EntityRange("acme.site:lamp-7", None)))) == 2


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    place = Lake(tmp_path)
    assert not place.has(EVENTS)
    with pytest.raises(StoreUnavailable, match="expected a Delta table"):
        lake_rows.events_of(place, [])

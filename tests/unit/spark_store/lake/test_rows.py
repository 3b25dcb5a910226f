"""Rows of the lake in order, as the journal has them."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pytest

from spark_store.errors import StoreUnavailable
from spark_store.journal.reader import JournalReader
from spark_store.lake import rows as lake_rows
from spark_store.lake.rows import TableRows, entries, states
from spark_store.lake.tables import EVENTS, LATEST, Lake
from tests.support.lake.pipeline_process import DataFolder
from tests.support.lake.pipeline_tables import write_lake
from tests.support.lake.twin_changes import write_eventful_past


@pytest.fixture
def data_folder(tmp_path: Path) -> DataFolder:
    data_folder = DataFolder(tmp_path / "data")
    write_eventful_past(data_folder)
    write_lake(data_folder.folder)
    return data_folder


def test_rows_are_the_journals_byte_for_byte_and_in_order(data_folder: DataFolder) -> None:
    with JournalReader.open(data_folder.lake.journal) as follower:
        expected = sorted(follower.entries(1, 99), key=lambda row: (row.entity, row.entity_type, row.revision))
        assert list(entries(TableRows(data_folder.lake, EVENTS))) == expected
        latest = sorted(follower.states(1, 0), key=lambda row: row.entity)
        assert list(states(TableRows(data_folder.lake, LATEST))) == latest
    wanted = ["acme.site:lamp-1", "acme.site:lamp-3"]
    assert [row.entity for row in lake_rows.latest_states(data_folder.lake, wanted)] == wanted
    events = entries(TableRows(data_folder.lake, EVENTS, pc.field("entity").isin(wanted)))
    assert [(row.entity, row.revision) for row in events] == [
        *((wanted[0], n) for n in range(1, 8)),
        *((wanted[1], n) for n in range(1, 6)),
    ]


def test_deletions_are_the_events_that_delete_an_entity(data_folder: DataFolder) -> None:
    with JournalReader.open(data_folder.lake.journal) as follower:
        expected = [row for row in follower.entries(1, 99) if (row.action, row.path) == ("deleted", "/")]
    assert expected
    assert sorted(lake_rows.deletions(data_folder.lake), key=lambda row: row.seq) == expected


def test_the_journals_entities_are_in_order_across_types(data_folder: DataFolder) -> None:
    with JournalReader.open(data_folder.lake.journal) as follower:
        rows = sorted(follower.states(1, 0), key=lambda row: row.entity)
        assert list(follower.keys("")) == [(row.entity, row.entity_type, row.revision) for row in rows]
        assert [id for id, *_ in follower.keys("acme.site:lamp-6")] == [
            "acme.site:lamp-6", "acme.site:lamp-7", "acme.site:owner",
        ]  # fmt: skip


def test_an_entitys_history_is_its_events_up_to_a_number(data_folder: DataFolder) -> None:
    with JournalReader.open(data_folder.lake.journal) as follower:
        expected = [row for row in follower.entries(1, 12) if row.entity == "acme.site:lamp-1"]
        assert expected
        assert list(follower.history("thing", "acme.site:lamp-1", 12)) == expected
        assert list(follower.history("policy", "acme.site:lamp-1", 12)) == []


def test_a_missing_table(tmp_path: Path) -> None:
    place = Lake(tmp_path)
    assert not place.has(EVENTS)
    with pytest.raises(StoreUnavailable, match="expected a Delta table"):
        TableRows(place, EVENTS)

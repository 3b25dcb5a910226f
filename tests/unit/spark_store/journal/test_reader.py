"""Following the journal beside its writer."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from mappings.ids import EntityId, EntityType
from spark_store.errors import SchemaTooNew, StoreUnavailable
from spark_store.journal.reader import JournalReader
from tests.support.journal_entries import LAMP, POLICY, change, timestamp
from tests.support.lake.pipeline_process import DataFolder


@pytest.fixture
def data_folder(tmp_path: Path) -> DataFolder:
    return DataFolder(tmp_path)


def test_an_empty_journal_has_nothing_to_follow(data_folder: DataFolder) -> None:
    with JournalReader.open(data_folder.lake.journal) as follower:
        assert (follower.newest(), follower.oldest(), follower.next_after(0)) == (0, None, None)
        assert (list(follower.entries(1, 9)), list(follower.states(1, 9))) == ([], [])


def test_events_come_in_the_order_in_which_they_were_written(data_folder: DataFolder) -> None:
    data_folder.append([change(LAMP, 1), change(POLICY, 1), change(LAMP, 2)])
    with JournalReader.open(data_folder.lake.journal) as follower:
        found = list(follower.entries(1, 3))
        assert [(it.entity_type, it.revision, it.seq) for it in found] == [
            ("thing", 1, 1),
            ("policy", 1, 2),
            ("thing", 2, 3),
        ]
        assert (found[2].value, found[2].headers, found[2].timestamp) == (b"1", b"{}", timestamp(2))
        assert [it.seq for it in follower.entries(2, 2)] == [2]
        assert (follower.newest(), follower.oldest(), follower.next_after(1)) == (3, 1, (2, timestamp(1)))


def test_by_entity_they_are_the_same_and_those_of_an_entity_lie_together(data_folder: DataFolder) -> None:
    data_folder.write(50, entities=7)
    with JournalReader.open(data_folder.lake.journal) as follower:
        found = list(follower.entries_by_entity(11, 40))
        assert sorted(found, key=lambda it: it.seq) == list(follower.entries(11, 40))
        assert [(it.entity, it.revision) for it in found] == sorted((it.entity, it.revision) for it in found)


def test_a_journal_reader_sees_new_commits(data_folder: DataFolder) -> None:
    with JournalReader.open(data_folder.lake.journal) as follower:
        assert follower.newest() == 0
        data_folder.write(3)
        assert follower.newest() == 3


def test_states_are_those_of_the_entities_that_a_range_touched_as_they_are_now(data_folder: DataFolder) -> None:
    other = EntityId(EntityType.THING, "acme.site", "lamp-8")
    data_folder.append([change(LAMP, 1), change(other, 1), change(LAMP, 2), change(LAMP, 3)])
    with JournalReader.open(data_folder.lake.journal) as follower:
        assert [(it.entity, it.revision) for it in follower.states(3, 3)] == [(LAMP.id, 3)]
        assert sorted(it.entity for it in follower.states(2, 3)) == [LAMP.id, other.id]
        assert sorted(it.entity for it in follower.states(1, 1)) == [LAMP.id, other.id], (
            "from the beginning: all there are"
        )


def test_parts_are_disjoint_and_all_of_it(data_folder: DataFolder) -> None:
    data_folder.write(20, entities=20)
    with JournalReader.open(data_folder.lake.journal) as follower:
        parts = [[it.entity for it in follower.states(1, 20, part, 3)] for part in range(3)]
    assert all(parts)
    assert len({entity for part in parts for entity in part}) == sum(map(len, parts)) == 20


def test_a_follower_neither_makes_nor_changes_a_journal(tmp_path: Path, data_folder: DataFolder) -> None:
    with pytest.raises(StoreUnavailable, match=r"none\.db"):
        JournalReader.open(tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists()
    with (
        JournalReader.open(data_folder.lake.journal) as follower,
        pytest.raises(sqlite3.OperationalError, match="readonly"),
    ):
        follower._connection.execute("DELETE FROM entries")


def test_a_journal_of_a_later_version_is_refused(data_folder: DataFolder) -> None:
    connection = sqlite3.connect(data_folder.lake.journal)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(SchemaTooNew, match="found schema version 99"):
        JournalReader.open(data_folder.lake.journal)


def test_a_damaged_journal_is_unavailable(tmp_path: Path) -> None:
    file = tmp_path / "journal.db"
    file.write_bytes(b"no journal" * 100)
    with pytest.raises(StoreUnavailable, match="not a database"):
        JournalReader.open(file)

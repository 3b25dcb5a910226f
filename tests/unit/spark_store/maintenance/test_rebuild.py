"""The journal's current state is rebuilt after any damage and any interruption. No Spark here."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from spark_store.errors import LakeUnfit, StoreUnavailable
from spark_store.journal.reader import JournalReader
from spark_store.lake.tables import LATEST, Lake
from spark_store.maintenance.rebuild import RebuildReport, rebuild_index, rebuild_journal
from tests.support.dice import THOROUGH
from tests.support.failing_sqlite import Fragile
from tests.support.lake.pipeline_process import DataFolder, lamp
from tests.support.lake.pipeline_tables import latest_row, write_lake, write_latest
from tests.support.lake.twin_changes import erase_and_create, states, tamper, trim, write_eventful_past
from tests.support.oracles import search_index as indexed

ENTITIES = 10


@pytest.fixture
def data_folder(tmp_path: Path) -> DataFolder:
    data_folder = DataFolder(tmp_path / "data")
    write_eventful_past(data_folder)
    return data_folder


def damage(data_folder: DataFolder) -> None:
    """Damage four states: a changed one, an old one, one with another policy, one that should be deleted."""
    update = "UPDATE entities SET {} WHERE id = ?"
    tamper(data_folder, update.format("state = '{}'"), "acme.site:lamp-3")
    tamper(data_folder, update.format("state = '{\"old\":1}', revision = 2"), "acme.site:lamp-4")
    tamper(data_folder, update.format("policy = 'a:b'"), "acme.site:lamp-5")
    tamper(data_folder, update.format("state = '{}'"), "acme.site:lamp-0")


def test_a_whole_journal_is_left_as_it_is(data_folder: DataFolder) -> None:
    before = states(data_folder)
    assert rebuild_journal(data_folder.lake) == RebuildReport(ENTITIES, 0, 0, 0, ())
    assert states(data_folder) == before


def test_states_are_made_again_from_the_journals_own_events_byte_for_byte(data_folder: DataFolder) -> None:
    before = states(data_folder)
    damage(data_folder)
    found = rebuild_journal(data_folder.lake)
    assert found[:4] == (ENTITIES, 4, 0, 0)
    assert "acme.site:lamp-4 changed" in found.examples
    assert states(data_folder) == before


def test_a_rebuild_makes_the_search_index_match_the_states_after_any_damage(data_folder: DataFolder) -> None:
    damage(data_folder)
    tamper(data_folder, "DELETE FROM search_values WHERE path = (SELECT max(path) FROM search_values)")
    tamper(data_folder, "INSERT INTO search_values SELECT path, rank, 'nobody', thing FROM search_values LIMIT 1")
    tamper(data_folder, "DELETE FROM search_subjects")
    rebuild_journal(data_folder.lake)
    there = indexed.found(data_folder.lake.journal)
    assert there == indexed.expected(data_folder.lake.journal)
    assert len(there.values) > ENTITIES
    assert there.subjects == {("a:b/c", "acme.site:owner")}
    # Only the index is damaged, outside any state.
    tamper(data_folder, "INSERT INTO search_large VALUES (1)")
    assert rebuild_index(data_folder.lake) == ENTITIES
    assert indexed.found(data_folder.lake.journal) == there
    with pytest.raises(StoreUnavailable, match="found no journal"):
        rebuild_index(Lake(data_folder.folder / "nowhere"))


def test_a_rebuild_restores_trimmed_states_from_the_lake_and_later_events(data_folder: DataFolder) -> None:
    before = states(data_folder)
    write_lake(data_folder.folder, 30)
    trim(data_folder, 25)
    damage(data_folder)
    assert rebuild_journal(data_folder.lake)[:4] == (ENTITIES, 4, 0, 0)
    assert states(data_folder) == before
    # Without events in the journal, an entity has its state in `latest`.
    write_lake(data_folder.folder)
    trim(data_folder, 99)
    damage(data_folder)
    assert rebuild_journal(data_folder.lake)[:4] == (ENTITIES, 4, 0, 0)
    assert states(data_folder) == before


def test_an_entity_that_only_the_lake_knows_is_added(data_folder: DataFolder) -> None:
    before = states(data_folder)
    write_lake(data_folder.folder)
    tamper(data_folder, "DELETE FROM entities WHERE id = ?", "acme.site:lamp-6")
    assert rebuild_journal(data_folder.lake) == RebuildReport(ENTITIES - 1, 0, 1, 0, ("acme.site:lamp-6 added",))
    assert states(data_folder) == before


def test_no_transaction_adds_more_entities_than_a_chunk_has(data_folder: DataFolder) -> None:
    """The journal's connection keeps an open transaction in memory."""
    before, added = states(data_folder), [0]

    class Counting(sqlite3.Connection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            if sql == "COMMIT":
                added.append(0)
            added[-1] += "INSERT INTO entities" in sql
            return super().execute(sql, *parameters)

    write_lake(data_folder.folder)
    tamper(data_folder, "DELETE FROM entities")
    assert rebuild_journal(data_folder.lake, chunk=3, factory=Counting).added == ENTITIES == sum(added)
    assert max(added) == 3
    assert states(data_folder) == before


def test_deletions_in_the_lake_hide_earlier_events(data_folder: DataFolder) -> None:
    """The readers of a thing are unknown; the policies that things name are restored."""
    things = "SELECT count(*) FROM named_policies"
    before = read_all(data_folder, things)
    deletions = read_all(data_folder, "SELECT entity, revision FROM entries WHERE action = 'deleted' AND path = '/'")
    assert deletions
    write_lake(data_folder.folder)
    for table in ("incarnations", "named_policies", "entries", "entities"):
        tamper(data_folder, f"DELETE FROM {table}")
    rebuild_journal(data_folder.lake)
    found = read_all(data_folder, "SELECT permissions, count(*) FROM incarnations GROUP BY permissions")
    assert found == [(None, len(deletions))]
    assert read_all(data_folder, things) == before


def read_all(data_folder: DataFolder, statement: str) -> list[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(data_folder.lake.journal)) as connection:
        return connection.execute(statement).fetchall()


def test_a_state_without_events_or_lake_row_is_kept_and_counted(data_folder: DataFolder) -> None:
    trim(data_folder, 7)
    before = states(data_folder)
    assert rebuild_journal(data_folder.lake)[:4] == (ENTITIES, 0, 0, 2), "no lake"
    # The journal's newest event of an entity was lost with its page; the state is still there.
    tamper(data_folder, "DELETE FROM entries WHERE seq = 20")
    assert rebuild_journal(data_folder.lake)[3] == 3
    tamper(data_folder, "DELETE FROM entries WHERE seq = 41")
    assert rebuild_journal(data_folder.lake)[3] == 4
    assert states(data_folder) == before


@pytest.mark.parametrize("value", ["7b", "22ff22"], ids=["no JSON", "no UTF-8"])
def test_a_state_whose_event_is_damaged_is_kept_and_counted(value: str, data_folder: DataFolder) -> None:
    before = states(data_folder)
    tamper(data_folder, f"UPDATE entries SET value = x'{value}' WHERE seq = ?", 3)
    found = rebuild_journal(data_folder.lake)
    assert found[:4] == (ENTITIES, 0, 0, 1)
    assert states(data_folder) == before


def test_erased_events_in_the_lake_do_not_affect_a_thing_created_again(data_folder: DataFolder) -> None:
    """Neither the creation time of the thing, nor the metadata of a path that exists again."""
    write_lake(data_folder.folder)
    erase_and_create(data_folder, lamp(3))
    before = states(data_folder)
    assert rebuild_journal(data_folder.lake) == RebuildReport(ENTITIES, 0, 0, 0, ())
    assert states(data_folder) == before
    # The lake has its later states.
    with JournalReader.open(data_folder.lake.journal) as follower:
        write_latest(data_folder.folder, [latest_row(it) for it in follower.states(1, 0)])
    trim(data_folder, 99)
    damage(data_folder)
    assert rebuild_journal(data_folder.lake)[:4] == (ENTITIES, 4, 0, 0)
    assert states(data_folder) == before


def test_an_equal_value_in_another_notation_is_unchanged(data_folder: DataFolder) -> None:
    """The order of keys, and how a number is written, are no difference."""
    tamper(
        data_folder, 'UPDATE entities SET state = \'{"policyId": "acme.site:other"}\' WHERE id = ?', "acme.site:lamp-1"
    )
    before = states(data_folder)
    assert rebuild_journal(data_folder.lake).changed == 0
    assert states(data_folder) == before


def test_a_journal_older_than_the_lake_is_refused(data_folder: DataFolder) -> None:
    write_lake(data_folder.folder)
    tamper(data_folder, "UPDATE counters SET value = 3 WHERE name = 'seq'")
    with pytest.raises(LakeUnfit, match="the lake has events up to 48, but the journal only up to 3"):
        rebuild_journal(data_folder.lake)
    with pytest.raises(StoreUnavailable, match="found no journal"):
        rebuild_journal(Lake(data_folder.folder / "nowhere"))


@pytest.mark.parametrize("late", [False, True])
def test_interrupted_anywhere_it_is_repeated_and_ends_the_same(late: bool, data_folder: DataFolder) -> None:
    before = states(data_folder)
    write_lake(data_folder.folder, 30)
    trim(data_folder, 25)
    failing, failures = 0, 0
    while True:
        damage(data_folder)
        tamper(data_folder, "DELETE FROM entities WHERE id = ?", "acme.site:lamp-2")
        failing += 7 if THOROUGH else 17
        Fragile.arm(failing, late)
        try:
            rebuild_journal(data_folder.lake, chunk=2, factory=Fragile)
        except StoreUnavailable:
            failures += 1
            Fragile.arm(0)
            rebuild_journal(data_folder.lake, chunk=2, factory=Fragile)
        else:
            break
        assert [it[:6] for it in states(data_folder)] == [it[:6] for it in before]
        assert indexed.found(data_folder.lake.journal) == indexed.expected(data_folder.lake.journal)
    assert failures > 5
    assert states(data_folder) == before


def test_a_lake_that_cannot_be_read_is_reported(data_folder: DataFolder) -> None:
    write_lake(data_folder.folder)
    trim(data_folder, 48)
    (file,) = Path(data_folder.lake.path(LATEST)).glob("*.parquet")
    file.write_bytes(b"PAR1")
    with pytest.raises(LakeUnfit, match=r"latest: expected a file that can be read"):
        rebuild_journal(data_folder.lake)

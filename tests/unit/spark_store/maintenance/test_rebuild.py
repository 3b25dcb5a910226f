"""The journal's current state made anew, whatever happened to it, and wherever it is interrupted. No Spark here."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_store.errors import LakeUnfit, StoreUnavailable
from spark_store.journal.reader import JournalReader
from spark_store.lake.tables import LATEST, Lake
from spark_store.maintenance.rebuild import RebuildReport, rebuild_index, rebuild_journal
from tests.support.dice import THOROUGH
from tests.support.failing_sqlite import Fragile
from tests.support.lake.pipeline_process import DataFolder, lamp
from tests.support.lake.pipeline_tables import latest_row, write_lake, write_latest
from tests.support.lake.twin_changes import eventful, made_anew, states, tamper, trim
from tests.support.oracles import search_index as indexed

ENTITIES = 10


@pytest.fixture
def site(tmp_path: Path) -> DataFolder:
    site = DataFolder(tmp_path / "data")
    eventful(site)
    return site


def damage(site: DataFolder) -> None:
    """One state is another one, one is an older one, one has another policy, one was forgotten to be deleted."""
    update = "UPDATE entities SET {} WHERE id = ?"
    tamper(site, update.format("state = '{}'"), "acme.site:lamp-3")
    tamper(site, update.format("state = '{\"old\":1}', revision = 2"), "acme.site:lamp-4")
    tamper(site, update.format("policy = 'a:b'"), "acme.site:lamp-5")
    tamper(site, update.format("state = '{}'"), "acme.site:lamp-0")


def test_a_whole_journal_is_left_as_it_is(site: DataFolder) -> None:
    before = states(site)
    assert rebuild_journal(site.lake) == RebuildReport(ENTITIES, 0, 0, 0, ())
    assert states(site) == before


def test_states_are_made_again_from_the_journals_own_events_byte_for_byte(site: DataFolder) -> None:
    before = states(site)
    damage(site)
    found = rebuild_journal(site.lake)
    assert found[:4] == (ENTITIES, 4, 0, 0)
    assert "acme.site:lamp-4 changed" in found.examples
    assert states(site) == before


def test_a_rebuild_makes_the_search_index_match_the_states_after_any_damage(site: DataFolder) -> None:
    damage(site)
    tamper(site, "DELETE FROM search_values WHERE path = (SELECT max(path) FROM search_values)")
    tamper(site, "INSERT INTO search_values SELECT path, rank, 'nobody', thing FROM search_values LIMIT 1")
    tamper(site, "DELETE FROM search_subjects")
    rebuild_journal(site.lake)
    there = indexed.found(site.lake.journal)
    assert there == indexed.expected(site.lake.journal)
    assert len(there.values) > ENTITIES
    assert there.subjects == {("a:b/c", "acme.site:owner")}
    # The index alone, and what is wrong in no state.
    tamper(site, "INSERT INTO search_large VALUES (1)")
    assert rebuild_index(site.lake) == ENTITIES
    assert indexed.found(site.lake.journal) == there
    with pytest.raises(StoreUnavailable, match="found no journal"):
        rebuild_index(Lake(site.folder / "nowhere"))


def test_a_rebuild_restores_trimmed_states_from_the_lake_and_later_events(site: DataFolder) -> None:
    before = states(site)
    write_lake(site.folder, 30)
    trim(site, 25)
    damage(site)
    assert rebuild_journal(site.lake)[:4] == (ENTITIES, 4, 0, 0)
    assert states(site) == before
    # Without events of its own an entity is what `latest` says.
    write_lake(site.folder)
    trim(site, 99)
    damage(site)
    assert rebuild_journal(site.lake)[:4] == (ENTITIES, 4, 0, 0)
    assert states(site) == before


def test_an_entity_that_only_the_lake_knows_is_added(site: DataFolder) -> None:
    before = states(site)
    write_lake(site.folder)
    tamper(site, "DELETE FROM entities WHERE id = ?", "acme.site:lamp-6")
    assert rebuild_journal(site.lake) == RebuildReport(ENTITIES - 1, 0, 1, 0, ("acme.site:lamp-6 added",))
    assert states(site) == before


def test_a_state_without_events_or_lake_row_is_kept_and_counted(site: DataFolder) -> None:
    trim(site, 7)
    before = states(site)
    assert rebuild_journal(site.lake)[:4] == (ENTITIES, 0, 0, 2), "no lake"
    # The journal's newest event of an entity was lost with its page; the state is still there.
    tamper(site, "DELETE FROM entries WHERE seq = 20")
    assert rebuild_journal(site.lake)[3] == 3
    tamper(site, "DELETE FROM entries WHERE seq = 41")
    assert rebuild_journal(site.lake)[3] == 4
    assert states(site) == before


def test_erased_events_in_the_lake_do_not_affect_a_thing_created_again(site: DataFolder) -> None:
    """Neither when the thing was created, nor what was said about a place that it has again."""
    write_lake(site.folder)
    made_anew(site, lamp(3))
    before = states(site)
    assert rebuild_journal(site.lake) == RebuildReport(ENTITIES, 0, 0, 0, ())
    assert states(site) == before
    # What it has been since then is told by the lake.
    with JournalReader.open(site.lake.journal) as follower:
        write_latest(site.folder, [latest_row(it) for it in follower.states(1, 0)])
    trim(site, 99)
    damage(site)
    assert rebuild_journal(site.lake)[:4] == (ENTITIES, 4, 0, 0)
    assert states(site) == before


def test_the_same_value_in_other_words_is_left_alone(site: DataFolder) -> None:
    """The order of keys, and how a number is written, are no difference."""
    tamper(site, 'UPDATE entities SET state = \'{"policyId": "acme.site:other"}\' WHERE id = ?', "acme.site:lamp-1")
    before = states(site)
    assert rebuild_journal(site.lake).changed == 0
    assert states(site) == before


def test_a_journal_older_than_the_lake_is_refused(site: DataFolder) -> None:
    write_lake(site.folder)
    tamper(site, "UPDATE counters SET value = 3 WHERE name = 'seq'")
    with pytest.raises(LakeUnfit, match="reaches to event 48, which the lake holds, found one that ends at 3"):
        rebuild_journal(site.lake)
    with pytest.raises(StoreUnavailable, match="found no journal"):
        rebuild_journal(Lake(site.folder / "nowhere"))


@pytest.mark.parametrize("late", [False, True])
def test_interrupted_anywhere_it_continues_and_ends_the_same(late: bool, site: DataFolder) -> None:
    before = states(site)
    write_lake(site.folder, 30)
    trim(site, 25)
    failing, failures = 0, 0
    while True:
        damage(site)
        tamper(site, "DELETE FROM entities WHERE id = ?", "acme.site:lamp-2")
        failing += 7 if THOROUGH else 17
        Fragile.arm(failing, late)
        try:
            rebuild_journal(site.lake, chunk=2, factory=Fragile)
        except StoreUnavailable:
            failures += 1
            Fragile.arm(0)
            found = rebuild_journal(site.lake, chunk=2, factory=Fragile)
        else:
            break
        assert found[:4] == (ENTITIES - 1, 4, 1, 0), failing
        assert [it[:6] for it in states(site)] == [it[:6] for it in before]
        assert indexed.found(site.lake.journal) == indexed.expected(site.lake.journal)
    assert failures > 5
    assert states(site) == before


def test_a_lake_that_cannot_be_read_is_reported(site: DataFolder) -> None:
    write_lake(site.folder)
    trim(site, 48)
    (file,) = Path(site.lake.path(LATEST)).glob("*.parquet")
    file.write_bytes(b"PAR1")
    with pytest.raises(LakeUnfit, match=r"latest: expected a Delta table that can be read"):
        rebuild_journal(site.lake)

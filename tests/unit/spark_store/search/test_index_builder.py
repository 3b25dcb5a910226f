"""The search index is built from the states in steps, with writes and interruptions meanwhile."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from spark_store.errors import StoreUnavailable
from spark_store.journal import erasure
from spark_store.journal.journal import Journal
from spark_store.records import Change, Snapshot
from spark_store.search import index_builder
from spark_store.search.index import LARGE
from spark_store.search.index_builder import IndexProgress, declare, has_work, progress, restart, step
from tests.support.dice import THOROUGH
from tests.support.failing_sqlite import Fragile
from tests.support.journal_entries import timestamp
from tests.support.oracles.search_index import expected, found

THINGS = 20


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal.open(tmp_path / "journal.db", factory=Fragile)
    yield opened
    Fragile.arm(0)
    opened.close()


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_builder, "STEP_ENTITIES", 3)
    monkeypatch.setattr(index_builder, "STEP_ROWS", 7)


class EntityWriter:
    """Creates, changes and deletes things and policies. The draws are fixed, because tests rely on them."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._chance = random.Random(5)
        self.revisions: dict[EntityId, int] = {}

    def write(self, number: int) -> None:
        kind = EntityType.POLICY if number % 5 == 4 else EntityType.THING
        entity = EntityId(kind, "acme.site", str(number))
        revision = self.revisions.get(entity, 0) + 1
        state = None if self._chance.random() < 0.2 else self._policy() if number % 5 == 4 else self._thing()
        value = None if state is None else msgspec.json.encode(state)
        event = Event(
            entity, revision, timestamp(revision), "deleted" if state is None else "modified", "/", value, b"{}"
        )
        created = timestamp(revision if revision % 3 else 1)
        snapshot = Snapshot(entity, revision, created, timestamp(revision), state, "a:p")
        self._journal.append([Change((event,), (snapshot,))])
        self.revisions[entity] = revision

    def write_any(self) -> None:
        self.write(self._chance.randrange(THINGS + 5))

    def fill(self) -> None:
        for number in range(THINGS):
            self.write(number)

    def _thing(self) -> dict[str, Any]:
        bulk = ["x" * LARGE] if self._chance.random() < 0.1 else []
        names = self._chance.sample("abcdef", 3)
        return {
            "policyId": "a:p",
            "attributes": {name: self._chance.randrange(3) for name in names},
            "features": {"x": bulk},
        }

    def _policy(self) -> dict[str, Any]:
        named: dict[str, Any] = {f"a:{self._chance.randrange(5)}": {} for _ in range(3)}
        return {"entries": {"E": {"subjects": named}}, "imports": {f"a:{self._chance.randrange(3)}": {}}}


def take_step(journal: Journal) -> bool:
    more = journal.within(step)
    journal.commit()
    return more


def is_true(journal: Journal) -> bool:
    there = journal.read(found)
    assert there == journal.read(expected)
    return bool(there.values and there.subjects and there.imports and there.large)


def forget(journal: Journal) -> None:
    """Remove the index, as in a file from before there was one."""
    for table in ("values", "large", "subjects", "imports"):
        journal.within(lambda it, table=table: it.execute(f"DELETE FROM search_{table}"))  # type: ignore[misc]
    journal.within(lambda it: it.execute("UPDATE search_progress SET indexed = 0"))
    journal.commit()


def test_a_new_file_is_complete(journal: Journal) -> None:
    assert journal.read(progress) == IndexProgress(0, 0, True)
    assert not take_step(journal)
    EntityWriter(journal).fill()
    assert journal.read(progress) == IndexProgress(THINGS, THINGS, True)
    assert is_true(journal)


def test_an_old_file_gets_its_index_step_by_step_while_others_write(journal: Journal) -> None:
    """At each step the index has exactly the entities up to it; in the end it has all."""
    writer = EntityWriter(journal)
    writer.fill()
    forget(journal)
    reached = [journal.read(progress)]
    while take_step(journal):
        assert journal.read(has_work)
        for _ in range(5):
            writer.write_any()
        is_true(journal)
        reached.append(journal.read(progress))
    assert is_true(journal)
    assert not journal.read(has_work)
    assert reached[0].indexed == 0
    assert not any(it.is_complete for it in reached)
    assert [it.indexed for it in reached] == sorted({it.indexed for it in reached})
    assert journal.read(progress).is_complete
    writer.write_any()
    assert is_true(journal)


def test_a_restarted_index_build_first_removes_the_index_while_others_write(journal: Journal) -> None:
    writer = EntityWriter(journal)
    writer.fill()
    journal.within(
        lambda it: it.execute("INSERT INTO search_values SELECT path, rank, 'odd', thing FROM search_values")
    )
    journal.within(restart)
    journal.commit()
    assert not journal.read(progress).is_complete
    emptied = False
    while take_step(journal):
        writer.write_any()
        emptied |= not any(journal.read(found))
    assert emptied
    assert is_true(journal)
    # Also one that was on its way.
    journal.within(restart)
    for _ in range(60):
        take_step(journal)
    journal.within(restart)
    while take_step(journal):
        pass
    assert is_true(journal)


@pytest.mark.parametrize("late", [False, True], ids=["not carried out", "carried out"])
def test_interrupted_anywhere_it_continues(journal: Journal, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_builder, "STEP_ROWS", 100)
    writer = EntityWriter(journal)
    writer.fill()
    journal.within(lambda it: declare(it, PATHS))
    failures, failing = 0, 0
    while True:
        failing += 3 if THOROUGH else 7
        journal.within(restart)
        journal.commit()
        Fragile.arm(failing, late)
        try:
            while take_step(journal):
                pass
        except StoreUnavailable:
            failures += 1
            Fragile.arm(0)
            while take_step(journal):
                pass
        else:
            break
        assert is_true(journal)
    assert failures > 20
    Fragile.arm(0)
    assert is_true(journal)


PATHS = ("attributes/a", "attributes/b", "features/x", "attributes/nobody")


@pytest.mark.parametrize("paths", [PATHS[:1], PATHS])
def test_a_declared_path_gets_rows_in_the_order_of_ids_while_others_write(
    journal: Journal, paths: tuple[str, ...]
) -> None:
    writer = EntityWriter(journal)
    writer.fill()
    assert journal.within(lambda it: declare(it, paths))
    while take_step(journal):
        writer.write_any()
        is_true(journal)
    is_true(journal)
    there = journal.read(found).declared
    assert {row[0] for row in there} == {*paths} - {"attributes/nobody"}
    for _ in range(20):
        writer.write_any()
    is_true(journal)
    assert not journal.within(lambda it: declare(it, paths)), "nothing is left to do"
    journal.commit()
    # A rebuilt index is not used until it is complete.
    journal.within(restart)
    journal.commit()
    assert not journal.read(found).declared
    while take_step(journal):
        writer.write_any()
    is_true(journal)
    assert {row[0] for row in journal.read(found).declared} == {*paths} - {"attributes/nobody"}


def test_a_path_that_is_declared_no_more_goes_and_may_come_again_in_the_middle_of_that(journal: Journal) -> None:
    writer = EntityWriter(journal)
    writer.fill()
    journal.within(lambda it: declare(it, PATHS[:2]))
    while take_step(journal):
        pass
    journal.within(lambda it: declare(it, PATHS[1:2]))
    take_step(journal)
    for _ in range(20):
        writer.write_any()
    journal.within(lambda it: declare(it, PATHS[:2]))
    while take_step(journal):
        writer.write_any()
    is_true(journal)
    assert {row[0] for row in journal.read(found).declared} == {*PATHS[:2]}
    assert journal.within(lambda it: declare(it, ()))
    while take_step(journal):
        pass
    rows = journal.read(lambda it: it.execute("SELECT count(*) FROM search_declared").fetchone())
    assert rows == (0,)
    is_true(journal)


def test_an_erasure_removes_values_at_a_declared_path_and_keeps_the_path(journal: Journal) -> None:
    EntityWriter(journal).fill()
    journal.within(lambda it: declare(it, ("attributes/a", "attributes/nobody")))
    while take_step(journal):
        pass
    assert journal.read(found).declared
    for number in range(THINGS):
        journal.within(lambda it, number=number: erasure.begin(it, "thing", f"acme.site:{number}", timestamp(9), "x"))  # type: ignore[misc]
    journal.commit()
    assert not journal.read(found).declared
    paths = journal.read(lambda it: it.execute("SELECT path, declared FROM search_paths ORDER BY path").fetchall())
    assert paths == [("attributes/a", 2), ("attributes/nobody", 2)]


def test_a_step_ends_after_so_many_bytes(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = EntityWriter(journal)
    writer.fill()
    forget(journal)
    monkeypatch.setattr(index_builder, "STEP_BYTES", 1)
    assert take_step(journal)
    assert journal.read(progress).indexed == 1


def test_a_damaged_state_has_no_rows_and_stops_nothing(journal: Journal) -> None:
    EntityWriter(journal).fill()
    journal.within(lambda it: it.execute("UPDATE entities SET state = ? WHERE key IN (2, 5)", (b'{"attrib',)))
    journal.within(restart)
    while take_step(journal):
        pass
    assert not {thing for *_, thing in journal.read(found).values} & {2, 5}
    assert journal.read(progress).is_complete


def test_an_erasure_removes_the_paths_that_no_other_thing_has(journal: Journal) -> None:
    """A path may contain personal data. A path that another thing has stays."""
    for number, attributes in enumerate([{"anna": 1, "room": 1}, {"room": 2}]):
        entity = EntityId(EntityType.THING, "acme.site", str(number))
        event = Event(entity, 1, timestamp(1), "created", "/", msgspec.json.encode(attributes), b"{}")
        state = {"attributes": attributes}
        journal.append([Change((event,), (Snapshot(entity, 1, timestamp(1), timestamp(1), state, None),))])
    journal.within(lambda it: erasure.begin(it, "thing", "acme.site:0", timestamp(9), "operator"))
    journal.commit()
    paths = journal.read(lambda it: it.execute("SELECT path FROM search_paths ORDER BY path").fetchall())
    assert paths == [("_created",), ("attributes/room",)]

"""The journal's rows about deleted lives, and about the policies that things name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from spark_store.errors import Unstorable
from spark_store.history.replay import evolve
from spark_store.journal import erasure, incarnations
from spark_store.records import Change, Incarnation, PolicyReferences, Snapshot
from tests.support.journal_entries import timestamp
from tests.support.temporary_journal import TemporaryJournal

LAMP, FAN = (EntityId(EntityType.THING, "acme", name) for name in ("lamp", "fan"))
POLICY, SHARED = (EntityId(EntityType.POLICY, "acme", name) for name in ("pol", "shared"))


def permissions(*policies: str, entries: Any = None) -> bytes:
    return msgspec.json.encode({"policies": policies, "entries": entries or {}})


class JournalWithStates:
    """A journal, and the newest states of its entities."""

    def __init__(self) -> None:
        self.journal = TemporaryJournal()
        self.states: dict[EntityId, Snapshot] = {}

    def change(
        self, entity: EntityId, action: str, path: str = "/", value: Any = None, permissions: bytes | None = None
    ) -> Change:
        before = self.states.get(entity)
        revision = 1 if before is None else before.revision + 1
        raw = None if action == "deleted" else json.dumps(value).encode()
        event = Event(entity, revision, timestamp(revision), action, path, raw, b"{}")
        after = self.states[entity] = evolve(before, event)
        return Change((event,), (after,), permissions=permissions)

    def write(self, *steps: Sequence[Any]) -> None:
        self.journal.append([self.change(*step) for step in steps])

    def ended(self, entity: EntityId = LAMP) -> list[Incarnation]:
        return self.journal.read(lambda it: incarnations.ended(it, entity.type.value, entity.id))

    def references(self, policy: EntityId = POLICY) -> PolicyReferences:
        return self.journal.read(lambda it: incarnations.references(it, policy.id))

    def count(self, table: str) -> int:
        return int(self.journal.read(lambda it: it.execute(f"SELECT count(*) FROM {table}").fetchone()[0]))

    def erase(self, entity: EntityId) -> None:
        self.journal.within(lambda it: erasure.begin(it, entity.type.value, entity.id, timestamp(99), "anna"))
        self.journal.commit()


@pytest.fixture
def lives() -> JournalWithStates:
    return JournalWithStates()


THING = {"policyId": "acme:pol"}
BEFORE, THEN = permissions("acme:pol"), permissions("acme:pol", "acme:shared")


def test_each_deletion_ends_an_incarnation_even_several_in_one_batch(lives: JournalWithStates) -> None:
    created = (LAMP, "created", "/", THING)
    lives.write(created, (LAMP, "modified", "/attributes", {}), (LAMP, "deleted", "/", None, BEFORE), created)
    lives.write((LAMP, "deleted", "/", None, THEN), created, (LAMP, "deleted"), created)
    assert lives.ended() == [Incarnation(6, 7, None), Incarnation(4, 5, THEN), Incarnation(1, 3, BEFORE)]
    assert lives.ended(FAN) == []


def test_deleting_a_part_ends_nothing(lives: JournalWithStates) -> None:
    lives.write((LAMP, "created", "/", {**THING, "attributes": {}}), (LAMP, "deleted", "/attributes"))
    assert lives.ended() == []


def test_equal_permissions_are_stored_once(lives: JournalWithStates) -> None:
    for entity in (LAMP, FAN):
        lives.write((entity, "created", "/", THING), (entity, "deleted", "/", None, BEFORE))
    assert (lives.count("incarnations"), lives.count("permissions")) == (2, 1)


def test_a_change_that_cannot_be_stored_ends_nothing(lives: JournalWithStates) -> None:
    lives.write((LAMP, "created", "/", THING))
    ending = lives.change(LAMP, "deleted", "/", None, BEFORE)
    with pytest.raises(Unstorable):
        lives.journal.append([ending, Change((ending.events[0]._replace(revision=3, value="text"),), ending.snapshots)])  # type: ignore[arg-type]
    assert lives.ended() == []


def test_only_the_newest_incarnations_are_known(lives: JournalWithStates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incarnations, "MOST", 2)
    for number in range(4):
        lives.write((LAMP, "created", "/", THING), (LAMP, "deleted", "/", None, permissions(f"acme:{number}")))
    assert lives.ended() == [Incarnation(7, 8, permissions("acme:3")), Incarnation(5, 6, permissions("acme:2"))]
    assert (lives.count("permissions"), lives.count("permission_sources")) == (2, 2)


def test_an_erased_thing_leaves_no_permissions(lives: JournalWithStates) -> None:
    lives.write((LAMP, "created", "/", THING), (LAMP, "deleted", "/", None, THEN), (LAMP, "created", "/", THING))
    lives.erase(LAMP)
    assert lives.ended() == []
    tables = ("incarnations", "permissions", "permission_sources", "named_policies")
    assert [lives.count(table) for table in tables] == [0, 0, 0, 0]


def test_an_erased_policy_leaves_no_permissions_of_others_that_came_from_it(lives: JournalWithStates) -> None:
    lives.write((LAMP, "created", "/", THING), (LAMP, "deleted", "/", None, THEN), (LAMP, "created", "/", THING))
    lives.write((LAMP, "deleted", "/", None, BEFORE), (SHARED, "created", "/", {"imports": {}}))
    lives.erase(SHARED)
    assert lives.ended() == [Incarnation(3, 4, BEFORE), Incarnation(1, 2, None)]
    assert (lives.count("permissions"), lives.count("permission_sources")) == (1, 1)


# references


def test_living_things_count_for_the_policy_that_they_name(lives: JournalWithStates) -> None:
    lives.write((LAMP, "created", "/", THING), (FAN, "created", "/", THING))
    assert lives.references() == (2, 0)
    lives.write((FAN, "modified", "/policyId", "acme:other"), (LAMP, "modified", "/attributes", {"a": 1}))
    assert lives.references() == (1, 0)
    lives.write((LAMP, "merged", "/", {"policyId": "acme:other"}))
    assert (lives.references(), lives.references(EntityId(EntityType.POLICY, "acme", "other"))) == ((0, 0), (2, 0))
    lives.write((FAN, "deleted"), (LAMP, "deleted"), (LAMP, "created", "/", THING))
    assert lives.references() == (1, 0)


def test_policies_count_for_the_ones_that_they_import(lives: JournalWithStates) -> None:
    lives.write((POLICY, "created", "/", {"imports": {"acme:shared": {}}, "entries": {}}))
    assert lives.references(SHARED) == (0, 1)
    lives.journal.within(lambda it: it.execute("UPDATE search_progress SET indexed = 0"))
    lives.journal.within(lambda it: it.execute("DELETE FROM search_imports"))
    lives.journal.commit()
    assert lives.references(SHARED) == (0, 1), "those that are not indexed yet are read"
    lives.write((POLICY, "deleted"))
    assert lives.references(SHARED) == (0, 0)

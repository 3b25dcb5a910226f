"""The search index: after any change it has the values of a thing at their paths, and nothing else."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappings.ids import EntityId, EntityType
from spark_store.errors import RevisionConflict, StoreUnavailable
from spark_store.journal import erasure
from spark_store.journal.journal import Journal
from spark_store.rql.order import TypeRank
from spark_store.search.index import LARGE, LONGEST, rows_of
from spark_store.search.index_sql import path_of
from tests.support.failing_sqlite import Fragile
from tests.support.journal_entries import LAMP, POLICY, timestamp
from tests.support.oracles.search_index import expected, found
from tests.support.state_change import change
from tests.support.table import each_row

FAN = EntityId(EntityType.THING, "acme.site", "fan")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal.open(tmp_path / "journal.db")
    yield opened
    opened.close()


def is_true(journal: Journal) -> bool:
    """Check that the index matches the states; return whether it has any value."""
    there = journal.read(found)
    assert there == journal.read(expected)
    return bool(there.values or there.large or there.subjects)


def paths(journal: Journal) -> set[str]:
    return {path for (path,) in journal.read(lambda it: it.execute("SELECT path FROM search_paths").fetchall())}


# -- rows


@each_row(
    ("attributes", "rows"),
    [
        ({"a": "hall"}, {("attributes/a", TypeRank.TEXT, "hall")}),
        ({"a": 1.5}, {("attributes/a", TypeRank.NUMBER, 1.5)}),
        ({"a": 2**63 - 1}, {("attributes/a", TypeRank.NUMBER, 2**63 - 1)}),
        ({"a": 2**63}, {("attributes/a", TypeRank.NUMBER, 2.0**63)}),
        ({"a": -(10**400)}, {("attributes/a", TypeRank.NUMBER, float("-inf"))}),
        ({"a": True}, {("attributes/a", TypeRank.BOOLEAN, 1)}),
        ({"a": None}, {("attributes/a", TypeRank.NULL, 0)}),
        ({"a": {}}, {("attributes/a", TypeRank.OBJECT, 0)}),
        ({"a": []}, {("attributes/a", TypeRank.EMPTY_ARRAY, 0)}),
        ({"a": {"b": 1}}, {("attributes/a", TypeRank.OBJECT, 1), ("attributes/a/b", TypeRank.NUMBER, 1)}),
        (
            {"a": [1, "x", 1, [2]]},
            {("attributes/a", TypeRank.ARRAY, 1)}
            | {
                ("attributes/a", TypeRank.NUMBER, 1),
                ("attributes/a", TypeRank.NUMBER, 2),
                ("attributes/a", TypeRank.TEXT, "x"),
            },
        ),
        (
            {"a": [{"b": 1}, {"b": 2}, {}]},
            {
                ("attributes/a", TypeRank.ARRAY, 1),
                ("attributes/a", TypeRank.OBJECT, 1),
                ("attributes/a", TypeRank.OBJECT, 0),
            }
            | {("attributes/a/b", TypeRank.NUMBER, 1), ("attributes/a/b", TypeRank.NUMBER, 2)},
        ),
        ({"a/b~": 1}, {("attributes/a~1b~0", TypeRank.NUMBER, 1)}),
        ({"a": "ü" * 201}, {("attributes/a", TypeRank.TEXT, "ü" * 200)}),
    ],
)
def test_each_value_has_its_row(attributes: dict[str, Any], rows: set[tuple[str, int, Any]]) -> None:
    made = {"thingId": "a:b", "attributes": attributes}
    created = {("_created", TypeRank.TEXT, "2030-01-15T08:00:00.000000000Z")}
    assert rows_of(made, "2030-01-15T08:00:00Z") == rows | created
    again = rows_of(made, "")
    assert again is not None
    assert {type(value) for *_, value in again} == {type(value) for *_, value in rows}


def test_features_metadata_policy_and_definition_have_rows_beside_the_attributes() -> None:
    state = {
        "policyId": "a:p",
        "definition": "acme:lamp:1.0",
        "attributes": {},
        "features": {"lamp": {"definition": ["a:b:1"], "properties": {"on": False}}, "fan": None},
        "_metadata": {"attributes": {"room": {"by": "x"}}},
    }
    found = rows_of(state, "")
    assert found is not None
    assert {path for path, *_ in found} == {
        "policyId",
        "definition",
        "features/lamp",
        "features/lamp/definition",
        "features/lamp/properties",
        "features/lamp/properties/on",
        "features/fan",
        "_metadata/attributes",
        "_metadata/attributes/room",
        "_metadata/attributes/room/by",
    }
    assert path_of(("attributes", "a/b", "~")) == "attributes/a~1b/~0"


# -- changes

LEAVES = (
    st.none()
    | st.booleans()
    | st.sampled_from([0, 1, 1.0, -0.0, 2**63, -(2**70), 1e300, "", "1", "a", "A", "x" * 250, "x" * 260])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "0", "a/b", "~"]), inner, max_size=3)
    ),
    max_leaves=12,
)
PARTS = st.dictionaries(st.sampled_from(["a", "b", "lamp"]), VALUES, max_size=3)
THINGS = st.fixed_dictionaries(
    {"policyId": st.sampled_from(["a:p", "a:q"])},
    optional={
        "attributes": PARTS,
        "features": PARTS,
        "_metadata": PARTS,
        "definition": st.sampled_from(["a:b:1", None]),
    },
)
BULK = {"attributes": {"bulk": ["x" * 100 + str(number) for number in range(LARGE // 100)]}}
LONG = {"attributes": {"k" * (LONGEST - len("attributes/")): {"": 1}, "b": 1}}
LONG_ENOUGH = {"attributes": {"k" * (LONGEST - len("attributes/")): 1, "b": 1}}


@given(st.lists(st.none() | THINGS | st.sampled_from([BULK, LONG, LONG_ENOUGH]), min_size=1, max_size=6), st.booleans())
def test_the_index_matches_the_state_after_any_changes(states: list[dict[str, Any] | None], is_known: bool) -> None:
    """Creations, changes of every kind, deletions, re-creations, and things that become large and small.

    The state before a change comes from memory or from its row.
    """
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal.open(Path(folder) / "journal.db")
        try:
            created, before = 1, None
            for revision, state in enumerate(states, 1):
                created = revision if before is None else created
                journal.append([now := change(LAMP, revision, state, created)])
                if is_known:
                    journal.known = lambda _entity, now=now: now.snapshots[0]  # type: ignore[misc]
                before = state
                is_true(journal)
                assert paths(journal) == {path for path, *_ in journal.read(found).values}
        finally:
            journal.close()


@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: [value], lambda value: {"b": [{"c": value}]}])
def test_values_that_python_takes_for_the_same_are_distinguished(journal: Journal, wrap: Any) -> None:
    values = [1, True, 1.0, 0, False, -0.0, "", None, [], {}, 2**53, 2**53 + 1, float(2**53)]
    for revision, value in enumerate([*values, *reversed(values), *values[::2], *values[::3]], 1):
        journal.append([change(LAMP, revision, {"attributes": {"a": wrap(value)}})])
        assert is_true(journal)


def test_several_changes_of_one_thing_in_one_batch_and_in_one_transaction(journal: Journal) -> None:
    journal.write([change(LAMP, 1, {"attributes": {"a": 1, "b": 2}}), change(LAMP, 2, {"attributes": {"a": 2}})])
    journal.write([change(LAMP, 3, {"attributes": {"a": 3}}), change(FAN, 1, {"attributes": {"a": 3}})])
    journal.commit()
    assert is_true(journal)
    assert len(journal.read(found).values) == 4


def test_a_path_goes_with_its_last_value_and_may_come_again_in_the_same_batch(journal: Journal) -> None:
    things = [EntityId(EntityType.THING, "acme.site", f"lamp-{number}") for number in range(20)]
    journal.append([change(thing, 1, {"attributes": {"a": 1, "x": [{"y": 1}, {"z": 1}]}}) for thing in things[:2]])
    journal.append([change(things[0], 2, {"attributes": {"b": 1, "x": [{"y": 1}]}})])
    assert paths(journal) == {
        "_created",
        "attributes/a",
        "attributes/b",
        *(f"attributes/x{end}" for end in ("", "/y", "/z")),
    }
    gone = [change(things[1], 2, None), change(things[0], 3, {"attributes": {"c": 1}})]
    others = [change(thing, 1, {"attributes": {"c": 1}}) for thing in things[2:10]]
    journal.append([*gone, *others, *(change(thing, 1, {"attributes": {"a": 1, "b": 1}}) for thing in things[10:])])
    assert is_true(journal)
    assert paths(journal) == {"_created", "attributes/a", "attributes/b", "attributes/c"}


def test_one_value_that_changes_is_one_row_that_changes(journal: Journal) -> None:
    """For a thing of any size."""
    attributes = {f"key-{number}": number for number in range(500)}
    journal.append([change(LAMP, 1, {"attributes": attributes})])
    before = journal.read(lambda it: it.execute("SELECT * FROM search_values").fetchall())
    written: list[str] = []
    journal.within(lambda it: it.set_trace_callback(written.append))
    journal.append([change(LAMP, 2, {"attributes": attributes | {"key-7": True}})])
    after = journal.read(lambda it: it.execute("SELECT * FROM search_values").fetchall())
    assert len([one for one in written if "search_values" in one]) == 2
    assert len(set(before) - set(after)) == len(set(after) - set(before)) == 1
    assert is_true(journal)


def test_long_keys_within_each_other_take_no_room_in_the_index(journal: Journal) -> None:
    nested: Any = 1
    for level in range(400):
        nested = {f"{'k' * 60}{level}": nested}
    journal.append([change(LAMP, 1, {"attributes": {"a": 1}})])
    journal.append([change(LAMP, 2, {"attributes": {"a": 1, **nested}})])
    there = journal.read(found)
    assert (len(there.values), len(there.large)) == (0, 1)
    assert is_true(journal)
    assert not paths(journal)


def test_the_index_has_the_subjects_and_imports_of_a_policy(journal: Journal) -> None:
    def state(subjects: list[str], imports: list[str]) -> dict[str, Any]:
        entries = {"E": {"subjects": {one: {} for one in subjects}}, "F": {"subjects": {}}}
        return {"entries": entries, "imports": {one: {} for one in imports}}

    journal.append([change(POLICY, 1, state(["a:x", "a:y"], ["a:p"]))])
    journal.append([change(POLICY, 2, state(["a:y", "a:z"], ["a:q"]))])
    there = journal.read(found)
    assert there.subjects == {("a:y", POLICY.id), ("a:z", POLICY.id)}
    assert there.imports == {(POLICY.id, "a:q")}
    assert is_true(journal)
    journal.append([change(POLICY, 3, None)])
    assert not is_true(journal)
    journal.append([change(POLICY, 4, {"odd": 1})])
    assert not is_true(journal)


def test_a_change_that_is_not_stored_is_not_in_the_index(journal: Journal) -> None:
    journal.append([change(LAMP, 1, {"attributes": {"a": 1}})])
    before = journal.read(found)
    with pytest.raises(RevisionConflict):
        journal.write([change(FAN, 1, {"attributes": {"new": 1}}), change(LAMP, 9, {"attributes": {}})])
    journal.commit()
    journal.write([change(FAN, 1, {"attributes": {"new": 1}})])
    journal.rollback()
    assert journal.read(found) == before
    journal.append([change(FAN, 1, {"attributes": {"new": 1}})])
    assert is_true(journal)


@pytest.mark.parametrize("late", [False, True], ids=["not carried out", "carried out"])
def test_a_change_with_a_failing_operation_leaves_index_and_state_consistent(tmp_path: Path, late: bool) -> None:
    journal = Journal.open(tmp_path / "journal.db", factory=Fragile)
    revision, number, failures = 1, 0, 0
    journal.append([change(LAMP, 1, {"attributes": {"n": 1}})])
    while True:
        number += 1
        grown = {"attributes": {"n": number, f"key-{number}": [number]}, "features": {f"f-{number}": {}}}
        revision = journal.latest(LAMP)
        Fragile.arm(number, late)
        try:
            journal.append([change(LAMP, revision + 1, grown), change(LAMP, revision + 2, grown)])
        except StoreUnavailable:
            failures += 1
        else:
            break
        finally:
            Fragile.arm(0)
        assert is_true(journal)
    assert failures > 10
    assert is_true(journal)
    journal.close()


def test_an_erased_entity_is_not_in_the_index(journal: Journal) -> None:
    journal.append([change(LAMP, 1, {"attributes": {"a": 1}}), change(FAN, 1, {"attributes": {"b": 1}})])
    journal.append([change(POLICY, 1, {"entries": {"E": {"subjects": {"a:x": {}}}}})])
    for entity in (LAMP, POLICY):
        journal.within(
            lambda it, entity=entity: erasure.begin(it, entity.type.value, entity.id, timestamp(9), "x")  # type: ignore[misc]
        )
    journal.commit()
    assert is_true(journal)
    assert {path for path, *_ in journal.read(found).values} == {"attributes/b", "_created"}
    journal.append([change(LAMP, 2, {"attributes": {"c": 1}}, created=2)])
    assert is_true(journal)


def test_a_state_that_is_damaged_can_be_replaced(journal: Journal) -> None:
    """Then the index may say too much, never too little."""
    journal.append([change(LAMP, 1, {"attributes": {"a": 1}})])
    journal.within(lambda it: it.execute("UPDATE entities SET state = ?", (b'{"attrib',)))
    journal.append([change(LAMP, 2, {"attributes": {"b": 1}})])
    assert journal.read(found).values > journal.read(expected).values


def test_the_state_before_a_change_is_taken_from_memory_and_not_from_its_row(journal: Journal) -> None:
    journal.append([first := change(LAMP, 1, {"attributes": {"a": 1, "b": {"c": 1}}})])
    journal.known = lambda _entity: first.snapshots[0]
    journal.within(lambda it: it.execute("UPDATE entities SET state = ?", (b'{"attrib',)))
    journal.append([change(LAMP, 2, {"attributes": {"a": 2}})])
    assert is_true(journal)


def test_a_state_in_memory_of_another_revision_than_the_row_is_not_used(journal: Journal) -> None:
    journal.append([first := change(LAMP, 1, {"attributes": {"a": 1}})])
    journal.known = lambda _entity: first.snapshots[0]
    journal.write([change(LAMP, 2, {"attributes": {"a": 2}})])
    journal.write([change(LAMP, 3, {"attributes": {"a": 1}})])
    journal.append([change(LAMP, 4, {"attributes": {"b": 1}})])
    assert is_true(journal)


def test_changes_do_not_add_entities_of_an_earlier_journal_to_the_index(tmp_path: Path) -> None:
    """They are inserted in the order of their keys; until then the index is not used."""
    path = tmp_path / "journal.db"
    journal = Journal.open(path)
    journal.append([change(LAMP, 1, {"attributes": {"a": 1}}), change(FAN, 1, {"attributes": {"a": 1}})])
    assert is_true(journal)
    journal.close()
    with sqlite3.connect(path) as file:
        file.execute("DELETE FROM search_values")
        file.execute("UPDATE search_progress SET indexed = 0")
    file.close()
    journal = Journal.open(path)
    journal.append([change(LAMP, 2, {"attributes": {"a": 2}})])
    journal.append([change(FAN, 2, None)])
    assert not is_true(journal)
    journal.close()

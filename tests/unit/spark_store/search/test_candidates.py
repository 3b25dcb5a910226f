"""Which things may be answers: sets of keys, up to a bound."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from spark_store.rql.ast import Field, FieldKind
from spark_store.rql.pace import SearchPace, ThreadPace
from spark_store.rql.query import SortField, ThingQuery
from spark_store.rql.search_evaluator import read
from spark_store.search.candidates import ALL, CachedCandidates, CandidateSet
from spark_store.search.index import LARGE
from spark_store.search.read_view import Deadline, ReadView
from tests.support.oracles.search import StateDatabase
from tests.support.random_questions import narrow

NOW = datetime(2030, 1, 15, 7, 30, tzinfo=UTC)
ORDER = (SortField(Field(FieldKind.DOCUMENT, ("thingId",))),)
BESIDE = {"_revision": 1, "_created": "2024-05-01T10:00:00Z", "_modified": "2024-05-01T10:00:00Z"}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[StateDatabase]:
    found = StateDatabase(tmp_path / "journal.db")
    found.name("reader", ["acme:policy"])
    yield found
    found.close()


def put(database: StateDatabase, *attributes: dict[str, Any]) -> None:
    """Write things with these attributes; their keys start at 1."""
    database.put(
        *(
            {"thingId": f"acme:{n}", "policyId": "acme:policy", "attributes": each, **BESIDE}
            for n, each in enumerate(attributes, 1)
        )
    )


def reach(database: StateDatabase, text: str, subject: str = "reader") -> CandidateSet:
    question = ThingQuery(read(text, NOW), ORDER)
    return CandidateSet(
        ReadView(database.connection, Deadline(float("inf"), 60.0, ThreadPace(SearchPace()))),
        question,
        {subject},
        25,
        True,
        CachedCandidates(),
    )


def test_a_range_is_one_range_of_rows_unless_things_have_several_values(database: StateDatabase) -> None:
    inside = "and(gt(attributes/n,2),lt(attributes/n,4))"
    put(database, {"n": 1}, {"n": 3}, {"n": 9})
    assert reach(database, inside).few() == frozenset({2})
    put(database, {"n": 1}, {"n": 3}, {"n": [1, 9]})
    assert reach(database, inside).few() == frozenset({2, 3})
    put(database, {"n": 1}, {"n": 3}, {"n": 1})
    assert reach(database, inside.replace("/n", "/none")).few() == frozenset()


def test_objects_in_arrays_give_a_path_several_values_too(database: StateDatabase) -> None:
    put(database, {"l": [{"n": 1}, {"n": 9}]}, {"l": [{"n": 3}]})
    assert reach(database, "and(gt(attributes/l/n,2),lt(attributes/l/n,4))").few() == frozenset({1, 2})


def test_sets_are_joined_by_the_operators_of_the_filter(database: StateDatabase) -> None:
    put(database, {"a": 1, "b": 1}, {"a": 1}, {"b": 1}, {})
    assert reach(database, "and(eq(attributes/a,1),eq(attributes/b,1))").few() == frozenset({1})
    assert reach(database, "or(eq(attributes/a,1),eq(attributes/b,1))").few() == frozenset({1, 2, 3})
    assert reach(database, "not(eq(attributes/a,1))").few() in (None, {1, 2, 3, 4})


def test_large_things_are_always_candidates(database: StateDatabase) -> None:
    put(database, {"a": 1}, {"a": "x" * LARGE})
    assert reach(database, "eq(attributes/a,1)").few() == frozenset({1, 2})


@pytest.mark.parametrize("others", [0, 1, 300])
@pytest.mark.parametrize("bounds", [{}, {"FEW_OF_POLICIES": 0}])
def test_things_of_policies_of_others_are_no_candidates(
    database: StateDatabase, monkeypatch: pytest.MonkeyPatch, bounds: dict[str, int], others: int
) -> None:
    narrow(monkeypatch, bounds)
    put(database, {"a": 1}, {"a": 2})
    database.put(
        *({"thingId": f"other:{n}", "policyId": f"other:{n}", "attributes": {"a": 1}, **BESIDE} for n in range(others))
    )
    assert reach(database, "eq(attributes/a,1)").few() == frozenset({1})
    assert reach(database, "eq(attributes/a,3)").few() == frozenset()


def test_a_subject_in_no_policy_reaches_no_things(database: StateDatabase) -> None:
    put(database, {"a": 1}, {"a": "x" * LARGE})
    assert reach(database, "exists(attributes/a)", "nobody").policies == []
    assert reach(database, "exists(attributes/a)", "nobody").tree == reach(database, "in(attributes/a,time:soon)").tree


def test_a_condition_with_many_matches_is_resolved_only_on_request(
    database: StateDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_store.search.candidates.bound_of", lambda things, page: 1)
    monkeypatch.setattr("spark_store.search.candidates.FEW_OF_POLICIES", 1)
    put(database, {"a": 1, "b": 1}, {"a": 1}, {"a": 1})
    found = reach(database, "eq(attributes/a,1)")
    assert found.few() is None
    assert found.all(found.tree) == frozenset({1, 2, 3})
    assert found.read(found.tree, ALL) == frozenset({1, 2, 3})
    assert reach(database, "and(eq(attributes/a,1),eq(attributes/b,1))").few() == frozenset({1})


def test_while_the_index_is_being_built_nothing_is_known(database: StateDatabase) -> None:
    put(database, {"a": 1})
    database.connection.execute("UPDATE search_progress SET indexed = 0")
    found = reach(database, "eq(attributes/a,1)")
    assert (found.is_indexed, found.few(), found.all(found.tree)) == (False, None, None)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("eq(attributes/a,1)", 1),
        ("and(eq(attributes/b,2),or(eq(attributes/c,1),eq(attributes/c,2)),eq(attributes/a,1))", 1),
        ("and(ge(attributes/a,0),eq(attributes/a,1))", 1),
        ("eq(attributes/b,1)", None),
        ("or(eq(attributes/a,1),eq(attributes/b,2))", None),
        ("and(exists(attributes/b),or(eq(attributes/a,1),eq(attributes/a,2)))", None),
        ("in(attributes/a,1,2)", None),
        ("not(eq(attributes/a,1))", None),
    ],
)
def test_a_declared_value_is_used_only_if_every_match_has_it(
    database: StateDatabase, text: str, value: int | None
) -> None:
    database.declare("attributes/a")
    put(database, {"a": 1, "b": 2}, {"a": 1}, {"b": 2})
    asked = reach(database, text)
    found = asked.of_value(asked.tree)
    assert (None if found is None else found.value) == value

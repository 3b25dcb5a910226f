"""A filter as a condition over states: what may match meets it, and what must match is certain."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_store.rql.ast import And, Compare, Field, FieldKind, Literal, LiteralKind, Not, Operator, Or, Predicate
from spark_store.rql.search_evaluator import holds, read
from spark_store.search.state_sql import Condition, certain, possible
from tests.support import random_searches as searches
from tests.support.acceptance import accepted, accepts
from tests.support.dice import examples
from tests.support.oracles.search import StateDatabase
from tests.support.table import each_row

NOW = datetime(2030, 1, 15, 7, 30, tzinfo=UTC)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateDatabase]:
    found = StateDatabase(tmp_path_factory.mktemp("states") / "journal.db")
    yield found
    found.close()


def matches(database: StateDatabase, thing: dict[str, Any], condition: Condition) -> bool:
    database.clear()
    database.put(thing)
    ((met,),) = database.connection.execute(f"SELECT {condition.sql} FROM entities", condition.parameters).fetchall()
    assert met in (0, 1)
    return bool(met)


# Revisions are plain columns, so each of these has a condition.
OF_REVISIONS = st.builds(
    Compare,
    st.sampled_from([Operator.GT, Operator.GE, Operator.LT, Operator.LE, Operator.EQ]),
    st.just(Field(FieldKind.HIDDEN, ("_revision",))),
    st.integers(0, 4).map(lambda number: Literal(LiteralKind.WHOLE, number)),
)
PREDICATES = (
    searches.filters()
    | OF_REVISIONS.map(Not)
    | st.builds(lambda one, other: And((one, other)), OF_REVISIONS, searches.filters(2))
    | st.builds(lambda one, other: Or((one, other)), OF_REVISIONS, searches.filters(2))
)


@accepts(at_least=1)
@settings(max_examples=examples(500), deadline=None)
@given(PREDICATES, searches.things())
def test_every_match_meets_the_possible_condition_and_every_certain_thing_matches(
    database: StateDatabase, predicate: Predicate, thing: dict[str, Any]
) -> None:
    matched = holds(predicate, thing)
    if (condition := possible(predicate)) is not None and matched:
        accepted()
        assert matches(database, thing, condition)
    if (condition := certain(predicate)) is not None and not matched:
        accepted()
        assert not matches(database, thing, condition)


@each_row(
    ("text", "met"),
    [
        ("not(exists(attributes/a))", False),
        ("not(exists(attributes/b))", True),
        ("not(eq(attributes/a,1))", False),
        ("not(eq(attributes/a,2))", True),
        ('not(in(attributes/t,"x","y"))', False),
        ("not(eq(attributes/o,true))", False),
        ("not(eq(attributes/n,null))", False),
        ("empty(attributes/a)", False),
        ("empty(attributes/b)", True),
        ("not(and(exists(attributes/a),exists(attributes/t)))", False),
        ("not(or(exists(attributes/b),exists(attributes/t)))", False),
        ("not(not(gt(_revision,7)))", False),
        ("gt(_revision,7)", False),
        ("ge(_revision,7)", True),
        ('lt(_modified,"2024-04-30T10:00:00Z")', False),
        ('lt(_modified,"2024-05-01T10:00:00Z")', True),
        ('gt(_modified,"2024-05-01T12:00:00+02:00")', True),
        ('gt(_modified,"2024-05-02T00:00:00Z")', False),
        ('like(attributes/t,"?lamp*")', False),
        ('like(attributes/t,"*x*lamp*é")', False),
        ('like(features/*/properties/t,"é*x*é")', True),
    ],
)
def test_the_possible_condition_of_a_simple_filter_is_exact(database: StateDatabase, text: str, met: bool) -> None:
    thing = {
        "thingId": "acme:a",
        "policyId": "acme:p",
        "attributes": {"a": 1, "t": "x", "o": True, "n": None},
        "_revision": 7,
        "_created": "2024-05-01T10:00:00.5Z",
        "_modified": "2024-05-01T10:00:00.5Z",
    }
    condition = possible(read(text, NOW))
    assert condition is not None
    assert matches(database, thing, condition) is met


@pytest.mark.parametrize(
    "text",
    [
        "not(eq(attributes/a,1.5))",
        "not(exists(features/*))",
        "not(exists(attributes/k'b))",
        "exists(attributes/a)",
        "or(gt(_revision,7),exists(attributes/a))",
        'not(like(attributes/a,"x*"))',
        "gt(_revision,null)",
    ],
)
def test_a_filter_that_is_not_simple_has_no_possible_condition(text: str) -> None:
    assert possible(read(text, NOW)) is None

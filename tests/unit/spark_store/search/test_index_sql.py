"""A filter as rows of the index: the rows include all matching things, for any filter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given

from spark_store.rql.ast import Field, Predicate
from spark_store.rql.search_evaluator import holds, read
from spark_store.search.index_sql import (
    NOTHING,
    AllThings,
    Candidates,
    Intersection,
    PathIntersection,
    RowSelect,
    Union,
    candidates,
    path_of,
)
from tests.support import random_searches as searches
from tests.support.oracles.search import StateDatabase
from tests.support.paths import VECTORS

NOW = datetime(2030, 1, 15, 7, 30, tzinfo=UTC)
WHOLE = {
    "thingId": "acme.site:lamp-7",
    "policyId": "acme.site:pol-7",
    "_revision": 1,
    "_created": "2024-05-01T10:00:00Z",
}
CASES: list[dict[str, Any]] = json.loads((VECTORS / "rql.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateDatabase]:
    found = StateDatabase(tmp_path_factory.mktemp("rows") / "journal.db")
    yield found
    found.close()


def is_candidate(database: StateDatabase, thing: dict[str, Any], tree: Candidates) -> bool:
    """Return whether the only thing in the database is in the set."""
    match tree:
        case AllThings():
            return True
        case RowSelect():
            return database.connection.execute(tree.sql, tree.parameters).fetchone() is not None
        case Intersection(parts) | PathIntersection(parts, _):
            return all(is_candidate(database, thing, part) for part in parts)
        case Union(parts):
            return any(is_candidate(database, thing, part) for part in parts)


@given(searches.filters(), searches.things())
def test_every_matching_thing_is_a_candidate(
    database: StateDatabase, predicate: Predicate, thing: dict[str, Any]
) -> None:
    database.clear()
    database.put(thing)
    assert is_candidate(database, thing, candidates(predicate)) or not holds(predicate, thing)


def test_every_matching_thing_of_a_numbered_case_is_a_candidate(database: StateDatabase) -> None:
    matching = [case for case in CASES if case["search"] is True]
    assert len(matching) > 100
    missed = []
    for case in matching:
        thing = {"_modified": "2024-05-01T10:00:00Z", **WHOLE, **case["thing"]}
        database.clear()
        database.put(thing)
        if not is_candidate(database, thing, candidates(read(case["filter"], NOW))):
            missed.append(case)
    assert missed == []


@given(searches.FIELDS)
def test_the_name_of_a_place_reports_its_keys(field: Field) -> None:
    keys = path_of(field.path).split("/")
    assert tuple(key.replace("~1", "/").replace("~0", "~") for key in keys) == field.path


@pytest.mark.parametrize(
    "text",
    [
        "eq(attributes/k'];--,\"x'; DROP TABLE entities; --\")",
        'like(attributes/a,"*\'; DROP TABLE entities; --*")',
        'in(attributes/a,"\'","%","_")',
        "exists(features/*/properties/a'b)",
        'like(thingId,"a\';--*")',
    ],
)
def test_nothing_that_a_filter_says_is_part_of_a_statement(database: StateDatabase, text: str) -> None:
    tree = candidates(read(text, NOW))
    rows = [
        part
        for part in (tree.parts if isinstance(tree, Union | Intersection) else (tree,))
        if isinstance(part, RowSelect)
    ]
    assert rows
    for each in rows:
        assert "DROP" not in each.sql
        assert "--" not in each.sql
        database.connection.execute(each.sql, each.parameters).fetchall()


@pytest.mark.parametrize("text", ["eq(attributes/a,time:soon)", "gt(attributes/a,null)", "in(thingId,1,null)"])
def test_a_filter_that_can_never_match_has_no_candidates(text: str) -> None:
    assert candidates(read(text, NOW)) == NOTHING


@pytest.mark.parametrize(
    "text",
    ["not(eq(attributes/a,1))", "empty(attributes/a)", "gt(_revision,3)", "or(eq(attributes/a,1),empty(attributes/b))"],
)
def test_a_filter_that_the_index_cannot_answer_has_all_things_as_candidates(text: str) -> None:
    assert candidates(read(text, NOW)) == AllThings()


def test_the_index_uses_the_parts_of_a_filter_that_it_can_answer() -> None:
    tree = candidates(read("and(eq(attributes/a,1),not(eq(attributes/b,2)))", NOW))
    assert isinstance(tree, RowSelect)
    assert tree.description == "eq(attributes/a,1)"


def test_rows_of_a_single_value_have_path_and_value() -> None:
    for text, equal in [
        ("eq(attributes/a,1)", (2, 1)),
        ('in(attributes/a,"x")', (3, "x")),
        ("in(attributes/a,1,2)", None),
        ("ge(attributes/a,1)", None),
        ("eq(features/*/properties/a,1)", None),
        ("eq(attributes/a/0,1)", None),
    ]:
        tree = candidates(read(text, NOW))
        assert isinstance(tree, RowSelect)
        assert (tree.equal if tree.path else None) == equal

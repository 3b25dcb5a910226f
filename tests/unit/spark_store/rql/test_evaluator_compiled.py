"""A compiled predicate has the result of `evaluate` for every document."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest
from hypothesis import given

from spark_store.errors import QueryError
from spark_store.rql import compile_predicate, evaluate, parse, resolve_times
from spark_store.rql.ast import Predicate
from tests.support import random_searches as searches
from tests.support.paths import VECTORS

NOW = datetime(2030, 1, 15, 7, 30, tzinfo=UTC)
CASES: list[dict[str, Any]] = json.loads((VECTORS / "rql.json").read_text("utf-8"))
VALUES: list[Any] = [
    0,
    1,
    -1,
    1.0,
    1.5,
    2**53 + 1,
    float(2**53),
    True,
    False,
    None,
    "",
    "1",
    "true",
    "a",
    "ä",
    "\U0001f600",
    [],
    [1, "a"],
    {},
]
LITERALS = [
    "1",
    "1.0",
    "1.5",
    "9007199254740993",
    "true",
    "false",
    "null",
    '"1"',
    '"a"',
    '"true"',
    '"ä"',
    '"\uffff"',
    '""',
]
OPERATORS = ["eq", "ne", "gt", "ge", "lt", "le", "like"]


def test_a_compiled_filter_gives_the_expected_result_in_every_language_case() -> None:
    filters = [case for case in CASES if isinstance(case["history"], bool)]
    assert len(filters) > 150
    differing = []
    for case in filters:
        predicate = resolve_times(parse(case["filter"]), NOW)
        thing = {"thingId": "acme.site:lamp-7", "policyId": "acme.site:pol-7", **case["thing"]}
        if compile_predicate(predicate)(thing) is not case["history"]:
            differing.append(case)
    assert differing == []


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_value_compares_with_every_literal_as_it_is_evaluated(operator: str) -> None:
    """For an existing field, a missing one, and one with another value in its path."""
    compared = 0
    for literal in LITERALS:
        try:
            predicate = parse(f"{operator}(attributes/a/b,{literal})")
        except QueryError:
            continue
        test = compile_predicate(predicate)
        for value in VALUES:
            things: tuple[dict[str, Any], ...] = (
                {"attributes": {"a": {"b": value}}},
                {"attributes": {"a": [{"b": value}]}},
                {"attributes": {"a": value}},
            )
            for thing in (*things, {"attributes": {}}, {}):
                assert test(thing) is evaluate(predicate, thing), (operator, literal, thing)
                compared += 1
    assert compared >= 5 * 4 * len(VALUES), "texts, at least, compare with everything"


def test_parts_are_joined_as_they_are_evaluated() -> None:
    parts = ["eq(attributes/a,1)", "gt(attributes/b,2)", "exists(attributes/c)", "not(eq(attributes/a,1))"]
    for one, other, rule in product(parts, parts, ("and", "or")):
        predicate = parse(f"{rule}({one},{other})")
        test = compile_predicate(predicate)
        for a, b, c in product((0, 1), (2, 3), (False, True)):
            thing = {"attributes": {"a": a, "b": b, **({"c": 1} if c else {})}}
            assert test(thing) is evaluate(predicate, thing)


def test_a_compiled_filter_on_fields_outside_the_document_equals_the_evaluation() -> None:
    thing = {"thingId": "acme.site:lamp-7", "_modified": "2030-01-15T07:30:00.25Z", "_revision": 7}
    for text in ('eq(_modified,"2030-01-15T07:30:00.250000Z")', "gt(_revision,6)", 'eq(_namespace,"acme.site")'):
        predicate = parse(text)
        assert compile_predicate(predicate)(thing) is evaluate(predicate, thing), text


@given(searches.filters(), searches.things())
def test_any_compiled_filter_gives_the_result_of_its_evaluation(predicate: Predicate, thing: dict[str, Any]) -> None:
    assert compile_predicate(predicate)(thing) is evaluate(predicate, thing)

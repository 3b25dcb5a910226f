"""The total order of values: its sequence, and the laws of an order."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_store.rql.ast import Field, FieldKind
from spark_store.rql.options import read_options
from spark_store.rql.order import NOTHING, compare, key_of, sort_key, value_of
from spark_store.rql.query import SortField, SortKey
from spark_store.rql.search_evaluator import holds, read
from tests.support import random_searches as searches
from tests.support.paths import VECTORS
from tests.support.table import each_row

NOW = datetime(2030, 1, 15, 7, 30, tzinfo=UTC)
SETS: list[dict[str, Any]] = json.loads((VECTORS / "rql_sets.json").read_text("utf-8"))
X = Field(FieldKind.DOCUMENT, ("attributes", "x"))

May = Callable[[Sequence[str]], bool]


def found(things: Sequence[dict[str, Any]], text: str | None, options: str | None, may: May | None = None) -> list[int]:
    """Return the numbers of the matching things, in the requested order."""
    order = read_options(options).order
    named = [{"thingId": f"acme.site:t{number:03}", **thing} for number, thing in enumerate(things, 1)]
    matching = [thing for thing in named if text is None or holds(read(text, NOW), thing, may)]
    ordered = sorted(matching, key=lambda thing: key_of(order)(sort_key(thing, order, may)))
    return [int(thing["thingId"][-3:]) for thing in ordered]


@each_row("case", [pytest.param(case, id=f"set_{case['set']:02}_{case['data']}") for case in SETS])
def test_set(case: dict[str, Any]) -> None:
    """Each set of things gives the matching ones in the requested order."""
    assert found(case["things"], case["filter"], case["options"]) == case["matches"]


def test_an_unreadable_value_is_sorted_as_a_missing_value() -> None:
    """L16: the order reveals nothing about unreadable values."""
    things: list[dict[str, Any]] = [{"attributes": {"x": 3}}, {"attributes": {}}, {"attributes": {"x": 1}}]
    assert found(things, None, "sort(+attributes/x)") == [2, 3, 1]
    assert found(things, None, "sort(+attributes/x)", lambda path: path != ("attributes", "x")) == [1, 2, 3]
    assert found(things, None, "sort(-thingId)", lambda path: False) == [3, 2, 1]


def test_timestamps_are_sorted_by_time_in_any_notation() -> None:
    things: list[dict[str, Any]] = [
        {"_modified": "2030-01-15T07:30:00.5Z"},
        {"_modified": "2030-01-15T08:30:00+01:00"},
        {"_modified": "2030-01-15T07:30:00.499999999Z"},
    ]
    assert found(things, None, "sort(+_modified)") == [2, 3, 1]


@given(st.lists(searches.things(), max_size=5), searches.orders(), searches.rights())
def test_any_two_things_have_an_order_and_any_three_are_consistent(
    things: list[dict[str, Any]], order: tuple[SortField, ...], may: May
) -> None:
    places = [sort_key(thing, order, may) for thing in things]
    for left in places:
        for right in places:
            assert compare(left, right, order) == -compare(right, left, order)
            assert (compare(left, right, order) == 0) is (left == right)
            for third in places:
                if compare(left, right, order) <= 0 and compare(right, third, order) <= 0:
                    assert compare(left, third, order) <= 0


@given(st.lists(searches.SCALARS), st.booleans())
def test_descending_is_the_exact_reverse(values: list[Any], is_descending: bool) -> None:
    up, down = (SortField(X),), (SortField(X, is_descending=True),)

    def places(order: tuple[SortField, ...]) -> list[SortKey]:
        return [sort_key({"attributes": {"x": value}}, order) for value in values]

    ascending = sorted(places(up), key=key_of(up))
    assert sorted(places(down), key=key_of(down)) == ascending[::-1]


@given(st.lists(searches.SCALARS, min_size=1), st.booleans())
def test_an_array_is_sorted_by_its_element_that_sorts_first(values: list[Any], is_descending: bool) -> None:
    order = (SortField(X, is_descending),)
    alone = [sort_key({"attributes": {"x": value}}, order) for value in values]
    assert sort_key({"attributes": {"x": values}}, order) == sorted(alone, key=key_of(order))[0]


@given(searches.SCALARS)
def test_a_place_survives_json_as_it_is_carried_to_the_next_page(value: Any) -> None:
    place = value_of(value)
    assert tuple(json.loads(json.dumps(place))) == place


def test_nothing_and_null_stand_together() -> None:
    assert value_of(None) == NOTHING == sort_key({}, (SortField(X),))[0]

"""The values at a path in a search."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given

from mappings.model.json_pointer import MISSING
from spark_store.rql.ast import Field
from spark_store.rql.values import comparable, exact, features_of, find, matching_paths, walk
from tests.support import random_searches as searches
from tests.support.cpu_budget import at_most
from tests.support.table import each_row


@each_row(
    ("value", "path", "found"),
    [
        ({"a": {"b": 1}}, "a/b", [1]),
        ({"a": {"b": None}}, "a/b", [None]),
        ({"a": {}}, "a/b", [MISSING]),
        ({"a": 5}, "a/b", [MISSING]),
        ({"a": [1, 2]}, "a", [[1, 2]]),
        ({"a": [{"b": 1}, {"b": 2}]}, "a/b", [1, 2]),
        ({"a": [{"b": 1}, {}]}, "a/b", [1, MISSING]),
        ({"a": [{"b": 1}, 5, "x", None]}, "a/b", [1]),
        ({"a": [5, "x"]}, "a/b", []),
        ({"a": []}, "a/b", []),
        ({"a": [{"b": [{"c": 1}, {"c": 2}]}, {"b": {"c": 3}}]}, "a/b/c", [1, 2, 3]),
        ({"a": [{"b": 5}]}, "a/b/c", [MISSING]),
        ({"a": [[{"b": 1}]]}, "a/b", []),
        ({"a": ["x", "y"]}, "a/0", ["x"]),
        ({"a": ["x", "y"]}, "a/1", ["y"]),
        ({"a": ["x", "y"]}, "a/2", []),
        ({"a": ["x", "y"]}, "a/-1", []),
        ({"a": ["x", "y"]}, "a/01", []),
        ({"a": ["x", "y"]}, "a/٠", []),
        ({"a": ["x"]}, "a/99999999999999999999", []),
        ({"a": [{"b": 1}, {"b": 2}]}, "a/1/b", [2]),
        ({"a": [{"0": "key"}, "x"]}, "a/0", [{"0": "key"}, "key"]),
        ({"a": [{"b": 1}]}, "a/3", [MISSING]),
        ({"a": [[1, 2], [3]]}, "a/0", [[1, 2]]),
        ({"a": [[{"b": 1}]]}, "a/0/b", [1]),
        ({"a": {"0": "key"}}, "a/0", ["key"]),
    ],
)
def test_a_path_leads_to_values(value: Any, path: str, found: list[Any]) -> None:
    assert list(walk(value, path.split("/"))) == found


@pytest.mark.parametrize(
    ("values", "compared"),
    [
        ([1], [1]),
        ([MISSING], []),
        ([], []),
        ([[1, "a"]], [1, "a"]),
        ([[[1], 2]], [[1], 2]),
        ([[1, 2], MISSING, 3, None], [1, 2, 3, None]),
    ],
)
def test_arrays_are_compared_by_their_elements_one_level_deep(values: list[Any], compared: list[Any]) -> None:
    assert list(comparable(values)) == compared


@pytest.mark.parametrize(
    ("number", "compared"),
    [
        (2**63 - 1, 2**63 - 1),
        (-(2**63), -(2**63)),
        (2**63, 2.0**63),
        (2**64 + 1, 2.0**64),
        (1.5, 1.5),
        (10**400, math.inf),
    ],
)
def test_whole_numbers_beyond_64_bits_are_doubles(number: float, compared: float) -> None:
    assert exact(number) == compared
    assert isinstance(exact(number), type(compared))


def test_features_that_are_invalid_are_no_features() -> None:
    assert features_of({}) == features_of({"features": None}) == {}
    assert features_of({"features": {"lamp": {}}}) == {"lamp": {}}


def test_a_path_of_places_through_arrays_in_objects_takes_no_long_time() -> None:
    """Each array may be entered by its place or through its objects; its values are few, its ways 2^90."""
    value: Any = "deep"
    for _ in range(90):
        value = [{"0": value}]
    with at_most(2):
        found = [walk({"a": value}, ("a", *["0"] * length)) for length in range(180)]
    assert all(found)


@pytest.mark.parametrize("key", ["a", "1"])
def test_a_long_path_below_an_array_takes_no_longer_than_the_array(key: str) -> None:
    document: dict[str, Any] = {"a": [{} for _ in range(10_000)]}
    with at_most(2):
        found = walk(document, ("a", *[key] * 30_000))
    assert set(found) == {MISSING}


def test_the_places_of_a_long_path_are_those_of_the_values_on_it() -> None:
    path = ("a", "0", *["1"] * 30_000)
    with at_most(2):
        found = matching_paths({"a": [{} for _ in range(10_000)]}, path)
    assert set(found) == {path, ("a", *["1"] * 30_000)}


@given(searches.things(), searches.FIELDS)
def test_a_path_without_arrays_finds_exactly_one_value(thing: dict[str, Any], field: Field) -> None:
    found = find(thing, field)
    assert len(found) == 1 or any(
        isinstance(value, list) for end in range(len(field.path)) for value in walk(thing, field.path[:end])
    )

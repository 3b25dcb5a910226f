"""Values, states and bounds."""

from __future__ import annotations

import pytest

from mappings.errors import Unresolved
from mappings.placeholders.resolution import (
    DELETED,
    MAX_CHARACTERS,
    MAX_VALUES,
    UNRESOLVED,
    Resolution,
    ResolutionState,
    combine,
    resolution_of,
    texts,
)
from mappings.texts import json_text
from tests.support.table import each_row


def test_no_values_are_unresolved() -> None:
    assert resolution_of([]) is UNRESOLVED
    assert resolution_of(["a", "b"]) == Resolution(ResolutionState.RESOLVED, ("a", "b"))


def test_only_values_make_it_resolved() -> None:
    assert [state.is_resolved for state in (resolution_of(["a"]), UNRESOLVED, DELETED)] == [True, False, False]


def test_values_are_bounded_in_number_and_size() -> None:
    assert resolution_of("a" * MAX_VALUES).is_resolved
    assert resolution_of(["a" * MAX_CHARACTERS]).is_resolved
    for beyond in (["a"] * (MAX_VALUES + 1), ["a" * MAX_CHARACTERS, "b"]):
        with pytest.raises(Unresolved) as raised:
            resolution_of(beyond)
        assert raised.value.fault.error == "placeholder:unresolved"


def test_the_first_part_varies_slowest() -> None:
    assert combine([("a", "b"), ("-",), ("1", "2")]) == ["a-1", "a-2", "b-1", "b-2"]
    assert combine([]) == [""]
    assert combine([("a",), ()]) == []


@pytest.mark.parametrize("parts", [[["a"] * 101, ["b"] * 100], [["a" * MAX_CHARACTERS], ["b"]]])
def test_combinations_are_bounded_before_they_are_built(parts: list[list[str]]) -> None:
    with pytest.raises(Unresolved, match="expected at most"):
        combine(parts)


@each_row(
    ("value", "expected"),
    [
        ("a", ("a",)),
        (None, ()),
        (True, ("true",)),
        (2.5, ("2.5",)),
        (10**20, ("100000000000000000000",)),
        ([], ()),
        (["a", None, 1, ["b"]], ("a", "1", '["b"]')),
        ({"ü": [1, 2]}, ('{"ü":[1,2]}',)),
    ],
)
def test_a_json_value_becomes_texts(value: object, expected: tuple[str, ...]) -> None:
    assert texts(value) == expected


def test_a_string_is_its_own_text() -> None:
    assert json_text('a"b') == 'a"b'

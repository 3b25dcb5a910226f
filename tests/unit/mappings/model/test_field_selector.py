"""Field selectors."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappings.model.field_selector import InvalidSelector, parse_fields, select
from tests.support.acceptance import accepted, accepts
from tests.support.cpu_budget import at_most
from tests.support.dice import examples
from tests.support.table import each_row

THING: dict[str, Any] = {
    "thingId": "a:b",
    "attributes": {"site": {"hall": 4, "lat": 1.5}, "serial": "B7", "empty": {}, "list": [{"x": 1}]},
    "features": {"f": {"properties": {"x": 1, "y": 2}}, "g": {"properties": {"y": 3}}, "n": None},
}


@each_row(
    ("fields", "chosen"),
    [
        ("thingId", {"thingId": "a:b"}),
        ("/attributes/serial", {"attributes": {"serial": "B7"}}),
        ("attributes(site/hall,serial)", {"attributes": {"site": {"hall": 4}, "serial": "B7"}}),
        ("attributes(site(hall,lat))", {"attributes": {"site": {"hall": 4, "lat": 1.5}}}),
        ("attributes/site,attributes/site/hall", {"attributes": {"site": {"hall": 4, "lat": 1.5}}}),
        ("attributes/site/hall,attributes/site", {"attributes": {"site": {"hall": 4, "lat": 1.5}}}),
        ("attributes/none,nothing/at/all", {}),
        ("attributes/list/x", {}),
        ("attributes/empty", {"attributes": {"empty": {}}}),
        ("features/*/properties/x", {"features": {"f": {"properties": {"x": 1}}}}),
        (
            "features(*/properties/x,g)",
            {"features": {"f": {"properties": {"x": 1}}, "g": {"properties": {"y": 3}}}},
        ),
        (
            "features(*/properties/x,f/properties/y)",
            {"features": {"f": {"properties": {"x": 1, "y": 2}}}},
        ),
        (" thingId , features/n", {"thingId": "a:b", "features": {"n": None}}),
        ("attributes ( serial ) , thingId ", {"thingId": "a:b", "attributes": {"serial": "B7"}}),
        ("attributes( site( hall )\t)\n", {"attributes": {"site": {"hall": 4}}}),
    ],
)
def test_fields_select_existing_values(fields: str, chosen: dict[str, Any]) -> None:
    assert select(THING, parse_fields(fields)) == chosen


def test_a_wildcard_is_resolved_relative_to_the_position_in_the_thing() -> None:
    features = THING["features"]
    assert select(features, parse_fields("*/properties/x"), ("features",)) == {"f": {"properties": {"x": 1}}}
    assert select(features, parse_fields("*/properties/x"), ("attributes",)) == {}


@each_row(
    "fields",
    [
        "",
        ",",
        "a,",
        ",a",
        "a(",
        "a(b",
        "a)",
        "(a)",
        "a()",
        "a(b)c",
        "a//b",
        "a(b),",
        "a((b))",
        "/",
        "a(,b)",
        " ",
        "a, ,b",
        "a( )",
        " (a)",
        "a(b) c",
        "a(b) (c)",
    ],
)
def test_an_invalid_selector_is_refused(fields: str) -> None:
    with pytest.raises(InvalidSelector):
        parse_fields(fields)


@each_row(
    ("fields", "reason"),
    [
        ("a(b) c", "found ' c' after ')', expected ',' or ')'"),
        (" ( b)", "found '(', expected a name before it"),
        ("a(b", "found '(', expected ')' after it"),
        ("a)", "found ')', expected '(' before it"),
        ("a, ,b", "found ',', expected a name before it"),
        ("a, ", "found the end, expected a name"),
        ("/", "found an empty name, expected one such as attributes/room"),
    ],
)
def test_an_error_says_what_was_found_and_expected(fields: str, reason: str) -> None:
    with pytest.raises(InvalidSelector) as caught:
        parse_fields(fields)
    assert str(caught.value) == reason


def test_a_field_selector_has_at_most_1000_members_and_200_levels() -> None:
    assert len(parse_fields(",".join(f"a{number}" for number in range(1000)))) == 1000
    assert parse_fields("/".join("a" * 200))
    for fields in (",".join(f"a{number}" for number in range(1001)), "/".join("a" * 201)):
        with pytest.raises(InvalidSelector, match="found more than 1000 selectors or 200 levels"):
            parse_fields(fields)


def test_many_members_are_selected_quickly_from_thousands_of_features() -> None:
    """A command may retrieve two hundred such things at once."""
    thing: dict[str, Any] = {"features": {str(number): {} for number in range(9_000)}}
    selection = parse_fields(f"features/*({','.join(f'p{number}' for number in range(990))})")
    with at_most(1):
        assert [select(thing, selection) for _ in range(20)] == [{}] * 20


@each_row("fields", ["a//" + "b" * 5000, "a(b)" + "c" * 5000])
def test_an_error_quotes_the_beginning_of_a_long_selector(fields: str) -> None:
    with pytest.raises(InvalidSelector) as caught:
        parse_fields(fields)
    assert len(str(caught.value)) < 300


@accepts(at_least=1)
@settings(max_examples=examples(150))
@given(
    st.text(alphabet="ab*/(),~ ", max_size=20)
    | st.lists(st.sampled_from(["a", "attributes", "b(a,*)", "features/*/c"]), min_size=1, max_size=4).map(",".join)
)
def test_any_text_is_a_selector_or_refused(fields: str) -> None:
    try:
        selection = parse_fields(fields)
    except InvalidSelector:
        return
    accepted()
    chosen = select(THING, selection)
    assert chosen.keys() <= THING.keys()


def test_long_selectors_are_not_kept() -> None:
    tracemalloc.start()
    try:
        for number in range(20):
            assert parse_fields(f"attributes/{number}{'a' * 100_000}")
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1 << 20

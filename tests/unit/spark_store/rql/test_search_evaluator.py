"""The search evaluator: every numbered filter case, permissions, and properties of all predicates."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_store.errors import QueryError, RqlSyntaxError, UnknownProperty
from spark_store.rql import fields
from spark_store.rql.ast import (
    And,
    Compare,
    Empty,
    Exists,
    Field,
    FieldKind,
    In,
    Literal,
    LiteralKind,
    Not,
    Operator,
    Or,
    Predicate,
)
from spark_store.rql.binding import fit
from spark_store.rql.search_evaluator import holds, read
from tests.support import random_searches as searches
from tests.support.acceptance import accepted, accepts
from tests.support.cpu_budget import at_most
from tests.support.dice import examples
from tests.support.paths import VECTORS
from tests.support.table import each_row

NOW = datetime(2030, 1, 15, 7, 30, tzinfo=UTC)
IDS = {"thingId": "acme.site:lamp-7", "policyId": "acme.site:pol-7"}
CASES: list[dict[str, Any]] = json.loads((VECTORS / "rql.json").read_text("utf-8"))

May = Callable[[Sequence[str]], bool]


def answer(text: str, thing: dict[str, Any], may: May | None = None) -> bool | str:
    """Return the result of a search filter for a thing; `error` for an invalid filter."""
    try:
        predicate = read(text, NOW)
    except QueryError as error:
        return error.fault.error.replace("rql.expression.invalid", "error")
    return holds(predicate, {**IDS, **thing}, may)


@each_row("case", [pytest.param(case, id=f"case_{case['case']:03}") for case in CASES])
def test_case(case: dict[str, Any]) -> None:
    """Each case of the filter language has the result of a search for one thing."""
    assert answer(case["filter"], case["thing"]) == case["search"]


# -- any predicate over any thing


@given(searches.filters(), searches.things(), searches.rights())
def test_any_filter_over_any_thing_is_true_or_false(predicate: Predicate, thing: dict[str, Any], may: May) -> None:
    matched = holds(predicate, thing, may)
    assert isinstance(matched, bool)
    assert holds(Not(predicate), thing, may) is not matched


@accepts(at_least=1)
@settings(max_examples=examples(500), deadline=None)
@given(searches.filters(max_leaves=1), searches.things(), searches.rights())
def test_no_right_makes_a_single_predicate_true(predicate: Predicate, thing: dict[str, Any], may: May) -> None:
    if not isinstance(predicate, Not | And | Or):
        accepted()
        assert holds(predicate, thing) or not holds(predicate, thing, may)
        assert holds(predicate, thing, lambda path: True) is holds(predicate, thing)


@accepts(at_least=1)
@settings(max_examples=examples(250), deadline=None)
@given(searches.filters(max_leaves=3), searches.things())
def test_a_reader_without_permission_gets_the_same_result_as_for_a_bare_thing(
    predicate: Predicate, thing: dict[str, Any]
) -> None:
    """The answer is the same as for any thing of that id, but for whether it has a feature at all."""
    bare = {"thingId": thing["thingId"]}
    if thing.get("features"):
        bare["features"] = dict.fromkeys(thing["features"], thing["features"])
    if not any(field.path == ("features", "*") for field in fields(predicate)):
        accepted()
        assert holds(predicate, thing, _nothing) is holds(predicate, bare, _nothing)


@given(
    searches.VALUE_FIELDS, st.lists(searches.LITERALS, min_size=1, max_size=40), searches.things(), searches.rights()
)
def test_in_is_one_eq_after_another(field: Field, literals: list[Literal], thing: dict[str, Any], may: May) -> None:
    literals = [fit(field, literal) for literal in literals]
    one_by_one = Or(tuple(Compare(Operator.EQ, field, literal) for literal in literals))
    assert holds(In(field, tuple(literals)), thing, may) is holds(one_by_one, thing, may)


@given(searches.VALUE_FIELDS, searches.LITERALS, searches.things(), searches.rights())
def test_ne_holds_for_an_existing_value_that_is_not_equal(
    field: Field, literal: Literal, thing: dict[str, Any], may: May
) -> None:
    different = holds(Compare(Operator.NE, field, literal), thing, may)
    if field.is_in_any_feature:
        assert different is holds(_of_each_feature(Compare(Operator.NE, field, literal), thing), thing, may)
    else:
        equal = holds(Compare(Operator.EQ, field, literal), thing, may)
        assert different is (holds(Exists(field), thing, may) and not equal)


@accepts(at_least=1)
@settings(max_examples=examples(250), deadline=None)
@given(searches.VALUE_FIELDS, searches.LITERALS, searches.things())
def test_greater_or_equal_is_greater_or_equal(field: Field, literal: Literal, thing: dict[str, Any]) -> None:
    if literal.kind is not LiteralKind.NULL:
        accepted()
        for both, one in ((Operator.GE, Operator.GT), (Operator.LE, Operator.LT)):
            either = Or((Compare(one, field, literal), Compare(Operator.EQ, field, literal)))
            assert holds(Compare(both, field, literal), thing) is holds(either, thing)


OF_ANY_FEATURE = st.just(Field(FieldKind.DOCUMENT, ("features", "*", "definition"))) | st.builds(
    lambda part, key: Field(FieldKind.DOCUMENT, ("features", "*", part, key)),
    st.sampled_from(["properties", "desiredProperties"]),
    searches.KEYS,
)
LEAVES_OF_ANY_FEATURE: st.SearchStrategy[Compare | In | Exists | Empty] = st.one_of(
    st.builds(Compare, searches.COMPARISONS, OF_ANY_FEATURE, searches.LITERALS),
    st.builds(Compare, searches.LIKES, OF_ANY_FEATURE, searches.PATTERNS),
    st.builds(In, OF_ANY_FEATURE, st.lists(searches.LITERALS, min_size=1, max_size=4).map(tuple)),
    st.builds(Exists, OF_ANY_FEATURE),
    st.builds(Empty, OF_ANY_FEATURE),
)


@accepts(at_least=1)
@settings(max_examples=examples(250), deadline=None)
@given(LEAVES_OF_ANY_FEATURE, searches.things(), searches.rights())
def test_any_feature_is_one_of_the_features(
    predicate: Compare | In | Exists | Empty, thing: dict[str, Any], may: May
) -> None:
    """§4.5: a condition on `features/*/…` holds if it holds for a readable value of any feature."""
    if "*" not in thing.get("features", ()):
        accepted()
        assert holds(predicate, thing, may) is holds(_of_each_feature(predicate, thing), thing, may)


def _of_each_feature(predicate: Compare | In | Exists | Empty, thing: dict[str, Any]) -> Predicate:
    """Return the predicate over each feature by its ID, joined by `or`. A feature ID `*` is unchanged."""
    ids = [id for id in thing.get("features") or () if id != "*"]
    path = predicate.field.path
    each = [replace(predicate, field=replace(predicate.field, path=("features", id, *path[2:]))) for id in ids]
    return Or((*each, predicate)) if "*" in (thing.get("features") or ()) or not each else Or(tuple(each))


def _nothing(path: Sequence[str]) -> bool:
    return False


# -- permissions: one table of policies, by their paths


def granting(**decisions: bool) -> May:
    """Return a policy's grants: `__` means a slash, `root` the thing; the nearest path decides."""
    decided = {tuple(place.split("__")) if place != "root" else (): given for place, given in decisions.items()}

    def may(path: Sequence[str]) -> bool:
        for length in range(len(path), -1, -1):
            if tuple(path[:length]) in decided:
                return decided[tuple(path[:length])]
        return False

    return may


def _of_attribute_x(path: Sequence[str]) -> bool:
    """Allow metadata of the attribute x only, named by the part that owns it."""
    return tuple(path[:-1]) == ("_metadata", "attributes", "x")


OF_ATTRIBUTE_X: May = _of_attribute_x
METADATA_OF_X = {"attributes": {"x": 1}, "_metadata": {"attributes": {"x": {"unit": {"of": "K"}}, "unit": {"of": "K"}}}}

ON = {"features": {"lamp": {"properties": {"on": True}}, "fan": {"properties": {"speed": 3}}}}


@each_row(
    ("may", "thing", "filter", "matches"),
    [
        (granting(root=True), {"attributes": {"b": 1}}, "eq(attributes/b,1)", True),
        (granting(attributes__a=True), {"attributes": {"a": 1, "b": 1}}, "eq(attributes/a,1)", True),
        (granting(attributes__a=True), {"attributes": {"a": 1, "b": 1}}, "eq(attributes/b,1)", False),
        (
            granting(attributes__a=True),
            {"attributes": {"a": 1, "b": 1}},
            "and(eq(attributes/a,1),eq(attributes/b,1))",
            False,
        ),
        (
            granting(attributes__a=True),
            {"attributes": {"a": 1, "b": 1}},
            "or(eq(attributes/a,1),eq(attributes/b,1))",
            True,
        ),
        (granting(attributes__a=True), {"attributes": {"a": 1, "b": 1}}, "not(eq(attributes/b,1))", True),
        (granting(root=True, features__lamp=False), ON, "exists(features/lamp)", False),
        (granting(root=True, features__lamp=False), ON, "empty(features/lamp)", False),
        (granting(root=True, features__lamp=False), ON, "not(exists(features/lamp))", True),
        (granting(root=True, features__lamp=False), ON, "eq(features/*/properties/on,true)", False),
        (granting(root=True, features__lamp=False), ON, "eq(features/*/properties/speed,3)", True),
        (granting(root=True, features__fan=False), ON, "eq(features/*/properties/on,true)", True),
        (
            granting(root=True, attributes=False, attributes__a=True),
            {"attributes": {"a": 1}},
            "eq(attributes/a,1)",
            True,
        ),
        (granting(attributes__room=True), {"attributes": {"room": "hall"}, "_revision": 3}, "gt(_revision,0)", False),
        (granting(attributes__room=True), {"_modified": "2030-01-15T07:30:00Z"}, "exists(_modified)", False),
        (granting(attributes__room=True), {}, "like(policyId,'*')", False),
        (granting(attributes__room=True), {}, "like(thingId,'*')", True),
        (granting(attributes__room=True), {}, "eq(namespace,'acme.site')", True),
        (granting(attributes__room=True), {}, "exists(_namespace)", True),
        (granting(attributes__room=True), ON, "exists(features/*)", True),
        (granting(attributes__room=True), {}, "empty(features/*)", True),
        (granting(attributes__room=True), ON, "exists(features/*/properties)", False),
        (granting(attributes__tags=True), {"attributes": {"tags": ["x"]}}, "eq(attributes/tags/0,'x')", True),
        (granting(attributes__o__p=True), {"attributes": {"o": {"p": 1}}}, "exists(attributes/o)", False),
        (granting(root=True, _metadata=False), {"_metadata": {"a": 1}}, "eq(_metadata/a,1)", False),
        (OF_ATTRIBUTE_X, METADATA_OF_X, "eq(_metadata/attributes/x/unit/of,'K')", True),
        (OF_ATTRIBUTE_X, METADATA_OF_X, "eq(_metadata/attributes/unit/of,'K')", False),
    ],
)
def test_a_field_that_may_not_be_read_makes_its_predicate_false(
    may: May, thing: dict[str, Any], filter: str, matches: bool
) -> None:
    assert answer(filter, thing, may) is matches


# -- rules that a single case does not show

EVERY_TYPE: list[Any] = [None, False, 0, 1.5, "", "a", [], [[]], {}, {"k": 1}]


@each_row("literal", ["true", "1", "-0.5", "'a'", "''", "null", "time:nothing"])
@each_row("operator", ["eq", "gt", "ge", "lt", "le"])
def test_a_value_compares_within_its_own_type_only(operator: str, literal: str) -> None:
    types = {"t": bool, "1": (int, float), "-": (int, float), "'": str, "n": type(None)}
    own: Any = () if "time" in literal else types[literal[0]]
    for value in EVERY_TYPE:
        is_own = isinstance(value, own) and (own is bool or not isinstance(value, bool))
        if not is_own:
            assert answer(f"{operator}(attributes/x,{literal})", {"attributes": {"x": value}}) is False, value


@each_row("value", EVERY_TYPE)
@each_row("operator", ["gt", "ge", "lt", "le"])
def test_nothing_is_ordered_against_null(value: Any, operator: str) -> None:
    """L12."""
    assert answer(f"{operator}(attributes/x,null)", {"attributes": {"x": value}}) is False
    assert answer(f"{operator}(attributes/y,null)", {"attributes": {"x": value}}) is False


@pytest.mark.parametrize(
    ("attributes", "matches"),
    [
        ({"x": None}, True),
        ({"x": [1, None]}, True),
        ({"x": {"y": None}}, False),
        ({"x": ""}, False),
        ({"x": []}, False),
        ({"x": [[None]]}, False),
        ({}, False),
    ],
)
def test_null_equals_an_explicit_null_only(attributes: dict[str, Any], matches: bool) -> None:
    """L11."""
    assert answer("eq(attributes/x,null)", {"attributes": attributes}) is matches
    assert answer("in(attributes/x,null)", {"attributes": attributes}) is matches


def test_null_through_an_array_is_an_explicit_null() -> None:
    """L28."""
    assert answer("eq(attributes/l/k,null)", {"attributes": {"l": [{"k": 1}, {}]}}) is False
    assert answer("eq(attributes/l/k,null)", {"attributes": {"l": [{"k": 1}, {"k": None}]}}) is True
    assert answer("eq(attributes/l/k,null)", {"attributes": {"l": [{"k": [None]}]}}) is True


@pytest.mark.parametrize(
    ("features", "has_any"),
    [
        ({}, False),
        ({"features": None}, False),
        ({"features": {}}, False),
        ({"features": {"lamp": {}}}, True),
        ({"features": {"lamp": None}}, True),
        ({"features": {"lamp": {"properties": {}}}}, True),
        ({"features": {"a": {"properties": {"x": 1}}, "b": {}}}, True),
    ],
)
def test_a_feature_with_any_content_exists(features: dict[str, Any], has_any: bool) -> None:
    assert answer("exists(features/*)", features) is has_any
    assert answer("empty(features/*)", features) is not has_any


@pytest.mark.parametrize(
    ("filter", "matches"),
    [
        ("exists(features/*/properties)", False),
        ("exists(features/*/properties/x)", False),
        ("exists(features/*/definition)", False),
        ("empty(features/*/properties)", True),
        ("empty(features/*/desiredProperties/x)", True),
        ("empty(features/*/definition)", True),
        ("eq(features/*/properties/x,null)", False),
        ("ne(features/*/properties/x,1)", False),
        ("like(features/*/properties/x,'*')", False),
        ("in(features/*/definition,'a:b:1')", False),
        ("not(gt(features/*/properties/x,1))", True),
    ],
)
def test_an_empty_feature_has_nothing_that_a_wildcard_finds(filter: str, matches: bool) -> None:
    assert answer(filter, {"features": {"lamp": {}}}) is matches
    assert answer(filter, {"features": {"lamp": None}}) is matches


@pytest.mark.parametrize(
    ("features", "matches"),
    [
        (None, False),
        ({}, False),
        ({"lamp": {}}, True),
        ({"lamp": {"properties": {"x": ""}}}, True),
        ({"lamp": {"properties": {"x": 1}}}, False),
        ({"lamp": {"properties": {"x": 1}}, "fan": {}}, True),
    ],
)
def test_a_value_of_any_feature_is_empty_if_some_feature_has_it_empty(features: Any, matches: bool) -> None:
    thing = {} if features is None else {"features": features}
    assert answer("empty(features/*/properties/x)", thing) is matches


@each_row(
    ("value", "path", "matches"),
    [
        ([], "l/k", True),
        ([5, "x"], "l/k", True),
        ([{"k": 1}, 5], "l/k", False),
        ([{"k": 1}, {}], "l/k", True),
        ([[{"k": 1}]], "l/k", True),
        ([{"k": 1}], "l/0/k", False),
        ([{"k": 1}], "l/1/k", True),
        ([{"k": 1}], "l/0", False),
        ([{}], "l/0", True),
        ([[""]], "l", False),
        ([[]], "l", True),
        ([{}, 1], "l", True),
        (["", 1], "l", True),
    ],
)
def test_an_absent_value_on_a_path_through_an_array_is_empty(value: Any, path: str, matches: bool) -> None:
    """L29, and an object in the array that lacks the field."""
    assert answer(f"empty(attributes/{path})", {"attributes": {"l": value}}) is matches


@each_row(
    ("value", "filter", "matches"),
    [
        (2**63 - 1, "gt(attributes/x,9223372036854775806)", True),
        (2**63 - 1, "lt(attributes/x,9223372036854775808.0)", True),
        (2**53 + 1, "gt(attributes/x,9007199254740992.0)", True),
        (2**53 + 1, "eq(attributes/x,9007199254740992.0)", False),
        (2**64 + 1, "eq(attributes/x,18446744073709551616.0)", True),
        (-0.0, "eq(attributes/x,0)", True),
        (True, "eq(attributes/x,1)", False),
        (1, "in(attributes/x,true,'1',null)", False),
        (1.0, "in(attributes/x,true,'1',1)", True),
    ],
)
def test_numbers_compare_exactly(value: Any, filter: str, matches: bool) -> None:
    assert answer(filter, {"attributes": {"x": value}}) is matches


def test_texts_are_ordered_by_code_point() -> None:
    beyond_the_basic_plane = {"attributes": {"x": "\U0001f4a1"}}
    assert answer("gt(attributes/x,'\uff21')", beyond_the_basic_plane) is True
    assert answer("lt(attributes/x,'Zoe')", {"attributes": {"x": "adam"}}) is False


@each_row(
    ("value", "filter", "matches"),
    [
        ("ÄB", "ilike(attributes/x,'*ä?')", True),
        ("İSTANBUL", "ilike(attributes/x,'i????????')", False),
        ("İSTANBUL", "ilike(attributes/x,'i???????')", True),
        ("ΟΔΟΣ", "ilike(attributes/x,'οδοσ')", True),
        ("ΟΔΟΣ", "ilike(attributes/x,'οδος')", False),
        ("straße", "ilike(attributes/x,'STRASSE')", False),
        ("K", "ilike(attributes/x,'k')", True),
        (5, "ilike(attributes/x,'5')", False),
        (["x", "ABC"], "ilike(attributes/x,'a*')", True),
        ([["ABC"]], "ilike(attributes/x,'a*')", False),
    ],
)
def test_ilike_folds_each_code_point_by_itself(value: Any, filter: str, matches: bool) -> None:
    assert answer(filter, {"attributes": {"x": value}}) is matches


@each_row(
    ("filter", "matches"),
    [
        ("eq(_modified,'2030-01-15T08:30:00.25+01:00')", True),
        ("lt(_modified,'2030-01-15T07:30:00.250000001Z')", True),
        ("gt(_modified,'2030-01-15T07:30:00Z')", True),
        ("in(_modified,'2030-01-15T07:30:00.25Z')", True),
        ("like(_modified,'2030-01-15T07*')", True),
        ("exists(_modified)", True),
        ("empty(_modified)", False),
        ("gt(_modified,time:now)", True),
        ("ne(_modified,5)", True),
    ],
)
def test_instants_compare_as_instants_in_any_notation(filter: str, matches: bool) -> None:
    """L19."""
    assert answer(filter, {"_modified": "2030-01-15T07:30:00.250000Z"}) is matches


def test_the_namespace_has_two_spellings_and_always_exists() -> None:
    """L14."""
    for name in ("namespace", "_namespace"):
        assert answer(f"eq({name},'acme.site')", {}) is True
        assert answer(f"exists({name})", {}) is True
        assert answer(f"eq({name},'acme.site:lamp-7')", {}) is False


def test_the_whole_metadata_is_no_property_of_a_search() -> None:
    with pytest.raises(UnknownProperty) as caught:
        read("not(and(eq(attributes/x,1),exists(_metadata)))", NOW)
    assert caught.value.fault.message == "Unknown property name: _metadata"


def test_half_a_character_is_refused_with_its_place() -> None:
    with pytest.raises(RqlSyntaxError) as caught:
        read("eq(attributes/x,'ab\ud83d')", NOW)
    assert caught.value.position == 19


def test_times_are_those_of_the_moment_of_asking() -> None:
    assert read("lt(_created,time:now-1h)", NOW) == read("lt(_created,'2030-01-15T06:30:00Z')", NOW)
    assert answer("lt(attributes/t,time:now)", {"attributes": {"t": "2030"}}) is True
    assert answer("lt(attributes/t,time:soon)", {"attributes": {"t": "2030"}}) is False
    assert answer("ne(attributes/t,time:soon)", {"attributes": {"t": "2030"}}) is True


# -- input that means no good


@each_row(
    "text",
    [
        "not(" * 600 + "exists(attributes/x)" + ")" * 600,
        "eq(attributes/x,'" + "a" * 1_000_000 + "')",
        "in(attributes/x" + ",1" * 100_000 + ")",
        "eq(attributes/x,9223372036854775808)",
        "eq(attributes/x," + "9" * 100_000 + ")",
        "eq(attributes/x," + "9" * 400 + ".0)",
        "eq(attributes/x,1);drop table entities",
        "like(attributes/x,'" + "*a" * 1000 + "')",
        "regex(attributes/x,'a')",
        "eq(attributes/x,'a'')",
        "eq(attributes/x,{})",
        "eq(attributes/x,nan)",
        "\x00",
        "",
    ],
    ids=lambda text: text[:24],
)
def test_an_invalid_filter_is_refused_quickly_with_the_error_position(text: str) -> None:
    with (
        at_most(0.5),
        pytest.raises(RqlSyntaxError, match=r"Invalid filter expression: (?s:.*)\^ position \d+: expected ") as caught,
    ):
        read(text, NOW)
    assert caught.value.fault.error == "rql.expression.invalid"
    assert len(caught.value.fault.message) < 1000


@pytest.mark.parametrize(
    "name", ["attributes/x'; drop table entities; --", "attributes/\u0000", "attributes/$.x[0]", "attributes/%s"]
)
def test_a_property_may_have_any_characters(name: str) -> None:
    key = name.removeprefix("attributes/")
    assert answer(f"eq({name},1)", {"attributes": {key: 1}}) is True
    assert answer(f"eq({name},1)", {"attributes": {"x": 1}}) is False


@pytest.mark.parametrize("opening", ['{"a":', "[", '[{"a":'])
def test_a_thing_of_great_depth_needs_no_stack(opening: str) -> None:
    value: Any = 1
    for _ in range(20_000):
        value = [value] if opening == "[" else {"a": value} if opening == '{"a":' else [{"a": value}]
    predicate = read(f"or(eq(attributes{'/a' * 20_000},2), eq(attributes/a/0/a/0,3), like(attributes/a,'b'))", NOW)
    assert holds(predicate, {"attributes": {"a": value}}) is False


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("in(attributes/x" + "".join(f",{number}" for number in range(-499, 0)) + ")", 0.2),
        ("in(attributes/x" + "".join(f",'{number}'" for number in range(-499, 0)) + ")", 0.2),
        ("or(" + ",".join(f"eq(attributes/x,{number})" for number in range(-249, 0)) + ")", 4),
        ("or(" + ",".join(f"eq(attributes/x/0,{number})" for number in range(-249, 0)) + ")", 1),
        ("or(" + ",".join(f"eq(features/*/properties/x,{number})" for number in range(-249, 0)) + ")", 4),
    ],
    ids=["in numbers", "in texts", "many eq", "many places", "many features"],
)
def test_the_longest_filter_on_a_large_thing_takes_no_long_time(text: str, seconds: float) -> None:
    thing = {
        "attributes": {"x": list(range(20_000))},
        "features": {f"f{number}": {"properties": {"x": number}} for number in range(2_000)},
    }
    predicate = read(text, NOW)
    with at_most(seconds):
        assert holds(predicate, thing) is False


@given(searches.filters())
def test_a_filter_that_was_written_down_is_read_as_it_was_meant(predicate: Predicate) -> None:
    assert read(searches.written(predicate), NOW) == predicate

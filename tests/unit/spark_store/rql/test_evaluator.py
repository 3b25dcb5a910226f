"""The reference evaluator: every numbered filter case, and properties of all predicates and documents."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_store.errors import QueryError
from spark_store.rql import evaluate, parse, resolve_times, weight
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
from tests.support import random_searches as searches
from tests.support.cpu_budget import at_most
from tests.support.paths import VECTORS
from tests.support.table import each_row

NOW = datetime(2030, 1, 15, 7, 30, tzinfo=UTC)
IDS = {"thingId": "acme.site:lamp-7", "policyId": "acme.site:pol-7"}
CASES: list[dict[str, Any]] = json.loads((VECTORS / "rql.json").read_text("utf-8"))


def answer(text: str, thing: dict[str, Any]) -> bool | str:
    """Return the result of a history filter for a thing; `error` for an invalid filter."""
    try:
        predicate = resolve_times(parse(text), NOW)
    except QueryError as error:
        return error.fault.error.replace("rql.expression.invalid", "error")
    return evaluate(predicate, {**IDS, **thing})


@each_row("case", [pytest.param(case, id=f"case_{case['case']:03}") for case in CASES])
def test_case(case: dict[str, Any]) -> None:
    """Each case of the filter language has the result of a history filter for one thing."""
    assert answer(case["filter"], case["thing"]) == case["history"]


def test_the_cases_are_complete_and_in_order() -> None:
    assert [case["case"] for case in CASES] == list(range(1, 223))


# -- rules that a single case does not show


@each_row("value", [None, 0, 1, "a", "", True, [], [1], [None], {}, {"k": 1}, [{"k": 1}, 2], [[1], [2]]])
@each_row("literal", ["1", "1.0", "'a'", "true", "null", "time:nothing"])
def test_ne_is_the_exact_opposite_of_eq(value: Any, literal: str) -> None:
    thing = {"attributes": {"x": value}}
    for path in ("attributes/x", "attributes/x/k", "attributes/y"):
        assert answer(f"ne({path},{literal})", thing) is not answer(f"eq({path},{literal})", thing)


@each_row("value", [0, "", "a", True, None, [None], {}])
@each_row("operator", ["gt", "ge", "lt", "le"])
def test_nothing_is_ordered_against_null(value: Any, operator: str) -> None:
    assert answer(f"{operator}(attributes/x,null)", {"attributes": {"x": value}}) is False


@pytest.mark.parametrize("value", ["", 0, False, [], {}, [[]]])
def test_null_equals_nothing_but_an_explicit_null(value: Any) -> None:
    assert answer("eq(attributes/x,null)", {"attributes": {"x": value}}) is False
    assert answer("in(attributes/x,null)", {"attributes": {"x": value}}) is False


@each_row(
    ("value", "filter", "matches"),
    [
        (2**63 - 1, "gt(attributes/x,9223372036854775806)", True),
        (2**53 + 1, "gt(attributes/x,9007199254740992.0)", True),
        ("9007199254740993", "eq(attributes/x,9007199254740992)", False),
        (9007199254740993, "eq(attributes/x,'9007199254740992')", False),
        (-1, "lt(attributes/x,'-0.5')", True),
        ("-1e-3", "lt(attributes/x,0)", True),
        (" 5", "eq(attributes/x,5)", False),
        ("0x5", "eq(attributes/x,5)", False),
        ("1_0", "eq(attributes/x,10)", False),
        ("nan", "ne(attributes/x,5)", True),
        ("٥", "eq(attributes/x,5)", False),
        (0.1, "eq(attributes/x,'0.1')", True),
    ],
)
def test_numbers_compare_exactly_and_texts_as_numbers_only_if_they_are(value: Any, filter: str, matches: bool) -> None:
    assert answer(filter, {"attributes": {"x": value}}) is matches


def test_text_is_ordered_by_utf_16_code_units() -> None:
    beyond_the_basic_plane = {"attributes": {"x": "\U0001f4a1"}}
    assert answer("lt(attributes/x,'\uff21')", beyond_the_basic_plane) is True
    assert answer("gt(attributes/x,'ä')", beyond_the_basic_plane) is True


@pytest.mark.parametrize("spelling", ["namespace", "_namespace"])
def test_the_namespace_is_that_of_the_id(spelling: str) -> None:
    assert answer(f"eq({spelling},'acme.site')", {}) is True
    assert answer(f"like({spelling},'acme*7')", {}) is False


@pytest.mark.parametrize("name", ["_revision", "_created", "_modified", "_metadata", "namespace", "_namespace"])
def test_a_field_beside_the_document_does_not_exist(name: str) -> None:
    thing = {
        "_revision": 5,
        "_created": "2030-01-15T07:30:00Z",
        "_modified": "2030-01-15T07:30:00Z",
        "_metadata": {"a": 1},
    }
    assert answer(f"exists({name})", thing) is False
    assert answer(f"empty({name})", thing) is True


@each_row(
    ("filter", "matches"),
    [
        ("eq(_modified,'2030-01-15T08:30:00.25+01:00')", True),
        ("lt(_modified,'2030-01-15T07:30:00.250000001Z')", True),
        ("gt(_modified,'2030-01-15T07:30:00Z')", True),
        ("gt(_modified,'2030-01')", True),
        ("lt(_modified,'2030-02')", True),
        ("in(_modified,'2030-01-15T07:30:00.25Z')", True),
        ("like(_modified,'2030-01-15T07*')", True),
        ("eq(_modified,5)", False),
    ],
)
def test_instants_compare_as_instants_in_any_notation(filter: str, matches: bool) -> None:
    assert answer(filter, {"_modified": "2030-01-15T07:30:00.250000Z"}) is matches


def test_a_time_compares_with_the_moment_of_the_subscribe() -> None:
    assert answer("le(_modified,time:now)", {"_modified": "2030-01-15T07:30:00.000000Z"}) is True
    assert answer("gt(_modified,time:now-1h)", {"_modified": "2030-01-15T06:30:00.000000Z"}) is False


def test_a_path_through_arrays_of_arrays_finds_every_object() -> None:
    thing = {"attributes": {"rooms": [[{"lamps": [{"w": 4}]}], {"lamps": {"w": 9}}]}}
    assert answer("eq(attributes/rooms/lamps/w,4)", thing) is True
    assert answer("eq(attributes/rooms/lamps/w,9)", thing) is True
    assert answer("exists(attributes/rooms/lamps/v)", thing) is False


def test_the_value_of_a_path_through_an_array_is_an_array() -> None:
    """So an empty text in it does not make it empty, as it would not in a plain array."""
    assert answer("empty(attributes/l/k)", {"attributes": {"l": [{"k": ""}]}}) is False


@pytest.mark.parametrize(
    ("text", "is_greater"),
    [("9" * 500_000 + "x", True), ("9" * 500_000, True), ("." * 500_000, False), ("1e" + "9" * 500_000, True)],
    ids=["digits and a letter", "digits", "dots", "exponent"],
)
def test_no_text_that_starts_as_a_number_takes_long(text: str, is_greater: bool) -> None:
    with at_most(0.5):
        assert evaluate(parse("gt(attributes/x,5)"), {"attributes": {"x": text}}) is is_greater


# -- any predicate over any document


KEYS = st.sampled_from("abk*") | searches.KEYS
PATHS = st.lists(KEYS, min_size=1, max_size=3)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64)
    | st.floats(allow_nan=False)
    | st.sampled_from(["", "a", "1", "1.0", "true", "*", "ä", "💡", "\ud800", "2030-01-15T07:30:00Z"])
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=10
)
DOCUMENTS = st.dictionaries(
    st.sampled_from(["thingId", "attributes", "features", "_modified", "_revision", "_metadata"]), VALUES, max_size=6
)
FIELDS = st.one_of(
    PATHS.map(lambda keys: Field(FieldKind.DOCUMENT, ("attributes", *keys))),
    st.just(Field(FieldKind.NAMESPACE, ("thingId",))),
    st.just(Field(FieldKind.INSTANT, ("_modified",))),
    st.just(Field(FieldKind.HIDDEN, ("_revision",))),
)
LITERALS = st.one_of(
    st.integers(-(2**63), 2**63 - 1).map(lambda value: Literal(LiteralKind.WHOLE, value)),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda value: Literal(LiteralKind.DOUBLE, value)),
    st.sampled_from(["", "a", "1", "true", "*?", "💡", "ä"]).map(lambda value: Literal(LiteralKind.TEXT, value)),
    st.booleans().map(lambda value: Literal(LiteralKind.BOOLEAN, value)),
    st.sampled_from([Literal(LiteralKind.NULL, None), Literal(LiteralKind.TIME, "now")]),
)
COMPARISONS = st.sampled_from(
    [Operator.EQ, Operator.NE, Operator.GT, Operator.GE, Operator.LT, Operator.LE, Operator.LIKE, Operator.ILIKE]
)
PREDICATES: st.SearchStrategy[Predicate] = st.recursive(
    st.one_of(
        st.builds(Compare, COMPARISONS, FIELDS, LITERALS),
        st.builds(In, FIELDS, st.lists(LITERALS, min_size=1, max_size=3).map(tuple)),
        st.builds(Exists, FIELDS),
        st.builds(Empty, FIELDS),
    ),
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(And, st.lists(inner, min_size=1, max_size=3).map(tuple)),
        st.builds(Or, st.lists(inner, min_size=1, max_size=3).map(tuple)),
    ),
    max_leaves=5,
)


@given(PREDICATES, DOCUMENTS)
def test_any_predicate_over_any_document_is_true_or_false(predicate: Predicate, document: dict[str, Any]) -> None:
    matched = evaluate(predicate, document)
    assert isinstance(matched, bool)
    assert evaluate(Not(predicate), document) is not matched


@given(FIELDS, st.lists(LITERALS, min_size=1, max_size=3), DOCUMENTS)
def test_in_is_one_eq_after_another(field: Field, literals: list[Literal], document: dict[str, Any]) -> None:
    one_by_one = Or(tuple(Compare(Operator.EQ, field, literal) for literal in literals))
    assert evaluate(In(field, tuple(literals)), document) is evaluate(one_by_one, document)


@pytest.mark.parametrize("opening", ['{"a":', "[", '[{"a":'])
def test_a_document_of_great_depth_needs_no_stack(opening: str) -> None:
    value: Any = 1
    for _ in range(20_000):
        value = [value] if opening == "[" else {"a": value} if opening == '{"a":' else [{"a": value}]
    predicate = parse(f"or(eq(attributes{'/a' * 20_000},2), eq(attributes/a,2), like(attributes/a,'b'))")
    assert evaluate(predicate, {"attributes": {"a": value}}) is False


MANY = st.lists(SCALARS | st.sampled_from(["false", "0", "5e-1", "nan", "inf", 0.5, "\ud83d\udca1"]), min_size=33)


@given(MANY, st.lists(LITERALS, min_size=1, max_size=40), COMPARISONS)
def test_many_values_are_compared_as_each_of_them_alone(
    values: list[Any], literals: list[Literal], operator: Operator
) -> None:
    field = Field(FieldKind.DOCUMENT, ("attributes", "x"))

    def holds(predicate: Predicate) -> bool:
        return any(evaluate(predicate, {"attributes": {"x": value}}) for value in values)

    document = {"attributes": {"x": values}}
    assert evaluate(In(field, tuple(literals)), document) is any(
        holds(Compare(Operator.EQ, field, literal)) for literal in literals
    )
    if operator is not Operator.NE:
        text = Literal(LiteralKind.TEXT, "*1")
        for literal in [text] if operator in (Operator.LIKE, Operator.ILIKE) else literals:
            compare = Compare(operator, field, literal)
            assert evaluate(compare, document) is holds(compare)


@each_row(
    ("value", "literal", "equal"),
    [
        ("1.0", "'1'", False),
        ("1.0", "1", True),
        (1.0, "'1'", True),
        (1, "'1.0'", True),
        (1, "true", False),
        (True, "1", False),
        (True, "'1'", False),
        (True, "'true'", True),
        ("true", "true", True),
        ("false", "true", False),
        (None, "null", True),
        ("null", "null", False),
        (2**53 + 1, "9007199254740992.0", False),
        ("ä", "'ä'", True),
        ("now", "time:now", False),
    ],
)
def test_many_literals_are_compared_as_one_is(value: Any, literal: str, equal: bool) -> None:
    thing = {"attributes": {"x": value, "xs": [value, "other"] * 20}}
    assert evaluate(parse(f"eq(attributes/x,{literal})"), thing) is equal
    assert evaluate(parse(f"in(attributes/xs,-7,{literal})"), thing) is equal
    assert evaluate(parse(f"eq(attributes/xs,{literal})"), thing) is equal


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("in(attributes/x" + "".join(f",{number}" for number in range(-499, 0)) + ")", 0.2),
        ("in(attributes/x" + "".join(f",'{number}'" for number in range(-499, 0)) + ")", 0.2),
        ("or(" + ",".join(f"eq(attributes/x,{number})" for number in range(-249, 0)) + ")", 1.5),
        ("or(" + ",".join(f"lt(attributes/x,{number})" for number in range(-249, 0)) + ")", 1.5),
    ],
    ids=["in numbers", "in texts", "many eq", "many lt"],
)
def test_the_longest_filter_on_a_long_array_takes_no_long_time(text: str, seconds: float) -> None:
    document = {"attributes": {"x": list(range(20_000))}}
    predicate = parse(text)
    with at_most(seconds):
        assert evaluate(predicate, document) is False


@pytest.mark.parametrize(
    ("text", "comparisons"),
    [
        ("eq(attributes/x,1)", 1),
        ("and(eq(attributes/x,1),not(or(exists(attributes/x),empty(attributes/x))))", 3),
        ("in(attributes/x,1,2,3)", 1),
        ("in(attributes/x" + ",1" * 320 + ")", 11),
    ],
)
def test_the_weight_of_a_filter_is_the_number_of_its_comparisons(text: str, comparisons: int) -> None:
    assert weight(parse(text)) == comparisons

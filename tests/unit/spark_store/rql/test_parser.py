"""The parser: which texts are filters, which tree they give, and where an error points."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_store.errors import QueryError, RqlSyntaxError, UnknownProperty
from spark_store.rql import parse
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
from tests.support.acceptance import accepted, accepts
from tests.support.cpu_budget import at_most
from tests.support.dice import examples
from tests.support.table import each_row

N = Field(FieldKind.DOCUMENT, ("attributes", "n"))
ONE = Literal(LiteralKind.WHOLE, 1)
N_IS_ONE = Compare(Operator.EQ, N, ONE)


@each_row(
    ("text", "tree"),
    [
        ("eq(attributes/n,1)", N_IS_ONE),
        ("ilike(attributes/n,'a*')", Compare(Operator.ILIKE, N, Literal(LiteralKind.TEXT, "a*"))),
        ("in(attributes/n,1,null)", In(N, (ONE, Literal(LiteralKind.NULL, None)))),
        ("exists(attributes/n)", Exists(N)),
        ("empty(attributes/n)", Empty(N)),
        ("not(eq(attributes/n,1))", Not(N_IS_ONE)),
        ("and(eq(attributes/n,1),exists(attributes/n))", And((N_IS_ONE, Exists(N)))),
        ("or(eq(attributes/n,1),\n\tnot(exists(attributes/n)))", Or((N_IS_ONE, Not(Exists(N))))),
    ],
)
def test_a_text_gives_its_tree(text: str, tree: Predicate) -> None:
    assert parse(text) == tree


@each_row(
    ("text", "kind", "value"),
    [
        ("0", LiteralKind.WHOLE, 0),
        ("+0", LiteralKind.WHOLE, 0),
        ("-7", LiteralKind.WHOLE, -7),
        ("9223372036854775807", LiteralKind.WHOLE, 2**63 - 1),
        ("-9223372036854775808", LiteralKind.WHOLE, -(2**63)),
        ("0.7", LiteralKind.DOUBLE, 0.7),
        ("-0.7", LiteralKind.DOUBLE, -0.7),
        ("12.50", LiteralKind.DOUBLE, 12.5),
        ("true", LiteralKind.BOOLEAN, True),
        ("false", LiteralKind.BOOLEAN, False),
        ("null", LiteralKind.NULL, None),
        ("null \t\n", LiteralKind.NULL, None),
        ('""', LiteralKind.TEXT, ""),
        ("'say \"on\"'", LiteralKind.TEXT, 'say "on"'),
        ('"it\'s"', LiteralKind.TEXT, "it's"),
        (r'"\"\\\/\b\f\n\r\tA"', LiteralKind.TEXT, '"\\/\b\f\n\r\tA'),
        (r"'\''", LiteralKind.TEXT, "'"),
        (r'"\ud83d\udca1"', LiteralKind.TEXT, "\U0001f4a1"),
        ('"a%20b"', LiteralKind.TEXT, "a%20b"),
        ("time:now", LiteralKind.TIME, "now"),
        ("time:now-1d[h]", LiteralKind.TIME, "now-1d[h]"),
        ("time:now_epoch_millis", LiteralKind.TIME, "now_epoch_millis"),
    ],
)
def test_a_literal_keeps_its_kind_and_value(text: str, kind: LiteralKind, value: Any) -> None:
    assert parse(f"eq(attributes/n,{text})") == Compare(Operator.EQ, N, Literal(kind, value))


def test_literals_that_python_takes_for_equal_give_different_trees() -> None:
    trees = [parse(f"eq(attributes/n,{text})") for text in ("1", "1.0", "true", '"1"')]
    assert all(left != right for left in trees for right in trees if left is not right)


@each_row(
    ("text", "position"),
    [
        ("", 0),
        ("attributes/n", 0),
        ("EQ(attributes/n,1)", 0),
        ("eq (attributes/n,1)", 2),
        ("eq(attributes/n)", 15),
        ("eq(attributes/n,)", 16),
        ("eq(attributes/n, 1)", 16),
        ("eq(attributes/n,1) ", 18),
        ("eq(attributes/n,1))", 18),
        ("eq(attributes/n,1", 17),
        ("eq(attributes/n,1,2)", 17),
        ("eq(attributes/n,.7)", 16),
        ("eq(attributes/n,7.)", 17),
        ("eq(attributes/n,012.7)", 17),
        ("eq(attributes/n,1e3)", 17),
        ("eq(attributes/n,-0)", 16),
        ("eq(attributes/n,9223372036854775808)", 16),
        ("eq(attributes/n,-9223372036854775809)", 16),
        (f"eq(attributes/n,{'9' * 400}.0)", 16),
        ("eq(attributes/n,yes)", 16),
        ("eq(attributes/n,True)", 16),
        ("eq(attributes/n,trueish)", 16),
        ("eq(attributes/n,time:)", 21),
        ("eq(attributes/n,'open)", 22),
        (r'eq(attributes/n,"\q")', 17),
        (r'eq(attributes/n,"\u12")', 17),
        (r'eq(attributes/n,"\ud83d")', 17),
        (r'eq(attributes/n,"\udca1\ud83d")', 17),
        (r'eq(attributes/n,"\ud83dA")', 17),
        (r'eq(attributes/n,"\'")', 17),
        ("eq(attributes/n,{})", 16),
        ("like(attributes/n,5)", 18),
        ("like(attributes/n,time:now)", 18),
        ("in(attributes/n)", 15),
        ("in(attributes/n,1, 2)", 18),
        ("exists()", 7),
        ('exists("attributes/n")', 7),
        ("exists(attributes/n,1)", 19),
        ("and()", 4),
        ("and( exists(attributes/n))", 4),
        ("and(exists(attributes/n) ,exists(attributes/n))", 24),
        ("not(exists(attributes/n),exists(attributes/n))", 24),
        ("xor(exists(attributes/n))", 0),
    ],
)
def test_an_error_points_at_where_the_filter_stops_being_one(text: str, position: int) -> None:
    with pytest.raises(RqlSyntaxError) as caught:
        parse(text)
    assert caught.value.position == position
    assert caught.value.fault.error == "rql.expression.invalid"


def test_the_message_shows_the_text_with_a_mark_under_the_position() -> None:
    with pytest.raises(RqlSyntaxError) as caught:
        parse("eq(attributes/n, 1)")
    shown, mark, *_ = caught.value.fault.message.split("\n")
    assert shown.endswith("eq(attributes/n, 1)")
    assert shown[mark.index("^")] == " "
    assert "expected a number, a text in quotes" in mark


def test_a_property_keeps_its_blanks_and_takes_escapes() -> None:
    assert parse(r"exists(attributes/a b /\"\u0041(')") == Exists(
        Field(FieldKind.DOCUMENT, ("attributes", "a b ", "\"A('"))
    )


def nested(levels: int) -> str:
    return "not(" * (levels - 1) + "exists(attributes/n)" + ")" * (levels - 1)


def test_a_hundred_levels_are_a_filter_and_one_more_is_not() -> None:
    parse(nested(100))
    with pytest.raises(RqlSyntaxError) as caught:
        parse(nested(101))
    assert caught.value.position == 4 * 100
    assert "100 levels" in caught.value.expected


def test_levels_are_depth_and_not_number() -> None:
    found = parse(f"and({','.join([nested(99)] * 5)})")
    assert isinstance(found, And)
    assert len(found.parts) == 5


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("in(attributes/n" + ",1" * 499 + ")", None),
        ("in(attributes/n" + ",1" * 500 + ")", 16 + 2 * 499),
        ("and(" + ",".join(["exists(attributes/n)"] * 499) + ")", None),
        ("and(" + ",".join(["exists(attributes/n)"] * 500) + ")", 4 + 21 * 499),
        ("or(" + ",".join(["eq(attributes/n,1)"] * 250) + ")", 3 + 19 * 249 + 16),
    ],
)
def test_a_text_may_have_500_operators_and_literals_and_not_one_more(text: str, position: int | None) -> None:
    """Each is work for every event that is held against it."""
    if position is None:
        assert isinstance(parse(text), Predicate)
        return
    with pytest.raises(RqlSyntaxError) as caught:
        parse(text)
    assert (caught.value.position, caught.value.fault.error) == (position, "rql.expression.invalid")
    assert "500 operators and literals" in caught.value.expected


@pytest.mark.parametrize("operator", ["like", "ilike"])
def test_a_pattern_may_have_1024_characters_and_not_one_more(operator: str) -> None:
    parse(f"{operator}(attributes/n,'{'?' * 1024}')")
    with pytest.raises(RqlSyntaxError) as caught:
        parse(f"{operator}(attributes/n,'{'?' * 1025}')")
    assert caught.value.position == len(operator) + 14
    assert "1024 characters" in caught.value.expected


def test_a_text_may_have_64_kib_and_not_one_byte_more() -> None:
    longest = f"eq(attributes/n,'{'ä' * 32758}')"
    assert len(longest.encode()) == 64 * 1024 - 1
    parse(longest.replace("')", "a')"))
    with pytest.raises(RqlSyntaxError) as caught:
        parse(longest.replace("')", "ab')"))
    assert "65536 bytes" in caught.value.expected
    assert caught.value.position == len(longest) + 1


@pytest.mark.parametrize(
    "text",
    [
        "not(" * 250_000,
        "(" * 1_000_000,
        f"eq(attributes/n,{'9' * 1_000_000})",
        f"eq(attributes/n,{'9' * 60_000})",
        f"eq(attributes/n,{'9' * 60_000}.5)",
        f"eq(attributes/n,'{'x' * 1_000_000}')",
        "\ud800" * 1_000_000,
    ],
    ids=["levels", "parentheses", "digits", "whole number", "double", "text", "surrogates"],
)
def test_a_huge_text_is_refused_at_once_with_a_short_message(text: str) -> None:
    with at_most(0.5), pytest.raises(RqlSyntaxError) as caught:
        parse(text)
    assert len(caught.value.fault.message) < 600


PIECES = st.sampled_from(
    [
        *(operator.value for operator in Operator),
        *"(),'\"\\ 01.-+",
        "attributes/n",
        "time:",
        "now",
        "null",
        "true",
        "\\u",
    ]
)


def outcome(text: str) -> Predicate | QueryError:
    try:
        return parse(text)
    except QueryError as error:
        return error


COMPARISONS = st.builds(
    "{}({},{})".format,
    st.sampled_from(["eq", "ne", "gt", "le", "like", "in", "exists"]),
    st.sampled_from(["attributes/n", "thingId", "features/*/properties/x", "topic:action"]),
    st.sampled_from(["1", "1.5", "null", "true", "'a'", '"a*"', "time:now", "1.", "''"]),
)


@accepts(at_least=1)
@settings(max_examples=examples(500), deadline=None)
@given(
    st.text(max_size=30) | st.lists(PIECES, max_size=15).map("".join) | COMPARISONS | COMPARISONS.map("not({})".format)
)
def test_any_text_is_a_predicate_or_a_query_error(text: str) -> None:
    found = outcome(text)
    if isinstance(found, RqlSyntaxError):
        assert 0 <= found.position <= len(text)
    elif not isinstance(found, UnknownProperty):
        accepted()
        assert isinstance(found, Predicate)


KEYS = st.text(st.sampled_from("ab _~.*ä💡"), min_size=1, max_size=3)
PROPERTIES = st.lists(KEYS, min_size=1, max_size=3)
LITERALS = st.one_of(
    st.integers(-(2**63), 2**63 - 1).map(lambda value: (str(value), Literal(LiteralKind.WHOLE, value))),
    st.decimals(-1000, 1000, places=3).map(lambda value: (f"{value:f}", Literal(LiteralKind.DOUBLE, float(value)))),
    st.text(st.characters(exclude_characters="'\\", exclude_categories=["Cs"]), max_size=5).map(
        lambda value: (f"'{value}'", Literal(LiteralKind.TEXT, value))
    ),
    st.booleans().map(lambda value: (str(value).lower(), Literal(LiteralKind.BOOLEAN, value))),
    st.just(("null", Literal(LiteralKind.NULL, None))),
)


def compares(operator: Operator, keys: list[str], literal: tuple[str, Literal]) -> tuple[str, Predicate]:
    field = Field(FieldKind.DOCUMENT, ("attributes", *keys))
    path = "/".join(["attributes", *(key.replace("~", "~0") for key in keys)])
    return f"{operator.value}({path},{literal[0]})", Compare(operator, field, literal[1])


COMPARES = st.builds(
    compares, st.sampled_from([Operator.EQ, Operator.NE, Operator.GT, Operator.LE]), PROPERTIES, LITERALS
)
FILTERS = st.recursive(
    COMPARES,
    lambda inner: st.one_of(
        inner.map(lambda one: (f"not({one[0]})", Not(one[1]))),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda all: (f"and({','.join(text for text, _ in all)})", And(tuple(tree for _, tree in all)))
        ),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda all: (f"or({', '.join(text for text, _ in all)})", Or(tuple(tree for _, tree in all)))
        ),
    ),
    max_leaves=6,
)


@given(FILTERS)
def test_text_generated_from_the_grammar_parses_to_its_tree(written: tuple[str, Predicate]) -> None:
    text, tree = written
    assert parse(text) == tree

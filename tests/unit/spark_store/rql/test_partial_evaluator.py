"""Three-valued logic: results that are certain although some fields are unknown."""

from __future__ import annotations

import itertools
import random

import pytest

from spark_store.rql import evaluate, fields, names_times, parse, partial_evaluate
from spark_store.rql.ast import Field
from tests.support.dice import dice
from tests.support.table import each_row

DOCUMENT = {"attributes": {"a": 1}}


def is_open(field: Field) -> bool:
    return field.path[1].startswith("open")


@each_row(
    ("filter", "certain"),
    [
        ("eq(attributes/a,1)", True),
        ("eq(attributes/a,2)", False),
        ("exists(attributes/open)", None),
        ("not(exists(attributes/open))", None),
        ("and(eq(attributes/a,2),exists(attributes/open))", False),
        ("and(exists(attributes/open),eq(attributes/a,2))", False),
        ("and(eq(attributes/a,1),exists(attributes/open))", None),
        ("or(eq(attributes/a,1),exists(attributes/open))", True),
        ("or(exists(attributes/open),eq(attributes/a,1))", True),
        ("or(eq(attributes/a,2),exists(attributes/open))", None),
        ("not(and(eq(attributes/a,2),exists(attributes/open)))", True),
        ("in(attributes/open,1,2)", None),
        ("empty(attributes/open)", None),
        ("and(exists(attributes/a))", True),
    ],
)
def test_partial_evaluation_returns_a_result_only_when_it_is_certain(filter: str, certain: bool | None) -> None:
    assert partial_evaluate(parse(filter), DOCUMENT, is_open) is certain


def a_filter(dice: random.Random, depth: int) -> str:
    if not depth or dice.random() < 0.3:
        return dice.choice(
            ("exists(attributes/a)", "exists(attributes/b)", "eq(attributes/open1,1)", "ne(attributes/open2,1)")
        )
    operator = dice.choice(("and", "or", "not"))
    parts = [a_filter(dice, depth - 1) for _ in range(1 if operator == "not" else dice.randint(1, 3))]
    return f"{operator}({','.join(parts)})"


def test_a_certain_result_holds_for_all_values_of_the_open_fields() -> None:
    random_source = dice("foresee")
    documents = [
        {
            "attributes": {
                "a": 1,
                **{name: value for name, value in zip(("open1", "open2"), values, strict=True) if value},
            }
        }
        for values in itertools.product((None, 1, 2), repeat=2)
    ]
    certain = 0
    for _ in range(500):
        predicate = parse(a_filter(random_source, 3))
        foreseen = partial_evaluate(predicate, DOCUMENT, is_open)
        if foreseen is not None:
            certain += 1
            assert {evaluate(predicate, document) for document in documents} == {foreseen}
    assert certain > 100


def test_a_filter_names_the_fields_it_reads() -> None:
    predicate = parse("and(eq(attributes/a,1),or(in(attributes/b,1),not(empty(attributes/a))))")
    assert [field.path[1] for field in fields(predicate)] == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("filter", "does"),
    [
        ("gt(attributes/a,time:now)", True),
        ("not(and(exists(attributes/b),in(attributes/a,1,time:now-1h)))", True),
        ('gt(attributes/a,"time:now")', False),
        ("or(exists(attributes/b),in(attributes/a,1))", False),
    ],
)
def test_whether_a_filter_names_times(filter: str, does: bool) -> None:
    assert names_times(parse(filter)) is does

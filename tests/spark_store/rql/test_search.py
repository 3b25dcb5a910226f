"""The evaluator of searches: every numbered filter case, rights, and what holds for all predicates and things."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from spark_store.errors import QueryError
from spark_store.rql.ast import And, Not, Or, Predicate
from spark_store.rql.search import holds, read
from tests import searches

NOW = datetime(2030, 1, 15, 7, 30, tzinfo=UTC)
IDS = {"thingId": "acme.site:lamp-7", "policyId": "acme.site:pol-7"}
CASES: list[dict[str, Any]] = json.loads((Path(__file__).parents[2] / "vectors" / "rql.json").read_text("utf-8"))

May = Callable[[Sequence[str]], bool]


def answer(text: str, thing: dict[str, Any], may: May | None = None) -> bool | str:
    """What a search says about a thing; `error` for a text that is no filter."""
    try:
        predicate = read(text, NOW)
    except QueryError as error:
        return error.fault.error.replace("rql.expression.invalid", "error")
    return holds(predicate, {**IDS, **thing}, may)


@pytest.mark.parametrize("case", [pytest.param(case, id=f"case_{case['case']:03}") for case in CASES])
def test_case(case: dict[str, Any]) -> None:
    """Each case of the filter language says what a search makes of one thing."""
    assert answer(case["filter"], case["thing"]) == case["search"]


# -- any predicate over any thing


@given(searches.filters(), searches.things(), searches.rights())
def test_any_filter_over_any_thing_is_true_or_false(predicate: Predicate, thing: dict[str, Any], may: May) -> None:
    matched = holds(predicate, thing, may)
    assert isinstance(matched, bool)
    assert holds(Not(predicate), thing, may) is not matched


@given(searches.filters(max_leaves=1), searches.things(), searches.rights())
def test_no_right_makes_a_single_predicate_true(predicate: Predicate, thing: dict[str, Any], may: May) -> None:
    if not isinstance(predicate, Not | And | Or):
        assert holds(predicate, thing) or not holds(predicate, thing, may)
        assert holds(predicate, thing, lambda path: True) is holds(predicate, thing)

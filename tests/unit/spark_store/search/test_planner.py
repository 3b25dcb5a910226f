"""Which way to the first things of an answer is taken, and how that is shown."""

from __future__ import annotations

import pytest

from spark_store.rql.ast import Field, FieldKind
from spark_store.rql.query import SortField
from spark_store.search.index_sql import NOTHING, AllThings, Intersection, RowSelect, Union
from spark_store.search.planner import AccessPath, QueryPlan, bound_of, way_to_ids

ID = SortField(Field(FieldKind.DOCUMENT, ("thingId",)))
ROOM = SortField(Field(FieldKind.DOCUMENT, ("attributes", "room")), is_descending=True)


@pytest.mark.parametrize(
    ("known", "things", "way"),
    [
        (0, 100_000, AccessPath.CANDIDATES),
        (100, 100_000, AccessPath.CANDIDATES),
        (5_000, 100_000, AccessPath.IDS),
        (100, 100, AccessPath.IDS),
        (None, 100_000, AccessPath.IDS),
    ],
)
def test_few_candidates_are_looked_up_and_many_are_met_on_the_way(
    known: int | None, things: int, way: AccessPath
) -> None:
    assert way_to_ids(known, things, 25) is way


def test_more_things_justify_more_candidates() -> None:
    assert bound_of(10, 25) == bound_of(1_000, 25) < bound_of(100_000, 25) < bound_of(1_000_000, 25) < 100_000


def test_a_plan_shows_its_sets_as_they_are_nested() -> None:
    rows = RowSelect("SELECT", (), 'eq(attributes/room,"hall")')
    plan = QueryPlan(
        AccessPath.VALUES,
        Intersection((rows, Union((rows, NOTHING)), AllThings())),
        None,
        7,
        True,
        "+thingId",
        3,
        "attributes/room",
    )
    assert str(plan).splitlines() == [
        "in the order of the sorted values; 7 things, order +thingId",
        "in all of",
        '  rows of eq(attributes/room,"hall")',
        "  in any of",
        '    rows of eq(attributes/room,"hall")',
        "    nothing",
        "  every thing",
        "candidates: too many for a list",
        "by the index of attributes/room itself",
        "evaluated without the index: 3",
    ]


def test_a_plan_reports_a_missing_index() -> None:
    plan = QueryPlan(AccessPath.IDS, AllThings(), None, 7, False, "+thingId")
    assert "the index is being built" in str(plan)

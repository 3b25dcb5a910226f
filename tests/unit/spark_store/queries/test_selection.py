"""Selections: as conditions on columns, and what a filter means for one event."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from spark_store import rql
from spark_store.queries.selection import Condition, EventSelection, conditions, implied_conditions, matches
from tests.support.table import each_row

NOON = datetime(2030, 1, 15, 12, tzinfo=UTC)
TEXT = "2030-01-15T12:00:00.000000Z"


def test_a_condition_names_every_bound() -> None:
    assert conditions(EventSelection()) == []
    berlin = NOON.astimezone(timezone(timedelta(hours=1)))
    assert conditions(EventSelection("acme:it's", "thing", "acme", 3, 9, NOON, berlin)) == [
        ("entity", "=", "acme:it's"),
        ("entity_type", "=", "thing"),
        ("namespace", "=", "acme"),
        ("revision", ">=", 3),
        ("revision", "<=", 9),
        ("ts", ">=", NOON),
        ("ts", "<", NOON),
    ]


@each_row(
    ("filter", "expected"),
    [
        ('eq(thingId,"acme:a")', [("entity", "in", ["acme:a"])]),
        ('in(thingId,"acme:a","acme:b")', [("entity", "in", ["acme:a", "acme:b"])]),
        (
            'and(eq(namespace,"acme"),gt(_revision,5),eq(attributes/x,1))',
            [("namespace", "in", ["acme"])],
        ),
        # Filters that columns cannot express exactly.
        ('or(eq(thingId,"acme:a"),eq(attributes/x,1))', []),
        ('not(eq(thingId,"acme:a"))', []),
        ('ne(thingId,"acme:a")', []),
        ('like(thingId,"acme:*")', []),
        ("eq(thingId,5)", []),
        ('in(thingId,"acme:a",5)', []),
        ('gt(thingId,"acme:a")', []),
    ],
)
def test_a_filter_gives_the_column_conditions_that_it_implies(filter: str, expected: list[Condition]) -> None:
    assert implied_conditions(rql.parse(filter)) == expected


def test_a_filter_means_things_alone() -> None:
    selection = EventSelection(predicate=rql.parse("exists(attributes/x)"))
    assert conditions(selection) == [("entity_type", "=", "thing")]


def test_a_filter_matches_only_the_values_in_the_event() -> None:
    row = ("acme:a", 5, TEXT, "modified", "/attributes/x", b"7")
    assert matches(rql.parse("and(gt(attributes/x,6),eq(_revision,5))"), row)
    assert matches(rql.parse(f'and(eq(thingId,"acme:a"),ge(_modified,"{TEXT}"))'), row)
    assert not matches(rql.parse("exists(attributes/y)"), row)
    assert not matches(rql.parse("exists(attributes/x)"), ("acme:a", 5, TEXT, "deleted", "/attributes/x", None))

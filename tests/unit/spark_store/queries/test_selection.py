"""Selections: as a condition for Spark, as a question about one event, and both the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from spark_store import rql
from spark_store.queries.selection import EventSelection, conditions, implied_conditions, matches, selects, sql
from tests.support.table import each_row

NOON = datetime(2030, 1, 15, 12, tzinfo=UTC)
TEXT = "2030-01-15T12:00:00.000000Z"


def test_a_condition_names_every_bound() -> None:
    assert sql(conditions(EventSelection())) == "1 = 1"
    berlin = NOON.astimezone(timezone(timedelta(hours=1)))
    found = sql(conditions(EventSelection("acme:it's", "thing", "acme", 3, 9, NOON, berlin)))
    assert found.split(" AND ") == [
        r"(entity = 'acme:it\'s')",
        "(entity_type = 'thing')",
        "(namespace = 'acme')",
        "(revision >= 3)",
        "(revision <= 9)",
        "(ts >= timestamp'2030-01-15T12:00:00+00:00')",
        "(ts < timestamp'2030-01-15T12:00:00+00:00')",
    ]


@each_row(
    ("filter", "expected"),
    [
        ('eq(thingId,"acme:a")', ["(entity = 'acme:a')"]),
        ('in(thingId,"acme:a","acme:b")', ["(entity in ('acme:a', 'acme:b'))"]),
        ('and(eq(namespace,"acme"),gt(_revision,5),eq(attributes/x,1))', ["(namespace = 'acme')", "(revision > 5)"]),
        (f'ge(_modified,"{TEXT}")', ["(ts >= timestamp'2030-01-15T12:00:00+00:00')"]),
        (
            'eq(_modified,"2030-01-15T13:00:00.000000999+01:00")',
            ["(ts >= timestamp'2030-01-15T12:00:00+00:00')", "(ts <= timestamp'2030-01-15T12:00:00.000001+00:00')"],
        ),
        # What a column cannot say, or not surely.
        ('or(eq(thingId,"acme:a"),eq(attributes/x,1))', []),
        ('not(eq(thingId,"acme:a"))', []),
        ('ne(thingId,"acme:a")', []),
        ('like(thingId,"acme:*")', []),
        ("eq(thingId,5)", []),
        ('in(thingId,"acme:a",5)', []),
        ('eq(_revision,"5")', []),
        ("eq(_revision,5.5)", []),
        ('gt(_modified,"soon")', []),
        ('gt(_modified,"0000-01-01T00:00:00Z")', []),
    ],
)
def test_a_filter_gives_the_column_conditions_that_it_implies(filter: str, expected: list[str]) -> None:
    assert [sql([rule]) for rule in implied_conditions(rql.parse(filter))] == expected


def test_a_filter_means_things_alone() -> None:
    selection = EventSelection(predicate=rql.parse("exists(attributes/x)"))
    assert sql(conditions(selection)) == "(entity_type = 'thing')"
    assert selects(selection, "thing", "acme:a", 1, TEXT)
    assert not selects(selection, "policy", "acme:a", 1, TEXT)


@each_row(
    ("selection", "expected"),
    [
        (EventSelection(), True),
        (EventSelection(entity="acme:a", entity_type="thing", namespace="acme"), True),
        (EventSelection(entity="acme:b"), False),
        (EventSelection(entity_type="policy"), False),
        (EventSelection(namespace="acm"), False),
        (EventSelection(first=5, last=5), True),
        (EventSelection(first=6), False),
        (EventSelection(last=4), False),
        (EventSelection(since=NOON), True),
        (EventSelection(until=NOON), False),
        (EventSelection(since=NOON + timedelta(microseconds=1)), False),
        (EventSelection(until=NOON + timedelta(microseconds=1)), True),
    ],
)
def test_one_event_is_asked_the_same(selection: EventSelection, expected: bool) -> None:
    assert selects(selection, "thing", "acme:a", 5, TEXT) is expected


def test_a_filter_matches_only_the_values_in_the_event() -> None:
    row = ("acme:a", 5, NOON, "modified", "/attributes/x", "7")
    assert matches(rql.parse("and(gt(attributes/x,6),eq(_revision,5))"), row)
    assert matches(rql.parse(f'and(eq(thingId,"acme:a"),ge(_modified,"{TEXT}"))'), row)
    assert not matches(rql.parse("exists(attributes/y)"), row)
    assert not matches(rql.parse("exists(attributes/x)"), ("acme:a", 5, NOON, "deleted", "/attributes/x", None))

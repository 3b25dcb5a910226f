"""Binding: which properties there are, for which operators, and what instants and times become."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_store.errors import UnknownProperty
from spark_store.rql import parse, resolve_times
from spark_store.rql.ast import Compare, Field, FieldKind, Literal, LiteralKind, Operator
from spark_store.rql.binding import bind, fixed_width
from tests.support.table import each_row

NOW = datetime(2030, 1, 15, 7, 30, 0, 250000, tzinfo=UTC)

EVERYWHERE = [
    "thingId",
    "policyId",
    "definition",
    "namespace",
    "_namespace",
    "_revision",
    "_created",
    "_modified",
    "_metadata",
    "_metadata/attributes/n/unit",
    "attributes/n",
    "attributes/site/hall",
    "features/lamp/definition",
    "features/lamp/properties/on",
    "features/lamp/properties/power/kw",
    "features/lamp/desiredProperties/on",
    "features/*/properties/on",
]
PRESENCE_ONLY = ["features/lamp", "features/*", "features/lamp/properties", "features/lamp/desiredProperties"]
NOWHERE = [
    "attributes",
    "attributes/",
    "features",
    "unknown",
    "thingId/x",
    "definition/x",
    "_revision/x",
    "_policy",
    "features/lamp/definition/0",
    "features/lamp/other",
    "features/lamp/other/on",
    "attributes//n",
    "topic:action",
    "resource:path",
    "time:now",
    " attributes/n",
    "/",
]


@each_row("name", EVERYWHERE)
@each_row("operator", [Operator.EQ, Operator.ILIKE, Operator.IN, Operator.EXISTS, Operator.EMPTY])
def test_a_property_that_holds_values_is_known_to_every_operator(name: str, operator: Operator) -> None:
    assert bind(name, operator) == bind(f"/{name}", operator)


@pytest.mark.parametrize("name", PRESENCE_ONLY)
def test_a_property_that_is_always_an_object_supports_only_exists_and_empty(name: str) -> None:
    assert (
        bind(name, Operator.EXISTS) == bind(name, Operator.EMPTY) == Field(FieldKind.DOCUMENT, tuple(name.split("/")))
    )
    for operator in (Operator.EQ, Operator.LIKE, Operator.IN):
        with pytest.raises(UnknownProperty):
            bind(name, operator)


@each_row("name", NOWHERE)
@each_row("operator", [Operator.EQ, Operator.EXISTS])
def test_an_unknown_property_is_named_in_the_error(name: str, operator: Operator) -> None:
    with pytest.raises(UnknownProperty) as caught:
        bind(name, operator)
    assert caught.value.fault.message == f"Unknown property name: {name}"
    assert caught.value.fault.error == "rql.expression.invalid"


def test_of_a_long_name_the_message_has_the_beginning() -> None:
    with pytest.raises(UnknownProperty) as caught:
        bind("x" * 60_000, Operator.EQ)
    assert caught.value.fault.message == f"Unknown property name: {'x' * 200}…"


def test_both_spellings_of_the_namespace_are_one_field() -> None:
    assert bind("namespace", Operator.EQ) == bind("_namespace", Operator.EQ)


def test_a_tilde_in_a_property_is_written_as_in_a_path() -> None:
    assert bind("attributes/a~0b", Operator.EQ).path == ("attributes", "a~b")


@each_row(
    ("text", "fixed"),
    [
        ("2030-01-15T07:30:00Z", "2030-01-15T07:30:00.000000000Z"),
        ("2030-01-15T07:30:00.25Z", "2030-01-15T07:30:00.250000000Z"),
        ("2030-01-15T07:30:00.123456789Z", "2030-01-15T07:30:00.123456789Z"),
        ("2030-01-15T07:30:00.5+02:00", "2030-01-15T05:30:00.500000000Z"),
        ("2030-01-01T00:00:00+00:30", "2029-12-31T23:30:00.000000000Z"),
        ("0001-01-01T00:00:00+00:30", "0001-01-01T00:00:00+00:30"),
        ("2030-13-15T07:30:00+02:00", "2030-13-15T07:30:00+02:00"),
        ("2030-01-15", "2030-01-15"),
        ("2030-01-15T07:30Z", "2030-01-15T07:30Z"),
        ("", ""),
    ],
)
def test_an_instant_has_one_fixed_width_form_and_other_text_stays(text: str, fixed: str) -> None:
    assert fixed_width(text) == fixed


OFFSETS = st.integers(-18 * 60, 18 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
MOMENTS = st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31), timezones=OFFSETS)


@given(MOMENTS, MOMENTS)
def test_the_order_of_fixed_width_texts_is_the_order_of_instants(left: datetime, right: datetime) -> None:
    before = fixed_width(left.isoformat()) < fixed_width(right.isoformat())
    assert before == (left.astimezone(UTC) < right.astimezone(UTC))


@given(st.text(max_size=35))
def test_any_text_has_a_form(text: str) -> None:
    assert fixed_width(fixed_width(text)) == fixed_width(text)


def test_an_instant_is_put_into_fixed_width_only_beside_an_instant() -> None:
    text = "2030-01-15T07:30:00+01:00"
    assert parse(f"gt(_modified,'{text}')") == parse("gt(_modified,'2030-01-15T06:30:00Z')")
    assert parse(f"gt(attributes/t,'{text}')") != parse("gt(attributes/t,'2030-01-15T06:30:00Z')")


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("time:now", "2030-01-15T07:30:00.250Z"),
        ("time:now_epoch_millis", "1894692600250"),
        ("time:now-2h", "2030-01-15T05:30:00.250Z"),
        ("time:now-1d[d]", "2030-01-14T00:00:00Z"),
        ("time:now[h]", "2030-01-15T07:00:00Z"),
    ],
)
def test_a_time_becomes_a_text_for_the_given_now(expression: str, text: str) -> None:
    resolved = resolve_times(parse(f"eq(attributes/t,{expression})"), NOW)
    assert resolved == parse(f"eq(attributes/t,'{text}')")


def test_times_are_resolved_at_any_depth_and_beside_instants_in_fixed_width() -> None:
    written = "not(and(in(attributes/t,1,time:now), or(lt(_modified,time:now), exists(attributes/t))))"
    expected = written.replace("time:now", "'2030-01-15T07:30:00.250Z'")
    assert resolve_times(parse(written), NOW) == parse(expected)


@pytest.mark.parametrize("expression", ["soon", "now-1", "now+999999999999y", "now-999999999999d", "now[x]"])
def test_an_invalid_time_expression_stays_an_unresolved_time_literal(expression: str) -> None:
    predicate = parse(f"eq(attributes/t,time:{expression})")
    assert resolve_times(predicate, NOW) == predicate
    assert isinstance(predicate, Compare)
    assert predicate.literal == Literal(LiteralKind.TIME, expression)

"""Templates: every line of the vector file, the results of parsing, and only documented errors."""

from __future__ import annotations

import contextlib
import json
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappings.errors import InvalidSignature, PlaceholderError, UnknownPlaceholder, Unresolved
from mappings.ids import EntityId, EntityType
from mappings.model.topic_path import TopicPath
from mappings.placeholders.functions import FUNCTIONS
from mappings.placeholders.resolution import ResolutionState
from mappings.placeholders.template import (
    DELETED,
    UNRESOLVED,
    PlaceholderContext,
    Resolution,
    Scope,
    parse,
    parse_operand,
)
from tests.support.cpu_budget import at_most
from tests.support.dice import examples
from tests.support.paths import VECTORS
from tests.support.table import each_row

CASES = VECTORS / "placeholders.txt"

CALLS = (
    "fn:base64-decode()",
    "fn:base64-encode()",
    "fn:default(header:b)",
    "fn:filter('like',header:b)",
    "fn:filter(header:b,'exists')",
    "fn:filter(header:b,'ne','x')",
    "fn:format('{a}{#b}{.}{/b}')",
    "fn:join('-')",
    "fn:lower()",
    "fn:replace('','x')",
    "fn:replace('a',header:b)",
    "fn:split('')",
    "fn:split(',')",
    "fn:split('\\s+')",
    "fn:substring-after('')",
    "fn:substring-before('a')",
    "fn:trim()",
    "fn:upper()",
    "fn:url-decode()",
    "fn:url-encode()",
)

LAMP = EntityId(EntityType.THING, "acme.site", "lamp-7")
NOW = datetime(2030, 1, 15, 7, 31, 42, 250_000, UTC)
THING = {
    "attributes": {
        "driver": "Mo",
        "axles": [3, "4"],
        "ok": False,
        "load": 2.5,
        "gone": None,
        "site": {"hall": 5},
    },
    "attributes.dot": 1,
}


def context(headers: dict[str, object] | None = None) -> PlaceholderContext:
    """The context that the vector file describes, with these headers."""
    return PlaceholderContext(
        headers=headers or {},
        entity=LAMP,
        topic=TopicPath("acme.site", "lamp-7", "things", "twin", "events", "modified"),
        resource_path="/features/tank/properties/level",
        resource_type="thing",
        feature_ids=("tank",),
        thing_json=THING,
        connection_id="plant-9",
        subjects=("acme:reader", "acme:night"),
        source_address="devices/lamp-7/up",
        now=lambda: NOW,
    )


class Vector(NamedTuple):
    number: int
    expression: str
    headers: dict[str, object]
    result: str

    def __str__(self) -> str:
        return f"line {self.number}: {self.expression[:40]}"


def vectors() -> Iterator[Vector]:
    for number, line in enumerate(CASES.read_text(encoding="utf-8").splitlines(), 1):
        if line and not line.startswith("#"):
            expression, headers, result = line.split(" ;; ")
            yield Vector(number, expression, json.loads(headers), result)


def outcome(vector: Vector) -> Resolution | str:
    try:
        return parse(vector.expression).resolve(context(vector.headers))
    except PlaceholderError as error:
        return f"error {error.fault.error}" if error.status == 400 else f"status {error.status}"


def expected(vector: Vector) -> Resolution | str:
    if vector.result.startswith("error "):
        return vector.result
    states = {"unresolved": UNRESOLVED, "deleted": DELETED}
    if vector.result in states:
        return states[vector.result]
    values = json.loads(vector.result)
    return Resolution(ResolutionState.RESOLVED, tuple(values) if isinstance(values, list) else (values,))


@each_row("vector", list(vectors()), ids=str)
def test_an_expression_resolves_to_the_result_in_its_vector(vector: Vector) -> None:
    assert outcome(vector) == expected(vector)


def test_a_template_is_parsed_once() -> None:
    assert parse("{{ thing:id }}") is parse("{{ thing:id }}")


def test_a_resolution_offers_its_first_value() -> None:
    assert parse("{{ request:subjectId }}").resolve(context()).first == "acme:reader"
    assert UNRESOLVED.first is None


def test_the_names_of_a_template_include_those_in_arguments() -> None:
    template = parse("a/{{ header:Reply-To | fn:default(thing:id) }}/{{ time:now-1h }}")
    assert template.names == {"header:reply-to", "thing:id", "time:now-1h"}
    assert template.prefixes == {"header", "thing", "time"}
    assert not template.is_constant


@pytest.mark.parametrize("text", ["", "plain", "{{ fn:default('x') }}"])
def test_a_template_without_placeholders_is_constant(text: str) -> None:
    assert parse(text).is_constant


def test_ten_functions_are_fine_and_eleven_are_too_complex() -> None:
    assert parse("{{ header:a" + " | fn:trim()" * 10 + " }}").resolve(context({"a": " x "})).first == "x"
    with pytest.raises(InvalidSignature) as raised:
        parse("{{ header:a" + " | fn:trim()" * 11 + " }}")
    assert raised.value.fault.error == "placeholder:function.too.complex"
    assert "11 functions, expected at most 10" in raised.value.fault.message


def test_an_error_names_the_nearest_known_name() -> None:
    with pytest.raises(UnknownPlaceholder) as raised:
        parse("{{ thing:nam }}")
    assert "Did you mean name?" in str(raised.value.fault.description)


@each_row(
    ("scope", "allowed", "refused"),
    [
        (Scope.COMMON, "{{ connection:id }}", "{{ source:address }}"),
        (Scope.SOURCE, "{{ source:address }}", "{{ policy:id }}"),
        (Scope.AUTHORIZATION, "acme:{{ header:device }}", "{{ thing:id }}"),
        (Scope.ENFORCEMENT_INPUT, "{{ source:address }}", "{{ thing:id }}"),
        (Scope.ENFORCEMENT_INPUT, "{{ header:device }}", "{{ entity:id }}"),
        (Scope.ENFORCEMENT_INPUT_HEADER, "{{ header:device }}", "{{ source:address }}"),
        (Scope.ENFORCEMENT_INPUT_ADDRESS, "{{ source:address }}", "{{ header:device }}"),
        (Scope.ENFORCEMENT_FILTER, "{{ policy:id }}", "{{ header:device }}"),
        (Scope.LABEL, "{{ connection:id }}:stored", "{{ header:x | fn:default(connection:id) }}"),
    ],
)
def test_a_scope_decides_which_placeholders_may_be_used(scope: Scope, allowed: str, refused: str) -> None:
    parse(allowed, scope)
    with pytest.raises(UnknownPlaceholder):
        parse(refused, scope)


def test_a_placeholder_of_another_scope_is_refused_in_arguments_too() -> None:
    with pytest.raises(UnknownPlaceholder):
        parse("{{ header:a | fn:default(thing:id) }}", Scope.AUTHORIZATION)


def test_enforcement_filters_read_things_and_policies_apart() -> None:
    policy = PlaceholderContext(entity=EntityId(EntityType.POLICY, "acme.site", "pol-7"))
    resolved = {
        text: parse(text, Scope.ENFORCEMENT_FILTER).resolve(policy).first
        for text in ("{{ policy:id }}", "{{ entity:id }}", "{{ thing:id }}")
    }
    assert resolved == {
        "{{ policy:id }}": "acme.site:pol-7",
        "{{ entity:id }}": "acme.site:pol-7",
        "{{ thing:id }}": None,
    }


def test_an_operand_is_an_expression_without_braces() -> None:
    assert parse_operand("topic:action").resolve(context()).values == ("modified",)
    with pytest.raises(UnknownPlaceholder):
        parse_operand("connection:id")


def test_the_representation_of_a_template_shows_its_text() -> None:
    assert "'{{ thing:id }}'" in repr(parse("{{ thing:id }}"))


def test_more_combinations_than_the_bound_are_an_error() -> None:
    headers: dict[str, object] = {"a": ["x"] * 200}
    assert len(parse("{{ header:a }}").resolve(context(headers)).values) == 200
    with pytest.raises(Unresolved, match="40000 values"):
        parse("{{ header:a }}{{ header:a }}").resolve(context(headers))


def test_a_result_beyond_the_bound_is_refused_before_it_takes_memory() -> None:
    """Sixteen million characters would come of it."""
    headers: dict[str, object] = {"a": "a" * 4_000, "b": "b" * 4_000}
    template = parse("{{ header:a | fn:replace('a',header:b) }}")
    tracemalloc.start()
    try:
        with pytest.raises(Unresolved):
            template.resolve(context(headers))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@each_row(
    ("expression", "headers"),
    [
        ("{{ header:a | fn:split('(a+)(a+)b') }}", {"a": "a" * 4_000}),
        ("{{ header:a | fn:split('" + "|".join(["a+b"] * 50) + "') }}", {"a": "a" * 800}),
        ("{{ header:a | fn:split('" + "(a|a)" * 39 + "b') }}", {"a": "a" * 160_000}),
        ("{{ header:a | fn:split('\\s*,\\s*') }}", {"a": " " * 4_000}),
        ("{{ header:a | fn:filter('like','*a*a*a*a*a*a*b') }}", {"a": "a" * 16_000}),
        ("{{ header:a | fn:filter('like',header:p) }}", {"a": "a" * 4_000, "p": "*" + "a" * 2_000 + "b"}),
        ("{{ " * 5_000, {}),
        ("{{ '" * 5_000, {}),
        ("{{ header:a | fn:default('" + "\\'" * 50_000, {}),
        ("{{ header:a | fn:default(" + "header:a," * 10_000 + ") }}", {}),
        ("{{ header:a | fn:format('" + "{#a}" * 2_000 + "') }}", {"a": {"a": 1}}),
        ("{{ header:a | fn:format('{b}{b}{b}{b}{b}{b}{b}{b}') }}", {"a": {"b": [1] * 100}}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_no_text_and_no_value_keeps_the_service_busy(expression: str, headers: dict[str, object]) -> None:
    with at_most(1.0), contextlib.suppress(PlaceholderError):
        parse(expression).resolve(context(headers))


texts = st.text(st.characters(), max_size=40)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
calls = st.sampled_from([*CALLS, *(f"fn:{name}()" for name in FUNCTIONS), *(f"fn:{name}('a')" for name in FUNCTIONS)])
fragments = st.one_of(
    texts,
    calls,
    st.sampled_from(["{{", "}}", "${", "}", "|", "'", '"', "\\'", "(", ")", ",", " | ", "fn:", "{{ header:a | "]),
    st.sampled_from(["header:a", "thing:id", "time:now", "thing-json:attributes", "request:subjectId"]),
)


def resolve(text: str, a: object, b: object) -> Resolution | PlaceholderError:
    """The outcome of resolving; anything but a PlaceholderError goes through."""
    try:
        return parse(text).resolve(context({"a": a, "b": b}))
    except PlaceholderError as error:
        return error


def is_promised(outcome: Resolution | PlaceholderError) -> bool:
    if isinstance(outcome, PlaceholderError):
        return outcome.status == 400 and outcome.fault.error.startswith("placeholder:")
    is_text = all(isinstance(value, str) for value in outcome.values)
    return is_text and (outcome.state is ResolutionState.RESOLVED) == bool(outcome.values)


@settings(max_examples=examples(150))
@given(st.lists(fragments, max_size=12).map("".join), json_values, json_values)
def test_any_text_is_a_template_or_a_placeholder_error(text: str, a: object, b: object) -> None:
    assert is_promised(resolve(text, a, b))


@settings(max_examples=examples(150))
@given(st.lists(st.sampled_from(CALLS), max_size=10), json_values, json_values)
def test_any_chain_of_functions_takes_any_value(functions: list[str], a: object, b: object) -> None:
    outcome = resolve("{{ " + " | ".join(["header:a", *functions]) + " }}", a, b)
    assert is_promised(outcome)
    assert isinstance(outcome, (Resolution, Unresolved))


@settings(max_examples=examples(50))
@given(texts.filter(lambda text: "{{" not in text and "${" not in text))
def test_text_without_expressions_stays_as_it_is(text: str) -> None:
    assert parse(text).resolve(context()).values == (text,)

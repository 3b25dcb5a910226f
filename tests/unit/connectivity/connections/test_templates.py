"""Paths and values as problems show them, and the rules that all types share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectivity.config.problems import did_you_mean, json_path, show
from connectivity.connections.templates import check_template, has_expression, with_connection_id, with_dummies
from mappings.placeholders.template import Scope
from tests.support.table import each_row


@each_row(
    ("steps", "path"),
    [
        ((), "$"),
        (("sources", 0, "replyTarget", "address"), "sources[0].replyTarget.address"),
        ((0, "id"), "[0].id"),
        (("headerMapping", "correlation-id"), "headerMapping.correlation-id"),
        (("headerMapping", "mqtt.topic"), 'headerMapping["mqtt.topic"]'),
        (("a", 'b"c'), 'a["b\\"c"]'),
        (("a", ""), 'a[""]'),
        (("a", True), "a[true]"),
    ],
)
def test_design_8_08_a_path_reads_like_the_document(steps: tuple[object, ...], path: str) -> None:
    assert json_path(*steps) == path


@each_row(
    ("value", "shown"),
    [
        (None, "null"),
        (True, "true"),
        (1.5, "1.5"),
        ("a\nb", '"a\\nb"'),
        ("ä", '"ä"'),
        ("\ud800", '"\\ud800"'),
        ({"a": 1}, "an object"),
        ([], "an empty list"),
        ([1, 2], "a list of 2"),
        ("x" * 200, '"' + "x" * 120 + '…"'),
        (b"x", "a bytes"),
    ],
)
def test_a_value_is_shown_short_and_on_one_line(value: object, shown: str) -> None:
    assert show(value) == shown


@given(st.text())
def test_a_shown_text_is_always_printable_on_one_line(text: str) -> None:
    assert "\n" not in show(text).encode("utf-8").decode()


def test_a_hint_names_the_nearest_name_if_there_is_one() -> None:
    assert did_you_mean("adress", ["address", "enabled"]) == "did you mean address?"
    assert did_you_mean("zzz", ["address"]) is None
    assert did_you_mean(5, ["address"]) is None


def test_expressions_are_seen_readable_or_not() -> None:
    assert [has_expression(text) for text in ("a/b", "a{b}", "{{ thing:id }}", "{{ nope }}", "{{ open")] == [
        False,
        False,
        True,
        True,
        True,
    ]


def test_dummies_represent_expressions() -> None:
    assert with_dummies("a/{{ thing:id | fn:replace('/','#') }}#{{ thing:name }}") == "a/x#x"
    assert with_dummies("a/{{ nope }}") == "x"


@pytest.mark.parametrize("text", ["{{connection:id}}:a", "{{ connection:id }}:a", "${connection:id}:a"])
def test_5_6_the_connections_id_is_put_into_labels(text: str) -> None:
    assert with_connection_id(text, r"de\1pot") == r"de\1pot:a"


def test_a_template_problem_reads_as_one_sentence() -> None:
    (problem,) = check_template("address", "alarms/{{ thing:nam }}", Scope.COMMON)
    assert "could not be resolved, expected one of id, namespace, name after 'thing:', in addresses" in str(problem)
    assert str(problem).endswith("(did you mean name?)")


def test_a_name_of_any_length_makes_a_path_that_can_be_shown() -> None:
    assert len(json_path("sources", 0, "x" * 5000)) < 200
    assert json_path("sources", 0, "x" * 120) == f"sources[0].{'x' * 120}"

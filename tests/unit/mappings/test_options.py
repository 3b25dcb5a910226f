"""Options of payload mappers: read once, every problem with its place."""

from __future__ import annotations

from typing import Any

import pytest

from mappings.options import (
    FAILED,
    INVALID,
    InvalidMapperOptions,
    Option,
    OptionProblem,
    flag,
    json_template,
    names,
    read_options,
    selection,
    template,
    templates,
    text,
)
from mappings.placeholders.template import PlaceholderContext, Template
from tests.support.table import each_row

TABLE = (
    Option("id", template, "An id.", "x", is_required=True),
    Option("headers", templates, "Headers.", {}, {"a": "{{ header:b }}"}),
    Option("thing", json_template, "A thing.", {}),
    Option("fields", selection, "Fields.", "a"),
    Option("loud", flag, "Loud.", True, False),
    Option("called", text, "A name.", "x", "y"),
    Option("kinds", names, "Kinds.", "a,b", ""),
)


def problems(**written: Any) -> list[OptionProblem]:
    with pytest.raises(InvalidMapperOptions) as caught:
        read_options(TABLE, written)
    return list(caught.value.problems)


def test_an_omitted_option_has_its_default_or_no_value() -> None:
    found = read_options(TABLE, {"id": "x"})
    assert found["headers"].apply(PlaceholderContext(headers={"b": "1"})) == {"a": "1"}
    assert (found["thing"], found["loud"], found["called"], found["kinds"]) == (None, False, "y", frozenset())


def test_null_is_treated_as_not_written() -> None:
    assert read_options(TABLE, {"id": "x", "loud": None})["loud"] is False
    assert [problem.steps for problem in problems(id=None)] == [("id",)]


def test_every_problem_is_named_at_once() -> None:
    found = problems(hedaers={}, loud="loudly", fields="a(", thing={"a": ["{{ header:x }}", "{{ nope:x }}"]})
    assert [(problem.steps, problem.code) for problem in found] == [
        (("hedaers",), INVALID),
        (("id",), INVALID),
        (("thing", "a", 1), FAILED),
        (("fields",), FAILED),
        (("loud",), INVALID),
    ]
    assert found[0].nearest == "headers"


@each_row(
    ("name", "value", "steps"),
    [
        ("id", "", ("id",)),
        ("id", 7, ("id",)),
        ("id", "{{ thing:id }}", ("id",)),
        ("headers", "x", ("headers",)),
        ("headers", {"a": "x", "b": ["x"]}, ("headers", "b")),
        ("headers", {"a": "{{ header:x", "b": None}, ("headers", "a")),
        ("thing", {"a": "${header:}"}, ("thing", "a")),
        ("fields", ["a"], ("fields",)),
        ("called", "", ("called",)),
        ("kinds", ["a"], ("kinds",)),
    ],
)
def test_an_invalid_value_of_an_option_is_refused_at_its_path(name: str, value: Any, steps: tuple[str, ...]) -> None:
    assert problems(**{"id": "x", name: value})[0].steps == steps


def test_a_template_may_use_the_placeholders_of_a_delivery() -> None:
    written = "{{ header:a }} {{ request:subjectId }} {{ time:now }} {{ connection:id }}"
    assert isinstance(read_options(TABLE, {"id": written})["id"], Template)


def test_a_value_of_headers_may_be_a_number_or_a_truth() -> None:
    found = read_options(TABLE, {"id": "x", "headers": {"a": True, "b": False, "c": 1.5}})["headers"]
    assert found.apply(PlaceholderContext()) == {"a": "true", "b": "false", "c": "1.5"}


def test_texts_without_expressions_stay_as_they_are() -> None:
    value = {"a": ["x", 1, None, True, {"{{ header:a }}": "keys are no templates"}], "b": "${env:HOME}"}
    found = read_options(TABLE, {"id": "x", "thing": value})["thing"]
    assert found["a"] == value["a"]


def test_the_fault_names_the_first_problem() -> None:
    with pytest.raises(InvalidMapperOptions, match=r"config\.invalid: The option 'id' is invalid"):
        read_options(TABLE, {})

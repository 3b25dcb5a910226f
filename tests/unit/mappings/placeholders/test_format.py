"""The small templates of `fn:format`."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappings.errors import Unresolved
from mappings.placeholders.format import parse_format
from tests.support.acceptance import accepted, accepts
from tests.support.dice import examples
from tests.support.table import each_row

PORTS = {"id": "sw-1", "ports": [{"n": 1, "tags": ["a", "b"]}, {"n": 2}], "plain": ["x", "y"], "at": {"hall": 5}}


@each_row(
    ("template", "results"),
    [
        ("", [""]),
        ("text", ["text"]),
        ("{id}", ["sw-1"]),
        ("{at}", ['{"hall":5}']),
        ("{/at/hall}", ["5"]),
        ("{nope}-{/at/nope}", ["-"]),
        ("{plain}", ["x", "y"]),
        ("{id}.{plain}", ["sw-1.x", "sw-1.y"]),
        ("{#plain}<{.}>{/plain}", ["<x>", "<y>"]),
        ("{#ports}{n}{/ports}", ["1", "2"]),
        ("{#ports}{n}{#tags}{.}{/tags}{/ports}", ["1a", "1b", "2"]),
        ("{id}{#ports}/{n}{/ports}", ["sw-1/1", "sw-1/2"]),
        ("{#at}{hall}{/at}", ["5"]),
        ("{#nope}x{/nope}", [""]),
        ("{#plain}{n}{/plain}", ["", ""]),
        (r"\{{id}\}", ["{sw-1}"]),
        (r"a\b", [r"a\b"]),
        ("{", ["{"]),
        ("{}", ["{}"]),
    ],
)
def test_a_template_formats_an_object(template: str, results: list[str]) -> None:
    assert parse_format(template)(json.dumps(PORTS)) == results


@each_row("text", ["", "x", "1", "[1]", "null", '"a"', "{", '{"a":1}x', "[" * 5000])
def test_a_text_that_is_not_an_object_has_no_result(text: str) -> None:
    assert parse_format("x{id}")(text) == []


@pytest.mark.parametrize("template", ["{#a}", "{#a}{/b}", "{#a}{#b}{/a}{/b}", "{/a//b}", "{#/a//b}x{//a//b}"])
def test_a_section_that_is_not_closed_or_a_wrong_pointer_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match=r"found|invalid"):
        parse_format(template)


def test_more_results_than_the_bound_are_an_error() -> None:
    with pytest.raises(Unresolved):
        parse_format("{a}{a}{a}")(json.dumps({"a": list(range(100))}))


@accepts(at_least=3)
@settings(max_examples=examples(100))
@given(st.text("{}#/.\\ab", max_size=16), st.text(max_size=8))
def test_any_template_is_read_or_refused(template: str, value: str) -> None:
    try:
        write = parse_format(template)
    except ValueError:
        return
    accepted()
    assert all(isinstance(result, str) for result in write(json.dumps({"a": value, "b": [value, {"a": 1}]})))

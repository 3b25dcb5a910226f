"""The table of functions: every example has its result, and every wrong call an error with the fix."""

from __future__ import annotations

import base64
from urllib.parse import quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappings.errors import InvalidSignature, Unresolved
from mappings.placeholders.functions import FUNCTIONS, MAX_WORK, Function, build_stage
from mappings.placeholders.resolution import MAX_CHARACTERS, Resolution, ResolutionState
from mappings.placeholders.template import parse
from mappings.placeholders.values import PlaceholderContext
from tests.support.cpu_budget import at_most
from tests.support.dice import examples
from tests.support.table import each_row

NAMES = (
    "filter, default, substring-before, substring-after, lower, upper, trim, url-encode, url-decode, base64-encode, "
    "base64-decode, replace, split, join, delete, format"
)


def resolve(expression: str, **headers: object) -> Resolution:
    return parse(expression).resolve(PlaceholderContext(headers=headers))


def test_the_table_holds_every_function() -> None:
    assert sorted(FUNCTIONS) == sorted(NAMES.split(", "))


@each_row("row", FUNCTIONS.values(), ids=lambda row: row.name)
def test_the_example_of_a_function_has_the_documented_result(row: Function) -> None:
    example = row.example
    resolution = parse(example.expression).resolve(PlaceholderContext(headers=example.headers))
    if isinstance(example.result, ResolutionState):
        assert resolution == Resolution(example.result)
    else:
        assert resolution == Resolution(ResolutionState.RESOLVED, example.result)
    assert f"fn:{row.name}(" in example.expression


@each_row("row", FUNCTIONS.values(), ids=lambda row: row.name)
def test_a_function_keeps_unresolved_and_deleted_by_default(row: Function) -> None:
    arguments = {"filter": "'eq','x'", "replace": "'a','b'"}.get(row.name, "'x'" if "'" in row.calls[0] else "")
    unresolved = resolve(f"{{{{ header:nope | fn:{row.name}({arguments}) }}}}").state
    deleted = resolve(f"{{{{ fn:delete() | fn:{row.name}({arguments}) }}}}").state
    assert unresolved is {"default": ResolutionState.RESOLVED, "delete": ResolutionState.DELETED}.get(
        row.name, ResolutionState.UNRESOLVED
    )
    changed = {
        "join": ResolutionState.UNRESOLVED,
        "split": ResolutionState.UNRESOLVED,
        "format": ResolutionState.RESOLVED,
    }
    assert deleted is changed.get(row.name, ResolutionState.DELETED)


@each_row("row", FUNCTIONS.values(), ids=lambda row: row.name)
def test_an_unreadable_call_gets_an_error_with_the_expected_form(row: Function) -> None:
    with pytest.raises(InvalidSignature) as raised:
        build_stage(row.name, None)
    fault = raised.value.fault
    assert (fault.status, fault.error) == (400, "placeholder:function.signature.invalid")
    assert row.calls[0] in str(fault.description)


@each_row(
    "call",
    [
        *("lower('a')", "upper(header:a)", "trim('')", "delete('a')", "default()", "split()", "filter()"),
        *("substring-before()", "substring-after(header:a)", "format(header:a)", "join('a','b')", "join(header:a)"),
        *("replace('a')", "replace('a','b','c')", "filter('eq')", "filter('a','b','c','d')", "filter('a','gt','b')"),
        "filter('a',header:op,'b')",
    ],
)
def test_arguments_that_a_function_does_not_take_are_refused(call: str) -> None:
    with pytest.raises(InvalidSignature) as raised:
        parse(f"{{{{ header:a | fn:{call} }}}}")
    assert raised.value.fault.error == "placeholder:function.signature.invalid"


@each_row(
    ("pattern", "value", "fits"),
    [
        ("a*", "a", True),
        ("a*", "abc", True),
        ("*c", "abc", True),
        ("*b*", "abc", True),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("b", "abc", False),
        ("x|abc|y", "abc", True),
        ("x|y", "x|y", False),
        ("a.c", "abc", False),
        ("[a]", "a", False),
        ("[!b]", "a", False),
        ("*", "a\nb", True),
        ("", "", True),
        ("ABC", "abc", False),
    ],
)
def test_like_knows_any_run_one_character_and_alternatives(pattern: str, value: str, fits: bool) -> None:
    resolution = resolve("{{ header:a | fn:filter('like',header:p) }}", a=value, p=pattern)
    assert resolution.is_resolved is fits


def test_values_too_long_to_be_compared_are_an_error() -> None:
    side = "a" * (int(MAX_WORK**0.5) + 1)
    with pytest.raises(Unresolved, match="too long for a comparison"):
        resolve("{{ header:a | fn:filter(header:a,'like',header:a) }}", a=side)
    with pytest.raises(Unresolved, match="too long for a comparison"):
        resolve("{{ header:a | fn:filter('like',header:a) }}", a=side)


def test_too_many_values_to_be_compared_are_an_error() -> None:
    """Each combination takes a call, however short the values are."""
    side = [str(number) for number in range(300)]
    for expression in (
        "{{ header:a | fn:filter(header:a,'ne',header:a) }}",
        "{{ header:a | fn:filter('ne',header:a) }}",
    ):
        with pytest.raises(Unresolved, match="found 300 and 300 values, which are too long for a comparison"):
            resolve(expression, a=side)


def test_equal_values_are_compared_once() -> None:
    many = ["x", "y"] * 4_000
    with at_most(0.1):
        assert not resolve("{{ header:a | fn:filter(header:a,'like',header:b) }}", a=many, b=["z"] * 8_000).is_resolved
        assert resolve("{{ header:a | fn:filter('ne',header:b) }}", a=many, b=["y"] * 8_000).values == ("x",) * 4_000


def test_the_patterns_of_clients_are_compiled_once_and_not_too_many() -> None:
    """Compiling takes a thousand times as long as comparing. An operator's patterns are compiled once in all."""
    values, patterns = [f"{number}" for number in range(40)], [f"{number}x*" for number in range(400)]
    with at_most(0.3):
        for expression in (
            "{{ header:a | fn:filter(header:a,'like',header:b) }}",
            "{{ header:a | fn:filter('like',header:b) }}",
        ):
            assert not resolve(expression, a=values, b=patterns).is_resolved
            with pytest.raises(Unresolved, match="too long for a comparison"):
                resolve(expression, a="a", b="|".join(patterns * 4))
    written = "|".join(patterns * 4)
    assert not resolve(f"{{{{ header:a | fn:filter('like','{written}') }}}}", a="a").is_resolved


HALF = "a" * (MAX_CHARACTERS // 2 + 1)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("{{ header:a | fn:replace('a',header:a) }}", "a" * 2000),
        ("{{ header:a | fn:join('" + "x" * 2000 + "') }}", ["a"] * 2000),
        ("{{ header:a | fn:format('{b}{b}') }}", {"b": HALF}),
        ("{{ header:a }}{{ header:a }}", HALF),
        ("{{ header:a | fn:upper() }}", HALF + HALF),
    ],
    ids=["replace", "join", "format", "concatenation", "upper"],
)
def test_a_result_beyond_the_bound_is_an_error(expression: str, value: object) -> None:
    with pytest.raises(Unresolved, match="expected at most"):
        resolve(expression, a=value)


@settings(max_examples=examples(50))
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_encoding_and_decoding_gives_back_the_text(text: str) -> None:
    for kind in ("url", "base64"):
        both = f"{{{{ header:a | fn:{kind}-encode() | fn:{kind}-decode() }}}}"
        assert resolve(both, a=text).values == (text,)
    assert resolve("{{ header:a | fn:base64-encode() }}", a=text).first == base64.b64encode(text.encode()).decode()
    assert resolve("{{ header:a | fn:url-decode() }}", a=quote_plus(text)).first == text

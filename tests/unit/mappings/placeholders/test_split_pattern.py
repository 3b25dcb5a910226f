"""Separators of `fn:split`: what Java's split does, without what makes regular expressions slow."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappings.errors import Unresolved
from mappings.placeholders.split_pattern import MAX_STEPS, splitter
from tests.support.acceptance import accepted, accepts
from tests.support.dice import examples
from tests.support.table import each_row


def split(separator: str, *texts: str) -> list[str]:
    return list(splitter(separator)(texts))


@each_row(
    ("separator", "text", "parts"),
    [
        (",", "a,b", ["a", "b"]),
        (",", "ab", ["ab"]),
        (",", "", [""]),
        (",", "a,,b,,", ["a", "", "b"]),
        (",", ",a", ["", "a"]),
        (",", ",,", []),
        ("::", "a::b", ["a", "b"]),
        ("", "abc", ["a", "b", "c"]),
        ("|", "ab", ["a", "b"]),
        (r"\|", "a|b", ["a", "b"]),
        (r"\s+", "a \t b", ["a", "b"]),
        (r"\s*,\s*", "a , b,c", ["a", "b", "c"]),
        ("[,;]", "a,b;c", ["a", "b", "c"]),
        ("[^a-z]+", "a--b", ["a", "b"]),
        (r"[\]\[]", "a[b]c", ["a", "b", "c"]),
        (", ?", "a, b,c", ["a", "b", "c"]),
        ("-{2}", "a--b-c", ["a", "b-c"]),
        ("-{2,3}", "a----b", ["a", "-b"]),
        ("(?:or|and)", "aorbandc", ["a", "b", "c"]),
        ("(, )?;", "a, ;b;c", ["a", "b", "c"]),
        ("^x", "xaxb", ["", "axb"]),
        (r"\x2c|\u003b", "a,b;c", ["a", "b", "c"]),
        (".", "abc", []),
        ("$", "ab", ["ab"]),
        (r"\.", "a.b", ["a", "b"]),
        (r"\d", "a1b", ["a", "b"]),
        (r"\d", "a٣b", ["a٣b"]),
    ],
)
def test_a_text_is_split_as_java_does(separator: str, text: str, parts: list[str]) -> None:
    assert split(separator, text) == parts


def test_several_texts_are_split_one_after_the_other() -> None:
    assert split(",", "a,b", "c", "d,") == ["a", "b", "c", "d"]


def test_a_repetition_gives_nothing_back() -> None:
    """`.*` has taken the comma, so that nothing is left for the comma of the separator."""
    assert split(".*,", "a,b") == ["a,b"]


@each_row(
    "separator",
    [
        *("(", ")", "[", "[]", "a{", "*", "a**", "a+*", "a+?", "{2}", "|*", "^*", "a{3,2}", "[z-a]"),
        *("(a+)+", "(a)*", "(a){2}", "(?=a)", "(?<n>a)", r"(a)\1", "(?i)a", r"\b", r"\p{L}", r"\x2"),
        *("\\", "[a--b]", "[a&&b]", "a" * 199 + ".*"),
    ],
)
def test_an_unsafe_or_unsupported_separator_is_refused(separator: str) -> None:
    with pytest.raises(ValueError, match="found"):
        splitter(separator)


def test_the_length_of_all_texts_is_bounded_by_the_number_of_repetitions() -> None:
    longest = math.isqrt(MAX_STEPS // 2)
    assert split(r"\s*,\s*", "a" * longest) == ["a" * longest]
    with pytest.raises(Unresolved, match=f"found {longest + 1} characters to split, expected at most {longest}"):
        split(r"\s*,\s*", "a" * longest, "b")


def test_a_plain_separator_takes_a_text_of_any_length() -> None:
    assert len(split(",", "a," * 500_000)) == 500_000


@accepts(at_least=1)
@settings(max_examples=examples(150))
@given(st.text("ab,\\s[](){}*+?^$|-.12:", max_size=12) | st.text("ab,|.", max_size=3), st.text("ab, ", max_size=20))
def test_any_expression_splits_or_is_refused(separator: str, text: str) -> None:
    """The parts, put together, are never longer than the text."""
    try:
        parts = split(separator, text)
    except ValueError:
        return
    accepted()
    assert len("".join(parts)) <= len(text)

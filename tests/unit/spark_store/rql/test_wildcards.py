"""Wildcards: what a pattern covers, and that no pattern takes long."""

from __future__ import annotations

import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_store.rql import wildcards
from spark_store.rql.wildcards import covers, fold, fold_ascii, matches
from tests.support.cpu_budget import at_most
from tests.support.table import each_row


def slow_matches(text: str, pattern: str) -> bool:
    """The definition of wildcards, word for word."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return slow_matches(text, pattern[1:]) or (text[:1] not in ("", "\n") and slow_matches(text[1:], pattern))
    fits = text[:1] != "" and (pattern[0] == text[0] or (pattern[0] == "?" and text[0] != "\n"))
    return fits and slow_matches(text[1:], pattern[1:])


@given(st.text("ab\n", max_size=8), st.text("ab*?\n", max_size=8))
def test_wildcards_match_as_they_are_defined(text: str, pattern: str) -> None:
    assert matches(text, pattern) is slow_matches(text, pattern)


@each_row(
    ("text", "pattern", "expected"),
    [
        ("", "", True),
        ("", "*", True),
        ("", "?", False),
        ("a", "", False),
        ("ab", "a*ab", False),
        ("aXbXc", "a?b?c", True),
        ("xaXbx", "*a?b*", True),
        ("ab", "*a?b", False),
        ("aaab", "*a?b", True),
        ("aaa", "*aa*aa*", False),
        ("abcabd", "*ab?d", False),
        ("a?b", "a?b", True),
        ("💡", "?", True),
        ("a.c", "a.c", True),
        ("abc", "a.c", False),
        ("a\nb", "a*b", False),
        ("a\nb", "a\n*", True),
        ("a\nb", "a?b", False),
        ("a\nb", "*\n*", True),
        ("a\rb", "a?b", True),
    ],
)
def test_a_pattern_covers_the_whole_text(text: str, pattern: str, expected: bool) -> None:
    assert matches(text, pattern) is expected


@pytest.mark.parametrize(
    ("text", "folded"), [("AZaz[@", "azaz[@"), ("ÄB", "Äb"), ("ŞÉx", "ŞÉx"), ("\u212aK", "\u212ak")]
)
def test_only_the_letters_a_to_z_are_folded(text: str, folded: str) -> None:
    assert fold_ascii(text) == folded


@pytest.mark.parametrize(
    "pattern",
    [
        "*a" * 10_000 + "*b",
        "*a?" * 10_000 + "*b",
        "*" + "a" * 20_000 + "b*",
        "*" + "a?" * 10_000 + "b*",
        "*" + "?" * 20_000 + "b*",
        "*" * 20_000 + "b",
    ],
    ids=["stars", "stars and gaps", "long part", "long part with gaps", "long gap", "only stars"],
)
def test_no_pattern_takes_long(pattern: str) -> None:
    with at_most(2):
        assert matches("a" * 100_000, pattern) is False


def test_the_tables_of_a_long_part_are_not_kept() -> None:
    """They take about a kilobyte for each of its characters."""
    part = "".join(map(chr, range(0x4E00, 0x4E00 + 500)))
    before = wildcards._known_places.cache_info().currsize
    assert matches(f"x{part}yz", f"*{part}?z*")
    assert matches("x5a7b9", "*5?7?*")
    assert wildcards._known_places.cache_info().currsize <= before + 1


def test_a_pattern_that_is_longer_than_the_text_takes_no_time() -> None:
    """As it is held against each of many short values."""
    with at_most(0.5):
        for pattern, is_met in (("*" + "a?" * 500 + "b*", False), ("*" * 1024, True), ("*a" * 512, False)):
            assert {matches("1", pattern) for _ in range(20_000)} == {is_met}


# -- as a search takes stars at the ends of a pattern


@each_row(
    ("text", "pattern", "is_covered"),
    [
        ("a\nb", "*", True),
        ("a\nb", "**", True),
        ("a\nb", "a*", True),
        ("a\nb", "*b", True),
        ("a\nb", "a*b", False),
        ("a\nb", "*a*b*", False),
        ("a\nab", "*a*b*", True),
        ("a\nab", "*a*b", True),
        ("ab\na", "a*b*", True),
        ("a\nab", "a*b*", False),
        ("a\nb", "a?b", False),
        ("a\nb", "?b", False),
        ("a\nb", "*?b", False),
        ("a\nxb", "*?b", True),
        ("a\nb", "a\nb", True),
        ("a\nb", "a\n*", True),
        ("a\nb\nc", "a\n*", True),
        ("a\nb\nc", "*\nc", True),
        ("a\nb\nc", "*\n*c", True),
        ("a\nb\nc", "*a\n*c*", False),
        ("a\nb\nc", "a\n*\nc", True),
        ("a\nb\nc", "a\n?\n?", True),
        ("a\n\nc", "a\n?\n?", False),
        ("a\n\n\nc", "a\n?\nc", False),
        ("a\nab\nc", "*b\n*", True),
        ("a", "*\n*", False),
        ("\n", "", False),
        ("\n", "\n", True),
        ("ab", "a*b", True),
    ],
)
def test_stars_at_the_ends_of_a_pattern_represent_lines_too(text: str, pattern: str, is_covered: bool) -> None:
    assert covers(text, pattern) is is_covered


def plainly(text: str, pattern: str) -> bool:
    """The definition, letter by letter."""
    start, end = pattern.startswith("*"), pattern.endswith("*")
    core = pattern.strip("*")
    inner = "".join("[^\n]*" if letter == "*" else "[^\n]" if letter == "?" else re.escape(letter) for letter in core)
    any_text = r"[\s\S]*"
    return re.fullmatch(f"{any_text if start else ''}{inner}{any_text if end else ''}", text) is not None


@given(st.text("ab\n", max_size=8), st.text("ab\n*?", max_size=6))
def test_a_search_pattern_covers_the_text_that_its_definition_covers(text: str, pattern: str) -> None:
    assert covers(text, pattern) is plainly(text, pattern)


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("a" * 1_000_000 + "\n", "*a" * 500 + "b*"),
        ("\n" * 500_000, "*" + "\n" * 1000 + "a*"),
        ("\n" * 500_000, "*" + "\n*" * 500 + "a*"),
        ("a?\n" * 300_000, "*" + "a?\n" * 300 + "b"),
    ],
    ids=["stars", "lines", "stars and lines", "any"],
)
def test_no_search_pattern_takes_long(text: str, pattern: str) -> None:
    with at_most(5):
        assert covers(text, pattern) is False


def test_each_code_point_is_folded_by_itself() -> None:
    """As the tables of Unicode have it for one code point: neither its length nor its neighbours matter."""
    for code in range(sys.maxunicode + 1):
        letter = chr(code)
        lower = letter.lower()
        expected = "i" if letter == "\u0130" else lower
        assert fold(letter) == expected
        assert len(expected) == 1
    assert fold("ΑΣ") == fold("Α") + fold("Σ") == "ας".replace("ς", "σ")
    assert fold("İSTANBUL") == "istanbul"

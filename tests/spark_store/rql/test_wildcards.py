"""Wildcards: what a pattern covers, and that no pattern takes long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_store.rql import wildcards
from spark_store.rql.wildcards import fold_ascii, matches
from tests.effort import at_most


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


@pytest.mark.parametrize(
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
        for pattern in ("*" + "a?" * 500 + "b*", "*" * 1024, "*a" * 512):
            for _ in range(20_000):
                matches("1", pattern)

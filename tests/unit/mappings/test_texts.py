"""Cutting texts, and lower case."""

from __future__ import annotations

import pytest

from mappings.texts import MAX_QUOTE_LENGTH, lower_text, shorten


def test_a_text_is_cut_beyond_the_limit_alone() -> None:
    longest = "x" * MAX_QUOTE_LENGTH
    assert (shorten(longest), shorten(longest + "y")) == (longest, longest + "…")
    assert (shorten("abc", 3), shorten("abcd", 3), shorten("", 0)) == ("abc", "abc…", "")


@pytest.mark.parametrize(("value", "expected"), [("ABC", "abc"), (5, 5), (None, None), (True, True)])
def test_only_a_text_becomes_lower_case(value: object, expected: object) -> None:
    assert lower_text(value) is expected or lower_text(value) == expected

"""Cutting texts, and lower case."""

from __future__ import annotations

import pytest

from mappings.texts import LONGEST_QUOTE, lowered, shortened


def test_a_text_is_cut_beyond_the_limit_alone() -> None:
    longest = "x" * LONGEST_QUOTE
    assert (shortened(longest), shortened(longest + "y")) == (longest, longest + "…")
    assert (shortened("abc", 3), shortened("abcd", 3), shortened("", 0)) == ("abc", "abc…", "")


@pytest.mark.parametrize(("value", "expected"), [("ABC", "abc"), (5, 5), (None, None), (True, True)])
def test_only_a_text_becomes_lower_case(value: object, expected: object) -> None:
    assert lowered(value) is expected or lowered(value) == expected

"""A property test with a floor fails where too few of its examples were accepted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.acceptance import accepted, accepts


def property_test(at_least: int, *, refuses: bool) -> None:
    """Run one that accepts nothing, or each of its 20 examples."""

    @accepts(at_least=at_least)
    @settings(max_examples=20, database=None)
    @given(st.text())
    def test(text: str) -> None:
        if not refuses:
            accepted()

    test()


def test_a_property_test_that_refuses_everything_fails() -> None:
    with pytest.raises(AssertionError, match="0 examples were accepted, expected at least 1"):
        property_test(1, refuses=True)


def test_each_property_test_has_its_own_total_of_accepted_examples() -> None:
    property_test(20, refuses=False)
    with pytest.raises(AssertionError, match="20 examples were accepted, expected at least 21"):
        property_test(21, refuses=False)


def test_without_a_floor_nothing_is_counted() -> None:
    accepted()
    property_test(0, refuses=True)

"""The tree: what its nodes tell by themselves."""

from __future__ import annotations

import pytest

from spark_store.rql.ast import Operator
from spark_store.rql.binding import bind


@pytest.mark.parametrize(
    ("name", "is_in_any_feature"),
    [
        ("features/*", True),
        ("features/*/properties/on", True),
        ("/features/*/definition", True),
        ("features/lamp/properties/*", False),
        ("attributes/*", False),
        ("attributes/features/*", False),
        ("thingId", False),
    ],
)
def test_a_star_in_place_of_a_feature_represents_any(name: str, is_in_any_feature: bool) -> None:
    assert bind(name, Operator.EXISTS).is_in_any_feature is is_in_any_feature

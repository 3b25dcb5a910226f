"""The members of values, where the vector files do not say it all."""

from __future__ import annotations

from typing import Any

import pytest

from mappings.ditto.document import as_object, long, require_value, subscription_id, text, texts
from mappings.errors import DecodeError


@pytest.mark.parametrize("read", [text, long])
def test_a_missing_or_null_member_is_read_as_null(read: Any) -> None:
    assert read({}, "x") is None
    assert read({"x": None}, "x") is None


def test_texts_are_kept_once_and_in_order() -> None:
    assert texts({"x": ["b", "a", "b"]}, "x") == ("b", "a")
    assert texts({"x": None}, "x") == texts({}, "x") == ()


@pytest.mark.parametrize("value", [1, "a", {}, True])
def test_texts_are_a_list(value: Any) -> None:
    with pytest.raises(DecodeError, match="JsonArray"):
        texts({"x": value}, "x")


@pytest.mark.parametrize("value", [None, 1, "a", []])
def test_a_value_is_an_object(value: Any) -> None:
    with pytest.raises(DecodeError):
        require_value(value)
    with pytest.raises(DecodeError):
        as_object(value)


@pytest.mark.parametrize("members", [{}, {"subscriptionId": None}, {"subscriptionId": 1}])
def test_an_id_is_a_text(members: Any) -> None:
    with pytest.raises(DecodeError):
        subscription_id(members)

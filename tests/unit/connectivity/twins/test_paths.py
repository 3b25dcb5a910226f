"""Paths of twins: what of them is kept, once read."""

from __future__ import annotations

import pytest

from connectivity.errors import TwinError
from connectivity.twins import paths
from mappings.ids import EntityId, EntityType
from mappings.text_cache import MAX_CACHED_LENGTH

LAMP = EntityId(EntityType.THING, "acme.site", "lamp-7")


def test_a_long_path_is_understood_and_not_kept() -> None:
    path = "/attributes" + "/abc" * 150
    assert len(path) > MAX_CACHED_LENGTH
    assert paths.address(LAMP, path).pointer == path
    assert paths.address(LAMP, path) is not paths.address(LAMP, path)
    assert paths.address(LAMP, "/attributes/abc") is paths.address(LAMP, "/attributes/abc")


def test_a_key_that_is_too_long_is_refused_and_not_kept() -> None:
    assert paths.is_key("attributes")
    before = paths._is_key.cache_info().currsize
    assert not paths.is_key("a" * 1_000_000)
    with pytest.raises(TwinError):
        paths.address(LAMP, "/attributes/" + "a" * 1_000_000)
    assert paths._is_key.cache_info().currsize == before


def test_the_length_of_a_key_is_that_of_its_utf_16() -> None:
    assert paths.is_key("\U0001f4a1" * 128)
    assert not paths.is_key("\U0001f4a1" * 129)


@pytest.mark.parametrize("path", ["/attributes//", "/unknown/"])
def test_a_refusal_quotes_the_beginning_of_a_long_path(path: str) -> None:
    with pytest.raises(TwinError) as refused:
        paths.address(LAMP, path + "a" * 5000)
    assert len(refused.value.fault.message) < 300

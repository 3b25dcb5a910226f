"""The bytes of a thing in a page, and how things are distributed over pages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from connectivity.subscriptions.search_feed import PageBuilder, item
from mappings.model.field_selector import parse_fields
from spark_store.rql.query import SearchHit

LAMP = SearchHit(
    "acme.site:lamp-7",
    {
        "thingId": "acme.site:lamp-7",
        "policyId": "acme.site:pol",
        "attributes": {"room": "hall", "_own": 1},
        "features": {"bulb": {"properties": {"on": True, "watt": 9}}},
        "_revision": 3,
        "_created": "2030-01-15T07:30:00.000000Z",
        "_modified": "2030-01-15T07:30:00.250000Z",
        "_metadata": {"attributes": {"room": {"unit": "none"}}},
    },
)


def shown(fields: str | None) -> Any:
    return json.loads(item(LAMP, None if fields is None else parse_fields(fields)))


def test_without_fields_a_thing_is_its_document() -> None:
    assert shown(None) == {name: value for name, value in LAMP.thing.items() if not name.startswith("_")}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("thingId", {"thingId": "acme.site:lamp-7"}),
        ("attributes/room,_revision", {"attributes": {"room": "hall"}, "_revision": 3}),
        ("features/*/properties/on", {"features": {"bulb": {"properties": {"on": True}}}}),
        ("_namespace,_created", {"_namespace": "acme.site", "_created": "2030-01-15T07:30:00Z"}),
        ("_modified", {"_modified": "2030-01-15T07:30:00.250Z"}),
        ("_metadata", {"_metadata": {"attributes": {"room": {"unit": "none"}}}}),
        ("attributes/none,_policy", {}),
    ],
)
def test_only_the_selected_fields_are_in_a_page(fields: str, expected: Any) -> None:
    assert shown(fields) == expected


def paged(sizes: list[int], size: int = 3, max_bytes: int = 100) -> list[list[str]]:
    pages = PageBuilder(size, max_bytes)
    for length in sizes:
        pages.add(b'"' + b"x" * (length - 2) + b'"')
    pages.end()
    return [json.loads(page) for page in pages.done]


@pytest.mark.parametrize(("number", "lengths"), [(0, []), (1, [1]), (3, [3]), (7, [3, 3, 1])])
def test_a_page_is_never_empty_and_full_unless_it_is_the_last(number: int, lengths: list[int]) -> None:
    assert [len(page) for page in paged([4] * number)] == lengths


def test_a_page_reports_the_things_and_bytes_that_still_fit() -> None:
    pages = PageBuilder(3, 100)
    assert (pages.page_capacity, pages.page_bytes_left, pages.is_open) == (3, 100, False)
    pages.add(b"12345")
    assert (pages.page_capacity, pages.page_bytes_left, pages.is_open) == (2, 94, True)
    pages.end_if_large()
    assert pages.done == []
    pages.add(b"1" * 50)
    pages.end_if_large()
    assert (len(pages.done), pages.page_capacity, pages.page_bytes_left, pages.is_open) == (1, 3, 100, False)


def test_after_a_thing_larger_than_a_page_at_least_one_byte_is_left() -> None:
    pages = PageBuilder(3, 10)
    pages.add(b"1" * 50)
    assert pages.page_bytes_left == 1

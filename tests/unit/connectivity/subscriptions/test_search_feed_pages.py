"""The bytes of a thing in a page, and how things are distributed over pages."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from connectivity.subscriptions.limits import SubscriptionLimits
from connectivity.subscriptions.search_feed import PageBuilder, item
from mappings.model.field_selector import parse_fields
from spark_store.journal.journal import Journal
from spark_store.rql.query import SearchHit
from tests.support.in_process.search_client import Searcher
from tests.support.in_process.service import OWNER, ConnectionHarness, command, document, policy
from tests.support.temporary_journal import TemporaryJournal

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


@pytest.mark.usefixtures("harnesses")
@pytest.mark.parametrize("make_journal", [None, TemporaryJournal], ids=["slow search", "index"])
@pytest.mark.parametrize("options", ["size(200)", "size(200),sort(-attributes/n)", "size(1)"])
async def test_a_page_with_policies_is_not_larger_than_others(
    options: str, make_journal: Callable[[], Journal] | None
) -> None:
    harness = ConnectionHarness(journal=make_journal() if make_journal is not None else None)
    large = policy(OWNER) | {"policyId": "acme.site:large"}
    large["entries"]["LARGE"] = {"subjects": {"acme:other": {"type": "x" * 90_000}}, "resources": {}}
    await harness.ask(document("acme.site/large/policies/commands/create", value=large))
    for number in range(30):
        value = {"policyId": "acme.site:large", "attributes": {"n": number}}
        await harness.ask(command("create", value=value, name=f"lamp-{number:02}"))
    searcher = Searcher(harness)
    found = await searcher.all(None, options, fields="thingId,_policy/entries/LARGE")
    expected = [f"acme.site:lamp-{number:02}" for number in range(30)]
    assert found == (expected[::-1] if "sort" in options else expected)
    sizes = [len(message.envelope.payload) for message in harness.link.published]
    assert max(sizes) < SubscriptionLimits().page_bytes + 100_000

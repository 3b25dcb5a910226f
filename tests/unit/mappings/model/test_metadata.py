"""Metadata of things, as events carry its changes and as it follows the data that it is about."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from mappings.model.metadata import evolve_metadata, read_changes, without_changes

METADATA = {"attributes": {"a": {"unit": "K"}, "b": {"c": {"unit": "m"}}}, "note": "mine"}
DATA = {"attributes": {"a": 1, "b": {"c": 2}}}


@pytest.mark.parametrize(
    ("after", "left"),
    [
        (DATA, METADATA),
        ({"attributes": {"b": {"c": 2}}}, {"attributes": {"b": {"c": {"unit": "m"}}}, "note": "mine"}),
        ({"attributes": {"a": 1, "b": {}}}, {"attributes": {"a": {"unit": "K"}, "b": {}}, "note": "mine"}),
        ({"attributes": {"a": 1, "b": 5}}, {"attributes": {"a": {"unit": "K"}, "b": {}}, "note": "mine"}),
        ({"attributes": None}, {"attributes": {}, "note": "mine"}),
        ({}, {"note": "mine"}),
    ],
)
def test_metadata_is_removed_with_the_field_that_it_describes(after: Any, left: Any) -> None:
    assert evolve_metadata(METADATA, DATA, after, ()) == left


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ([("/a/k", 1), ("/a/l", {"m": 2}), ("/a/l/n", 3)], {"a": {"k": 1, "l": {"m": 2, "n": 3}}}),
        ([("/a/k", 1), ("/a/k/l", 2)], {"a": {"k": {"l": 2}}}),
        ([("/a/k", None), ("/a/k",)], {"a": {}}),
        ([("/a~0b/k", 1), ("/none/k",)], {"a~b": {"k": 1}}),
        ([("/a/k", 1), ("/a/l", 1), ("/a/k",)], {"a": {"l": 1}}),
        ([("/a/k", 1), ("/", {"b": 2}), ("/c", 3)], {"b": 2, "c": 3}),
        ([("/a/k", 1), ("/a/k/l",), ("/",)], {"a": {"k": 1}}),
    ],
)
def test_changes_are_made_in_order(changes: Any, found: Any) -> None:
    assert evolve_metadata(None, {}, {}, changes) == found


def test_a_part_that_is_overwritten_with_an_empty_object_loses_all_its_metadata() -> None:
    after = {"attributes": {"a": 1, "b": {}}}
    found = evolve_metadata(METADATA, DATA, after, [("/attributes/b/unit", "m")], ("attributes", "b"))
    assert found == {"attributes": {"a": {"unit": "K"}, "b": {}}, "note": "mine"}


def test_a_change_of_metadata_does_not_modify_the_previous_metadata() -> None:
    before = msgspec.json.decode(msgspec.json.encode(METADATA))
    value = {"x": 1}
    evolve_metadata(
        METADATA, DATA, DATA, [("/attributes/a/unit", 1), ("/attributes/a/v", value), ("/attributes/a/v/y", 2)]
    )
    assert (before, value) == (METADATA, {"x": 1})


def test_changes_travel_among_the_stored_headers_and_are_not_shown() -> None:
    headers = b'{"custom":"x","_metadata":[["/a/k",1.50],["/b"]],"n":1.50}'
    assert read_changes(headers) == [["/a/k", 1.5], ["/b"]]
    assert without_changes(headers) == b'{"custom":"x","n":1.50}'
    for plain in (b"{}", b'{"custom":"\\"_metadata\\":"}', b'{"custom":{"_metadata":1}}'):
        assert read_changes(plain) == ()
        assert without_changes(plain) == plain


def test_the_order_of_members_does_not_reveal_the_order_of_their_creation() -> None:
    thing = {"thingId": "acme:one", "attributes": {"y": 1}}
    changes = [("/thingId", {"unit": "K"}), ("/attributes/y", {"unit": "K"})]
    one, other = (evolve_metadata({}, thing, thing, order) for order in (changes, changes[::-1]))
    assert json.dumps(one) == json.dumps(other) == '{"attributes": {"y": {"unit": "K"}}, "thingId": {"unit": "K"}}'

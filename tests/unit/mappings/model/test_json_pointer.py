"""JSON pointers: reading, writing, and that documents are never changed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappings.errors import DecodeError
from mappings.model.json_pointer import MISSING, format_pointer, get, parse_pointer, put, remove
from tests.support.table import each_row

KEYS = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1, max_size=4)
PATHS = st.lists(KEYS, max_size=4).map(tuple)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@each_row(
    ("text", "segments"),
    [
        ("", ()),
        ("/", ()),
        ("/attributes", ("attributes",)),
        ("attributes/site", ("attributes", "site")),
        ("/attributes/site/", ("attributes", "site")),
        ("/attributes/a~0b", ("attributes", "a~b")),
        ("/attributes/a~1b", ("attributes", "a~1b")),
        ("/attributes/~01", ("attributes", "~1")),
        ("/attributes/a%2Fb", ("attributes", "a%2Fb")),
        ("/attributes/tags/0", ("attributes", "tags", "0")),
        ("/features/lamp 1/properties", ("features", "lamp 1", "properties")),
    ],
)
def test_a_path_is_read_as_its_keys(text: str, segments: tuple[str, ...]) -> None:
    assert parse_pointer(text) == segments


@pytest.mark.parametrize("text", ["//", "/features/lamp/properties/a//b", "//attributes", "attributes//"])
def test_two_slashes_in_a_row_are_an_invalid_pointer(text: str) -> None:
    with pytest.raises(DecodeError) as caught:
        parse_pointer(text)
    assert (caught.value.fault.status, caught.value.fault.error) == (400, "json.pointer.invalid")
    assert text in caught.value.fault.message


@given(PATHS)
def test_a_formatted_pointer_is_parsed_to_the_same_segments(segments: tuple[str, ...]) -> None:
    assert parse_pointer(format_pointer(segments)) == segments


@given(st.text(max_size=12))
def test_any_text_is_a_path_or_a_decode_error(text: str) -> None:
    try:
        segments = parse_pointer(text)
    except DecodeError:
        assert "//" in text
    else:
        assert "" not in segments


def test_an_error_quotes_the_beginning_of_a_long_path() -> None:
    with pytest.raises(DecodeError) as caught:
        parse_pointer("a//" + "b" * 5000)
    assert len(caught.value.fault.message) < 300


def test_the_whole_document_is_written_as_one_slash() -> None:
    assert format_pointer(()) == "/"


def test_null_is_a_value_and_an_absent_key_is_missing() -> None:
    document = {"attributes": {"x": None}}
    assert get(document, ("attributes", "x")) is None
    assert get(document, ("attributes", "y")) is MISSING
    assert get(document, ("attributes", "x", "y")) is MISSING


def test_a_numeric_segment_does_not_enter_an_array() -> None:
    assert get({"tags": ["a"]}, ("tags", "0")) is MISSING
    assert get({"tags": {"0": "a"}}, ("tags", "0")) == "a"


@pytest.mark.parametrize("parent", [None, 7, "text", [1, 2]])
def test_a_parent_that_is_no_object_is_replaced_by_one(parent: Any) -> None:
    assert put({"features": parent}, ("features", "lamp", "x"), 1) == {"features": {"lamp": {"x": 1}}}


def test_a_change_shares_everything_off_its_path() -> None:
    document: dict[str, Any] = {"attributes": {"a": {"deep": 1}}, "features": {"lamp": {}}}
    changed = put(document, ("attributes", "b"), 2)
    assert changed["features"] is document["features"]
    assert changed["attributes"]["a"] is document["attributes"]["a"]


def test_removing_a_missing_value_returns_the_same_document() -> None:
    document = {"attributes": {"a": 1}}
    assert remove(document, ("attributes", "b")) is document
    assert remove(document, ("features", "lamp")) is document


def test_removing_the_last_key_leaves_an_empty_object() -> None:
    assert remove({"attributes": {"a": 1}}, ("attributes", "a")) == {"attributes": {}}


def test_removing_the_whole_document_leaves_nothing() -> None:
    assert remove({"attributes": {}}, ()) is MISSING


@given(DOCUMENTS, PATHS, DOCUMENTS)
def test_put_and_remove_never_change_the_document_they_were_given(
    document: Any, segments: tuple[str, ...], value: Any
) -> None:
    before = copy.deepcopy(document)
    changed = put(document, segments, value)
    assert get(changed, segments) == value
    assert get(remove(changed, segments), segments) is MISSING or not segments
    remove(document, segments)
    assert document == before

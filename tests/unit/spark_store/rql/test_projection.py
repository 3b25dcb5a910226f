"""Documents read only where a question looks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_store.rql.ast import Field, FieldKind, Predicate
from spark_store.rql.order import sort_key
from spark_store.rql.parser import parse
from spark_store.rql.partial_evaluator import fields
from spark_store.rql.projection import needles, reader
from spark_store.rql.query import SortField
from spark_store.rql.search_evaluator import holds
from spark_store.rql.values import walk
from tests.support import random_searches as searches
from tests.support.random_names import NAMES


def field(*path: str) -> Field:
    return Field(FieldKind.DOCUMENT, path)


@given(searches.things(), searches.filters(), searches.orders(), searches.rights())
def test_a_partial_document_has_all_fields_of_filter_and_order(
    thing: dict[str, Any],
    predicate: Predicate,
    order: Sequence[SortField],
    may: Callable[[Sequence[str]], bool],
) -> None:
    read = reader([*fields(predicate), *(sorting.field for sorting in order)])
    text = msgspec.json.encode(thing)
    seen, whole = read(text), msgspec.json.decode(text)
    assert holds(predicate, seen, may) == holds(predicate, whole, may)
    assert sort_key(seen, order, may) == sort_key(whole, order, may)


def test_a_projection_decodes_only_the_requested_fields() -> None:
    text = b'{"thingId":"acme:a","attributes":{"a":{"b":1,"c":2},"d":3},"features":{"f":{"properties":{"x":1,"y":2}}}}'
    assert reader([field("attributes", "a", "b")])(text) == {"attributes": {"a": {"b": 1}}}
    assert reader([field("features", "*", "properties", "y")])(text) == {"features": {"f": {"properties": {"y": 2}}}}
    assert reader([])(text) == {}


@pytest.mark.parametrize("name", NAMES)
def test_a_projection_has_the_fields_of_any_name(name: str) -> None:
    # The name is another string object, as a parser creates it.
    wanted = name.encode().decode()
    text = msgspec.json.encode({"attributes": {name: {name: 1}, "": 2}, "features": {name: {"properties": {name: 3}}}})
    read = reader([field("attributes", wanted, wanted), field("features", wanted, "properties", wanted)])
    seen = read(text)
    assert walk(seen, ("attributes", name, name)) == (1,)
    assert walk(seen, ("features", name, "properties", name)) == (3,)


@pytest.mark.parametrize("text", [b"", b"[", b'{"a":', b"7"])
def test_text_that_is_not_a_json_object_is_refused(text: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        reader([field("attributes", "a", "b")])(text)


@given(st.lists(searches.FIELDS, max_size=6), searches.things())
def test_fields_may_lie_within_each_other(wanted: list[Field], thing: dict[str, Any]) -> None:
    text = msgspec.json.encode(thing)
    seen, whole = reader(wanted)(text), msgspec.json.decode(text)
    for each in wanted:
        order = (SortField(each),)
        assert sort_key(seen, order) == sort_key(whole, order)


@given(searches.things(), searches.filters())
def test_a_matching_thing_has_all_needles_in_its_text(thing: dict[str, Any], predicate: Predicate) -> None:
    text = msgspec.json.encode(thing)
    assert all(needle in text for needle in needles(predicate)) or not holds(predicate, thing)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('eq(attributes/a,"hall 7")', (b"hall 7",)),
        ('and(like(attributes/a,"*zeb?crossing*"),eq(attributes/b,"ä\'x"))', (b"crossing", b"x")),
        ('or(eq(attributes/a,"x"),eq(attributes/b,"y"))', ()),
        ('not(eq(attributes/a,"x"))', ()),
        ('ilike(attributes/a,"x*")', ()),
        ('eq(_created,"2030-01-15T07:30:00Z")', ()),
        ('eq(namespace,"acme")', ()),
    ],
)
def test_needles_are_searched_only_where_they_must_be(text: str, expected: tuple[bytes, ...]) -> None:
    assert needles(parse(text)) == expected


@pytest.mark.parametrize("levels", [9, 400, 20_000])
def test_a_path_may_be_as_long_as_a_filter(levels: int) -> None:
    deep = field("attributes", *["a"] * levels)
    read = reader([deep, field("attributes", *["a"] * 7, "b"), field("features", "*", "properties", *["a"] * levels)])
    assert read(b'{"thingId":"acme:a","attributes":{"a":1,"b":2}}') == {"attributes": {"a": 1}}


def test_below_some_levels_everything_is_read() -> None:
    path = ["attributes", *"abcdefghijkl"]
    thing: Any = 7
    for name in reversed(path):
        thing = {name: thing, "z": 1}
    text = msgspec.json.encode(thing)
    assert sort_key(reader([field(*path)])(text), (SortField(field(*path)),)) == sort_key(
        thing, (SortField(field(*path)),)
    )

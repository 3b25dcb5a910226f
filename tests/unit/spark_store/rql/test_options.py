"""The options of a search: their meaning, and the error messages of invalid ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_store.errors import InvalidOption
from spark_store.rql.ast import Field, FieldKind
from spark_store.rql.options import BY_ID, MAX_SORTED, PageOptions, QueryOptions, read_options, read_page_options
from spark_store.rql.query import SortField
from tests.support.acceptance import accepted, accepts
from tests.support.cpu_budget import at_most
from tests.support.dice import examples
from tests.support.table import each_row

A = SortField(Field(FieldKind.DOCUMENT, ("attributes", "a")))
MODIFIED = SortField(Field(FieldKind.INSTANT, ("_modified",)), is_descending=True)


@each_row(
    ("text", "options"),
    [
        (None, QueryOptions(25, (BY_ID,))),
        ("", QueryOptions()),
        ("size(3)", QueryOptions(3)),
        ("size(1)", QueryOptions(1)),
        ("size(200)", QueryOptions(200)),
        ("size(007)", QueryOptions(7)),
        ("size(3),size(5)", QueryOptions(3)),
        (" \n\tsize(3)", QueryOptions(3)),
        ("sort(+attributes/a)", QueryOptions(order=(A, BY_ID))),
        ("sort(+/attributes/a)", QueryOptions(order=(A, BY_ID))),
        ("sort(+attributes/a,-_modified),size(50)", QueryOptions(50, (A, MODIFIED, BY_ID))),
        ("size(50),sort(-_modified)", QueryOptions(50, (MODIFIED, BY_ID))),
        ("sort(-thingId)", QueryOptions(order=(SortField(BY_ID.field, is_descending=True),))),
        (
            "sort(+attributes/a,-thingId,+_modified)",
            QueryOptions(order=(A, SortField(BY_ID.field, is_descending=True))),
        ),
        ("sort(+attributes/a,-attributes/a)", QueryOptions(order=(A, BY_ID))),
    ],
)
def test_a_text_sets_a_size_and_an_order(text: str | None, options: QueryOptions) -> None:
    assert read_options(text) == options


@each_row(
    "name",
    [
        "policyId",
        "_revision",
        "_created",
        "definition",
        "attributes/a b/c",
        "attributes/tags/0",
        "features/lamp/properties/on",
        "features/lamp/desiredProperties/power/kw",
    ],
)
def test_a_property_with_a_value_can_be_a_sort_field(name: str) -> None:
    (sorting, last) = read_options(f"sort(+{name})").order
    assert sorting.field.path == tuple(name.split("/"))
    assert last == BY_ID


@each_row(
    "name",
    [
        "foo",
        "namespace",
        "_namespace",
        "_metadata",
        "_metadata/attributes/a",
        "attributes",
        "features/lamp",
        "features/lamp/properties",
        "features/lamp/definition",
        "features/*/properties/on",
        "topic:action",
        "attributes//a",
    ],
)
def test_anything_else_is_an_unknown_property(name: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        read_options(f"sort(+{name})")
    assert caught.value.fault.status == 400
    assert caught.value.fault.error == "thing-search:search.option.invalid"
    assert caught.value.fault.message == f"Unknown property name: {name}"
    assert caught.value.fault.description == "The sort option is invalid."


@pytest.mark.parametrize("number", ["0", "300", "201", "00", "9" * 10_000])
def test_a_size_out_of_its_range_is_refused(number: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        read_options(f"size({number})")
    shown = number if len(number) < 10 else 10**9
    assert caught.value.fault.message == f"Invalid option: 'size({int(shown)})'"
    assert caught.value.fault.description == "size(n) -- n must be between 1 and 200"


@each_row(
    ("text", "position"),
    [
        ("size=3", 4),
        ("size( 3)", 5),
        ("size(3) ", 7),
        ("size(3), size(4)", 8),
        ("size(3)x", 7),
        ("size(-3)", 5),
        ("size(٣)", 5),
        ("size()", 5),
        ("size(3", 6),
        ("Size(3)", 0),
        ("sort(attributes/a)", 5),
        ("sort()", 5),
        ("sort(+)", 6),
        ("sort(+attributes/a, -thingId)", 19),
        ("sort(+attributes/a", 18),
        ('sort(+attributes/a")', 18),
        ("limit(a,b)", 6),
        ("cursor()", 7),
        ("sort", 4),
        ("drop(table)", 0),
        (" ", 1),
        (",", 0),
    ],
)
def test_an_invalid_option_is_refused_with_its_position(text: str, position: int) -> None:
    with pytest.raises(InvalidOption) as caught:
        read_options(text)
    message = caught.value.fault.message
    assert message.startswith(f"Invalid options: {text}\n")
    assert f"^ position {position}: expected " in message
    assert message.splitlines()[-1].index("^") == len("Invalid options: ") + position
    assert caught.value.fault.description == "At least one provided option is invalid."


@pytest.mark.parametrize("option", ["limit(0,10)", "cursor(abc)"])
def test_options_of_the_http_api_alone_are_not_supported(option: str) -> None:
    with pytest.raises(InvalidOption, match="is not supported at this endpoint") as caught:
        read_options(f"size(3),{option}")
    assert option in caught.value.fault.message


@each_row(
    ("text", "options"),
    [
        (None, PageOptions()),
        ("", PageOptions(25, (BY_ID,))),
        ("size(3)", PageOptions(3, has_size=True)),
        ("sort(+thingId)", PageOptions(has_order=True)),
        ("cursor(a-_9)", PageOptions(cursor="a-_9")),
        (
            "size(3),cursor(a),sort(+attributes/a)",
            PageOptions(3, (A, BY_ID), has_size=True, has_order=True, cursor="a"),
        ),
        ("limit(0,200)", PageOptions(200, has_size=True, offset=0)),
        ("limit(+7,-0)", PageOptions(0, has_size=True, offset=7)),
        ("limit(1,2),limit(3,4)", PageOptions(4, has_size=True, offset=3)),
        ("limit(1,2),size(4)", PageOptions(4, has_size=True, offset=0)),
        ("size(4),limit(1,2)", PageOptions(2, has_size=True, offset=1)),
    ],
)
def test_a_page_over_http_has_an_offset_or_a_cursor(text: str | None, options: PageOptions) -> None:
    assert read_page_options(text) == options


@each_row(
    ("text", "message"),
    [
        ("size(3),size(3)", "There may not be more than 1 'size' option."),
        ("cursor(a),cursor(a)", "There may not be more than 1 'cursor' option."),
        ("limit(0,1),cursor(a)", "The option 'cursor' is not valid for the search request."),
        ("sort(+thingId),sort(+thingId)", "Too many sort options."),
        ("limit(-1,1)", "Invalid option: 'limit(-1,1)'"),
        ("limit(0,201)", "Invalid option: 'limit(0,201)'"),
        ("limit(0,-1)", "Invalid option: 'limit(0,-1)'"),
        ("size(0),limit(0,1)", "Invalid option: 'size(0)'"),
        (f"limit({'9' * 10_000},1)", "Invalid option: 'limit(1000000000,1)'"),
    ],
)
def test_options_of_a_page_that_contradict_each_other_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        read_page_options(text)
    assert (caught.value.fault.status, caught.value.fault.error) == (400, "thing-search:search.option.invalid")
    assert caught.value.fault.message == message


def test_at_most_one_sort_option_is_allowed() -> None:
    with pytest.raises(InvalidOption, match=r"Too many sort options\.") as caught:
        read_options("sort(+attributes/a),sort(-_modified)")
    assert caught.value.fault.description == "Use at most one 'sort' option."


def test_the_number_of_properties_to_sort_by_is_bounded() -> None:
    many = [f"+attributes/{number}" for number in range(MAX_SORTED + 1)]
    assert len(read_options(f"sort({','.join(many[:-1])})").order) == MAX_SORTED + 1
    with pytest.raises(InvalidOption, match="at most 32 properties"):
        read_options(f"sort({','.join(many)})")


@pytest.mark.parametrize(
    "text", ["sort(+" + "a" * 60_000 + ")", "sort(+attributes/a" + "/a" * 500_000 + ")", "cursor(" + "a" * 60_000 + ")"]
)
def test_the_message_about_a_long_text_is_short(text: str) -> None:
    with at_most(1), pytest.raises(InvalidOption) as caught:
        read_options(text)
    assert len(caught.value.fault.message) < 500


@accepts(at_least=1)
@settings(max_examples=examples(500), deadline=None)
@given(
    st.lists(st.sampled_from(["size(1)", "size(200)", "sort(+thingId)", "size(0)"]), max_size=3).map(",".join)
    | st.text()
    | st.lists(st.sampled_from(["size(", "sort(", "+", "-", "thingId", ",", ")", "1", "\\", '"'])).map("".join)
)
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        options = read_options(text)
    except InvalidOption:
        return
    accepted()
    assert 1 <= options.size <= 200
    assert options.order[-1].field == BY_ID.field

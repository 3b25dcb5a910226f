"""Aggregation: its specification, and the counts and measures of things."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_store.errors import AggregationInvalid, QueryError, TooManyGroups, UnknownProperty
from spark_store.search.aggregation import GroupAccumulator, read_aggregation
from tests.support.cpu_budget import at_most
from tests.support.table import each_row

ROOM = {"room": "attributes/room"}


def lamp(number: int, **attributes: Any) -> dict[str, Any]:
    return {"thingId": f"acme.site:lamp-{number}", "policyId": "acme.site:p", "attributes": attributes}


def rows(given: Mapping[str, Any], things: Sequence[Mapping[str, Any]], may: Any = None) -> list[dict[str, Any]]:
    tally = GroupAccumulator(read_aggregation(given))
    for thing in things:
        tally.add(thing, may)
    return tally.rows()


# --- the specification


def test_nothing_but_an_object_is_needed_to_count() -> None:
    assert rows({}, [lamp(1), lamp(2)]) == [{"count": 2}]


@each_row(
    ("given", "message"),
    [
        (None, "found null, expected an object"),
        ([], "found an array, expected an object"),
        (True, "found a boolean"),
        ({"by": {}}, "found 'by', expected 'groupBy' or 'measures'"),
        ({"groupBy": []}, "groupBy: found an array, expected an object whose members are names"),
        ({"groupBy": {"a b": "attributes/x"}}, "groupBy: found the name 'a b'"),
        ({"groupBy": {"": "attributes/x"}}, "groupBy: found the name ''"),
        ({"groupBy": {str(n) + "x": "attributes/x" for n in range(5)}}, "groupBy: found 5 names, expected at most 4"),
        ({"groupBy": {"room": 7}}, "room: found a number, expected a path"),
        ({"groupBy": {"count": "attributes/x"}}, "found the name 'count' twice"),
        ({"groupBy": ROOM, "measures": {"room": {"max": "attributes/x"}}}, "found the name 'room' twice"),
        ({"measures": {"x": "max"}}, "x: found a string, expected one function and its path"),
        ({"measures": {"x": {}}}, "x: found 0 members"),
        ({"measures": {"x": {"min": "attributes/a", "max": "attributes/a"}}}, "x: found 2 members"),
        (
            {"measures": {"x": {"median": "attributes/a"}}},
            "found the function 'median', expected one of: min, max, avg",
        ),
        ({"measures": {"x": {"max": {}}}}, "x: found an object, expected a path"),
        ({"measures": {f"m{n}": {"max": "attributes/a"} for n in range(17)}}, "found 17 names, expected at most 16"),
    ],
)
def test_an_invalid_aggregation_is_refused_with_the_found_value(given: Any, message: str) -> None:
    with pytest.raises(AggregationInvalid) as refused:
        read_aggregation(given)
    assert message in refused.value.fault.message
    assert (refused.value.fault.status, refused.value.fault.error) == (400, "thing-search:aggregation.invalid")


@pytest.mark.parametrize(
    "path", ["foo", "attributes", "features/lamp", "_metadata", "topic:action", "attributes//x", ""]
)
def test_a_path_that_no_filter_could_compare_is_an_unknown_property(path: str) -> None:
    for wanted in ({"groupBy": {"x": path}}, {"measures": {"x": {"sum": path}}}):
        with pytest.raises(UnknownProperty) as refused:
            read_aggregation(wanted)
        assert refused.value.fault.error == "rql.expression.invalid"


# --- groups


def test_without_groups_an_empty_result_has_one_row() -> None:
    assert rows({"measures": {"most": {"max": "attributes/n"}, "all": {"sum": "attributes/n"}}}, []) == [
        {"count": 0, "most": None, "all": 0}
    ]


def test_a_grouped_aggregation_of_no_things_returns_no_rows() -> None:
    assert rows({"groupBy": ROOM}, []) == []


def test_a_row_for_each_value_in_their_total_order() -> None:
    """Missing, null and objects are no value; 1 and 1.0 are one, 1 and true are two."""
    values = ["b", True, 1, None, 1.0, {"x": 1}, "a", False, 0.5, "a", -3]
    found = rows({"groupBy": {"v": "attributes/v"}}, [lamp(0), *(lamp(n, v=it) for n, it in enumerate(values))])
    assert [(row["v"], row["count"]) for row in found] == [
        (None, 3),
        (-3, 1),
        (0.5, 1),
        (1, 2),
        ("a", 2),
        ("b", 1),
        (False, 1),
        (True, 1),
    ]
    assert [type(row["v"]) for row in found[-2:]] == [bool, bool]


def test_a_thing_is_in_the_group_of_each_element_of_an_array_once() -> None:
    things = [lamp(1, tags=["a", "b", "a"]), lamp(2, tags="b"), lamp(3, tags=[]), lamp(4, tags=[["a"], {"k": 1}])]
    assert rows({"groupBy": {"tag": "attributes/tags"}}, things) == [
        {"tag": None, "count": 2},
        {"tag": "a", "count": 1},
        {"tag": "b", "count": 2},
    ]


def test_paths_lead_through_arrays_of_objects_and_to_an_element_by_its_number() -> None:
    things = [lamp(1, l=[{"k": "x"}, {"k": ["y", "z"]}, 7]), lamp(2, l={"k": "x"})]
    assert [row["k"] for row in rows({"groupBy": {"k": "attributes/l/k"}}, things)] == ["x", "y", "z"]
    assert [row["k"] for row in rows({"groupBy": {"k": "attributes/l/0/k"}}, things)] == [None, "x"]
    assert [row["k"] for row in rows({"groupBy": {"k": "attributes/l/99999999999/k"}}, things)] == [None]


def test_whole_numbers_are_shown_as_integers_and_too_large_ones_as_null() -> None:
    values = [1.0, 2.0**63, 1e300, 10**400, -0.0, 2**53 + 1, -(2.0**63)]
    found = rows({"groupBy": {"v": "attributes/v"}}, [lamp(n, v=it) for n, it in enumerate(values)])
    assert [repr(row["v"]) for row in found] == [
        "None",
        "-9223372036854775808",
        "0",
        "1",
        "9007199254740993",
        "9.223372036854776e+18",
        "1e+300",
    ]
    assert rows({"measures": {"x": {"max": "attributes/v"}}}, [lamp(1, v=10**400)]) == [{"count": 1, "x": None}]


def test_several_groupings_make_a_row_for_each_combination() -> None:
    things = [lamp(1, room="hall", tags=["a", "b"]), lamp(2, room="hall", tags=["a"]), lamp(3, tags=["a"])]
    assert rows({"groupBy": {"room": "attributes/room", "tag": "attributes/tags"}}, things) == [
        {"room": None, "tag": "a", "count": 1},
        {"room": "hall", "tag": "a", "count": 2},
        {"room": "hall", "tag": "b", "count": 1},
    ]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("thingId", "acme.site:lamp-1"),
        ("namespace", "acme.site"),
        ("policyId", "acme.site:p"),
        ("_revision", 7),
        ("_created", "2030-01-15T07:30:00Z"),
        ("_modified", "2030-01-15T07:30:00.250Z"),
    ],
)
def test_things_are_grouped_by_the_fields_beside_the_document_too(path: str, value: Any) -> None:
    """Times are shown as in things."""
    times = {"_created": "2030-01-15T07:30:00Z", "_modified": "2030-01-15T07:30:00.250000Z"}
    assert rows({"groupBy": {"x": path}}, [lamp(1) | times | {"_revision": 7}]) == [{"x": value, "count": 1}]


def test_more_groups_than_allowed_are_refused() -> None:
    tally = GroupAccumulator(read_aggregation({"groupBy": ROOM}), most_groups=3)
    for number in range(3):
        tally.add(lamp(number, room=number))
    tally.add(lamp(3, room=2))
    assert len(tally) == 3
    with pytest.raises(TooManyGroups) as refused:
        tally.add(lamp(4, room=4))
    assert (refused.value.fault.status, refused.value.fault.error) == (413, "thing-search:aggregation.toolarge")


def test_groups_with_values_above_the_byte_limit_are_refused() -> None:
    tally = GroupAccumulator(read_aggregation({"groupBy": ROOM}), most_bytes=100)
    tally.add(lamp(1, room="x" * 60))
    tally.add(lamp(2, room="x" * 60))
    with pytest.raises(TooManyGroups):
        tally.add(lamp(3, room="y" * 60))


def test_combinations_of_long_arrays_end_at_the_bound() -> None:
    long = list(range(2_000))
    tally = GroupAccumulator(
        read_aggregation({"groupBy": {name: f"attributes/{name}" for name in "abcd"}}), most_groups=1_000
    )
    with pytest.raises(TooManyGroups):
        tally.add(lamp(1, a=long, b=long, c=long, d=long))
    assert len(tally) == 1_000


# --- measures


def test_the_numbers_of_a_group_are_measured_and_nothing_else() -> None:
    values = [3, "9", True, None, 4.5, [1, [100], {"n": 100}, 2.5], {"n": 100}]
    measures = {name: {name: "attributes/n"} for name in ("min", "max", "sum", "avg")}
    assert rows({"measures": measures}, [lamp(0), *(lamp(1, n=it) for it in values)]) == [
        {"count": 8, "min": 1, "max": 4.5, "sum": 11, "avg": 2.75}
    ]


def test_the_numbers_of_a_thing_that_is_in_many_groups_are_read_once() -> None:
    measures = {name: {name: "attributes/n"} for name in ("min", "max", "sum", "avg")}
    thing = lamp(1, tags=[f"tag-{number:04}" for number in range(2_000)], n=[*range(2_000), 0.5])
    with at_most(2):
        found = rows(
            {"groupBy": {"tag": "attributes/tags"}, "measures": measures}, [thing, lamp(2, tags="tag-0007", n=-1)]
        )
    whole = {"count": 1, "min": 0, "max": 1_999, "sum": 1_999_000.5, "avg": 1_999_000.5 / 2_001}
    assert found[6] == {"tag": "tag-0006", **whole}
    assert found[7] == {
        "tag": "tag-0007",
        "count": 2,
        "min": -1,
        "max": 1_999,
        "sum": 1_998_999.5,
        "avg": 1_998_999.5 / 2_002,
    }


def test_without_a_number_there_is_no_smallest_largest_or_mean() -> None:
    measures = {name: {name: "attributes/n"} for name in ("min", "max", "sum", "avg")}
    assert rows({"groupBy": ROOM, "measures": measures}, [lamp(1, room="hall", n="9")]) == [
        {"room": "hall", "count": 1, "min": None, "max": None, "sum": 0, "avg": None}
    ]


def test_a_wildcard_measures_every_feature() -> None:
    thing = {
        "thingId": "a:b",
        "features": {name: {"properties": {"t": t}} for name, t in (("x", 20), ("y", 31), ("*", 1))},
    }
    assert rows(
        {"measures": {"most": {"max": "features/*/properties/t"}, "all": {"sum": "features/*/properties/t"}}}, [thing]
    ) == [{"count": 1, "most": 31, "all": 52}]


def test_whole_numbers_are_summed_exactly_and_rounded_only_beyond_64_bits() -> None:
    measures = {"all": {"sum": "attributes/n"}, "mean": {"avg": "attributes/n"}}
    for numbers, total, mean in (
        ((2**62, 2**62 - 1), 2**63 - 1, float(2**62)),
        ((2**63 - 1, 2**63 - 1, -(2**63 - 1)), 2**63 - 1, 2**63 / 3),
        ((2**63 - 1, 1), float(2**63), 2**62),
        ((2**62, 2**62 + 2), float(2**63), 2**62 + 1),
    ):
        (row,) = rows({"measures": measures}, [lamp(1, n=it) for it in numbers])
        assert (row["all"], row["mean"]) == (total, mean)
        assert (type(row["all"]), type(row["mean"])) == (type(total), type(mean))


def test_a_sum_beyond_all_doubles_is_not_reported() -> None:
    measures = {"all": {"sum": "attributes/n"}, "mean": {"avg": "attributes/n"}}
    assert rows({"measures": measures}, [lamp(1, n=1.7e308), lamp(2, n=1.7e308)]) == [
        {"count": 2, "all": None, "mean": 1.7e308}
    ]


def test_the_largest_of_a_whole_number_and_a_double_is_found_exactly() -> None:
    values = [2**53 + 1, float(2**53)]
    measures = {name: {name: "attributes/n"} for name in ("min", "max")}
    for order in (values, values[::-1]):
        assert rows({"measures": measures}, [lamp(1, n=it) for it in order]) == [
            {"count": 2, "min": float(2**53), "max": 2**53 + 1}
        ]


@given(st.lists(st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(-1e300, 1e300)), min_size=1))
def test_sums_are_rounded_once_in_any_order(numbers: list[int | float]) -> None:
    measures = {name: {name: "attributes/n"} for name in ("sum", "avg", "min", "max")}
    (row,) = rows({"measures": measures}, [lamp(1, n=it) for it in numbers])
    assert repr(rows({"measures": measures}, [lamp(1, n=it) for it in reversed(numbers)])) == repr([row])
    exact = sum(map(Fraction, numbers), Fraction(0))
    for found, wanted in ((row["sum"], exact), (row["avg"], exact / len(numbers))):
        assert found == (wanted if wanted.denominator == 1 and abs(wanted) < 2**63 else float(wanted))


# --- rights


def test_an_unreadable_value_is_treated_as_missing() -> None:
    things = [lamp(1, room="hall", n=3), lamp(2, room="attic", n=4)]
    given = {"groupBy": ROOM, "measures": {"all": {"sum": "attributes/n"}}}
    assert rows(given, things, lambda path: path == ("attributes", "n")) == [{"room": None, "count": 2, "all": 7}]
    assert rows(given, things, lambda path: path == ("attributes", "room")) == [
        {"room": "attic", "count": 1, "all": 0},
        {"room": "hall", "count": 1, "all": 0},
    ]


def test_of_a_wildcard_each_feature_is_asked_for() -> None:
    thing = {"thingId": "a:b", "features": {name: {"properties": {"t": t}} for name, t in (("x", 20), ("y", 31))}}
    asked: list[Sequence[str]] = []

    def may(path: Sequence[str]) -> bool:
        asked.append(path)
        return path[1] == "x"

    assert rows({"measures": {"most": {"max": "features/*/properties/t"}}}, [thing], may) == [{"count": 1, "most": 20}]
    assert asked == [("features", name, "properties", "t") for name in ("x", "y")]


def test_every_reader_of_a_thing_can_group_by_its_id_and_namespace() -> None:
    for path, value in (("thingId", "acme.site:lamp-1"), ("namespace", "acme.site")):
        assert rows({"groupBy": {"x": path}}, [lamp(1)], lambda _path: False) == [{"x": value, "count": 1}]


def test_a_refused_specification_is_a_query_error() -> None:
    with pytest.raises(QueryError):
        read_aggregation({"measures": {"x": {"max": "foo"}}})

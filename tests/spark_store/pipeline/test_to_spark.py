"""Filters as columns on a real Spark, over Spark Connect: they agree with the reference, or say that it has to be asked.

All things and all filters of a test meet in one query.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import Column
from pyspark.sql.connect import functions as sql
from pyspark.sql.connect.session import SparkSession

from spark_store.errors import QueryError
from spark_store.rql.ast import Predicate
from spark_store.rql.bind import fixed_width
from spark_store.rql.search import holds, read
from spark_store.rql.to_spark import Columns, candidates, decided, instant, of_states
from tests import searches

pytestmark = pytest.mark.spark

T = TypeVar("T")

NOW = datetime(2030, 1, 15, 7, 30, tzinfo=UTC)
VECTORS = Path(__file__).parents[2] / "vectors"
STATES = "entity string, state string, revision long, created timestamp, modified timestamp"
BESIDE = ("_revision", "_created", "_modified")
AT = "2030-01-15T07:30:00Z"

Answers: TypeAlias = list[list[bool | None]]
"""For each thing, what each column says."""


@pytest.fixture(scope="module")
def session(address: str) -> Iterator[SparkSession]:
    session = SparkSession.builder.remote(address).create()
    yield session
    session.stop()


def ask(
    session: SparkSession, things: Sequence[dict[str, Any]], columns: Callable[[Columns], Sequence[Column]]
) -> Answers:
    """What columns say, for each thing."""
    rows = [
        (
            thing["thingId"],
            json.dumps({key: value for key, value in thing.items() if key not in BESIDE}, ensure_ascii=False),
            thing["_revision"],
            at(thing["_created"]),
            at(thing["_modified"]),
        )
        for thing in things
    ]
    found = session.createDataFrame(rows, STATES).select(of_states(lambda thing: sql.array(*columns(thing))))
    return [row[0] for row in found.collect()]


def at(text: str) -> datetime:
    """An instant of a lake, which has microseconds."""
    return datetime.fromisoformat(fixed_width(text)[:26] + "+00:00")


def as_the_lake_has_it(thing: dict[str, Any]) -> dict[str, Any]:
    return {
        **thing,
        "_created": f"{at(thing['_created']):%FT%T.%fZ}",
        "_modified": f"{at(thing['_modified']):%FT%T.%fZ}",
    }


def drawn(strategy: st.SearchStrategy[T], number: int) -> list[T]:
    """So many values by chance."""
    found: list[T] = []

    @settings(max_examples=number, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def collect(value: T) -> None:
        found.append(value)

    collect()
    return found


def cases() -> tuple[list[dict[str, Any]], list[Predicate]]:
    """The things and the filters of all numbered cases."""
    things, predicates = [], []
    for case in json.loads((VECTORS / "rql.json").read_text("utf-8")):
        thing = {"thingId": "acme.site:lamp-7", "policyId": "acme.site:pol-7", **case["thing"]}
        things.append({"_revision": 5, "_created": "2024-05-01T10:00:00Z", "_modified": AT, **thing})
        try:
            predicates.append(read(case["filter"], NOW))
        except QueryError:
            assert case["search"] == "error"
    different = list({json.dumps(thing): as_the_lake_has_it(thing) for thing in things}.values())
    return different, list(dict.fromkeys(predicates))


def undecided(session: SparkSession, parts: Sequence[dict[str, Any]], texts: Sequence[str]) -> set[str]:
    """The filters that columns leave undecided for some of the things; of all others they say what the reference says."""
    beside = {"policyId": "acme.site:pol-7", "_revision": 5, "_created": AT, "_modified": AT}
    things = [{"thingId": f"acme.site:lamp-{number}", **beside, **part} for number, part in enumerate(parts)]
    predicates = [read(text, NOW) for text in texts]
    left = set()
    for thing, said in zip(
        things, ask(session, things, lambda row: [decided(each, row) for each in predicates]), strict=True
    ):
        for text, predicate, decision in zip(texts, predicates, said, strict=True):
            assert decision in (holds(predicate, thing), None), (text, thing)
            left |= {text} if decision is None else set()
    return left


def test_each_filter_of_the_cases_says_of_each_thing_what_the_reference_says(session: SparkSession) -> None:
    things, predicates = cases()
    decisions = ask(session, things, lambda thing: [decided(predicate, thing) for predicate in predicates])
    undecided = 0
    for thing, said in zip(things, decisions, strict=True):
        for predicate, decision in zip(predicates, said, strict=True):
            assert decision in (holds(predicate, thing), None), (predicate, thing)
            undecided += decision is None
    assert undecided <= 0.02 * len(things) * len(predicates), "columns decide nearly everything by themselves"


def test_every_kind_of_value_meets_every_kind_of_literal(session: SparkSession) -> None:
    numbers = [*searches.EVERY_WHOLE, *searches.EVERY_DOUBLE, *searches.EVERY_BEYOND]
    scalars = [None, True, False, *numbers, "", "a", "b", "1", "true", "\uff21", "💡"]
    values: list[Any] = [
        *scalars,
        [],
        {},
        {"a": 1},
        [[]],
        [{}],
        [[1]],
        [None, 1],
        [2**53 + 1, "b"],
        [True, "a"],
        ["", 0.5],
    ]
    texts = ["1.0", "0.1", "0.0", "2", "1", "9007199254740993", "9007199254740992.0", "9223372036854775807", "0"]
    texts += [
        "9223372036854775808.0",
        "-9223372036854775808",
        "1" + "0" * 300 + ".0",
        '"a"',
        '""',
        "true",
        "null",
        '"💡"',
    ]
    filters = [f"{name}(attributes/x,{text})" for name in ("eq", "ne", "gt", "ge", "lt", "le") for text in texts]
    filters += [
        f"in(attributes/x,{','.join(texts)})",
        "in(attributes/x,-0.5,null)",
        "empty(attributes/x)",
        "in(attributes/x,0.0,1)",
    ]
    assert not undecided(session, [{"attributes": {"x": value}} for value in values], filters)


def test_every_text_meets_every_pattern(session: SparkSession) -> None:
    patterns = [
        "",
        "*",
        "a*",
        "*b",
        "*a*",
        "?",
        "a*b",
        "*a*b*",
        "*?b",
        "a\\\\b",
        "a'b",
        "i",
        "k",
        "ä",
        "σ",
        "*\\n",
        "%",
        "_",
        "x*y",
    ]
    texts = [*searches.EVERY_TEXT, "ab\n", "acb", "cab", "K", "\u212a", "AXB"]
    for name in ("like", "ilike"):
        filters = {f'{name}(attributes/x,"{pattern}")': pattern for pattern in patterns}
        left = undecided(session, [{"attributes": {"x": text}} for text in texts], list(filters))
        assert name == "ilike" or all({"*", "?"} & {*filters[text].strip("*")} for text in left)


def test_every_key_is_found_wherever_it_stands(session: SparkSession) -> None:
    keys = [key for key in searches.EVERY_KEY if key != "*"]
    things: list[dict[str, Any]] = [
        {
            "attributes": dict(zip(keys, range(100), strict=False)),
            "features": {key: {"properties": {key: 1}} for key in keys},
        },
        {"attributes": {"k": {key: {key: 7} for key in keys}}},
        {"attributes": {"k": [{key: 7} for key in keys]}, "features": {"*": {"properties": {"*": 1}}}},
        {},
    ]
    names = [searches.escaped(key.replace("~", "~0")) for key in keys]
    filters = [f"eq(attributes/{name},{number})" for number, name in enumerate(names)]
    filters += [f"eq(attributes/k/{name}/{name},7)" for name in names]
    filters += [f"eq(features/{name}/properties/{name},1)" for name in names]
    filters += [f"exists(features/*/properties/{name})" for name in names]
    assert all("/k/" in text for text in undecided(session, things, filters)), "only arrays are on the way"


def test_filters_by_chance_say_what_the_reference_says_whatever_somebody_may_read(session: SparkSession) -> None:
    things = [as_the_lake_has_it(thing) for thing in drawn(searches.things(), 150)]
    predicates = drawn(searches.filters(), 40)
    rights = drawn(searches.rights(), 5)
    answers = ask(
        session,
        things,
        lambda thing: [column for each in predicates for column in (decided(each, thing), candidates(each, thing))],
    )
    for thing, said in zip(things, answers, strict=True):
        for predicate, decision, is_possible in zip(predicates, said[::2], said[1::2], strict=True):
            assert decision in (holds(predicate, thing), None), (predicate, thing)
            for may in (None, *rights):
                assert is_possible or not holds(predicate, thing, may), (predicate, thing)


def test_states_that_are_no_json_are_left_to_the_reference_and_no_time_is_absent(session: SparkSession) -> None:
    rows = [("acme.site:lamp-1", "{", 1, None, at(AT)), ("acme.site:lamp-2", None, 1, None, at(AT))]
    texts = [
        "eq(attributes/a,1)",
        "not(eq(attributes/a,1))",
        "exists(features/*)",
        "eq(attributes/a b,1)",
        "exists(_created)",
    ]
    predicates = [read(text, NOW) for text in texts]
    found = session.createDataFrame(rows, STATES).select(
        of_states(lambda thing: sql.array(*(decided(each, thing) for each in predicates))),
        of_states(lambda thing: sql.array(*(candidates(each, thing) for each in predicates))),
    )
    assert [(row[0], row[1]) for row in found.collect()] == [([*[None] * 4, False], [*[True] * 4, False])] * 2


def test_an_instant_is_the_same_text_in_any_time_zone(session: SparkSession) -> None:
    times = [
        "2030-03-31T01:30:00.000001Z",
        "1969-12-31T23:59:59.999999Z",
        "2030-10-27T00:59:59Z",
        "0001-01-01T00:00:00Z",
    ]
    frame = session.createDataFrame([(at(time),) for time in times], "time timestamp").select(instant(sql.col("time")))
    session.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        assert [row[0] for row in frame.collect()] == [fixed_width(time) for time in times]
    finally:
        session.conf.set("spark.sql.session.timeZone", "UTC")


def test_no_filter_is_too_much_and_what_a_client_wrote_stays_a_value(session: SparkSession) -> None:
    """Also at the bounds of length and depth, and where a value is written to be more than that."""
    odd = "'; DROP TABLE latest; -- ${x} {y} `z` \\ \" $['a'] é😀"
    thing = {
        "thingId": "acme.site:lamp-1",
        "_revision": 1,
        "_created": AT,
        "_modified": AT,
        "attributes": {odd: odd, "n": 7, "deep": {"a": 1}},
    }
    texts = {
        f'eq(attributes/{searches.escaped(odd)},"{searches.escaped(odd)}")': True,
        f'like(attributes/n,"{searches.escaped(odd)}*")': False,
        "or(" + ",".join(f"eq(attributes/n,{number})" for number in range(8, 257)) + ")": None,
        "in(attributes/n" + "".join(f",{number}" for number in range(-400, 8)) + ")": True,
        "not(" * 99 + "eq(attributes/n,7)" + ")" * 99: False,
        "or(" + ",".join(f"eq(attributes/n,{number})" for number in range(8, 72)) + ")": False,
        "exists(attributes/deep" + "/a" * 5_000 + ")": None,
        "exists(attributes/deep" + "/a b" * 10 + ")": None,
        "or(and(" * 45 + "eq(attributes/n,7)" + ",eq(attributes/n,7)),eq(attributes/n,6))" * 45: None,
        "or(exists(attributes/x)," * 12 + "eq(attributes/n,7)" + ")" * 12: True,
        "and(gt(features/*/properties/a b/a b/a b,9007199254740993)," * 12 + "eq(attributes/n,7)" + ")" * 12: False,
    }
    predicates = [read(text, NOW) for text in texts]
    (said,) = ask(session, [thing], lambda row: [decided(predicate, row) for predicate in predicates])
    assert said == list(texts.values())

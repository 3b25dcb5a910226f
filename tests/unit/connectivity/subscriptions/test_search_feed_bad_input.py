"""Invalid searches: each fails with its code, or is read literally, within a time limit."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.cpu_budget import at_most
from tests.support.dice import dice, examples
from tests.support.in_process.search_client import Searcher, has_thing
from tests.support.in_process.service import ConnectionHarness, searching, source

pytestmark = pytest.mark.usefixtures("harnesses")

DEEP = "not(" * 600 + "exists(attributes/a)" + ")" * 600
WIDE = "or(" + ",".join(["exists(attributes/a)"] * 20_000) + ")"
NASTY = "x' OR 1=1; DROP TABLE entities; --"
QUOTED = NASTY.replace("'", "\\'")


@pytest.fixture
async def searcher() -> Searcher:
    harness = ConnectionHarness(source())
    await has_thing(harness, "lamp-7", {"attributes": {NASTY: NASTY, "text": "a" * 5000}})
    return Searcher(harness)


@pytest.mark.parametrize(
    "filter",
    [
        "",
        DEEP,
        WIDE,
        "x" * 900_000,
        "eq(attributes/a,9223372036854775808)",
        "eq(attributes/a,1e400)",
        "eq(attributes/a,'half)",
        'eq(attributes/a,"\\ud800")',
        "drop(attributes/a)",
        "eq(attributes/a,1);exists(thingId)",
        "eq(_state,1)",
        "eq(features/*,1)",
        "in(attributes/a," + ",".join(["1"] * 600) + ")",
        "like(attributes/text," + '"' + "*a" * 2000 + '")',
    ],
    ids=lambda filter: filter[:30] or "empty",
)
async def test_an_invalid_filter_fails_with_its_code(searcher: Searcher, filter: str) -> None:
    with at_most(2.0):
        key = await searcher.subscribe(filter)
        await searcher.request(key)
    error = searcher.failure(key)
    assert (error["status"], error["error"]) == (400, "rql.expression.invalid")
    assert len(error["message"]) < 1_000


@pytest.mark.parametrize(
    ("filter", "is_found"),
    [
        (f"eq(attributes/{NASTY},'{QUOTED}')", True),
        (f"eq(attributes/text,'{QUOTED}')", False),
        (f"exists(attributes/{NASTY})", True),
        ("like(attributes/text," + '"' + "a*" * 400 + 'b")', False),
        ("ilike(attributes/text," + '"' + "?*" * 400 + '")', True),
        ("in(attributes/text," + ",".join(['"x"'] * 400) + ")", False),
    ],
    ids=lambda each: each[:30] if isinstance(each, str) else "",
)
async def test_an_unusual_but_valid_filter_has_its_literal_meaning(
    searcher: Searcher, filter: str, is_found: bool
) -> None:
    with at_most(5.0):
        assert await searcher.all(filter) == (["acme.site:lamp-7"] if is_found else [])


@pytest.mark.parametrize(
    "options",
    ["size(" + "9" * 5000 + ")", "sort(" + "+attributes/a," * 999 + "+thingId)", "size(1)," * 9999, "limit(1)"],
)
async def test_invalid_options_fail_with_their_code(searcher: Searcher, options: str) -> None:
    key = await searcher.subscribe(None, options)
    await searcher.request(key)
    error = searcher.failure(key)
    assert (error["status"], error["error"]) == (400, "thing-search:search.option.invalid")
    assert len(error["message"]) < 1_000


@pytest.mark.parametrize(("number", "is_valid"), [(500, True), (501, False), (100_000, False)])
async def test_a_search_names_a_limited_number_of_namespaces(
    searcher: Searcher, number: int, *, is_valid: bool
) -> None:
    """A subscription keeps them, so that a large message with short names would use much memory."""
    key = await searcher.subscribe(namespaces=[f"n{number:x}" for number in range(number)])
    await searcher.request(key)
    if is_valid:
        assert searcher.end(key) == "complete"
    else:
        assert searcher.failure(key)["error"] == "thing-search:search.option.invalid"
        assert "at most 500" in searcher.failure(key)["description"]


async def test_every_random_search_gets_an_answer(searcher: Searcher) -> None:
    """Random values of search fields and random filters get `created` and an end, or an error."""
    random_source, harness = dice("bad searches"), searcher.harness
    pieces = [
        "eq",
        "(",
        ")",
        ",",
        "attributes/a",
        "features/*/x",
        '"',
        "'",
        "1",
        "null",
        "not",
        "and",
        "time:now",
        "\\",
        " ",
    ]
    values: list[Any] = [None, 1, "", [], {}, True, "size(1)", ["x"], "thingId"]
    served = 0
    for _ in range(examples(300)):
        harness.forget()
        value = {
            "filter": "".join(random_source.choices(pieces, k=random_source.randint(0, 9))),
            **{
                random_source.choice(("options", "namespaces", "aggregation", "x")): random_source.choice(values)
                for _ in range(2)
            },
        }
        answer = await harness.ask(searching("subscribe", value))
        if answer["topic"].endswith("/errors"):
            assert answer["value"]["error"].startswith("json.")
            continue
        await searcher.request(answer["value"]["subscriptionId"])
        last = harness.answers()[-1]
        assert "internalerror" not in str(last), (value, last)
        served += 1
    assert served >= 2

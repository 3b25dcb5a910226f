"""The page about searching is correct: every example has the documented result.

Each example runs twice: thing by thing with the evaluator of searches, and over a journal's index.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from connectivity.authorization.enforcer import DROP, READ, Enforcer
from connectivity.twins.access import ThingRights
from connectivity.twins.context import CurrentStateLookup
from mappings.model.field_selector import parse_fields, select
from spark_store.errors import QueryError
from spark_store.journal.journal import Journal
from spark_store.rql.options import read_options
from spark_store.rql.order import key_of, sort_key
from spark_store.rql.query import Budget, ThingQuery
from spark_store.rql.search_evaluator import holds, read
from spark_store.search.aggregation import GroupAccumulator, read_aggregation
from spark_store.search.sqlite_search import SqliteSearch
from tests.support.search_page import BLOCKS, PAGE, THINGS, WHOLE, fill, policy
from tests.support.table import each_row

NOW = datetime(2030, 1, 15, 7, 40, tzinfo=UTC)
STAFF = "acme:staff"

_ROWS = re.findall(
    r"^\| (?:`(acme:\w+)` \| )?`([a-zA-Z]+[(=].*?)` \| (.+) \|$", PAGE.partition("## Over HTTP")[0], re.MULTILINE
)
_NAMES = re.compile(r"none|[a-z]+-\d(, [a-z]+-\d)*")
FOUND = [row for row in _ROWS if _NAMES.fullmatch(row[2]) and not row[1].startswith("sort(")]
SORTED = [row for row in _ROWS if _NAMES.fullmatch(row[2]) and row[1].startswith("sort(")]
REFUSED = [
    row
    for row in _ROWS
    if not _NAMES.fullmatch(row[2])
    and "…" not in row[1]
    and row[1] != "size(n)"
    and not row[1].startswith("sort(+path")
]


ENFORCERS = {name: Enforcer(policy(shown)) for name, shown in BLOCKS[1].items()}


def seen(subject: str, filter: str | None, options: str = "") -> list[tuple[dict[str, Any], Any]]:
    """The things that are found, whole, each with what may be read of it."""
    predicate = read(filter, NOW) if filter is not None else None
    order = read_options(options).order
    found = []
    for shown in THINGS:
        thing, enforcer = {**WHOLE, **shown}, ENFORCERS[shown["policyId"]]

        def may(path: Sequence[str], enforcer: Enforcer = enforcer) -> bool:
            return enforcer.has([subject], READ, "thing:/" + "/".join(path))

        visible = enforcer.view(shown, "thing:/", [subject])
        if visible is not DROP and (predicate is None or holds(predicate, thing, may)):
            found.append((sort_key(thing, order, may), thing, may))
    by = key_of(order)
    return [(thing, may) for _, thing, may in sorted(found, key=lambda each: by(each[0]))]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteSearch]:
    """The things and policies of the page in a journal."""
    path = tmp_path_factory.mktemp("page") / "journal.db"
    journal = Journal.open(path)
    fill(journal)
    journal.close()
    search = SqliteSearch(path)
    yield search
    search.close()


def indexed(index: SqliteSearch, subject: str, filter: str | None, options: str = "") -> list[str]:
    """The ids of the things that are found over the index, by the policies of the journal."""
    predicate = read(filter, NOW) if filter is not None else None
    question = ThingQuery(predicate, read_options(options).order)
    rights = ThingRights(CurrentStateLookup(index.snapshot, lambda: "2030-01-15T07:40:00.000000Z"), [subject])
    return [hit.thing_id for hit in index.every(question, rights, Budget())]


def names(subject: str, filter: str | None, options: str, index: SqliteSearch) -> str:
    """Return the short names of the things found, which are the same with and without the index."""
    found = [thing["thingId"] for thing, _ in seen(subject, filter, options)]
    assert indexed(index, subject, filter, options) == found
    return ", ".join(id.partition(":")[2] for id in found)


@each_row(("who", "filter", "expected"), FOUND, ids=[f"{row[0]} {row[1]}" for row in FOUND])
def test_a_filter_finds_the_things_that_the_page_names(
    who: str, filter: str, expected: str, index: SqliteSearch
) -> None:
    assert names(who or STAFF, filter, "", index) == expected.replace("none", "")


@pytest.mark.parametrize(("options", "expected"), [row[1:] for row in SORTED], ids=[row[1] for row in SORTED])
def test_options_order_the_things_as_documented(options: str, expected: str, index: SqliteSearch) -> None:
    assert names(STAFF, None, options, index) == expected


@each_row(("text", "expected"), [row[1:] for row in REFUSED], ids=[row[1] for row in REFUSED])
def test_the_invalid_searches_on_the_page_raise_the_error_shown(text: str, expected: str) -> None:
    with pytest.raises(QueryError) as refused:
        read_options(text) if re.match("size|sort|limit", text) else read(text, NOW)
    assert expected in str(refused.value)


def test_the_conversation_of_the_page_is_about_its_things() -> None:
    subscribe, _, _, page = BLOCKS[2:6]
    value = subscribe["value"]
    assert read_options(value["options"]).size == len(page["value"]["items"]) == 2
    found = [
        select(thing, parse_fields(subscribe["fields"]))
        for thing, _ in seen(STAFF, value["filter"], value["options"])
        if thing["thingId"].partition(":")[0] in value["namespaces"]
    ]
    assert found[:2] == page["value"]["items"]
    assert [thing["thingId"] for thing in found[2:]] == ["acme.site:lamp-8"]


@pytest.mark.parametrize("number", [6, 8, 10])
def test_an_aggregation_gives_the_rows_that_the_page_shows(number: int) -> None:
    value = BLOCKS[number]["value"]
    tally = GroupAccumulator(read_aggregation(value["aggregation"]))
    for thing, may in seen(STAFF, value.get("filter")):
        tally.add(thing, may)
    assert [list(row.items()) for row in tally.rows()] == [list(row.items()) for row in BLOCKS[number + 1]]


def test_the_page_has_examples() -> None:
    assert (len(FOUND) > 50, len(SORTED) >= 6, len(REFUSED) >= 10, len(BLOCKS)) == (True, True, True, 13)

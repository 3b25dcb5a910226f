"""Continuing after a page, while things change: no thing twice, and no unchanged thing missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_store.rql.order import key_of
from spark_store.rql.query import Budget, SortKey, ThingQuery
from spark_store.search.sqlite_search import SqliteSearch
from tests.support.oracles.search import PartialReader, StateDatabase, answer, with_rights
from tests.support.random_questions import ACCESSES, BOUNDS, DECLARED, IDS, large_and_small, narrow, questions


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateDatabase]:
    found = StateDatabase(tmp_path_factory.mktemp("walking") / "journal.db")
    yield found
    found.close()


@pytest.fixture(scope="module")
def search(database: StateDatabase) -> Iterator[SqliteSearch]:
    found = SqliteSearch(database.path, slice_seconds=60.0)  # a busy machine ends no page early
    yield found
    found.close()


@given(
    large_and_small(12),
    questions(),
    ACCESSES,
    st.integers(1, 4),
    BOUNDS,
    DECLARED,
    st.lists(st.tuples(large_and_small(3), st.lists(IDS, max_size=2, unique=True)), max_size=4),
)
def test_pages_drawn_while_things_change(
    database: StateDatabase,
    search: SqliteSearch,
    things: list[dict[str, Any]],
    question: ThingQuery,
    accesses: Mapping[str, PartialReader],
    limit: int,
    bounds: Mapping[str, Any],
    declared: set[str],
    changes: list[tuple[list[dict[str, Any]], list[str]]],
) -> None:
    """An unchanged thing is found once; a changed one is found in its new state, or not at all."""
    database.clear()
    database.declare(*declared)
    database.put(*things)
    rights = with_rights(accesses, database)
    present = {thing["thingId"]: thing for thing in things}
    at_first = {hit.thing_id: hit for _, hit in answer(present.values(), question, rights)}
    touched: set[str] = set()
    found: list[str] = []
    place: SortKey | None = None
    coming = iter(changes)
    with pytest.MonkeyPatch.context() as patch:
        narrow(patch, bounds)
        while True:
            page = search.page(question, rights, place, limit, Budget(60.0))
            now = {hit.thing_id: (at, hit) for at, hit in answer(present.values(), question, rights)}
            key = key_of(question.order)
            for hit in page.hits:
                at, expected = now[hit.thing_id]
                assert hit == expected
                assert place is None or key(place) < key(at)
            ids = [hit.thing_id for hit in page.hits]
            assert len(ids) == len(set(ids))
            found += ids
            if page.is_last:
                break
            assert page.place is not None
            place = page.place
            put, deleted = next(coming, ([], []))
            database.put(*put)
            database.delete(*deleted)
            present.update((thing["thingId"], thing) for thing in put)
            for id in deleted:
                present.pop(id, None)
            touched.update(deleted, (thing["thingId"] for thing in put))
    stayed = [id for id in found if id not in touched]
    assert sorted(stayed) == sorted(at_first.keys() - touched)

"""Searching a file: every answer is the one that all things, held against the filter one by one, give."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_store import moment, reaching, walking
from spark_store.asking import Budget, Hit, Place, Question
from spark_store.search import SqliteSearch
from tests import searches
from tests.spark_store.searched import Given, Partly, Shelf, answer, with_rights


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    found = Shelf(tmp_path_factory.mktemp("search") / "journal.db")
    yield found
    found.close()


@pytest.fixture(scope="module")
def search(shelf: Shelf) -> Iterator[SqliteSearch]:
    found = SqliteSearch(shelf.path)
    yield found
    found.close()


def drawn(search: SqliteSearch, question: Question, rights: Given, limit: int) -> Iterator[list[Hit]]:
    place: Place | None = None
    budget = Budget(60.0)
    while True:
        found = search.page(question, rights, place, limit, budget)
        assert len(found.hits) <= limit
        yield list(found.hits)
        if found.is_last:
            return
        place = found.place


def narrow(patch: pytest.MonkeyPatch, bounds: Mapping[str, Any]) -> None:
    """Give the bounds, from which another way is taken, these values, so that few things take every way."""
    for name, value in bounds.items():
        for module in (moment, reaching, walking):
            if hasattr(module, name):
                patch.setattr(module, name, value)


IDS = st.builds(
    lambda namespace, name: f"{namespace}:{name}",
    st.sampled_from(["acme.site", "acme.lab", "acme", ""]),
    st.sampled_from([*"abcdefg", "Ä 'x'", "💡", "\uff21"]),
)
ACCESSES = st.dictionaries(searches.IDS, st.builds(Partly, searches.rights(), st.booleans()), min_size=3)
NAMESPACES = st.frozensets(st.sampled_from(["acme.site", "acme.lab", "acme", "nobody", ""]), max_size=2)
BOUNDS = st.fixed_dictionaries(
    {
        "SORTABLE": st.sampled_from([0, 1, 1500]),
        "_SMALL": st.sampled_from([1, 2, 400]),
        "LOST": st.sampled_from([0, 2, 3000]),
        "CHUNK_MARK": st.sampled_from([1, 128]),
        "APART": st.sampled_from([0, 2, 4000]),
        "_DENSE": st.sampled_from([0, 12]),
        "FEW_OF_POLICIES": st.sampled_from([0, 1000]),
        "POLICIES": st.sampled_from([1, 200]),
        "bound_of": st.sampled_from([0, 2, 1500]).map(lambda bound: lambda things, page: bound),
    }
)


@st.composite
def questions(draw: st.DrawFn) -> Question:
    return Question(draw(st.none() | searches.filters()), draw(searches.orders()), draw(NAMESPACES))


@given(
    st.lists(searches.things(IDS), max_size=14, unique_by=lambda thing: thing["thingId"]),
    questions(),
    ACCESSES,
    st.integers(1, 6),
    BOUNDS,
)
def test_every_answer_is_the_one_that_all_things_one_by_one_give(
    shelf: Shelf,
    search: SqliteSearch,
    things: list[dict[str, Any]],
    question: Question,
    accesses: Mapping[str, Partly],
    limit: int,
    bounds: Mapping[str, Any],
) -> None:
    shelf.clear()
    shelf.put(*things)
    rights = with_rights(accesses, shelf)
    with pytest.MonkeyPatch.context() as patch:
        narrow(patch, bounds)
        pages = list(drawn(search, question, rights, limit))
    expected = [hit for _, hit in answer(things, question, rights)]
    assert list(itertools.chain.from_iterable(pages)) == expected
    assert all(len(page) == limit for page in pages[:-1])

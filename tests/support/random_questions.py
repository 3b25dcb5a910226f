"""Random queries of a search in a file, and the limits at which it changes its strategy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import strategies as st

from spark_store.rql.query import Budget, SearchHit, SortKey, ThingQuery
from spark_store.search import candidates, read_view, scan
from spark_store.search.index import LARGE, LONGEST
from spark_store.search.index_sql import path_of
from spark_store.search.sqlite_search import SqliteSearch
from tests.support import random_searches as searches
from tests.support.oracles.search import PartialReader, ReaderRights


def drawn(search: SqliteSearch, question: ThingQuery, rights: ReaderRights, limit: int) -> Iterator[list[SearchHit]]:
    place: SortKey | None = None
    budget = Budget(60.0)
    while True:
        found = search.page(question, rights, place, limit, budget)
        assert len(found.hits) <= limit
        yield list(found.hits)
        if found.is_last:
            return
        place = found.place


def narrow(patch: pytest.MonkeyPatch, bounds: Mapping[str, Any]) -> None:
    """Set limits in the search modules, so that a few things are enough for each of its strategies."""
    for name, value in bounds.items():
        for module in (read_view, candidates, scan):
            if hasattr(module, name):
                patch.setattr(module, name, value)


IDS = st.builds(
    lambda namespace, name: f"{namespace}:{name}",
    st.sampled_from(["acme.site", "acme.lab", "acme", ""]),
    st.sampled_from([*"abcdefg", "Ä 'x'", "💡", "\uff21"]) | searches.KEYS,
)
ACCESSES = st.dictionaries(searches.POLICY_IDS, st.builds(PartialReader, searches.rights(), st.booleans()), min_size=3)
NAMESPACES = st.frozensets(st.sampled_from(["acme.site", "acme.lab", "acme", "nobody", ""]), max_size=2)
BOUNDS = st.fixed_dictionaries(
    {
        "SORTABLE": st.sampled_from([0, 1, 1500]),
        "_SMALL": st.sampled_from([1, 2, 400]),
        "LOST": st.sampled_from([0, 2, 3000]),
        "CHUNK_MARK": st.sampled_from([1, 128]),
        "APART": st.sampled_from([0, 2, 4000]),
        "SCANNED": st.sampled_from([0, 1, 4000]),
        "_DENSE": st.sampled_from([0, 12]),
        "FEW_OF_POLICIES": st.sampled_from([0, 1000]),
        "FEW_BESIDE_CANDIDATES": st.sampled_from([0, 50]),
        "FEW_CANDIDATES": st.sampled_from([0, 400]),
        "POLICIES": st.sampled_from([1, 200]),
        "bound_of": st.sampled_from([0, 2, 1500]).map(lambda bound: lambda things, page: bound),
    }
)
DECLARED = st.sets(
    st.just("features/a/properties/a") | searches.PATHS.map(lambda path: path_of(("attributes", *path))), max_size=5
)


@st.composite
def large_and_small(draw: st.DrawFn, most: int) -> list[dict[str, Any]]:
    """Draw things, of which some are too large for the index."""
    found = draw(st.lists(searches.things(IDS), max_size=most, unique_by=lambda thing: thing["thingId"]))
    for thing in found:
        bulk = draw(st.sampled_from([None, None, None, None, {"bulk": "x" * LARGE}, {"k" * LONGEST: 1}]))
        if bulk is not None:
            thing["attributes"] = {**thing.get("attributes", {}), **bulk}
    return found


@st.composite
def questions(draw: st.DrawFn) -> ThingQuery:
    return ThingQuery(draw(st.none() | searches.filters()), draw(searches.orders()), draw(NAMESPACES))


def found(search: SqliteSearch, question: ThingQuery, rights: ReaderRights, limit: int = 25) -> list[str]:
    return [hit.thing_id for page in drawn(search, question, rights, limit) for hit in page]

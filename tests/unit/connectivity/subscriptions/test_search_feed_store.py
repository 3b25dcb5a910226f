"""Searches while the store is unavailable."""

from __future__ import annotations

import pytest

from spark_store.errors import StoreUnavailable
from tests.support.in_process.search_client import Searcher, has_thing
from tests.support.in_process.service import ConnectionHarness, source

pytestmark = pytest.mark.usefixtures("harnesses")


async def test_a_search_while_the_store_is_unavailable_ends_with_an_error_that_says_so() -> None:
    """As one over HTTP, it is answered again as soon as the store is available."""
    harness = ConnectionHarness(source())
    await has_thing(harness, "lamp-1")
    searcher = Searcher(harness)
    harness.search.error = StoreUnavailable("the file was moved")
    key = await searcher.subscribe()
    await searcher.request(key, 1)
    failure = searcher.failure(key)
    assert (failure["status"], failure["error"]) == (503, "thing-search:store.unavailable")
    assert "was moved" not in str(failure)
    harness.search.error = None
    assert len(await searcher.request(await searcher.subscribe(), 1)) == 1

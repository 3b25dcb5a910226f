"""Searches while the store is unavailable, or waits for the disk."""

from __future__ import annotations

import pytest

from spark_store.errors import StoreUnavailable
from tests.support.in_process.search_client import Searcher, has_thing
from tests.support.in_process.service import ConnectionHarness, Disk, pause, source, turn, until

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


async def test_a_search_waits_for_changes_that_are_not_durable_yet() -> None:
    disk = Disk()
    harness = ConnectionHarness(journal=disk)
    await has_thing(harness, "lamp-7")
    searcher = Searcher(harness)
    keys = [
        await searcher.subscribe("exists(attributes/on)"),
        await searcher.subscribe('eq(thingId,"acme.site:lamp-7")'),
    ]
    disk.hold()
    harness.deliver(turn(True))
    for key in keys:
        searcher.ask(key)
    await pause()
    assert [searcher.pages(key) for key in keys] == [[], []]
    disk.release()
    await until(lambda: all(searcher.end(key) for key in keys))
    for key in keys:
        assert [[thing["attributes"] for thing in page] for page in searcher.pages(key)] == [[{"on": True}]]

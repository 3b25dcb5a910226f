"""Searches give way to commands, and not to searches."""

from __future__ import annotations

import pytest

from tests.support.in_process.search_client import Searcher, has_thing
from tests.support.in_process.service import ConnectionHarness, command, source, turn

pytestmark = pytest.mark.usefixtures("harnesses")


@pytest.fixture
def harness() -> ConnectionHarness:
    return ConnectionHarness(source())


@pytest.mark.parametrize("sent", [turn(True), command("retrieve")], ids=["modify", "retrieve"])
async def test_searches_give_way_after_a_command(harness: ConnectionHarness, sent: bytes) -> None:
    await has_thing(harness, "lamp-7")
    pace = harness.searching.pace
    pace.busy_at = 0.0
    before = pace.now()
    await harness.ask(sent)
    assert before < pace.busy_at < pace.now()


async def test_the_messages_of_a_search_keep_no_search_back(harness: ConnectionHarness) -> None:
    await has_thing(harness, "lamp-7")
    pace = harness.searching.pace
    pace.busy_at = 0.0
    searcher = Searcher(harness)
    key = await searcher.subscribe()
    assert len(await searcher.request(key, 1)) == 1
    assert pace.busy_at == 0.0

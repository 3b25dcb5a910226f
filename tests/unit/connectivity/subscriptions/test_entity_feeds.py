"""Live feeds that continue after a revision of an earlier owner."""

from __future__ import annotations

import pytest

from connectivity.subscriptions.entity_feeds import EntityFeeds
from connectivity.subscriptions.feed import Feed
from mappings.errors import Fault
from mappings.model.signals import LiveQuery
from tests.support.in_process.service import LAMP, NOW, ConnectionHarness, command, creation, document, source, turn

pytestmark = pytest.mark.usefixtures("harnesses")

ALICE, BOB = "acme:alice", "acme:bob"


@pytest.fixture
async def harness() -> ConnectionHarness:
    """A site where Alice's lamp has revisions 1 to 3, and Bob's new lamp of this ID 4 and 5."""
    made = ConnectionHarness(source("alice", ALICE), source("bob", BOB))
    for payload in (
        creation("lamp-7", ALICE),
        turn(1),
        command("delete"),
        document("acme.site/lamp-7/policies/commands/delete"),
    ):
        assert (await made.ask(payload))["status"] in (201, 204)
    for payload in (creation("lamp-7", BOB), turn(2)):
        assert (await made.ask(payload, source=1))["status"] == 201
    return made


def live(harness: ConnectionHarness, after: int | None, *subjects: str) -> Feed | Fault:
    feeds = EntityFeeds(harness.store, harness.decider.world, harness.following, lambda: NOW)
    return feeds.open(LiveQuery(LAMP, after), subjects)


@pytest.mark.parametrize(("after", "expected"), [(1, [4, 5]), (4, [5]), (5, []), (None, [])])
async def test_a_continued_session_skips_events_of_former_owners(
    harness: ConnectionHarness, after: int | None, expected: list[int]
) -> None:
    feed = live(harness, after, BOB)
    assert isinstance(feed, Feed)
    page = await feed.page(0, 10, 1 << 20)
    assert [event.revision for event in page.elements] == expected
    feed.close()


async def test_an_owner_of_both_misses_nothing(harness: ConnectionHarness) -> None:
    feed = live(harness, 1, ALICE, BOB)
    assert isinstance(feed, Feed)
    page = await feed.page(0, 10, 1 << 20)
    assert [event.revision for event in page.elements] == [2, 3, 4, 5]
    feed.close()


async def test_the_earlier_owner_may_not_follow(harness: ConnectionHarness) -> None:
    refused = live(harness, 1, ALICE)
    assert isinstance(refused, Fault)
    assert refused.error == "things:thing.notfound"

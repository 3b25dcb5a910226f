"""The table of subscriptions: what operators see of each, and how they end one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from connectivity.errors import OperationRefused
from connectivity.management.subscription_table import CANCELLED, SHOWN, SubscriptionTable
from connectivity.subscriptions.engine import UNBOUNDED
from connectivity.subscriptions.limits import SubscriptionLimits
from connectivity.subscriptions.manager import Subscriber, SubscriptionManager
from mappings.ids import EntityId, EntityType
from mappings.model.signals import Created, Failed, HistoryQuery, Request, Subscribe, SubscriptionKind
from tests.support.clock import Clock
from tests.support.in_process.fakes import KeepingReply, ListFeed

LAMP = EntityId(EntityType.THING, "acme.site", "lamp-7")
READER = ("acme:reader",)


class SubscriptionsSetup:
    """Streams over a long history, a subscriber on the connection `rabbit`, and an operator's table."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.reply = KeepingReply("rabbit")
        self.streams = SubscriptionManager(lambda *_: ListFeed(range(1, 1_001)), SubscriptionLimits(), self.clock.now)
        self.table = SubscriptionTable(self.streams)
        self._peer = Subscriber(self.reply, READER, "c-1")

    def subscribe(self, **options: Any) -> str:
        query = HistoryQuery(LAMP)
        self.streams.subscribe(
            Subscribe(SubscriptionKind.HISTORY, query, {"correlation-id": "sub"}, **options), self._peer
        )
        created = self.reply.signals[-1]
        assert isinstance(created, Created)
        return created.key

    async def request(self, key: str, demand: int) -> None:
        self.streams.request(
            Request(SubscriptionKind.HISTORY, key, demand, {"correlation-id": "req"}, LAMP), self._peer
        )
        for _ in range(50):
            await asyncio.sleep(0)

    def rows(self) -> Sequence[Mapping[str, Any]]:
        return self.table.subscriptions(1_000)

    def pass_time(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.streams.sweep()

    def cancel(self, prefix: str) -> None:
        self.table.cancel(self.table.one(prefix), "anna")

    async def refusal(self, prefix: str) -> tuple[int, str, str]:
        with pytest.raises(OperationRefused) as refused:
            self.cancel(prefix)
        fault = refused.value.fault
        return fault.status, fault.error, fault.message


async def test_no_more_are_listed_than_are_wanted_and_all_are_counted() -> None:
    setup = SubscriptionsSetup()
    first = setup.subscribe()
    setup.subscribe()
    assert [row["id"] for row in setup.table.subscriptions(1)] == [first[:SHOWN]]
    assert setup.table.subscription_count() == 2


async def test_a_row_shows_the_connection_of_a_subscription_and_its_progress() -> None:
    setup = SubscriptionsSetup()
    key = setup.subscribe()
    await setup.request(key, 30)
    await setup.request(key, 12)
    setup.pass_time(7)
    (row,) = setup.rows()
    assert row == {
        "id": key[:8],
        "connection": "rabbit",
        "entity": "acme.site:lamp-7",
        "demand": 0,
        "sent": 42,
        "idle": 7,
    }


async def test_requested_elements_that_cannot_be_sent_are_shown_as_demand() -> None:
    setup = SubscriptionsSetup()
    setup.reply.is_stalled = True
    key = setup.subscribe()
    await setup.request(key, 150)
    setup.pass_time(7)
    (row,) = setup.rows()
    assert (row["demand"], row["sent"]) == (50, 100)
    assert row["idle"] == 0, "elements that wait for their broker are no idleness"


async def test_a_demand_without_end_is_shown_as_the_greatest() -> None:
    setup = SubscriptionsSetup()
    setup.reply.is_stalled = True
    await setup.request(setup.subscribe(), UNBOUNDED)
    assert setup.rows()[0]["demand"] == UNBOUNDED


async def test_an_id_is_never_shown_whole() -> None:
    """A client that knows the ID can use the subscription."""
    setup = SubscriptionsSetup()
    key = setup.subscribe()
    assert len(key) > 2 * SHOWN
    with capture_logs() as logs:
        assert key not in str(setup.rows())
        assert key not in str(await setup.refusal(f"{key}x"))
        setup.cancel(key)
    assert key not in str(logs)
    assert [(line["subscription"], line["by"]) for line in logs] == [(key[:SHOWN], "anna")]


async def test_the_rest_of_an_id_cannot_be_found_by_longer_and_longer_prefixes() -> None:
    """A user who may not cancel the subscription gets another error if it is found."""
    setup = SubscriptionsSetup()
    key = setup.subscribe()
    for length in range(SHOWN + 1, len(key)):
        assert (await setup.refusal(key[:length]))[:2] == (404, "connectivity:subscription.notfound")
    setup.cancel(key)
    assert setup.rows() == []


async def test_subscriptions_of_two_sessions_with_the_same_id_are_ended_separately() -> None:
    """A session protocol numbers the streams of each session, or names them by what they subscribe to."""
    setup = SubscriptionsSetup()
    for session in ("one", "two"):
        peer = Subscriber(setup.reply, READER, ("rabbit", session), has_session=True)
        setup.streams.subscribe(Subscribe(SubscriptionKind.HISTORY, HistoryQuery(LAMP), {}, "tank-9/0"), peer)
    first, second = (row["id"] for row in setup.rows())
    assert (first + second).isalnum(), "the ID is safe in a path and as an argument"
    assert len(first) == len(second) == SHOWN, "errors and the audit log do not cut it"
    assert (await setup.refusal("tank-9/0"))[:2] == (404, "connectivity:subscription.notfound")
    setup.cancel(first)
    assert [row["id"] for row in setup.rows()] == [second]


async def test_an_ended_subscription_is_not_in_the_table() -> None:
    setup = SubscriptionsSetup()
    await setup.request(setup.subscribe(), UNBOUNDED)
    setup.subscribe()
    assert [row["sent"] for row in setup.rows()] == [0]


async def test_cancelling_ends_the_one_that_is_meant_and_its_client_is_reported() -> None:
    setup = SubscriptionsSetup()
    first, second = setup.subscribe(), setup.subscribe()
    await setup.request(first, 1)
    setup.cancel(first[:SHOWN])
    failed = setup.reply.signals[-1]
    assert isinstance(failed, Failed)
    assert (failed.key, failed.reason, failed.headers) == (
        first,
        CANCELLED[SubscriptionKind.HISTORY],
        {"correlation-id": "req"},
    )
    codes = {kind: (fault.status, fault.error) for kind, fault in CANCELLED.items()}
    assert codes == {
        SubscriptionKind.HISTORY: (410, "streaming.subscription.cancelled"),
        SubscriptionKind.SEARCH: (410, "thing-search:subscription.cancelled"),
        SubscriptionKind.LIVE: (410, "streaming.subscription.cancelled"),
    }
    assert [row["id"] for row in setup.rows()] == [second[:SHOWN]]


async def test_cancelling_a_subscription_without_demand_ends_it_immediately() -> None:
    """Otherwise it would stay until its client sends a request."""
    setup = SubscriptionsSetup()
    key = setup.subscribe()
    setup.cancel(key[:SHOWN])
    assert setup.reply.names == ["Created", "Failed"]
    assert setup.rows() == []


async def test_cancelling_a_subscription_withdraws_unsent_elements() -> None:
    setup = SubscriptionsSetup()
    setup.reply.is_stalled = True
    key = setup.subscribe()
    await setup.request(key, 150)
    setup.cancel(key[:SHOWN])
    assert [posting.withdrawn for posting in setup.reply.postings] == [False, True, False]
    await setup.request(key, 1)
    assert setup.reply.names == ["Created", "Next", "Failed", "Failed"]


async def test_an_unknown_prefix_is_refused() -> None:
    setup = SubscriptionsSetup()
    key = setup.subscribe()
    assert (await setup.refusal("?"))[:2] == (404, "connectivity:subscription.notfound")
    assert (await setup.refusal(""))[:2] == (404, "connectivity:subscription.notfound")
    setup.cancel(key[:SHOWN])
    assert (await setup.refusal(key[:SHOWN]))[:2] == (404, "connectivity:subscription.notfound")


async def test_a_prefix_of_several_subscriptions_is_refused_and_ends_no_subscription() -> None:
    setup = SubscriptionsSetup()
    setup.subscribe(key="stream-1"), setup.subscribe(key="stream-2")
    assert (await setup.refusal("stream"))[:2] == (409, "connectivity:subscription.conflict")
    assert len(setup.rows()) == 2
    setup.cancel("stream-2")
    assert [row["id"] for row in setup.rows()] == ["stream-1"]

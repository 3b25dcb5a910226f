"""Limits of the subscriptions that users and peers can open at a connection."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connectivity.config.quotas import QuotaRule
from connectivity.subscriptions.feed import Feed
from connectivity.subscriptions.manager import Subscriber
from connectivity.transports.base import ReaderStatus
from mappings.errors import Fault
from mappings.model.signals import (
    Cancel,
    Created,
    ErrorResponse,
    HistoryQuery,
    Query,
    SearchQuery,
    SessionQuery,
    Subscribe,
    SubscriptionKind,
)
from tests.support.in_process.fakes import KeepingReply, ListFeed
from tests.support.in_process.subscription_harness import LAMP, NOT_FOUND, READER, SubscriptionHarness


async def test_too_many_subscriptions_of_one_connection_are_refused_without_an_id() -> None:
    harness = SubscriptionHarness(max_per_user=2)
    first = harness.subscribe()
    harness.subscribe()
    harness.streams.subscribe(Subscribe(SubscriptionKind.HISTORY, HistoryQuery(LAMP), {}), harness.peer)
    refused = harness.reply.signals[-1]
    assert isinstance(refused, ErrorResponse)
    assert (refused.fault.error, refused.fault.status) == ("streaming.subscription.limit", 429)
    assert refused.fault.message == (
        "This user has used up its share: it has 2 open subscriptions at this connection, 2 of them in this session; "
        "all users together have 2 of at most 6."
    )
    harness.cancel(first)
    harness.subscribe()


def subscribe_often(
    harness: SubscriptionHarness, number: int, subjects: tuple[str, ...], reader: str | None = None
) -> int:
    """Try so many subscriptions; return how many are opened."""
    reply = KeepingReply()
    peer = Subscriber(reply, subjects, "c-1", reader=reader)
    for _ in range(number):
        harness.streams.subscribe(Subscribe(SubscriptionKind.HISTORY, HistoryQuery(LAMP), {}), peer)
    return reply.names.count("Created")


def subscribe_to(harness: SubscriptionHarness, query: Query, subjects: tuple[str, ...]) -> Created | ErrorResponse:
    peer = replace(harness.peer, subjects=subjects, scope=subjects)
    kind = SubscriptionKind.SEARCH if isinstance(query, SearchQuery) else SubscriptionKind.HISTORY
    harness.streams.subscribe(Subscribe(kind, query, {}), peer)
    answer = harness.reply.signals[-1]
    assert isinstance(answer, Created | ErrorResponse)
    return answer


@pytest.mark.parametrize(
    "query",
    [
        HistoryQuery(LAMP, filter="x" * (1 << 20)),
        SearchQuery("x" * (1 << 19), fields="x" * (1 << 19)),
        SearchQuery(options="x", namespaces=("x",) * 2, aggregation=b"x" * ((1 << 20) - 23)),
        SearchQuery(fields="x," * (1 << 16), aggregation=b"x" * (1 << 18)),
        SessionQuery(lambda: NOT_FOUND, LAMP, 1 << 20),
    ],
)
def test_the_queries_of_open_subscriptions_are_limited(query: Query) -> None:
    """Idle subscriptions with long filters could otherwise use gigabytes."""
    harness = SubscriptionHarness()
    first, *_ = [subscribe_to(harness, query, ("acme:greedy",)) for _ in range(8)]
    refused = subscribe_to(harness, query, ("acme:greedy",))
    assert isinstance(refused, ErrorResponse)
    assert refused.fault.status == 429
    assert refused.fault.message == (
        "This user has used up its share: its open subscriptions have queries of 8388608 characters at this connection, "
        "8388608 of them in this session; all users together have 8388608 of at most 25165824."
    )
    assert isinstance(subscribe_to(harness, query, ("acme:other",)), Created)
    assert isinstance(first, Created)
    peer = replace(harness.peer, subjects=("acme:greedy",), scope=("acme:greedy",))
    harness.streams.cancel(Cancel(first.kind, first.key, {}), peer)
    assert harness.streams.texts["c-1"].used == 8 << 20
    harness.streams.closed("c-1")
    assert isinstance(subscribe_to(harness, query, ("acme:greedy",)), Created)
    assert harness.streams.texts["c-1"].used == 1 << 20


async def test_a_user_subscribes_beside_one_with_as_many_subscriptions_as_it_can_have() -> None:
    harness = SubscriptionHarness(max_per_user=100)
    assert subscribe_often(harness, 400, ("acme:greedy",)) == 100
    assert subscribe_often(harness, 400, ("acme:modest",)) == 67
    assert subscribe_often(harness, 400, ("acme:late",)) > 40
    harness.streams.closed("c-1")
    assert subscribe_often(harness, 400, ("acme:greedy",)) == 100


async def test_a_peer_of_a_listener_subscribes_beside_others_of_the_same_user() -> None:
    harness = SubscriptionHarness(max_per_user=100)
    greedy = [subscribe_often(harness, 400, READER, f"peer-{number}") for number in range(2)]
    assert greedy[0] == 100
    assert subscribe_often(harness, 10, READER, "peer-late") == 10
    harness.streams.reader("c-1", "peer-0", ReaderStatus.GONE)
    assert subscribe_often(harness, 50, READER, "peer-late") == 50


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (
            QuotaRule(subjects=("acme:*",), subscriptions=2),
            "the subject 'acme:reader' uses 2 of its quota subscriptions",
        ),
        (QuotaRule(namespaces=("*",), subscriptions=2), "the namespace 'acme.site' uses 2 of its quota subscriptions"),
    ],
)
async def test_subscriptions_beyond_a_quota_are_refused_until_one_ends(rule: QuotaRule, expected: str) -> None:
    harness = SubscriptionHarness(quotas=[rule])
    first = harness.subscribe()
    harness.subscribe()
    harness.streams.subscribe(Subscribe(SubscriptionKind.HISTORY, HistoryQuery(LAMP), {}), harness.peer)
    refused = harness.reply.signals[-1]
    assert isinstance(refused, ErrorResponse)
    assert (refused.fault.error, refused.fault.status) == ("streaming.subscription.limit", 429)
    assert expected in refused.fault.message
    harness.cancel(first)
    harness.subscribe()


async def test_a_feed_that_cannot_be_opened_uses_no_quota() -> None:
    """An internal error used a subscription of the quota until the service was restarted."""
    outcomes: list[Feed | Exception] = [ValueError("a defect"), ListFeed(range(5))]

    def open_feed() -> Feed:
        if isinstance(outcome := outcomes.pop(0), Exception):
            raise outcome
        return outcome

    harness = SubscriptionHarness(open_feed, quotas=[QuotaRule(subjects=("*",), subscriptions=1)])
    with pytest.raises(ValueError, match="a defect"):
        harness.subscribe()
    harness.subscribe()


async def test_a_subject_that_cannot_read_an_entity_neither_uses_nor_learns_the_quota_of_its_namespace() -> None:
    feeds: list[Feed | Fault] = [*([NOT_FOUND] * 3), ListFeed([]), ListFeed([]), NOT_FOUND, ListFeed([])]
    harness = SubscriptionHarness(lambda: feeds.pop(0), quotas=[QuotaRule(namespaces=("*",), subscriptions=1)])
    signal, reply = Subscribe(SubscriptionKind.HISTORY, HistoryQuery(LAMP), {}), KeepingReply()
    stranger = Subscriber(reply, ("acme:stranger",), "c-2")
    for _ in range(3):
        harness.streams.subscribe(signal, stranger)
    first = harness.subscribe()
    harness.streams.subscribe(signal, harness.peer)
    assert isinstance(harness.reply.signals[-1], ErrorResponse)
    harness.streams.subscribe(signal, stranger)
    assert reply.names == ["Created"] * 4
    harness.cancel(first)
    harness.subscribe()


async def test_a_subscription_that_replaces_one_needs_no_further_place() -> None:
    harness = SubscriptionHarness(quotas=[QuotaRule(subjects=("*",), subscriptions=1)], max_per_user=1)
    for _ in range(3):
        signal = Subscribe(SubscriptionKind.HISTORY, HistoryQuery(LAMP), {}, key="own")
        harness.streams.subscribe(signal, harness.peer)
        assert isinstance(harness.reply.signals[-1], Created)

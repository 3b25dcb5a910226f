"""Limits of the bytes that all subscriptions of a receiver and of a connection read ahead."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Hashable
from typing import Any

import pytest

from connectivity.subscriptions import read_ahead
from connectivity.subscriptions.feed import Feed, FeedPosition, Page, PageEnd
from connectivity.subscriptions.manager import Subscriber
from connectivity.subscriptions.read_ahead import (
    LITTLE,
    MOST,
    RESERVE,
    ConnectionBudget,
    PageCharge,
    ReadAheadBudget,
    size_of,
)
from mappings.model.signals import (
    EndReason,
    HistoryQuery,
    LiveQuery,
    Query,
    SearchQuery,
    Subscribe,
    SubscriptionKind,
)
from mappings.reactive_streams_io.limits import OBJECT
from tests.support.in_process.fakes import KeepingReply
from tests.support.in_process.service import LAMP, OWNER, ConnectionHarness, command, pause, until
from tests.support.in_process.subscription_harness import READER, SubscriptionHarness

PAGE = 1 << 20


async def charged(budget: ReadAheadBudget, user: Hashable = None) -> PageCharge:
    """A page as large as it may be, once it is its turn."""
    return budget.reserve(user, PAGE) or await budget.wait(user, PAGE)


def tasks_of(budget: ReadAheadBudget, *users: Hashable) -> list[asyncio.Task[PageCharge]]:
    return [asyncio.create_task(charged(budget, user)) for user in users]


def done(tasks: list[asyncio.Task[PageCharge]]) -> list[bool]:
    return [task.done() for task in tasks]


async def test_pages_beyond_the_budget_wait_until_others_have_ended() -> None:
    connection_budget = ConnectionBudget()
    tasks = tasks_of(ReadAheadBudget(connection_budget), *[None] * 20)
    await pause()
    assert done(tasks) == [True] * 8 + [False] * 12
    assert connection_budget.used_bytes == MOST
    tasks[3].result().end_part()
    await pause()
    assert done(tasks) == [True] * 9 + [False] * 11
    for number, task in enumerate(tasks):
        if number != 3:
            (await task).end_part()
    assert connection_budget.used_bytes == 0


async def test_a_page_is_charged_until_each_of_its_parts_has_ended() -> None:
    budget = ReadAheadBudget(ConnectionBudget())
    page = await charged(budget)
    page.hold(3000)
    page.parts += 1
    page.end_part()
    assert budget.used_bytes == 3000
    page.end_part()
    assert budget.used_bytes == 0


async def test_users_take_turns_for_any_number_of_pages() -> None:
    budget = ReadAheadBudget(ConnectionBudget())
    held = [await charged(budget, "full") for _ in range(8)]
    order: list[str] = []

    async def read(user: str) -> None:
        page = await budget.wait(user, 2 * PAGE)
        order.append(user)
        page.hold(PAGE)

    # These have a small page already, so that they wait for a whole one.
    held += [await charged(budget, user) for user in "abc"]
    tasks = [asyncio.create_task(read(user)) for user in "aaaaabc"]
    await pause()
    for page in held:
        page.end_part()
        await pause()
    await asyncio.gather(*tasks)
    assert order == list("abcaaaa")


async def test_a_user_without_pages_reads_a_small_one_where_others_fill_the_budget() -> None:
    budget = ReadAheadBudget(ConnectionBudget())
    greedy = tasks_of(budget, *["greedy"] * 30)
    await pause()
    first = await charged(budget, "modest")
    assert (sum(done(greedy)), first.size) == (8, LITTLE)
    (second,) = tasks_of(budget, "modest")
    await pause()
    assert not second.done()
    first.end_part()
    assert (await second).size == LITTLE
    for task in greedy:
        task.cancel()


async def test_the_reserve_for_small_pages_is_bounded() -> None:
    budget = ReadAheadBudget(ConnectionBudget())
    tasks = tasks_of(budget, *["greedy"] * 8, *range(1000))
    await pause()
    assert sum(done(tasks)) == 8 + RESERVE // LITTLE
    assert budget.used_bytes == MOST + RESERVE
    for task in tasks:
        task.cancel()


async def test_a_page_larger_than_the_budget_is_read_alone() -> None:
    budget = ReadAheadBudget(ConnectionBudget())
    large = budget.reserve(None, 3 * MOST)
    assert large is not None
    assert large.size == 3 * MOST
    (other,) = tasks_of(budget, None)
    await pause()
    assert not other.done()
    large.end_part()
    assert (await other).size == PAGE


@pytest.mark.parametrize("is_granted", [False, True])
async def test_a_page_cancelled_while_it_waits_does_not_block_others(*, is_granted: bool) -> None:
    budget = ReadAheadBudget(ConnectionBudget())
    tasks = tasks_of(budget, *[None] * 10)
    await pause()
    if is_granted:
        tasks[0].result().end_part()
    tasks[8].cancel()
    await pause()
    if not is_granted:
        tasks[0].result().end_part()
    assert (await tasks[9]).size == PAGE
    assert tasks[8].cancelled()
    for task in (*tasks[1:8], tasks[9]):
        task.result().end_part()
    assert repr(budget) == "<ReadAheadBudget, 0 bytes, 0 users, 0 waiting>"


async def test_a_cancelled_page_that_waits_alone_leaves_nothing() -> None:
    budget = ReadAheadBudget(ConnectionBudget())
    page = await charged(budget, "first")
    waiting = [task for task in tasks_of(budget, *["first"] * 9) if not task.done()]
    await pause()
    for task in waiting:
        task.cancel()
    await pause()
    page.end_part()
    for task in waiting:
        if not task.cancelled():
            task.result().end_part()
    assert repr(budget) == "<ReadAheadBudget, 0 bytes, 0 users, 0 waiting>"


async def test_many_receivers_read_small_pages_and_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "MOST_TOGETHER", 3 * PAGE)
    connection_budget = ConnectionBudget()
    crowd = [connection_budget.receiver(str(number)) for number in range(10)]
    assert [(await charged(budget)).size for budget in crowd] == [PAGE] * 3 + [LITTLE] * 7
    (task,) = tasks_of(crowd[9], None)
    await pause()
    assert not task.done()
    task.cancel()


async def test_while_no_client_is_connected_small_pages_are_read() -> None:
    budget = ReadAheadBudget(ConnectionBudget())
    budget.leave_alone()
    assert (await charged(budget)).size == LITTLE
    (task,) = tasks_of(budget, None)
    await pause()
    assert not task.done()
    budget.meet()
    assert (await task).size == PAGE


# Subscriptions.


class LargeFeed(Feed):
    """A feed whose pages are as large as they may be."""

    async def page(self, position: FeedPosition, limit: int, max_bytes: int) -> Page:
        return Page([bytes(max_bytes - OBJECT - len(HEADERS))], position, PageEnd.MORE)


HEADERS = b'{"correlation-id":"sub"}'


def open_many(subscriptions: SubscriptionHarness, number: int, subscriber: Subscriber, demand: int = 1) -> None:
    for _ in range(number):
        subscribe = Subscribe(SubscriptionKind.HISTORY, HistoryQuery(LAMP), {"correlation-id": "sub"}, demand=demand)
        subscriptions.streams.subscribe(subscribe, subscriber)


def used(subscriptions: SubscriptionHarness) -> int:
    return subscriptions.streams.budgets["c-1"].used_bytes


async def test_a_user_is_answered_beside_one_with_thousands_of_subscriptions_that_are_not_read() -> None:
    subscriptions = SubscriptionHarness(LargeFeed)
    subscriptions.reply.is_stalled = True
    open_many(subscriptions, 3000, subscriptions.peer, demand=10)
    await subscriptions.settle()
    assert used(subscriptions) == MOST
    reply = KeepingReply()
    open_many(subscriptions, 1, Subscriber(reply, ("acme:other",), "c-1"), demand=3)
    await subscriptions.settle()
    assert [len(element) for element in reply.elements] == [LITTLE - OBJECT - len(HEADERS)] * 3
    assert used(subscriptions) == MOST
    subscriptions.streams.closed("c-1")


async def test_peers_of_a_listener_do_not_wait_for_one_that_does_not_read() -> None:
    subscriptions = SubscriptionHarness(LargeFeed)
    subscriptions.reply.is_stalled = True
    open_many(subscriptions, 100, Subscriber(subscriptions.reply, READER, "c-1", reader="peer-1"), demand=10)
    await subscriptions.settle()
    reply = KeepingReply()
    open_many(subscriptions, 1, Subscriber(reply, READER, "c-1", reader="peer-2"), demand=3)
    await subscriptions.settle()
    assert [len(element) for element in reply.elements] == [PAGE - OBJECT - len(HEADERS)] * 3
    assert used(subscriptions) == MOST
    subscriptions.streams.closed("c-1")


async def test_cancelled_elements_are_charged_until_the_broker_has_dropped_them() -> None:
    """Otherwise subscribing and cancelling in turn would fill the memory."""
    subscriptions = SubscriptionHarness(LargeFeed)
    subscriptions.reply.is_stalled = True
    for _ in range(50):
        key = subscriptions.subscribe(demand=1)
        await subscriptions.settle()
        subscriptions.cancel(key)
    assert used(subscriptions) == MOST
    for posting in subscriptions.reply.postings:
        posting.take()
        posting.confirm(None)
    assert used(subscriptions) == 0


async def test_waiting_for_the_budget_is_not_idleness() -> None:
    subscriptions = SubscriptionHarness(LargeFeed)
    subscriptions.reply.is_stalled = True
    open_many(subscriptions, 10, subscriptions.peer)
    await subscriptions.settle()
    subscriptions.pass_time(3600)
    assert subscriptions.failures() == []
    assert {subscriptions.streams.idle(subscription) for subscription in subscriptions.streams} == {0}
    for posting in [each for each in subscriptions.reply.postings if each.taken < each.count]:
        posting.take()
        posting.confirm(None)
    subscriptions.reply.is_stalled = False
    await subscriptions.settle()
    subscriptions.pass_time(62)
    assert subscriptions.failures() == [EndReason.IDLE] * 10


async def test_the_bytes_of_headers_that_elements_repeat_are_charged() -> None:
    assert size_of([b"12", b"345"], headers=100) == 5 + 2 * (OBJECT + 100)
    subscriptions = SubscriptionHarness(page_items=100)
    subscriptions.reply.is_stalled = True
    key = subscriptions.subscribe()
    await subscriptions.request(key, 100, correlation="x" * 1000)
    assert used(subscriptions) > 100 * 1000
    subscriptions.streams.closed("c-1")


HISTORY = (SubscriptionKind.HISTORY, HistoryQuery(LAMP))
LIVE = (SubscriptionKind.LIVE, LiveQuery(LAMP, 1))
SEARCH = (SubscriptionKind.SEARCH, SearchQuery())
AGGREGATION = (SubscriptionKind.SEARCH, SearchQuery(aggregation=b'{"groupBy": {"text": "attributes/text"}}'))


@pytest.mark.parametrize(
    "asked", [HISTORY, LIVE, SEARCH, AGGREGATION], ids=["history", "live", "search", "aggregation"]
)
async def test_many_subscriptions_of_large_values_hold_the_bytes_of_the_budget_while_no_client_reads(
    asked: tuple[SubscriptionKind, Query],
) -> None:
    harness = ConnectionHarness()
    await harness.has_lamp()
    for number in range(10):
        text = str(number) * 90_000
        assert (await harness.ask(command("modify", "/attributes/text", text)))["status"] in (201, 204)
    reply = KeepingReply(harness.connection.id)
    reply.is_stalled = True
    subscriber = Subscriber(reply, (OWNER,), "scope")
    budget = harness.streams.budgets[harness.connection.id]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(200):
            harness.streams.subscribe(Subscribe(*asked, {}, demand=1000), subscriber)
        await until(lambda: sum(subscription.is_queued for subscription in harness.streams) > 100)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert MOST // 2 < budget.used_bytes <= MOST + PAGE
    rows = harness.row_budget._by_user.total()
    assert held - before < 3 * MOST + rows, f"{held - before} bytes"
    harness.close_connection()
    await harness.close()


def test_the_bytes_read_ahead_are_a_metric() -> None:
    subscriptions = SubscriptionHarness()
    subscriptions.streams.budgets["c-1"].receiver(None).reserve("user", 1000)
    (figure,) = subscriptions.streams.figures()
    values: Any = figure.values
    assert (figure.name, values) == ("connectivity_read_ahead_bytes", {("c-1",): 1000})

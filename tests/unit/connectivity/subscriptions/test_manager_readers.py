"""Subscriptions of readers whose departure is reported: they end with their reader, others continue."""

from __future__ import annotations

from dataclasses import replace

from connectivity.transports.base import ReaderStatus
from mappings.model.signals import EndReason
from tests.support.in_process.subscription_harness import SubscriptionHarness
from tests.support.wait import wait_until


async def test_only_the_subscriptions_of_a_reader_that_has_gone_end_silently() -> None:
    harness = SubscriptionHarness()
    gone, other = (replace(harness.peer, reader=name) for name in ("peer-1", "peer-2"))
    keys = []
    for peer in (gone, gone, other, harness.peer):
        harness.peer = peer
        keys.append(harness.subscribe())
    first, second, others, unread = keys
    await harness.request(first, 1, peer=gone)
    harness.reply.signals.clear()
    harness.streams.reader("c-1", "peer-1", ReaderStatus.GONE)
    harness.streams.reader("c-2", "peer-2", ReaderStatus.GONE)
    harness.streams.reader("c-1", "peer-1", ReaderStatus.GONE)
    assert harness.reply.signals == []
    assert {live.key for live in harness.streams} == {others, unread}
    assert harness.streams.shares["c-1"].used == 2
    await harness.request(second, 1, peer=gone)
    assert harness.failures() == [EndReason.CANCELLED]


async def test_a_subscription_taken_over_by_another_reader_stays() -> None:
    harness = SubscriptionHarness()
    harness.peer, successor = (replace(harness.peer, reader=name) for name in ("peer-1", "peer-2"))
    key = harness.subscribe()
    await harness.request(key, 1, peer=successor)
    harness.streams.reader("c-1", "peer-1", ReaderStatus.GONE)
    await harness.request(key, 1, peer=successor)
    assert len(harness.reply.elements) == 2
    harness.streams.reader("c-1", "peer-2", ReaderStatus.GONE)
    await wait_until(lambda: list(harness.streams) == [])
    assert harness.streams._by_reader == {}


async def test_the_budget_of_a_reader_that_has_gone_is_forgotten_with_its_subscriptions() -> None:
    harness = SubscriptionHarness()
    harness.peer = replace(harness.peer, reader="peer-1")
    await harness.request(harness.subscribe(), 1)
    receivers = harness.streams.budgets["c-1"]._receivers
    harness.streams.reader("c-1", "peer-1", ReaderStatus.GONE)
    assert list(receivers) == ["peer-1"]
    harness.pass_time(62)
    assert list(receivers) == []

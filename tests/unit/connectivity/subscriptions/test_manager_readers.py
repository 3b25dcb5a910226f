"""Subscriptions of readers whose departure is reported: they end with their reader, others continue."""

from __future__ import annotations

from dataclasses import replace

from connectivity.transports.base import ReaderStatus
from mappings.model.signals import EndReason
from tests.support.in_process.subscription_setup import Bench
from tests.support.wait import wait_until


async def test_only_the_subscriptions_of_a_reader_that_has_gone_end_silently() -> None:
    bench = Bench()
    gone, other = (replace(bench.peer, reader=name) for name in ("peer-1", "peer-2"))
    keys = []
    for peer in (gone, gone, other, bench.peer):
        bench.peer = peer
        keys.append(bench.subscribe())
    first, second, others, unread = keys
    await bench.request(first, 1, peer=gone)
    bench.reply.signals.clear()
    bench.streams.reader("c-1", "peer-1", ReaderStatus.GONE)
    bench.streams.reader("c-2", "peer-2", ReaderStatus.GONE)
    bench.streams.reader("c-1", "peer-1", ReaderStatus.GONE)
    assert bench.reply.signals == []
    assert {live.key for live in bench.streams} == {others, unread}
    assert bench.streams.shares["c-1"].used == 2
    await bench.request(second, 1, peer=gone)
    assert bench.failures() == [EndReason.CANCELLED]


async def test_a_subscription_taken_over_by_another_reader_stays() -> None:
    bench = Bench()
    bench.peer, successor = (replace(bench.peer, reader=name) for name in ("peer-1", "peer-2"))
    key = bench.subscribe()
    await bench.request(key, 1, peer=successor)
    bench.streams.reader("c-1", "peer-1", ReaderStatus.GONE)
    await bench.request(key, 1, peer=successor)
    assert len(bench.reply.elements) == 2
    bench.streams.reader("c-1", "peer-2", ReaderStatus.GONE)
    await wait_until(lambda: list(bench.streams) == [])
    assert bench.streams._by_reader == {}

"""Limits of the elements that streams of a session read ahead (reactive-streams-io, brokers)."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from connectivity.management.subscription_table import CANCELLED
from connectivity.subscriptions import read_ahead
from connectivity.subscriptions.read_ahead import MOST
from connectivity.transports.base import ReaderStatus
from mappings.model.signals import SubscriptionKind
from mappings.reactive_streams_io.frames import OnComplete
from mappings.reactive_streams_io.limits import EndpointLimits
from tests.support.in_process.reactive_streams_io import H, RsioHarness, raw, subscribe_synthetic
from tests.support.in_process.service import pause, until

pytestmark = pytest.mark.usefixtures("harnesses")


@contextmanager
def at_most(raw: int) -> Iterator[None]:
    """Check that the block allocates fewer bytes than this at its peak."""
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < raw, f"{peak - before} bytes"


STREAMS = EndpointLimits().subscriptions


@pytest.mark.parametrize(
    ("name", "share"), [("big?bytes=60000", 1), ("range?n=2000", 4), ("fixed?n=100000&size=2000", 1)]
)
async def test_a_client_that_never_reads_is_not_read_ahead_of_without_bound(
    name: str, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fourth of the streams, of the budget and of the memory, because small elements take long."""
    monkeypatch.setattr(read_ahead, "MOST", MOST // share)
    streams = STREAMS // share
    rsio_harness = await RsioHarness.filled()
    rsio_harness.link.confirms = False
    with at_most((32 << 20) // share):
        rsio_harness.send("a", H, *(subscribe_synthetic(name, number, 2000) for number in range(streams)))
        await until(lambda: len(list(rsio_harness.streams)) == streams)
        for _ in range(5):
            await pause()
    rsio_harness.link.confirms = True
    rsio_harness.link.confirm()
    if name.startswith("big"):
        await until(lambda: not list(rsio_harness.streams))
        # The last messages may not have been sent yet.
        await until(lambda: completed(rsio_harness) == set(range(streams)))
    rsio_harness.reader("a", ReaderStatus.GONE)
    await until(lambda: rsio_harness.streams.budgets[rsio_harness.connection.id].used_bytes == 0)


async def test_elements_before_an_operators_cancel_are_released_when_the_client_leaves_without_reading_them() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.link.confirms = False
    rsio_harness.send("a", H, subscribe_synthetic("big?bytes=60000", 1, 1))
    # The window of the client is full, so that elements wait in its session.
    rsio_harness.send("a", *(subscribe_synthetic("big?bytes=60000", number, 1) for number in range(2, 80)))
    await until(lambda: len(list(rsio_harness.streams)) == 79)
    for _ in range(5):
        await pause()
    for subscription in list(rsio_harness.streams):
        rsio_harness.streams.revoke(subscription, CANCELLED[SubscriptionKind.HISTORY])
    rsio_harness.reader("a", ReaderStatus.GONE)
    rsio_harness.link.confirms = True
    rsio_harness.link.confirm()
    await until(lambda: rsio_harness.streams.budgets[rsio_harness.connection.id].used_bytes == 0)


async def test_a_subscription_cancelled_immediately_leaves_no_state() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", H)
    for _ in range(3):
        rsio_harness.send("a", *(raw(subscribe_synthetic("never"), "13 01") for _ in range(300)))
        await pause()
    await until(lambda: list(rsio_harness.streams) == [])
    assert sum(map(len, rsio_harness.streams._scopes.values())) == 0


def completed(rsio_harness: RsioHarness) -> set[int]:
    return {frame.subscriber for frame in rsio_harness.frames("a") if isinstance(frame, OnComplete)}

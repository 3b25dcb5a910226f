"""Heartbeats of an AMQP link, at a real RabbitMQ: only a silent link is dead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from connectivity.transports.base import ConsumeOptions
from tests.contract.byte_limits import LARGE
from tests.contract.link import DeliveryCollector, lost
from tests.support.amqp_link import AmqpLinkHarness
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.wait import wait_until

pytestmark = pytest.mark.broker("rabbitmq")


@pytest.fixture
async def harness(rabbitmq: RabbitMQ) -> AsyncIterator[AmqpLinkHarness]:
    async with AmqpLinkHarness.at(rabbitmq) as made:
        made.consume = ConsumeOptions(unsettled_bytes=8 * LARGE)
        yield made


async def test_a_dead_network_is_found_by_the_heartbeat(harness: AmqpLinkHarness) -> None:
    """Nothing arrives and nothing is refused: only silence shows that the link is lost."""
    link = await harness.connect(requestedHeartbeat="1")
    harness.proxy.stall()
    error = await lost(link)
    assert str(error) == "timeout: no data within 2 heartbeats of 1 s"
    silence = asyncio.get_running_loop().time() - link.client.frame_demultiplexer.last_received
    assert silence < 6, "the library would wait for three intervals of 2 s"
    await link.close()


async def test_an_idle_link_stays(harness: AmqpLinkHarness) -> None:
    """Its heartbeats keep it: the broker would end it after two of them."""
    link = await harness.connect(requestedHeartbeat="1")
    sent = harness.proxy.sent
    await wait_until(lambda: harness.proxy.sent >= sent + 4 * 8)
    assert not link.lost.done()
    await link.close()


async def test_a_link_that_has_stopped_reading_stays(harness: AmqpLinkHarness) -> None:
    """It sees no heartbeats, and knows why."""
    link = await harness.connect(requestedHeartbeat="1")
    taker = DeliveryCollector(link)
    await harness.send([bytes(LARGE)] * 60)
    await wait_until(lambda: link.client.is_paused)
    sent = harness.proxy.sent
    await wait_until(lambda: link.lost.done() or harness.proxy.sent >= sent + 8 * 8)  # eight heartbeats
    assert (link.lost.done(), link.client.is_paused) == (False, True)
    for _ in range(60):
        assert await taker.payloads(1) == [bytes(LARGE)]
    await link.close()

"""An AMQP link that has stopped reading, at a real RabbitMQ."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from connectivity.transports.base import ConsumeOptions, OutboundMessage
from mappings.model.envelope import Envelope
from tests.contract.byte_limits import LARGE
from tests.contract.link import DeliveryCollector, Publishing
from tests.support.amqp_link import AmqpLinkHarness
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.wait import wait_until

pytestmark = pytest.mark.broker("rabbitmq")


@pytest.fixture
async def harness(rabbitmq: RabbitMQ) -> AsyncIterator[AmqpLinkHarness]:
    async with AmqpLinkHarness.at(rabbitmq) as made:
        made.consume = ConsumeOptions(unsettled_bytes=8 * LARGE)
        yield made


async def test_a_link_that_has_stopped_reading_publishes(harness: AmqpLinkHarness) -> None:
    link = await harness.connect()
    taker = DeliveryCollector(link)
    await harness.send([bytes(LARGE)] * 20)
    await wait_until(lambda: link.client.is_paused)
    publishing = Publishing(link)
    publishing.give(OutboundMessage(harness.out, Envelope(b"out")))
    assert await publishing.all_done() == [None]
    for _ in range(20):
        assert await taker.payloads(1) == [bytes(LARGE)]
    await link.close()

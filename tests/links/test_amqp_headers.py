"""Headers that clients of the service choose, at a real RabbitMQ."""

from __future__ import annotations

import pytest

from connectivity.transports.base import OutboundMessage
from mappings.model.envelope import Envelope
from tests.contract.link import Publishing
from tests.support.amqp_link import AmqpLinkHarness
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.wait import wait_until


@pytest.mark.broker("rabbitmq")
async def test_headers_that_clients_choose_keep_no_message_from_the_broker(rabbitmq: RabbitMQ) -> None:
    """A sender chooses the correlation ID, which is also a property; RabbitMQ reads `CC` and `BCC` as lists."""
    async with AmqpLinkHarness.at(rabbitmq) as harness:
        link = await harness.connect()
        publishing = Publishing(link)
        publishing.give(OutboundMessage(harness.out, Envelope(b"long", {"correlation-id": "x" * 300})))
        publishing.give(OutboundMessage(harness.out, Envelope(b"copied", {"CC": "x", "BCC": "y", "cc": "z"})))
        assert await publishing.all_done() == [None, None]
        await wait_until(lambda: len(harness.received()) == 2)
        long, copied = harness.bare_client.messages
        assert (dict(long.headers), long.correlation_id) == ({"correlation-id": "x" * 300}, None)
        assert dict(copied.headers) == {"cc": "z"}
        await link.close()

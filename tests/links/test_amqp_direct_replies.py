"""Answers to the direct reply addresses of RabbitMQ, which are not queues."""

from __future__ import annotations

import asyncio

import pytest
from aio_pika import Message
from aio_pika.abc import AbstractIncomingMessage

from connectivity.transports.base import OutboundMessage, ReaderStatus
from mappings.model.envelope import Envelope
from tests.contract.link import DeliveryCollector, Publishing, signs_of
from tests.support.amqp_link import AmqpLinkHarness
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.wait import wait_until

DIRECT_REPLY = "amq.rabbitmq.reply-to"


@pytest.mark.broker("rabbitmq")
async def test_an_answer_to_a_direct_reply_address_is_confirmed(rabbitmq: RabbitMQ) -> None:
    """RabbitMQ delivers a mandatory message too, but returns it as unroutable."""
    answers = asyncio.Queue[bytes]()

    async def on_answer(message: AbstractIncomingMessage) -> None:
        answers.put_nowait(message.body)

    async with AmqpLinkHarness.at(rabbitmq) as harness:
        link = await harness.connect()
        taker, addresses = DeliveryCollector(link), []
        # Their names are in base64: one in three has a slash.
        for _ in range(8):
            channel = await harness.bare_client.another_channel()
            reply = await channel.get_queue(DIRECT_REPLY, ensure=False)
            await reply.consume(on_answer, no_ack=True)
            await channel.default_exchange.publish(Message(b"ask", reply_to=DIRECT_REPLY), harness.source)
            [delivery] = await taker.take(1)
            delivery.settle()
            addresses.append(f"/{delivery.envelope.headers['reply-to']}")
        signs, publishing = signs_of(link), Publishing(link)
        publishing.give(*(OutboundMessage(each, Envelope(b"answer")) for each in addresses))
        assert await publishing.all_done() == [None] * len(addresses)
        assert signs == [(each, ReaderStatus.HEARD) for each in addresses]
        assert [await answers.get() for _ in addresses] == [b"answer"] * len(addresses)
        await link.close()


@pytest.mark.broker("rabbitmq")
async def test_a_message_with_the_reply_address_that_only_a_reader_of_replies_may_send_is_published(
    rabbitmq: RabbitMQ,
) -> None:
    """RabbitMQ closes the channel upon this property, and the header may come from the sender of a command."""
    async with AmqpLinkHarness.at(rabbitmq) as harness:
        link = await harness.connect()
        publishing = Publishing(link)
        publishing.give(OutboundMessage(harness.out, Envelope(b"event", {"reply-to": DIRECT_REPLY})))
        assert await publishing.all_done() == [None]
        await wait_until(harness.received)
        assert harness.received()[0].headers == {"reply-to": DIRECT_REPLY}
        await link.close()

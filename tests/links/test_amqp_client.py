"""Calls on AMQP channels end with their connection."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from struct import pack

import pytest
from aio_pika.tools import OneShotCallback

from connectivity.errors import Detail, LinkError, NotConnected
from connectivity.transports.amqp.calls import CallRefused
from connectivity.transports.amqp.client import AmqpClient
from connectivity.transports.amqp.options import Options
from tests.support.amqp_link import AmqpLinkHarness
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.wait import PATIENCE

pytestmark = pytest.mark.broker("rabbitmq")


@pytest.fixture
async def harness(rabbitmq: RabbitMQ) -> AsyncIterator[AmqpLinkHarness]:
    async with AmqpLinkHarness.at(rabbitmq) as made:
        yield made


async def test_a_call_on_a_channel_ends_with_the_link_whenever_that_is_lost(harness: AmqpLinkHarness) -> None:
    """A killed RabbitMQ once left a call waiting for `channelRpcTimeout` (10 min).

    So the whole connection waited.
    """
    for turns in range(12):
        link = await harness.connect()
        link.client.frame_demultiplexer.abort()
        for _ in range(turns):
            await asyncio.sleep(0)
        calling = asyncio.create_task(link.client.missing_reason("queue", harness.source))
        await asyncio.wait([calling], timeout=PATIENCE)
        assert calling.done(), f"it waits on, {turns} turns of the loop after the loss"
        assert isinstance(calling.exception(), NotConnected)
        await link.close()


async def test_a_call_on_a_channel_ends_with_the_link_that_is_lost_during_it(harness: AmqpLinkHarness) -> None:
    for turns in range(12):
        link = await harness.connect()
        calling = asyncio.create_task(link.client.missing_reason("queue", harness.source))
        for _ in range(turns):
            await asyncio.sleep(0)
        link.client.frame_demultiplexer.abort()
        await asyncio.wait([calling], timeout=PATIENCE)
        assert calling.done(), f"it waits on, {turns} turns of the loop after it began"
        assert calling.exception() is None or isinstance(calling.exception(), NotConnected)
        await link.close()


async def test_a_channel_that_has_ended_leaves_nothing_with_the_connection(harness: AmqpLinkHarness) -> None:
    """A link checks a missing exchange every second for months, and a refused message costs a channel."""

    async def end_channels(client: AmqpClient) -> int:
        for _ in range(10):
            assert await client.missing_reason("exchange", "amq.topic") is None
            assert await client.missing_reason("exchange", "missing") is not None
            channel = await client.channel(confirms=True)
            with pytest.raises(CallRefused):
                await client.call(channel.get_queue("missing"))
            await client.wait_released(channel)
        await asyncio.sleep(0)
        gc.collect()
        return sum(isinstance(each, OneShotCallback) for each in gc.get_objects())

    link = await harness.connect()
    kept = [await end_channels(link.client) for _ in range(2)]
    await link.close()
    assert kept[1] <= kept[0]


async def test_a_connection_lost_with_the_last_answer_of_the_login_reports_it(
    harness: AmqpLinkHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = AmqpClient(harness.definition, Options())
    losses: list[LinkError] = []
    client.on_lost = losses.append
    received, open_ok = client.frame_demultiplexer.data_received, pack(">HH", 10, 41)

    def lose_after_login(data: bytes) -> None:
        received(data)
        if open_ok in data:
            client.frame_demultiplexer.abort()

    monkeypatch.setattr(client.frame_demultiplexer, "data_received", lose_after_login)
    with contextlib.suppress(NotConnected):
        await client.connect()
    calling = asyncio.create_task(client.channel())
    await asyncio.wait([calling], timeout=PATIENCE)
    assert calling.done()
    assert isinstance(calling.exception(), NotConnected)
    assert [error.detail for error in losses] == [Detail.CONNECTING]
    await client.close()

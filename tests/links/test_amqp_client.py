"""Calls on AMQP channels end with their connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from struct import pack

import pytest

from connectivity.errors import Detail, LinkError, NotConnected
from connectivity.transports.amqp.client import AmqpClient
from connectivity.transports.amqp.options import Options
from tests.support.amqp_link import AmqpWorld
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.wait import PATIENCE

pytestmark = pytest.mark.broker("rabbitmq")


@pytest.fixture
async def world(rabbitmq: RabbitMQ) -> AsyncIterator[AmqpWorld]:
    async with AmqpWorld.at(rabbitmq) as made:
        yield made


async def test_a_call_on_a_channel_ends_with_the_link_whenever_that_is_lost(world: AmqpWorld) -> None:
    """A killed RabbitMQ once left a call, and so the whole connection, waiting for `channelRpcTimeout` (10 min)."""
    for turns in range(12):
        link = await world.connect()
        link.client.frame_demultiplexer.abort()
        for _ in range(turns):
            await asyncio.sleep(0)
        calling = asyncio.create_task(link.client.missing_reason("queue", world.source))
        await asyncio.wait([calling], timeout=PATIENCE)
        assert calling.done(), f"it waits on, {turns} turns of the loop after the loss"
        assert isinstance(calling.exception(), NotConnected)
        await link.close()


async def test_a_connection_that_is_lost_with_the_last_answer_of_the_login_says_so(
    world: AmqpWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = AmqpClient(world.definition, Options())
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

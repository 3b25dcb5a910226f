"""Users of a listener share the bytes of its unsettled messages and of their answers."""

from __future__ import annotations

import asyncio

from websockets.asyncio.client import ClientConnection

from connectivity.fair_share import FairShare
from tests.support.in_process.websocket_listener import opened, token_entry
from tests.support.wait import wait_until


async def test_users_share_the_bytes_of_unsettled_messages() -> None:
    tokens = f"{token_entry('bad', 'bad')},{token_entry('good', 'good')}"
    async with opened(options={"tokens": tokens}) as way:
        way.link._bytes = FairShare(260_000)
        bad, other = [await way.client(f"/twins?access_token={name}") for name in ("bad", "good")]
        sending = asyncio.ensure_future(_flood(bad))
        held = await way.take(4)
        await other.send("good")
        [good] = await way.take(1)
        assert good.envelope.payload == b"good", "a peer with more unsettled bytes than are free is not read"
        assert way.link._bytes.used < 260_000
        for each in (*held, good):
            each.settle()
        assert len(await way.take(4)) == 4
        sending.cancel()


async def test_few_messages_are_read_of_a_peer_whose_answers_are_large() -> None:
    async with opened() as way:
        way.link._bytes = FairShare(1_000_000)
        client, peer = await way.met()
        assert await way.send(peer, b"x" * 200_000) == [None]
        assert len(await client.recv()) == 200_000
        for _ in range(50):
            await client.send("retrieve")
        await wait_until(lambda: not any(each.times.is_reading for each in way.link.peers.values()))
        assert len(way.taker.deliveries) == 2, "two such answers are less than a third of the bytes, three are not"
        for _ in range(30):
            assert await way.send(peer, b"x" * 100) == [None]
        for delivery in await way.take(2):
            delivery.settle()
        assert len(await way.take(48)) == 48, "many messages are read again after small answers"


async def test_a_large_answer_does_not_slow_messages_without_answers_forever() -> None:
    async with opened() as way:
        way.link._bytes = FairShare(1_000_000)
        client, peer = await way.met()
        assert await way.send(peer, b"x" * 200_000) == [None]
        assert len(await client.recv()) == 200_000
        for _ in range(30):
            await client.send("report")
            [delivery] = await way.take(1)
            delivery.settle()
        for _ in range(50):
            await client.send("report")
        assert len(await way.take(50)) == 50


async def _flood(client: ClientConnection) -> None:
    for _ in range(1000):
        await client.send("x" * 10_000)

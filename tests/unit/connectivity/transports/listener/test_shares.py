"""Users of a listener share the bytes of its unsettled messages."""

from __future__ import annotations

import asyncio

from websockets.asyncio.client import ClientConnection

from connectivity.fair_share import FairShare
from tests.support.in_process.websocket_listener import opened, token_entry


async def test_users_share_the_bytes_of_unsettled_messages() -> None:
    tokens = f"{token_entry('bad', 'bad')},{token_entry('good', 'good')}"
    async with opened(options={"tokens": tokens}) as way:
        way.link._bytes = FairShare(100_000)
        bad, other = [await way.client(f"/twins?access_token={name}") for name in ("bad", "good")]
        sending = asyncio.ensure_future(_flood(bad))
        held = await way.take(4)
        await other.send("good")
        [good] = await way.take(1)
        assert good.envelope.payload == b"good", "whoever has more unsettled bytes than are free is not read from"
        assert way.link._bytes.used < 100_000
        for each in (*held, good):
            each.settle()
        assert len(await way.take(4)) == 4
        sending.cancel()


async def _flood(client: ClientConnection) -> None:
    for _ in range(1000):
        await client.send("x" * 10_000)

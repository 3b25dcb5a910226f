"""The bare server: `websockets` sending messages to whoever connects, as the figure that a door is compared with.

    python -m tests.bench.bare_websocket COUNT BYTES

Prints the port at which it listens, and ends when a peer has been sent everything and has left. What it sends to a peer is
COUNT messages of so many bytes, one after the other, on the loop that the service uses too.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed


async def main(count: int, size: int) -> None:
    text = "x" * size
    is_over = asyncio.Event()

    async def send(peer: ServerConnection) -> None:
        try:
            for _ in range(count):
                await peer.send(text)
            await peer.wait_closed()
        except ConnectionClosed:
            pass
        is_over.set()

    async with serve(send, "127.0.0.1", 0, compression=None) as server:
        print(next(iter(server.sockets)).getsockname()[1], flush=True)
        await is_over.wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2])))

"""The bare server for comparison with a WebSocket listener: the library `websockets`.

    python -m tests.bench.bare_websocket COUNT BYTES

Prints its port, and ends when a peer has received all messages and disconnected. It sends COUNT messages of BYTES bytes,
on the same kind of event loop as the service.
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

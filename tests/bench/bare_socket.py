"""The bare server: asyncio on uvloop sending octets to whoever connects, as the figure that a TCP door is compared with.

    python -m tests.bench.bare_socket FILE PIECE

Prints the port at which it listens, and ends when a peer has been sent everything and has left. What it sends are the octets
of the file, so many in each piece, when something has come from the peer.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import uvloop


async def main(raw: bytes, piece: int) -> None:
    pieces = [raw[place : place + piece] for place in range(0, len(raw), piece)]
    is_over = asyncio.Event()

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        for each in pieces:
            writer.write(each)
            await writer.drain()
        await reader.read()
        writer.close()
        is_over.set()

    async with await asyncio.start_server(send, "127.0.0.1", 0) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await is_over.wait()


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1]).read_bytes(), int(sys.argv[2])))

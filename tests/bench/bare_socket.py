"""The bare server for comparison with a TCP listener: asyncio on uvloop sends the bytes of a file.

    python -m tests.bench.bare_socket FILE PIECE

Prints its port, and ends when a peer has received all bytes and disconnected. It begins to send when it has received
bytes from the peer, in pieces of PIECE bytes.
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

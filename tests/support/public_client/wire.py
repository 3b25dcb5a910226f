"""A proxy between a client and a listener, for tests: it records frames, drops some, and cuts sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from tests.support.wait import PATIENCE, wait_until

Frame = list[Any]


def nothing(_frame: Frame) -> bool:
    return False


class Wire:
    """A proxy of WebSockets: `requests` to the listener, `frames` to the client without dropped ones."""

    def __init__(self, listener_url: str) -> None:
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        self.frames: list[Frame] = []
        self.lost: list[Frame] = []
        self.loses: Callable[[Frame], bool] = nothing
        self.flows = asyncio.Event()
        """While it is clear, frames from the listener wait, in order."""
        self.flows.set()
        self._listener_url = listener_url
        self._near: set[ServerConnection] = set()

    @classmethod
    @asynccontextmanager
    async def to(cls, listener_url: str) -> AsyncIterator[Self]:
        """Start a proxy to the listener at this address."""
        wire = cls(listener_url)
        async with serve(wire._carry, "127.0.0.1", 0, compression=None) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            wire.url = f"ws://127.0.0.1:{port}/api/v1/ws"
            yield wire

    def asked(self, kind: str) -> list[dict[str, Any]]:
        """Return the requests of one type."""
        return [each for each in self.requests if each["type"] == kind]

    def cut(self) -> None:
        """Close all sockets without a closing handshake."""
        for near in tuple(self._near):
            near.transport.abort()

    async def _carry(self, near: ServerConnection) -> None:
        _, _, query = (near.request.path if near.request else "").partition("?")
        self._near.add(near)
        try:
            async with connect(f"{self._listener_url}{'?' if query else ''}{query}", compression=None) as far:
                there, back = asyncio.create_task(self._there(near, far)), asyncio.create_task(self._back(far, near))
                await asyncio.wait([there, back], return_when=asyncio.FIRST_COMPLETED)
                for each in (there, back):
                    each.cancel()
                await asyncio.gather(there, back, return_exceptions=True)
        except OSError:
            # The listener is down, so the client is disconnected.
            await near.close()
        finally:
            self._near.discard(near)

    async def _there(self, near: ServerConnection, far: ClientConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            async for text in near:
                self.requests.append(json.loads(text))
                await far.send(text)

    async def _back(self, far: ClientConnection, near: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            async for text in far:
                frame = json.loads(text)
                if self.loses(frame):
                    self.lost.append(frame)
                else:
                    await self.flows.wait()
                    self.frames.append(frame)
                    await near.send(text)


class Peer:
    """A client of a listener that writes frames itself, and adds received ones to `frames`."""

    def __init__(self, socket: ClientConnection) -> None:
        self.frames: list[Frame] = []
        self._socket = socket

    @classmethod
    @asynccontextmanager
    async def at(cls, listener_url: str) -> AsyncIterator[Self]:
        async with connect(listener_url, compression=None) as socket:
            peer = cls(socket)
            listening = asyncio.create_task(peer._listen())
            try:
                yield peer
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self) -> None:
        async for text in self._socket:
            self.frames.append(json.loads(text))

    async def ask(self, kind: str, **fields: Any) -> None:
        await self._socket.send(json.dumps({"type": kind, **fields}))

    async def until(self, condition: Callable[[], object], within: float = PATIENCE) -> None:
        await wait_until(condition, within)

    async def publish(self, stream: str, *contents: Any, partition: int = 0, **fields: Any) -> list[int]:
        """Publish messages one by one, and return their offsets when each can be resent."""
        wanted = {"stream": stream, "partition": partition, **fields}
        await self.ask("subscribe", **wanted)
        before = len(self._broadcasts(stream))
        for content in contents:
            await self.ask("publish", stream=stream, msg=json.dumps(content), **fields)
        await self.until(lambda: len(self._broadcasts(stream)) >= before + len(contents))
        ended = len(self._of_type(3))
        await self.ask("unsubscribe", stream=stream, partition=partition)
        await self.until(lambda: len(self._of_type(3)) > ended)
        return [each[3][5] for each in self._broadcasts(stream)[before:]]

    def _of_type(self, code: int) -> list[Frame]:
        return [each for each in self.frames if each[1] == code]

    def _broadcasts(self, stream: str) -> list[Frame]:
        return [each for each in self._of_type(0) if each[3][1] == stream]

"""A small server of the Streamr protocol, which proves that tests control and observe the clients.

It keeps messages in memory, with one key and no partitions. Its option to forget messages reproduces an error that makes
old clients send requests without end: it still names messages that it can no longer resend.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

from websockets.asyncio.server import ServerConnection, broadcast, serve

Message = list[Any]

KEY = "a key of the stand-in"
FIRST, STEP = 7, 3
"""Offsets have gaps, like those of the old servers."""


class StandIn:
    """The server. Streams whose names begin with `closed` require the key."""

    def __init__(self) -> None:
        self.url = ""
        self._stored: defaultdict[str, list[Message]] = defaultdict(list)
        self._newest: dict[str, int] = {}
        self._listeners: defaultdict[str, set[ServerConnection]] = defaultdict(set)

    @classmethod
    @asynccontextmanager
    async def started(cls) -> AsyncIterator[Self]:
        stand_in = cls()
        async with serve(stand_in._serve, "127.0.0.1", 0, compression=None) as server:
            stand_in.url = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/api/v1/ws"
            yield stand_in

    def forget(self, stream: str) -> None:
        """Make the stored messages of a stream unavailable; the next message still names its predecessor."""
        self._stored[stream].clear()

    async def _serve(self, socket: ServerConnection) -> None:
        try:
            async for text in socket:
                for frame in self._answers(socket, json.loads(text)):
                    await socket.send(json.dumps([0, *frame]))
        finally:
            for listeners in self._listeners.values():
                listeners.discard(socket)

    def _answers(self, socket: ServerConnection, request: dict[str, Any]) -> list[tuple[int, str, Any]]:
        stream, kind = request["stream"], request["type"]
        place = {"stream": stream, "partition": request.get("partition") or 0}
        if stream.startswith("closed") and kind != "unsubscribe" and request.get("authKey") != KEY:
            return [(7, "", {"error": f"Not authorized to {kind} {stream}"})]
        match kind:
            case "publish":
                self._publish(stream, request["msg"])
                return []
            case "subscribe":
                self._listeners[stream].add(socket)
                return [(2, "", place)]
            case "unsubscribe":
                self._listeners[stream].discard(socket)
                return [(3, "", place)]
        place["sub"] = request["sub"]
        found = self._chosen(stream, request)
        sent = [(1, request["sub"], message) for message in found]
        return [(4, "", place), *sent, (5, "", place)] if found else [(6, "", place)]

    def _publish(self, stream: str, content: str) -> None:
        previous = self._newest.get(stream)
        offset = self._newest[stream] = FIRST if previous is None else previous + STEP
        message = [28, stream, 0, int(time.time() * 1000), 0, offset, previous, 27, content]
        self._stored[stream].append(message)
        broadcast(self._listeners[stream], json.dumps([0, 0, "", message]))

    def _chosen(self, stream: str, request: dict[str, Any]) -> list[Message]:
        stored = self._stored[stream]
        if (last := request.get("resend_last")) is not None:
            return stored[-last:]
        if (since := request.get("resend_from_time")) is not None:
            return [each for each in stored if each[3] >= since]
        first, end = request.get("resend_from") or 0, request.get("resend_to")
        return [each for each in stored if first <= each[5] and (end is None or each[5] <= end)]

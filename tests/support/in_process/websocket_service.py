"""A service in this process with only a WebSocket listener, and real clients."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from connectivity.connections.lifecycle import Status
from connectivity.management.supervisor import Supervisor
from connectivity.transports.base import ConsumeOptions
from tests.support.brokers import free_port
from tests.support.in_process.running_connection import AT_ONCE
from tests.support.in_process.service import NOW, ConnectionHarness
from tests.support.in_process.websocket_listener import listener_connection
from tests.support.wait import PATIENCE, wait_until


class WebSocketService:
    """A service with one WebSocket listener.

    `harness` has another connection, through which tests change twins.
    """

    def __init__(self, harness: ConnectionHarness, **more: Any) -> None:
        self.harness = harness
        self.port = free_port()
        self.connection = listener_connection(self.port, **more)
        self.supervisor = Supervisor(
            self.connection,
            harness.assembly,
            harness.store,
            harness.monitor,
            pauses=AT_ONCE,
            consume=ConsumeOptions(1 << 16),
            now=lambda: NOW,
        )
        self._clients: list[ClientConnection] = []

    async def open(self) -> None:
        self.supervisor.open()
        await wait_until(lambda: self.supervisor.status is Status.OPEN)

    async def client(self, target: str = "/twins", token: str | None = None) -> ClientConnection:
        made = await connect(
            f"ws://127.0.0.1:{self.port}{target}",
            additional_headers={"Authorization": f"Bearer {token}"} if token is not None else {},
            proxy=None,
            open_timeout=PATIENCE,
        )
        self.keep(made)
        return made

    def keep(self, client: ClientConnection) -> None:
        """Close this client together with the service."""
        self._clients.append(client)

    async def close(self) -> None:
        await self.supervisor.close()
        for client in self._clients:
            await client.close()
        await self.harness.close()


async def receive_json(client: ClientConnection) -> Any:
    """Return the next JSON message of a client."""
    message = await asyncio.wait_for(client.recv(), PATIENCE)
    assert isinstance(message, str), "JSON is sent as text"
    return json.loads(message)


async def request_json(client: ClientConnection, message: bytes) -> Any:
    await client.send(message.decode())
    return await receive_json(client)

"""reactive-streams-io through every listener of a service: TCP, TLS with certificates, WebSocket.

Case numbers are those of the cases for reactive-streams-io.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest
import trustme
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from mappings.reactive_streams_io.endpoint import Endpoint, EndpointRole
from mappings.reactive_streams_io.events import (
    Closed,
    Completed,
    ElementsReceived,
    EndpointEvent,
    StreamAccepted,
    StreamFailed,
)
from tests.support.brokers import free_port
from tests.support.in_process.service import policy
from tests.support.in_process.tcp_service import MOST_READ
from tests.support.in_process.websocket_listener import own, trusting
from tests.support.service_process import ServiceProcess
from tests.support.wait import PATIENCE

OPERATOR = "acme:operator"
DEVICE = "device-9"
HISTORY = "things/acme.site:lamp/history"


class Wire(Protocol):
    """A transport that carries bytes to the service and back."""

    async def send(self, raw: bytes) -> None: ...

    async def receive(self) -> bytes:
        """Return the next bytes; empty at the end."""


class Stream:
    """A TCP or TLS connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, raw: bytes) -> None:
        self._writer.write(raw)
        await self._writer.drain()

    async def receive(self) -> bytes:
        return await self._reader.read(MOST_READ)

    async def close(self) -> None:
        self._writer.transport.abort()
        await asyncio.gather(self._writer.wait_closed(), return_exceptions=True)


class Messages:
    """A WebSocket."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def send(self, raw: bytes) -> None:
        await self._socket.send(raw)

    async def receive(self) -> bytes:
        message = await self._socket.recv()
        assert isinstance(message, bytes)
        return message


@dataclass
class Client:
    """A client of reactive-streams-io: its wire, its endpoint, and the reported events."""

    wire: Wire
    endpoint: Endpoint
    reported: list[EndpointEvent] = field(default_factory=list)

    async def send(self) -> None:
        while raw := self.endpoint.take():
            await self.wire.send(raw)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Receive and respond until the condition is true."""
        await self.send()
        while not condition():
            raw = await asyncio.wait_for(self.wire.receive(), PATIENCE)
            self.reported += self.endpoint.receive(raw, time.monotonic())
            if not raw:
                self.reported += self.endpoint.lose(time.monotonic())
            await self.send()

    def elements(self, stream: int) -> list[bytes]:
        events = (event for event in self.reported if isinstance(event, ElementsReceived) and event.stream == stream)
        return [element for event in events for element in event.elements]

    def revisions(self, stream: int) -> list[int]:
        return [json.loads(element)["revision"] for element in self.elements(stream)]


class Listeners:
    """The listeners of one service, and the clients that connect to them."""

    def __init__(self) -> None:
        self.plain, self.secret, self.web = free_port(), free_port(), free_port()
        self._authority, self._trusted = trustme.CA(), trustme.CA()

    @property
    def documents(self) -> list[dict[str, Any]]:
        shared = {
            "connectionStatus": "open",
            "mappingDefinitions": {"rsio": {"mappingEngine": "ReactiveStreamsIO", "options": {"tck": True}}},
        }
        source = {"addresses": ["rsio"], "authorizationContext": [OPERATOR], "payloadMapping": ["rsio"]}
        by_certificate = {**source, "authorizationContext": ["acme:{{ header:tcp.certificate }}"]}
        web = [
            {"addresses": ["/twins"], "authorizationContext": [OPERATOR]},
            {**source, "addresses": ["/streams"]},
        ]
        return [
            {
                "id": "plain",
                "connectionType": "tcp",
                "uri": f"tcp://127.0.0.1:{self.plain}",
                "sources": [source],
                **shared,
            },
            {
                "id": "secret",
                "connectionType": "tcp",
                "uri": f"ssl://127.0.0.1:{self.secret}",
                "credentials": own(self._authority.issue_cert("localhost")),
                "ca": self._trusted.cert_pem.bytes().decode(),
                "sources": [by_certificate],
                **shared,
            },
            {"id": "web", "connectionType": "websocket", "uri": f"ws://127.0.0.1:{self.web}", "sources": web, **shared},
        ]

    @asynccontextmanager
    async def operator(self) -> AsyncIterator[ClientConnection]:
        async with connect(f"ws://127.0.0.1:{self.web}/twins", proxy=None, open_timeout=PATIENCE) as socket:
            yield socket

    @asynccontextmanager
    async def client(self, kind: str) -> AsyncIterator[Client]:
        has_messages = kind == "web"
        endpoint = Endpoint(EndpointRole.CLIENT, time.monotonic(), has_messages=has_messages, is_connected=True)
        if has_messages:
            there = f"ws://127.0.0.1:{self.web}/streams"
            names = [Subprotocol("rsio.v0")]
            async with connect(there, subprotocols=names, proxy=None, open_timeout=PATIENCE) as socket:
                assert socket.subprotocol == "rsio.v0"
                yield Client(Messages(socket), endpoint)
            return
        options: dict[str, Any] = {}
        if kind == "secret":
            shown = self._trusted.issue_cert("device-9.test", common_name=DEVICE)
            context = trusting(self._authority, shown)
            context.set_alpn_protocols(["rsio/0"])
            options = {"ssl": context, "server_hostname": "localhost"}
        port = self.secret if kind == "secret" else self.plain
        stream = Stream(*await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port, **options), PATIENCE))
        try:
            yield Client(stream, endpoint)
        finally:
            await stream.close()


async def command(operator: ClientConnection, action: str, path: str, value: Any) -> None:
    asked = {
        "topic": f"acme.site/lamp/things/twin/commands/{action}",
        "path": path,
        "value": value,
        "headers": {"response-required": True, "correlation-id": path},
    }
    await operator.send(json.dumps(asked))
    answer = json.loads(await asyncio.wait_for(operator.recv(), PATIENCE))
    assert answer["status"] in (201, 204), answer


@pytest.fixture(scope="module")
def listeners() -> Listeners:
    return Listeners()


@pytest.fixture(scope="module")
def service(listeners: Listeners, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder: Path = tmp_path_factory.mktemp("listeners")
    with ServiceProcess.start(folder, listeners.documents) as running:
        yield running


async def reads(client: Client) -> int:
    """Read a history of five revisions on demand, beside other streams; return the open stream."""
    slow, nothing = client.endpoint.subscribe(HISTORY, 2), client.endpoint.subscribe("nope", 1)
    packed = client.endpoint.subscribe("tck/fixed?n=20000&size=16", 20_000)
    live = client.endpoint.subscribe(f"{HISTORY}?from=4&follow=true", 100)
    await client.until(lambda: Completed(packed) in client.reported and len(client.elements(slow)) == 2)
    assert StreamAccepted(nothing, 0) in client.reported
    assert [event.reason[:3] for event in client.reported if isinstance(event, StreamFailed)] == ["404"]
    assert [int.from_bytes(each) for each in client.elements(packed)] == list(range(1, 20_001))
    client.endpoint.session.request(slow, 10)
    await client.until(lambda: Completed(slow) in client.reported)
    assert client.revisions(slow) == [1, 2, 3, 4, 5]
    return live


async def follows(client: Client, live: int, newest: int) -> None:
    await client.until(lambda: len(client.elements(live)) == newest - 3)
    assert client.revisions(live) == list(range(4, newest + 1))


async def test_clients_at_every_kind_of_listener_read_the_same_history_and_live_events(
    listeners: Listeners, service: ServiceProcess
) -> None:
    """Cases D01, D02, D07, F01, N04 and G01 over TCP, TLS and WebSocket, from end to end."""
    async with listeners.operator() as operator, AsyncExitStack() as stack:
        await command(operator, "create", "/", {"_policy": policy(OPERATOR, f"acme:{DEVICE}")})
        for number in range(2, 6):
            await command(operator, "modify", "/attributes/n", number)
        clients = [await stack.enter_async_context(listeners.client(kind)) for kind in ("plain", "secret", "web")]
        live = [await reads(client) for client in clients]
        await command(operator, "modify", "/attributes/n", 6)
        for client, stream in zip(clients, live, strict=True):
            await follows(client, stream, 6)
        parting, *others = clients
        parting.reported += parting.endpoint.close(time.monotonic())
        await parting.until(lambda: parting.endpoint.is_closed)
        assert isinstance(parting.reported[-1], Closed)
        await command(operator, "modify", "/attributes/n", 7)
        for client, stream in zip(others, live[1:], strict=True):
            await follows(client, stream, 7)
    assert "Traceback" not in service.log()

"""WebSocket listeners for tests: a link on a free port, with clients of the library `websockets`."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trustme
from cryptography.hazmat.primitives import serialization
from websockets.asyncio.client import ClientConnection, connect

from connectivity.connections.model import Connection
from connectivity.errors import ConnectivityError
from connectivity.transports import load_connection_type
from connectivity.transports.base import Delivery, OutboundMessage
from connectivity.transports.listener.link import ListenerLink
from connectivity.transports.listener.timeouts import SocketTimes
from connectivity.transports.websocket.link import WebSocketLink
from mappings.model.envelope import Envelope
from tests.contract.link import DeliveryCollector, Publishing
from tests.support.brokers import free_port
from tests.support.wait import PATIENCE


def token_entry(name: str, token: str) -> str:
    """Return an entry of the option `tokens`."""
    return f"{name}={hashlib.sha256(token.encode()).hexdigest()}"


def key_of(certificate: trustme.LeafCert) -> str:
    """Return the private key of a certificate in PKCS #8, which connection documents require."""
    key = serialization.load_pem_private_key(certificate.private_key_pem.bytes(), None)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def own(certificate: trustme.LeafCert) -> dict[str, str]:
    """Return the certificate of a listener for its document."""
    return {"type": "client-cert", "cert": certificate.cert_chain_pems[0].bytes().decode(), "key": key_of(certificate)}


def trusting(authority: trustme.CA, shown: trustme.LeafCert | None = None) -> ssl.SSLContext:
    """Return a client's TLS context that trusts an authority and shows a certificate."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if shown is not None:
        shown.configure_cert(context)
    return context


def pass_time(link: ListenerLink[Any], seconds: float) -> None:
    """Let `seconds` seconds pass for all sockets, then run the check that the listener runs each second."""

    def earlier(at: float | None) -> float | None:
        return None if at is None else at - seconds

    for peer in list(link._sockets):
        times: SocketTimes = peer.times
        times.made, times.last_received, times.spoke = (
            times.made - seconds,
            times.last_received - seconds,
            times.spoke - seconds,
        )
        times.pinged, times.closing, times.stuck = earlier(times.pinged), earlier(times.closing), earlier(times.stuck)
    link._sweep.cancel()
    link._look()


def listener_connection(port: int, *paths: str, options: dict[str, str] | None = None, **more: Any) -> Connection:
    """Return a connection that listens at a port, with one source at these paths."""
    document = {
        "id": "listener",
        "connectionType": "websocket",
        "connectionStatus": "open",
        "uri": f"ws://127.0.0.1:{port}",
        "sources": [{"addresses": list(paths or ("/twins",)), "authorizationContext": ["lab:all"]}],
        "specificConfig": options or {},
        **more,
    }
    return Connection.model_validate(document)


class OpenListener:
    """An open listener, the consumers of its deliveries, and its clients."""

    def __init__(self, link: WebSocketLink, connection: Connection) -> None:
        self.link, self.connection = link, connection
        self.takers = [DeliveryCollector(link, index) for index in range(len(connection.sources))]
        self._clients: list[ClientConnection] = []

    @property
    def taker(self) -> DeliveryCollector:
        return self.takers[0]

    @property
    def port(self) -> int:
        return self.connection.broker_uri.port

    async def client(self, target: str = "/twins", **options: Any) -> ClientConnection:
        scheme = options.pop("scheme", self.connection.broker_uri.scheme)
        options = {"compression": None, "proxy": None, "open_timeout": PATIENCE, **options}
        made = await connect(f"{scheme}://localhost:{self.port}{target}", **options)
        self._clients.append(made)
        return made

    async def met(self, target: str = "/twins", **options: Any) -> tuple[ClientConnection, str]:
        """Return a client that has sent a message, and the ID of its peer."""
        client = await self.client(target, **options)
        await client.send("hello")
        [hello] = await self.take(1)
        hello.settle()
        return client, peer_of(hello)

    async def take(self, count: int) -> list[Delivery]:
        return await self.taker.take(count, PATIENCE)

    async def send(self, address: str, *payloads: bytes, **headers: str) -> list[ConnectivityError | None]:
        """Publish messages and return their results. Keywords are headers, with `_` for `-`."""
        publishing = Publishing(self.link)
        mapped = {name.replace("_", "-"): value for name, value in headers.items()}
        publishing.give(*(OutboundMessage(address, Envelope(payload, mapped)) for payload in payloads))
        return await publishing.all_done(PATIENCE)

    async def end(self) -> None:
        await self.link.close()
        for client in self._clients:
            # A client may not be reading, so it cannot close in order.
            client.transport.abort()
            await client.wait_closed()
        await asyncio.gather(*(taker.task for taker in self.takers))


def peer_of(delivery: Delivery) -> str:
    """Return the ID of the peer that sent a delivery."""
    found = delivery.envelope.header("reply-to")
    assert found is not None
    return found


@asynccontextmanager
async def opened(*paths: str, options: dict[str, str] | None = None, **more: Any) -> AsyncIterator[OpenListener]:
    connection = listener_connection(free_port(), *paths, options=options, **more)
    connect_link = load_connection_type("websocket").connect
    assert connect_link is not None
    link = await connect_link(connection)
    assert isinstance(link, WebSocketLink)
    way = OpenListener(link, connection)
    try:
        yield way
    finally:
        await way.end()

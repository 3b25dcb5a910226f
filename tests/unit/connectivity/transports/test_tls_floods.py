"""A broker that sends very many TLS records does not stop the service: other tasks get their turns."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from connectivity.connections.model import Connection
from connectivity.errors import LinkError
from connectivity.transports import load_connection_type
from connectivity.transports.amqp.demultiplexer import FrameDemultiplexer
from connectivity.transports.mqtt.async_client import AsyncMqttClient
from connectivity.transports.mqtt.paho_client import SansIoPahoClient
from connectivity.transports.tls_layer import MOST_RECORDS
from tests.support.brokers.mosquitto import Certificates
from tests.support.turns import Turns

TICKETS = 1000
"""Records without data: tickets to resume the session, which a broker may send in any number."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("floods"))


@asynccontextmanager
async def flooding_broker(certificates: Certificates, last: bytes) -> AsyncIterator[int]:
    """A broker that sends tickets and then some bytes; its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)
    context.num_tickets = TICKETS

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(last)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


def document(kind: str, uri: str, certificates: Certificates) -> Connection:
    return Connection.model_validate(
        {
            "id": "flooded",
            "connectionType": kind,
            "connectionStatus": "open",
            "uri": uri,
            "ca": certificates.ca.read_text(encoding="ascii"),
            "sources": [{"addresses": ["in"], "qos": 1, "authorizationContext": ["a"]}],
        }
    )


async def amqp_records_take_turns(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    turns, seen = Turns(), list[int]()
    made, received = FrameDemultiplexer.connection_made, FrameDemultiplexer.data_received

    def connection_made(self: FrameDemultiplexer, transport: asyncio.BaseTransport) -> None:
        seen.append(turns.count)
        made(self, transport)

    def data_received(self: FrameDemultiplexer, data: bytes) -> None:
        seen.append(turns.count)
        received(self, data)

    monkeypatch.setattr(FrameDemultiplexer, "connection_made", connection_made)
    monkeypatch.setattr(FrameDemultiplexer, "data_received", data_received)
    async with flooding_broker(certificates, b"no AMQP") as port:
        with pytest.raises(LinkError):
            await connected("amqp-091", f"amqps://localhost:{port}", certificates)
    assert seen[1] - seen[0] >= TICKETS // MOST_RECORDS


async def mqtt_records_take_turns(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    turns, seen = Turns(), list[int]()
    attached, fed = AsyncMqttClient._attach, SansIoPahoClient.feed

    def attach(self: AsyncMqttClient) -> None:
        seen.append(turns.count)
        attached(self)

    def feed(self: SansIoPahoClient, data: bytes) -> None:
        seen.append(turns.count)
        fed(self, data)

    monkeypatch.setattr(AsyncMqttClient, "_attach", attach)
    monkeypatch.setattr(SansIoPahoClient, "feed", feed)
    async with flooding_broker(certificates, b"no MQTT") as port:
        with pytest.raises(LinkError):
            await connected("mqtt-5", f"ssl://localhost:{port}", certificates)
    # In one turn it may read because the socket is readable, and because it was in the turn before.
    assert seen[1] - seen[0] >= TICKETS // (2 * MOST_RECORDS)


async def connected(kind: str, uri: str, certificates: Certificates) -> Any:
    connect = load_connection_type(kind).connect
    assert connect is not None
    return await connect(document(kind, uri, certificates))


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_very_many_records_of_an_amqp_broker_leave_turns_to_other_tasks(
    run: Callable[[Coroutine[Any, Any, None]], None], certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(amqp_records_take_turns(certificates, monkeypatch))


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_very_many_records_of_an_mqtt_broker_leave_turns_to_other_tasks(
    run: Callable[[Coroutine[Any, Any, None]], None], certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(mqtt_records_take_turns(certificates, monkeypatch))

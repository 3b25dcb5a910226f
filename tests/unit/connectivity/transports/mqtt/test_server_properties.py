"""What an MQTT 5 broker requires in its CONNACK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from connectivity.connections.model import Connection
from connectivity.errors import PublishFailed
from connectivity.transports.mqtt.connector import connect
from connectivity.transports.mqtt.link import MqttLink
from connectivity.transports.mqtt.mqtt5 import Mqtt5
from connectivity.transports.mqtt.paho_client import SansIoPahoClient
from connectivity.transports.mqtt.properties import ServerLimits
from connectivity.transports.mqtt.protocol_version import Publication
from tests.contract.link import DeliveryCollector
from tests.support.wait import wait_until

CONNECT, SUBSCRIBE, PINGREQ = 1, 8, 12
NO_SUBSCRIPTION_IDENTIFIERS = b"\x29\x00"
SERVER_KEEP_ALIVE_1 = b"\x13\x00\x01"
MAXIMUM_QOS_0 = b"\x24\x00"
PROTOCOL_ERROR = b"\xe0\x02\xa1\x00"


class Broker:
    """A broker of one client with these properties in its CONNACK. `received`: type and body of each packet."""

    def __init__(self, properties: bytes) -> None:
        self._properties = properties
        self.received: list[tuple[int, bytes]] = []
        self.send = bytes
        self.is_closed = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.send = writer.write  # type: ignore[assignment]
        try:
            while True:
                head, length = await reader.readexactly(2)
                body = await reader.readexactly(length)
                self.received.append((head >> 4, body))
                if head >> 4 == CONNECT:
                    properties = self._properties
                    writer.write(bytes((0x20, 3 + len(properties), 0, 0, len(properties))) + properties)
                elif head >> 4 == SUBSCRIBE:
                    is_refused = body[2] and self._properties == NO_SUBSCRIPTION_IDENTIFIERS
                    granted = b"\x00" if self._properties == MAXIMUM_QOS_0 else b"\x01"
                    writer.write(PROTOCOL_ERROR if is_refused else b"\x90\x04" + body[:2] + b"\x00" + granted)
        except asyncio.IncompleteReadError:
            writer.close()
            await writer.wait_closed()
            self.is_closed = True


@asynccontextmanager
async def linked(properties: bytes, keep_alive: str = "1m") -> AsyncIterator[tuple[Broker, MqttLink]]:
    broker = Broker(properties)
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    document = {
        "id": "lab",
        "connectionType": "mqtt-5",
        "connectionStatus": "open",
        "uri": f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}",
        "specificConfig": {"keepAlive": keep_alive},
        "sources": [{"addresses": ["lab/in"], "qos": 1, "authorizationContext": ["lab:all"]}],
    }
    async with server:
        link = await connect(Mqtt5(), Connection.model_validate(document))
        try:
            yield broker, link
        finally:
            await link.close()
            await wait_until(lambda: broker.is_closed)


async def test_a_broker_without_subscription_identifiers_gets_none() -> None:
    """Such a broker closes the link when it receives one."""
    async with linked(NO_SUBSCRIPTION_IDENTIFIERS) as (broker, link):
        broker.send(b"\x32\x0d\x00\x06lab/in\x00\x01\x00hi")
        assert await DeliveryCollector(link).payloads(1) == [b"hi"]


async def test_the_keep_alive_of_the_broker_applies_even_if_the_connection_has_none() -> None:
    async with linked(SERVER_KEEP_ALIVE_1, keep_alive="0s") as (broker, _):
        await wait_until(lambda: (PINGREQ, b"") in broker.received)


async def test_a_source_that_is_granted_qos_0_in_place_of_1_is_reported() -> None:
    """Its messages would not be delivered again after a lost link."""
    async with linked(MAXIMUM_QOS_0) as (_, link):
        assert link.condition == "connected: the broker sends lab/in with QoS 0, not 1: messages may be lost"
    async with linked(b"") as (_, link):
        assert link.condition is None


@pytest.mark.parametrize("payload", [0, 110, 111, 112, 113, 114, 16_366, 16_367, 16_368, 16_369, 16_370, 2_097_140])
@pytest.mark.parametrize("qos", [0, 1])
def test_a_message_as_large_as_the_broker_allows_is_sent(payload: int, qos: int) -> None:
    publication = Publication(b"lab/out", bytes(payload), qos, False, b"\x03\x01\x01\x01")
    client = SansIoPahoClient("lab", Mqtt5.protocol, clean_session=True)
    client.send(publication)
    size = len(client.unsent[0])
    assert ServerLimits(packet_size=size).fit(publication) == publication
    with pytest.raises(PublishFailed) as refused:
        ServerLimits(packet_size=size - 1).fit(publication)
    assert f"has {size} bytes, expected at most {size - 1}" in str(refused.value)

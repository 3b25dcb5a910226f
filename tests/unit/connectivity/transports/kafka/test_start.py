"""A Kafka broker that is starting: it answers but knows no broker and no topic yet."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from connectivity.connections.model import Connection
from connectivity.errors import NotConnected
from connectivity.transports.kafka.connector import connect
from connectivity.transports.kafka.handshake import list_brokers

API_VERSIONS, METADATA = 18, 3
SUPPORTED = [(API_VERSIONS, 0, 0), (METADATA, 2, 2)]
UNSUPPORTED_VERSION = 35


class StartingBroker:
    """A fake Kafka broker that answers requests for versions and metadata. It has no topics."""

    def __init__(self) -> None:
        self.knows_itself = False
        self.port = 0
        self._answering: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._linked, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._answering:
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)

    async def _linked(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._answering.add(asyncio.create_task(self._answer(reader, writer)))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (size,) = struct.unpack("!i", await reader.readexactly(4))
                key, version, number = struct.unpack_from("!hhi", await reader.readexactly(size))
                body = self._versions(version) if key == API_VERSIONS else self._metadata()
                writer.write(struct.pack("!ii", 4 + len(body), number) + body)

    def _versions(self, version: int) -> bytes:
        head = struct.pack("!hi", UNSUPPORTED_VERSION if version else 0, len(SUPPORTED))
        return head + b"".join(struct.pack("!hhh", *each) for each in SUPPORTED)

    def _metadata(self) -> bytes:
        """Brokers (each with id, host, port, no rack), the cluster's id, the controller's, topics."""
        host = b"127.0.0.1"
        itself = struct.pack(f"!ih{len(host)}sih", 1, len(host), host, self.port, -1)
        brokers = [itself] if self.knows_itself else []
        return struct.pack("!i", len(brokers)) + b"".join(brokers) + struct.pack("!h3sii", 3, b"lab", 1, 0)


@pytest.fixture
async def broker() -> AsyncIterator[StartingBroker]:
    async with StartingBroker() as starting:
        yield starting


async def test_a_broker_that_knows_of_no_broker_yet_is_no_broker(broker: StartingBroker) -> None:
    """It has been started again: librdkafka's own question about the cluster would end the process here."""
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{broker.port}", "log_level": 0})
    broker.knows_itself = True
    assert await asyncio.to_thread(list_brokers, admin, 10.0) == [("127.0.0.1", broker.port)]
    broker.knows_itself = False
    with pytest.raises(KafkaException):
        await asyncio.to_thread(list_brokers, admin, 1.0)


async def test_a_connection_to_a_broker_that_is_just_starting_is_tried_again(broker: StartingBroker) -> None:
    address = f"127.0.0.1:{broker.port}"
    document = {
        "id": "lab",
        "connectionType": "kafka",
        "connectionStatus": "open",
        "uri": f"tcp://{address}",
        "specificConfig": {"bootstrapServers": address},
        "sources": [{"addresses": ["asked"], "qos": 1, "authorizationContext": ["lab:all"]}],
    }
    with pytest.raises(NotConnected):
        await connect(Connection.model_validate(document), patience=1.0)

"""An AMQP connection, RabbitMQ and another client of the same broker, for tests of the link."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self
from uuid import uuid4

from connectivity.connections.model import Connection
from connectivity.transports import load_connection_type
from connectivity.transports.amqp.consumer import IN_FLIGHT
from connectivity.transports.amqp.link import AmqpLink
from connectivity.transports.base import CONSUME_DEFAULTS, ConsumeOptions, Link
from mappings.model.envelope import Envelope
from tests.support.brokers.proxy import Proxy
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.clients.bare_amqp import BareAmqpClient


class AmqpLinkHarness:
    """An AMQP connection through a proxy, its queues, and another client that does not use the proxy."""

    is_renewed_for_redelivery = False
    most_unsettled = IN_FLIGHT
    absent = "nobody.made.this"
    marks_what_has_waited = False

    def __init__(self, broker: RabbitMQ, proxy: Proxy, bare_client: BareAmqpClient, vhost: str = "/") -> None:
        name = uuid4().hex
        self.source, self.inbox = f"{name}.in", f"{name}.out"
        self.out = f"/{self.inbox}"
        self.broker, self.proxy, self.bare_client = broker, proxy, bare_client
        self.consume: ConsumeOptions = CONSUME_DEFAULTS
        self.document: dict[str, Any] = {
            "id": name,
            "connectionType": "amqp-091",
            "connectionStatus": "open",
            "uri": broker.uri(vhost=vhost, host=proxy.host, port=proxy.port),
            "sources": [{"addresses": [self.source], "authorizationContext": ["lab:all"]}],
        }

    @classmethod
    @asynccontextmanager
    async def at(cls, broker: RabbitMQ, vhost: str = "/") -> AsyncIterator[Self]:
        """Declare the queues of the connection and yield its harness."""
        async with Proxy.to(broker.host, broker.port) as proxy, BareAmqpClient(broker.uri(vhost=vhost)) as bare_client:
            harness = cls(broker, proxy, bare_client, vhost)
            await bare_client.queue(harness.source)
            await bare_client.listen(harness.inbox)
            yield harness

    def sources(self, *queues: Sequence[str], **more: Any) -> None:
        self.document["sources"] = [
            {"addresses": list(each), "authorizationContext": ["lab:all"], **more} for each in queues
        ]

    @property
    def definition(self) -> Connection:
        return Connection.model_validate(self.document)

    async def connect(self, **options: str) -> AmqpLink:
        self.proxy.flow()
        connect = load_connection_type("amqp-091").connect
        link = await connect(Connection.model_validate({**self.document, "specificConfig": options}), 0, self.consume)
        assert isinstance(link, AmqpLink)
        return link

    async def connect_client(self, client: int, clients: int) -> Link:
        connect = load_connection_type("amqp-091").connect
        return await connect(Connection.model_validate({**self.document, "clientCount": clients}), client)

    async def send(self, payloads: Sequence[bytes], headers: Mapping[str, Any] | None = None, **more: Any) -> None:
        await self.bare_client.send(self.source, payloads, headers, **more)

    def received(self) -> list[Envelope]:
        return self.bare_client.received

    async def cut(self) -> None:
        self.proxy.cut()

    async def withhold_confirms(self) -> None:
        self.proxy.stall(to_broker=False)

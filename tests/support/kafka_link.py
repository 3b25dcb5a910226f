"""A connection to a real Kafka through a proxy, for tests of its links."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self
from uuid import uuid4

from confluent_kafka import Producer

from connectivity.connections.model import Connection
from connectivity.transports.base import CONSUME_DEFAULTS, ConsumeOptions, OutboundMessage
from connectivity.transports.kafka.connector import connect
from connectivity.transports.kafka.consumer import IN_FLIGHT
from connectivity.transports.kafka.link import KafkaLink
from mappings.model.envelope import Envelope
from tests.contract.link import Publishing
from tests.support.brokers.kafka import Kafka
from tests.support.brokers.proxy import Proxy
from tests.support.clients.bare_kafka import BareKafkaClient
from tests.support.wait import PATIENCE, wait_until


class KafkaLinkHarness:
    """A connection through a proxy to Kafka, with topics of its own, and a direct client."""

    most_unsettled = IN_FLIGHT
    absent = "nobody.made.this"
    marks_what_has_waited = True
    is_renewed_for_redelivery = False

    def __init__(self, broker: Kafka, proxy: Proxy) -> None:
        self.name = uuid4().hex
        self.source, self.out = f"{self.name}.in", f"{self.name}.out"
        self.broker, self.proxy = broker, proxy
        broker.create(self.source, self.out)
        self.bare_client = BareKafkaClient(broker.bootstrap, self.out)
        address = f"{proxy.host}:{proxy.port}"
        self.consume: ConsumeOptions = CONSUME_DEFAULTS
        self.document: dict[str, Any] = {
            "id": self.name,
            "connectionType": "kafka",
            "connectionStatus": "open",
            "uri": f"tcp://{address}",
            "specificConfig": {"bootstrapServers": address},
        }
        self.sources([self.source])

    @classmethod
    @asynccontextmanager
    async def to(cls, kafka: Kafka) -> AsyncIterator[Self]:
        async with Proxy.to(kafka.host, kafka.proxied_port, at=kafka.proxy_port) as proxy:
            harness = cls(kafka, proxy)
            with harness.bare_client:
                yield harness

    def sources(self, *topics: Sequence[str], qos: int | None = 1) -> None:
        self.document["sources"] = [
            {"addresses": list(addresses), "qos": qos, "authorizationContext": ["lab:all"]} for addresses in topics
        ]

    @property
    def definition(self) -> Connection:
        return Connection.model_validate(self.document)

    async def connect(self, repair_seconds: float = 0.5, **options: str) -> KafkaLink:
        self.proxy.is_refusing = False
        self.proxy.flow()
        document = {**self.document, "specificConfig": {**self.document["specificConfig"], **options}}
        self.link = await connect(Connection.model_validate(document), 0, self.consume, repair_seconds=repair_seconds)
        return self.link

    async def connect_client(self, client: int, clients: int) -> KafkaLink:
        """The clients share a topic that has partitions for them."""
        if not self.source.endswith(".shared"):
            self.source = f"{self.name}.shared"
            self.broker.create(self.source, partitions=4)
            self.sources([self.source])
        return await connect(Connection.model_validate({**self.document, "clientCount": clients}), client)

    async def send(self, payloads: Sequence[bytes], headers: Mapping[str, str] | None = None) -> None:
        await self.send_to(self.source, payloads, headers)

    async def send_to(self, topic: str, payloads: Sequence[bytes | None], *arguments: Any, **more: Any) -> None:
        await asyncio.to_thread(self.bare_client.send, topic, payloads, *arguments, **more)

    async def send_anew(self, topic: str, *payloads: bytes, partition: int = -1) -> None:
        """Send with a new producer, which knows the present topics and partitions; to any partition by default."""

        def run() -> None:
            producer = Producer({"bootstrap.servers": self.broker.bootstrap, "log_level": 0})
            for payload in payloads:
                producer.produce(topic, payload, partition=partition)
            assert producer.flush(PATIENCE) == 0

        await asyncio.to_thread(run)

    def received(self) -> list[Envelope]:
        return self.bare_client.received

    async def cut(self) -> None:
        """Keep the broker unreachable after the cut, because the library reconnects automatically."""
        self.proxy.is_refusing = True
        self.proxy.cut()

    async def withhold_confirms(self) -> None:
        """Withhold the broker's confirms.

        Before it first sends, the producer requests its ID and the partition leader, and would miss those, too.
        """
        first = Publishing(self.link)
        first.give(OutboundMessage(self.out, Envelope(b"first")))
        assert await first.all_done() == [None]
        await wait_until(self.received)
        self.bare_client.received.clear()
        self.proxy.stall(to_broker=False)

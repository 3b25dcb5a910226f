"""The private Kafka is a real one: it keeps its data through a stop and a kill, at its given address."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.support.brokers import is_listening
from tests.support.brokers.kafka import Kafka
from tests.support.brokers.proxy import Proxy
from tests.support.clients.bare_kafka import BareKafkaClient
from tests.support.wait import wait_until, wait_until_sync

pytestmark = pytest.mark.broker("kafka")


@pytest.mark.soak(shard="brokers")
@pytest.mark.parametrize("end", [Kafka.stop, Kafka.kill])
def test_records_outlive_the_broker(own_kafka: Kafka, end: Callable[[Kafka], None]) -> None:
    own, topic = own_kafka, f"kept-through-{end.__name__}"
    own.create(topic)
    with BareKafkaClient(own.bootstrap, topic) as other:
        other.send(topic, [b"kept"])
    end(own)
    assert not is_listening(own.host, own.port)
    own.start_again()
    with BareKafkaClient(own.bootstrap, topic) as other:
        wait_until_sync(lambda: other.received)
        assert other.received[0].payload == b"kept"


async def test_clients_of_the_proxied_listener_stay_after_the_proxy(kafka: Kafka) -> None:
    await asyncio.to_thread(kafka.create, "behind-the-proxy")
    async with Proxy.to(kafka.host, kafka.proxied_port, at=kafka.proxy_port) as proxy:
        with BareKafkaClient(f"{proxy.host}:{proxy.port}", "behind-the-proxy") as other:
            sent = proxy.sent
            await asyncio.to_thread(other.send, "behind-the-proxy", [bytes(10_000)])
            await wait_until(lambda: other.received)
            assert proxy.sent - sent > 10_000

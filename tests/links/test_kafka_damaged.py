"""Links to a real Kafka whose records arrive damaged."""

from __future__ import annotations

import pytest

from connectivity.transports.kafka import read_errors
from tests.contract.link import DeliveryCollector
from tests.support.brokers.kafka import Kafka
from tests.support.brokers.proxy import Proxy
from tests.support.kafka_link import KafkaLinkHarness
from tests.support.wait import wait_until


@pytest.mark.broker("kafka")
async def test_a_damaged_record_is_not_delivered_and_shows_in_the_condition_until_it_can_be_read(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_errors, "PATIENCE", 1.0)
    monkeypatch.setattr(read_errors, "MEMORY", 2.0)
    async with Proxy.to(kafka.host, kafka.proxied_port, at=kafka.proxy_port) as proxy:
        harness = KafkaLinkHarness(kafka, proxy)
        with harness.bare_client:
            link = await harness.connect(consumerOffsetReset="earliest")
            taker = DeliveryCollector(link)
            proxy.damage = b"intact", b"broken"
            await harness.send([b"intact"])
            await wait_until(lambda: link.condition)
            expected = f"connected: records cannot be read: {harness.source}: MessageSet at offset 0"
            assert (link.condition or "").startswith(expected)
            assert (taker.deliveries, link.lost.done()) == ([], False)
            proxy.damage = None
            assert await taker.payloads(1) == [b"intact"]
            await wait_until(lambda: link.condition is None)
            await link.close()

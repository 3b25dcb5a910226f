"""Links to a real Kafka whose topic is deleted and created again."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from itertools import count

import pytest
from confluent_kafka.admin import TopicDescription  # type: ignore[attr-defined]

from connectivity.errors import Detail, MessageRefused
from connectivity.transports.base import OutboundMessage
from connectivity.transports.kafka.group import described_topic_id
from connectivity.transports.kafka.link import KafkaLink
from mappings.model.envelope import Envelope
from tests.contract.link import DeliveryCollector, Publishing, lost
from tests.support.brokers.kafka import Kafka
from tests.support.kafka_link import KafkaLinkHarness
from tests.support.wait import wait_until


@pytest.fixture
async def harness(kafka: Kafka) -> AsyncIterator[KafkaLinkHarness]:
    async with KafkaLinkHarness.to(kafka) as harness:
        yield harness


async def create_again(harness: KafkaLinkHarness) -> None:
    await asyncio.to_thread(harness.broker.delete, harness.source)
    await asyncio.to_thread(harness.broker.create, harness.source)


async def settle(link: KafkaLink, number: int) -> list[str]:
    """Take and settle deliveries, and return their names."""
    deliveries = await DeliveryCollector(link).take(number)
    for each in deliveries:
        each.settle()
    return [each.name or "" for each in deliveries]


@pytest.mark.broker("kafka")
@pytest.mark.parametrize("newer", [3, 9], ids=["fewer records than before", "more records than before"])
async def test_a_link_ends_when_its_topic_is_created_again_and_the_next_reads_it_from_its_beginning_once(
    harness: KafkaLinkHarness, newer: int
) -> None:
    """The library would continue in the new topic, with the names and offsets of the old one."""
    link = await harness.connect(consumerOffsetReset="earliest")
    await harness.send_anew(harness.source, *[b"same"] * 5)
    old = await settle(link, 5)
    await create_again(harness)
    await harness.send_anew(harness.source, *[b"same"] * newer)
    assert (await lost(link)).detail is Detail.MISSING_ADDRESS
    link = await harness.connect(consumerOffsetReset="earliest")
    new = await settle(link, newer)
    assert [name.rsplit("/", 1)[1] for name in new] == [str(offset) for offset, _ in zip(count(), new, strict=False)]
    assert not set(new) & set(old)
    await link.close()
    link = await harness.connect(consumerOffsetReset="earliest")
    await harness.send_anew(harness.source, b"later")
    assert await DeliveryCollector(link).payloads(1) == [b"later"]
    await link.close()


@pytest.mark.broker("kafka")
async def test_a_message_to_a_deleted_topic_may_be_sent_again_and_arrives_once_the_topic_is_created_again(
    harness: KafkaLinkHarness,
) -> None:
    """The library reports an unknown partition, or that it has removed the queue of the partition."""
    topic = f"{harness.name}.events"
    await asyncio.to_thread(harness.broker.create, topic, partitions=2)
    link = await harness.connect()

    async def publish(order: str) -> object:
        publishing = Publishing(link)
        publishing.give(OutboundMessage(topic, Envelope(b"{}"), order=order))
        [outcome] = await publishing.all_done()
        return outcome

    assert [await publish(order) for order in "abcd"] == [None] * 4
    await asyncio.to_thread(harness.broker.delete, topic)
    refusals = [await publish(order) for order in "abcd"]
    assert [type(each) for each in refusals] == [MessageRefused] * 4, refusals
    await asyncio.to_thread(harness.broker.create, topic)
    for _ in range(100):
        if (outcome := await publish("a")) is None:
            break
        await asyncio.sleep(0.1)
    assert outcome is None
    await link.close()


@pytest.mark.broker("kafka")
async def test_looking_for_topics_that_were_created_again_leaves_nothing_in_memory(
    harness: KafkaLinkHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link asks for the IDs of its topics as long as it lives."""
    ids: list[str] = []

    def observed(described: TopicDescription) -> str:
        ids.append(described_topic_id(described))
        return ids[-1]

    monkeypatch.setattr("connectivity.transports.kafka.consumer.TOPIC_CHECK_INTERVAL", 0.0)
    monkeypatch.setattr("connectivity.transports.kafka.consumer.described_topic_id", observed)

    def known_ids() -> int:
        return sum(type(each).__name__ == "Uuid" for each in gc.get_objects())

    link = await harness.connect()
    before, looks = known_ids(), len(ids)
    await wait_until(lambda: len(ids) >= looks + 20)
    assert known_ids() < before + 10
    assert len(set(ids)) == 1
    await link.close()

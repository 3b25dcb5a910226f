"""Links to a real Kafka whose records are sent in transactions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from confluent_kafka import Producer

from tests.contract.link import DeliveryCollector
from tests.support.brokers.kafka import Kafka
from tests.support.kafka_link import KafkaLinkHarness
from tests.support.wait import PATIENCE

pytestmark = pytest.mark.broker("kafka")


@pytest.fixture
async def harness(kafka: Kafka) -> AsyncIterator[KafkaLinkHarness]:
    async with KafkaLinkHarness.to(kafka) as harness:
        yield harness


def begin(harness: KafkaLinkHarness, producer: Producer, payload: bytes) -> None:
    """Begin a transaction with one record that the broker has."""
    producer.begin_transaction()
    producer.produce(harness.source, payload)
    assert producer.flush(PATIENCE) == 0


async def transactional_producer(harness: KafkaLinkHarness) -> Producer:
    producer = Producer(
        {"bootstrap.servers": harness.broker.bootstrap, "transactional.id": harness.name, "log_level": 0}
    )
    await asyncio.to_thread(producer.init_transactions, PATIENCE)
    return producer


async def test_records_of_aborted_transactions_are_skipped(harness: KafkaLinkHarness) -> None:
    producer = await transactional_producer(harness)
    link = await harness.connect()
    for payload, end in ((b"aborted", producer.abort_transaction), (b"committed", producer.commit_transaction)):
        await asyncio.to_thread(begin, harness, producer, payload)
        await asyncio.to_thread(end, PATIENCE)
    assert await DeliveryCollector(link).payloads(1) == [b"committed"]
    await link.close()
    link = await harness.connect()
    await harness.send([b"later"])
    assert await DeliveryCollector(link).payloads(1) == [b"later"]
    await link.close()


async def test_a_new_group_starts_before_the_records_of_a_transaction_that_is_still_open(
    harness: KafkaLinkHarness,
) -> None:
    """They are visible only when it is committed, so they come after the connection has been opened."""
    await harness.send([b"before"])
    producer = await transactional_producer(harness)
    await asyncio.to_thread(begin, harness, producer, b"in the transaction")
    link = await harness.connect()
    await asyncio.to_thread(producer.commit_transaction, PATIENCE)
    assert await DeliveryCollector(link).payloads(1) == [b"in the transaction"]
    await link.close()

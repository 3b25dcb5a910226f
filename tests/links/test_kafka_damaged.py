"""Links to a real Kafka whose records arrive damaged, or are deleted before they are read."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka import TopicPartition
from structlog.testing import capture_logs

from connectivity.transports.base import Outcome
from connectivity.transports.kafka import read_errors
from tests.contract.link import DeliveryCollector
from tests.support.brokers.kafka import Kafka
from tests.support.kafka_link import KafkaLinkHarness
from tests.support.wait import PATIENCE, wait_until


@pytest.mark.broker("kafka")
async def test_a_damaged_record_is_not_delivered_and_shows_in_the_condition_until_it_can_be_read(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_errors, "PATIENCE", 1.0)
    monkeypatch.setattr(read_errors, "MEMORY", 2.0)
    async with KafkaLinkHarness.to(kafka) as harness:
        link = await harness.connect(consumerOffsetReset="earliest")
        taker = DeliveryCollector(link)
        harness.proxy.damage = b"intact", b"broken"
        await harness.send([b"intact"])
        await wait_until(lambda: link.condition)
        expected = f"connected: records cannot be read: {harness.source}: MessageSet at offset 0"
        assert (link.condition or "").startswith(expected)
        assert (taker.deliveries, link.lost.done()) == ([], False)
        harness.proxy.damage = None
        assert await taker.payloads(1) == [b"intact"]
        await wait_until(lambda: link.condition is None)
        await link.close()


@pytest.mark.broker("kafka")
async def test_records_that_were_deleted_before_they_were_read_are_logged_once(kafka: Kafka) -> None:
    async with KafkaLinkHarness.to(kafka) as harness:
        link = await harness.connect()
        await link.close()
        await harness.send([b"0", b"1", b"2", b"3"])
        await delete_records(harness, 3)
        with capture_logs() as logs:
            for _ in range(2):
                link = await harness.connect()
                assert await DeliveryCollector(link).payloads(1, settle=False) == [b"3"]
                await link.close()
        assert logs == [deleted_event(harness, 3)]


@pytest.mark.broker("kafka")
async def test_records_that_are_deleted_while_the_link_reads_their_partition_are_logged(kafka: Kafka) -> None:
    async with KafkaLinkHarness.to(kafka) as harness:
        link = await harness.connect(consumerOffsetReset="earliest")
        await harness.send([b"0", b"1", b"2", b"3"])
        taker = DeliveryCollector(link)
        first, rejected, *_ = await taker.take(4)
        first.settle()
        await delete_records(harness, 3)
        with capture_logs() as logs:
            # The link reads the partition again, from a record that no longer exists.
            rejected.settle(Outcome.REDELIVER)
            assert await taker.payloads(1) == [b"3"]
        assert logs == [deleted_event(harness, 2)]
        await harness.send([b"4"])
        assert await taker.payloads(1) == [b"4"]
        assert not link.lost.done()
        await link.close()


async def delete_records(harness: KafkaLinkHarness, end: int) -> None:
    deleted = harness.broker.admin.delete_records([TopicPartition(harness.source, 0, end)])
    await asyncio.to_thread(next(iter(deleted.values())).result, PATIENCE)


def deleted_event(harness: KafkaLinkHarness, records: int) -> dict[str, object]:
    return {
        "event": "records deleted before they were read",
        "log_level": "warning",
        "address": harness.source,
        "partition": 0,
        "records": records,
    }

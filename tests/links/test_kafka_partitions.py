"""Links to a real Kafka whose partitions or topics have changed while they were away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined] # not in its list of names

from connectivity.transports.base import Outcome
from connectivity.transports.kafka import partition
from connectivity.transports.kafka.link import KafkaLink
from tests.contract.link import DeliveryCollector
from tests.support.brokers.kafka import Kafka
from tests.support.kafka_link import KafkaLinkHarness
from tests.support.wait import PATIENCE, wait_until, wait_until_sync

pytestmark = pytest.mark.broker("kafka")


@pytest.fixture
async def harness(kafka: Kafka) -> AsyncIterator[KafkaLinkHarness]:
    async with KafkaLinkHarness.to(kafka) as harness:
        yield harness


async def create_partition(harness: KafkaLinkHarness, number: int) -> None:
    """Create partitions of the source's topic, so that it has `number`, and wait until the last one has a leader."""
    wanted = NewPartitions(harness.source, number)
    await asyncio.to_thread(harness.broker.admin.create_partitions([wanted])[harness.source].result, PATIENCE)

    def is_led() -> bool:
        partitions = harness.broker.admin.list_topics(harness.source, PATIENCE).topics[harness.source].partitions
        return len(partitions) == number and partitions[number - 1].leader >= 0

    await wait_until(is_led)


async def settle(link: KafkaLink, number: int) -> list[bytes]:
    deliveries = await DeliveryCollector(link).take(number)
    for each in deliveries:
        each.settle()
    return [each.envelope.payload for each in deliveries]


async def test_a_partition_that_was_created_while_no_link_existed_is_read_from_its_beginning(
    harness: KafkaLinkHarness,
) -> None:
    """A static member gets its former partitions without a rebalance, and a group without offsets starts at the end."""
    await harness.send_anew(harness.source, b"before the group", partition=0)
    link = await harness.connect()
    await harness.send_anew(harness.source, b"first", partition=0)
    assert await settle(link, 1) == [b"first"]
    await link.close()
    await create_partition(harness, 2)
    await harness.send_anew(harness.source, b"while away", partition=1)
    link = await harness.connect()
    await harness.send_anew(harness.source, b"later", partition=1)
    assert await settle(link, 2) == [b"while away", b"later"]
    await link.close()


async def test_a_partition_from_which_nothing_was_settled_is_read_from_its_beginning_by_the_next_link(
    harness: KafkaLinkHarness,
) -> None:
    """It has no offset yet, unlike a partition at whose end the group has started."""
    link = await harness.connect()
    await link.close()
    await create_partition(harness, 2)
    link = await harness.connect()
    await link.close()
    await harness.send_anew(harness.source, b"while away", partition=1)
    link = await harness.connect()
    assert await settle(link, 1) == [b"while away"]
    await link.close()


async def test_a_topic_that_was_added_to_a_source_is_read_as_soon_as_there_is_a_link(harness: KafkaLinkHarness) -> None:
    link = await harness.connect()
    await link.close()
    added = f"{harness.name}.added"
    await asyncio.to_thread(harness.broker.create, added)
    harness.sources([harness.source, added])
    link = await harness.connect()
    await harness.send_anew(added, b"to the new topic", partition=0)
    assert await settle(link, 1) == [b"to the new topic"]
    await link.close()


async def test_a_link_without_a_topic_of_the_former_one_reads_the_others(harness: KafkaLinkHarness) -> None:
    """A static member also gets partitions of topics that it no longer subscribes to."""
    removed = f"{harness.name}.removed"
    await asyncio.to_thread(harness.broker.create, removed)
    harness.sources([harness.source, removed])
    link = await harness.connect()
    await link.close()
    harness.sources([harness.source])
    link = await harness.connect()
    await harness.send_anew(removed, b"to the removed topic", partition=0)
    await harness.send_anew(harness.source, b"to the source", partition=0)
    assert await settle(link, 1) == [b"to the source"]
    await link.close()


async def test_clients_that_share_a_topic_read_a_partition_that_was_created_meanwhile(
    harness: KafkaLinkHarness,
) -> None:
    links = list(await asyncio.gather(*(harness.connect_client(client, 2) for client in range(2))))
    for link in links:
        await link.close()
    await create_partition(harness, 5)
    await harness.send_anew(harness.source, b"while away", partition=4)
    links = list(await asyncio.gather(*(harness.connect_client(client, 2) for client in range(2))))
    takers = [asyncio.create_task(settle(link, 1)) for link in links]
    done, _ = await asyncio.wait(takers, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result() for task in done] == [[b"while away"]]
    for task in takers:
        task.cancel()
    for link in links:
        await link.close()


async def test_a_group_continues_at_the_offset_of_another_program(harness: KafkaLinkHarness) -> None:
    """Whatever metadata that program has committed with it."""
    await harness.send([b"0", b"1", b"2"])
    other = Consumer({"bootstrap.servers": harness.broker.bootstrap, "group.id": harness.name})
    place = TopicPartition(harness.source, 0, 2, metadata="committed by hand")
    await asyncio.to_thread(lambda: other.commit(offsets=[place], asynchronous=False))
    other.close()
    link = await harness.connect(consumerOffsetReset="earliest")
    assert await settle(link, 1) == [b"2"]
    await link.close()


async def test_a_paused_partition_that_was_given_to_another_member_and_back_is_read(
    harness: KafkaLinkHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library keeps a partition paused when it is taken away."""
    monkeypatch.setattr(partition, "FIRST_DELAY", 600.0)
    monkeypatch.setattr(partition, "LONGEST_DELAY", 600.0)
    await create_partition(harness, 2)
    link = await harness.connect(consumerOffsetReset="earliest")
    for number in range(2):
        await harness.send_anew(harness.source, b"%d" % number, partition=number)
    taker = DeliveryCollector(link)
    for rejected in await taker.take(2):
        # The link pauses the partition until it reads it again.
        rejected.settle(Outcome.REDELIVER)
    number = await asyncio.to_thread(join_and_leave, harness)
    assert await taker.payloads(1) == [b"%d" % number]
    await link.close()


def join_and_leave(harness: KafkaLinkHarness) -> int:
    """Be a member of the link's group until a partition is assigned, and return its number."""
    settings = {"bootstrap.servers": harness.broker.bootstrap, "group.id": harness.name, "log_level": 0}
    member = Consumer({**settings, "partition.assignment.strategy": "cooperative-sticky", "enable.auto.commit": False})
    member.subscribe([harness.source])
    wait_until_sync(lambda: member.poll(0.1) or member.assignment())
    [place] = member.assignment()
    member.close()
    return place.partition

"""Links with a real Kafka."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from functools import partial

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition, Uuid

from connectivity.errors import ConnectionRefused, Detail, LinkError, NotConnected, PublishFailed
from connectivity.transports.base import ConsumeOptions, OutboundMessage, Outcome
from connectivity.transports.kafka.consumer import IN_FLIGHT
from connectivity.transports.kafka.link import KafkaLink
from connectivity.transports.kafka.partition import PartitionDelivery
from mappings.model.envelope import Envelope
from tests.contract.byte_limits import LARGE, ByteLimits, LimitedSetup
from tests.contract.link import BrokerBehavior, DeliveryCollector, Publishing, drain, lost, numbered
from tests.support.brokers.kafka import Kafka
from tests.support.clients.bare_kafka import BareKafkaClient
from tests.support.kafka_link import KafkaLinkHarness
from tests.support.wait import PATIENCE, wait_until


async def refusal_of(harness: KafkaLinkHarness) -> ConnectionRefused:
    """Return the refusal of an attempt to connect, once the broker answers."""
    for _ in range(10):
        try:
            await (await harness.connect()).close()
        except ConnectionRefused as refused:
            return refused
        except NotConnected:
            continue
    raise AssertionError("the connection is not refused")


@pytest.mark.broker("kafka")
class TestKafka(BrokerBehavior, ByteLimits):
    @pytest.fixture
    async def harness(self, kafka: Kafka) -> AsyncIterator[KafkaLinkHarness]:
        async with KafkaLinkHarness.to(kafka) as harness:
            yield harness

    # ── consuming ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_the_payload_of_a_message_that_is_too_large_is_skipped(self, harness: LimitedSetup) -> None:
        """The library has it already: it is delivered, and refused by the reader."""
        harness.consume = ConsumeOptions(payload=LARGE)
        link = await harness.connect()
        await harness.send([bytes(LARGE * 12)])
        [delivery] = await DeliveryCollector(link).take(1)
        assert (len(delivery.envelope.payload), delivery.skipped) == (LARGE * 12, 0)
        await link.close()

    async def test_the_bytes_of_headers_and_keys_are_bounded_like_those_of_payloads(
        self, harness: KafkaLinkHarness
    ) -> None:
        harness.consume = ConsumeOptions(unsettled_bytes=LARGE * 8)
        link = await harness.connect()
        taker = DeliveryCollector(link)
        half = "x" * (LARGE // 2)
        await harness.send_to(harness.source, [b"{}"] * 60, {"note": half}, key=half)
        await wait_until(lambda: len(taker.deliveries) >= 8)
        await harness.send([b"last"])
        # The reads of one turn come on top.
        assert len(taker.deliveries) <= 8 + 16
        assert await drain(taker, 61) == [*[b"{}"] * 60, b"last"]
        await link.close()

    async def test_2_4_a_record_is_in_the_headers(self, harness: KafkaLinkHarness, link: KafkaLink) -> None:
        taker = DeliveryCollector(link)
        headers = [("x", "first"), ("x", "last"), ("none", None), ("odd", b"\xff"), ("kafka.topic", "forged")]
        await harness.send_to(harness.source, [b"{}"], headers, key="lamp-7")
        [delivery] = await taker.take(1)
        found = dict(delivery.envelope.headers)
        assert delivery.address == found["kafka.topic"] == harness.source
        assert (found["x"], found["odd"], found["kafka.key"]) == ("last", "\ufffd", "lamp-7")
        assert abs(int(found["kafka.timestamp"]) / 1000 - time.time()) < 60
        assert found["correlation-id"]
        assert "none" not in found

    async def test_2_4_an_expired_record_is_passed_over_and_done(self, harness: KafkaLinkHarness) -> None:
        now = int(time.time() * 1000)
        link = await harness.connect()
        for created, ttl, payload in (
            (now - 5000, "4000", b"expired"),
            (now, "60000", b"in time"),
            (now - 5000, "soon", b"odd"),
        ):
            await harness.send_to(harness.source, [payload], {"creation-time": str(created), "ttl": ttl})
        assert await DeliveryCollector(link).payloads(2) == [b"in time", b"odd"]
        await link.close()
        link = await harness.connect()
        await harness.send([b"new"])
        assert await DeliveryCollector(link).payloads(1) == [b"new"]
        await link.close()

    async def test_8_6_a_tombstone_has_an_empty_payload(self, harness: KafkaLinkHarness, link: KafkaLink) -> None:
        taker = DeliveryCollector(link)
        await harness.send_to(harness.source, [None], key="lamp-7")
        assert await taker.payloads(1) == [b""]

    async def test_each_record_of_a_batch_that_is_too_large_to_decompress_is_one_skipped_delivery(
        self, harness: KafkaLinkHarness, kafka: Kafka
    ) -> None:
        link = await harness.connect(consumerOffsetReset="earliest")
        batch = Producer(
            {
                "bootstrap.servers": kafka.bootstrap,
                "compression.type": "zstd",
                # Until it is flushed: on a busy machine three large records take seconds, and must be one batch.
                "linger.ms": 200_000,
                **dict.fromkeys(("message.max.bytes", "batch.size"), 120_000_000),
            }
        )
        await harness.send([b"before"])
        for _ in range(3):
            batch.produce(harness.source, b"0" * 33_500_000)
        assert await asyncio.to_thread(batch.flush, PATIENCE) == 0
        await harness.send([b"after"])
        deliveries = await DeliveryCollector(link).take(5)
        assert [(each.envelope.payload, each.skipped > 0) for each in deliveries] == [
            (b"before", False),
            *[(b"", True)] * 3,
            (b"after", False),
        ]
        assert [(each.name or "").rsplit("/", 1)[1] for each in deliveries] == ["0", "1", "2", "3", "4"]
        for each in deliveries:
            each.settle()
        await link.close()
        link = await harness.connect(consumerOffsetReset="earliest")
        await harness.send([b"new"])
        assert await DeliveryCollector(link).payloads(1) == [b"new"]
        await link.close()

    async def test_8_12_a_name_is_topic_id_partition_and_offset(self, harness: KafkaLinkHarness, kafka: Kafka) -> None:
        """A recreated topic starts at 0 under the same name, and none of its records is known."""
        link = await harness.connect(consumerOffsetReset="earliest")
        await harness.send([b"one", b"two"])
        first, second = await DeliveryCollector(link).take(2)
        assert [(each.name or "").rsplit("/", 2)[1:] for each in (first, second)] == [["0", "0"], ["0", "1"]]
        await link.close()
        kafka.delete(harness.source)
        kafka.create(harness.source)
        link = await harness.connect(consumerOffsetReset="earliest")
        await harness.send([b"three"])
        [third] = await DeliveryCollector(link).take(1)
        assert third.name is not None
        assert third.name.endswith("/0/0")
        assert third.name != first.name
        await link.close()

    async def test_records_from_before_the_assignment_are_marked_and_later_ones_are_not(
        self, harness: KafkaLinkHarness
    ) -> None:
        first = await harness.connect()
        await first.close()
        await harness.send([b"while away"])
        second = await harness.connect()
        taker = DeliveryCollector(second)
        await harness.send([b"now"])
        deliveries = await taker.take(2)
        assert [(each.envelope.payload, each.redelivered) for each in deliveries] == [
            (b"while away", True),
            (b"now", False),
        ]
        await second.close()

    async def test_2_5_a_new_group_starts_at_the_configured_offset(self, harness: KafkaLinkHarness) -> None:
        await harness.send([b"before"])
        late = await harness.connect(groupId=f"{harness.name}-late")
        early = await harness.connect(groupId=f"{harness.name}-early", consumerOffsetReset="earliest")
        await harness.send([b"after"])
        assert await DeliveryCollector(late).payloads(1) == [b"after"]
        assert await DeliveryCollector(early).payloads(2) == [b"before", b"after"]
        await late.close()
        await early.close()

    async def test_2_5_without_qos_a_record_is_done_when_it_is_published(self, harness: KafkaLinkHarness) -> None:
        harness.sources([harness.source], qos=None)
        link = await harness.connect()
        taker = DeliveryCollector(link)
        await harness.send([b"at most once"])
        (await taker.take(1))[0].settle(Outcome.REDELIVER)
        await harness.send([b"next"])
        assert (await taker.take(1))[0].envelope.payload == b"next"
        await link.close()
        link = await harness.connect()
        await harness.send([b"new"])
        assert await DeliveryCollector(link).payloads(1) == [b"new"]
        await link.close()

    async def test_every_source_of_a_topic_gets_its_records(self, harness: KafkaLinkHarness) -> None:
        harness.sources([harness.source], [harness.source, harness.out])
        link = await harness.connect()
        one, both = DeliveryCollector(link, 0), DeliveryCollector(link, 1)
        await harness.send([b"shared"])
        await harness.send_to(harness.out, [b"its own"])
        assert await one.payloads(1) == [b"shared"]
        assert sorted(await both.payloads(2)) == [b"its own", b"shared"]
        await link.close()

    async def test_2_5_a_rejected_record_comes_again_with_all_after_it(
        self, harness: KafkaLinkHarness, link: KafkaLink
    ) -> None:
        taker = DeliveryCollector(link)
        await harness.send(numbered(4))
        one, two, three, four = await taker.take(4)
        one.settle()
        four.settle()
        two.settle(Outcome.REDELIVER)
        three.settle()
        again = await taker.take(3)
        assert [each.envelope.payload for each in again] == numbered(4)[1:]
        assert all(each.redelivered for each in again)
        assert [each.name for each in again] == [two.name, three.name, four.name]
        for each in again:
            each.settle()
        await harness.send([b"new"])
        assert await taker.payloads(1) == [b"new"]

    async def test_case_51_throttling_bounds_the_records_of_a_second(self, harness: KafkaLinkHarness) -> None:
        link = await harness.connect(throttlingLimit="20")
        taker, begun = DeliveryCollector(link), asyncio.get_running_loop().time()
        await harness.send(numbered(50))
        assert await taker.payloads(50) == numbered(50)
        assert asyncio.get_running_loop().time() - begun >= 1.5
        assert link.throttled >= 1
        await link.close()

    async def test_a_full_link_pauses_stays_in_its_group_and_continues(
        self, harness: KafkaLinkHarness, link: KafkaLink
    ) -> None:
        taker = DeliveryCollector(link)
        await harness.send(numbered(IN_FLIGHT + 100))
        held = await taker.take(IN_FLIGHT)
        await wait_until(lambda: link._members[0]._is_paused)
        publishing = Publishing(link)
        publishing.give(OutboundMessage(harness.out, Envelope(b"answer")))
        assert await publishing.all_done() == [None]
        for delivery in held:
            delivery.settle()
        assert await taker.payloads(100) == numbered(100, IN_FLIGHT)

    async def test_settled_records_behind_an_unsettled_one_are_bounded_too(
        self, harness: KafkaLinkHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They come again after a lost link, and their responses must be remembered until then."""
        monkeypatch.setattr("connectivity.transports.kafka.consumer.MOST_WAITING", 100)
        link = await harness.connect()
        taker = DeliveryCollector(link)
        await harness.send(numbered(300))
        first, *others = await taker.take(100)
        for delivery in others:
            delivery.settle()
        await wait_until(lambda: link._members[0]._is_paused)
        assert not taker.deliveries
        assert {delivery.envelope.payload for delivery in others} == {b""}
        first.settle()
        assert await drain(taker, 200) == numbered(200, 100)
        await link.close()

    async def test_a_rebalance_loses_nothing_and_late_outcomes_are_ignored(
        self, harness: KafkaLinkHarness, kafka: Kafka
    ) -> None:
        """A second member of the group takes over partitions with their unsettled records."""
        topic = f"{harness.name}.wide"
        kafka.create(topic, partitions=2)
        harness.sources([topic])
        first = await harness.connect(groupId=harness.name)
        former = DeliveryCollector(first)
        for partition in (0, 1):
            await harness.send_to(topic, [f"p{partition}".encode()], partition=partition)
        held = await former.take(2)
        harness.document["id"] = f"{harness.name}-2"
        second = await harness.connect(groupId=harness.name)
        latter = DeliveryCollector(second)
        [moved] = await latter.take(1)
        assert moved.redelivered
        for delivery in held:
            delivery.settle()
        moved.settle()
        assert moved.name in {delivery.name for delivery in held}
        for partition in (0, 1):
            await harness.send_to(topic, [f"q{partition}".encode()], partition=partition)
        await former.take(1)
        await latter.take(1)
        [member] = first._members
        assert member._delivered - member.ended == 1, "what was taken away has ended once"
        for partition in (0, 1):
            await harness.send_to(topic, [f"r{partition}".encode()], partition=partition)
        [one], [other] = await former.take(1), await latter.take(1)
        assert {delivery.envelope.payload for delivery in (one, other)} == {b"r0", b"r1"}
        await first.close()
        await second.close()

    # ── publishing ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_2_4_addresses_name_topic_key_and_partition(self, harness: KafkaLinkHarness, kafka: Kafka) -> None:
        topic = f"{harness.name}.wide"
        kafka.create(topic, partitions=3)
        link = await harness.connect()
        with BareKafkaClient(kafka.bootstrap, topic, partitions=3) as other:
            publishing = Publishing(link)
            for address in (f"{topic}/lamp/7", f"{topic}/", f"{topic}#2"):
                publishing.give(OutboundMessage(address, Envelope(address.encode())))
            assert await publishing.all_done() == [None] * 3
            await wait_until(lambda: len(other.messages) == 3)
            found = {each.value(): (each.key(), each.partition()) for each in other.messages}
        assert found[f"{topic}/lamp/7".encode()][0] == b"lamp/7"
        assert found[f"{topic}/".encode()][0] is None
        assert found[f"{topic}#2".encode()] == (None, 2)
        await link.close()

    async def test_2_4_a_published_record_names_its_connection(
        self, harness: KafkaLinkHarness, link: KafkaLink
    ) -> None:
        publishing = Publishing(link)
        publishing.give(OutboundMessage(harness.out, Envelope(b"", {"x-line": "north"})))
        assert await publishing.all_done() == [None]
        await wait_until(harness.received)
        assert harness.received()[0].headers == {"x-line": "north", "ditto-connection-id": harness.name}
        assert harness.bare_client.messages[0].value() == b""

    @pytest.mark.parametrize(
        ("rest", "status"), [("#one", 400), ("#7", 400), ("#99999999999", 400), ("?", 400), (".missing", 503)]
    )
    async def test_an_address_that_takes_nothing_is_a_failure_and_the_next_message_goes(
        self, harness: KafkaLinkHarness, link: KafkaLink, rest: str, status: int
    ) -> None:
        publishing = Publishing(link)
        publishing.give(
            OutboundMessage(harness.out + rest, Envelope(b"no")), OutboundMessage(harness.out, Envelope(b"fine"))
        )
        refused, fine = await publishing.all_done()
        assert isinstance(refused, PublishFailed)
        assert (refused.fault.status, refused.fault.error) == (status, "connectivity:message.sending.failed")
        assert fine is None

    async def test_a_record_that_is_too_large_fails_alone(
        self, harness: KafkaLinkHarness, kafka: Kafka, link: KafkaLink
    ) -> None:
        topic = f"{harness.name}.small"
        kafka.create(topic, max_message_bytes="200000")
        publishing = Publishing(link)
        publishing.give(
            *(
                OutboundMessage(topic, Envelope(bytes(size)))
                for size in (100, 100, 250_000, 100, 180_000, 3_000_000, 100)
            )
        )
        outcomes = await publishing.all_done()
        assert [error is None for error in outcomes] == [True, True, False, True, True, False, True]
        for error in (outcomes[2], outcomes[5]):
            assert isinstance(error, PublishFailed)
            assert error.fault.status == 413

    # ── cuts and ends ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_short_network_cut_is_repaired_without_a_lost_link(self, harness: KafkaLinkHarness) -> None:
        link = await harness.connect(repair_seconds=10.0)
        taker, publishing = DeliveryCollector(link), Publishing(link)
        for number in range(3):
            harness.proxy.cut()
            await harness.send([f"in {number}".encode()])
            publishing.give(OutboundMessage(harness.out, Envelope(f"out {number}".encode())))
            assert await taker.payloads(1) == [f"in {number}".encode()]
            assert await publishing.all_done() == [None] * (number + 1)
        await wait_until(lambda: len(harness.received()) >= 3)
        assert [each.payload for each in harness.received()] == [b"out 0", b"out 1", b"out 2"]
        assert not link.lost.done()
        await link.close()

    @pytest.mark.slow(reason="Kafka ends and starts")
    async def test_a_killed_broker_redelivers_unsettled_messages(
        self, harness: KafkaLinkHarness, own_kafka: Kafka
    ) -> None:
        own = own_kafka
        source, out = f"{harness.name}.own-in", f"{harness.name}.own-out"
        await asyncio.to_thread(own.create, source, out)
        harness.document["uri"] = own.uri()
        harness.document["specificConfig"] = {"bootstrapServers": own.bootstrap}
        harness.sources([source])
        first = await harness.connect()
        with BareKafkaClient(own.bootstrap, out) as other:
            await asyncio.to_thread(other.send, source, numbered(3))
            await DeliveryCollector(first).take(3)
            own.kill()
            error = await lost(first)
            assert (error.retry, error.detail) == (True, Detail.REFUSED)
            await first.close()
            with pytest.raises(NotConnected, match="connection refused"):
                await harness.connect()
            await asyncio.to_thread(own.start_again)
            second = await harness.connect()
            again = await DeliveryCollector(second).take(3)
            assert [each.envelope.payload for each in again] == numbered(3)
            assert all(each.redelivered for each in again)
            publishing = Publishing(second)
            publishing.give(OutboundMessage(out, Envelope(b"back")))
            assert await publishing.all_done() == [None]
            await wait_until(lambda: other.received)
            await second.close()

    async def test_a_missing_topic_is_named_and_found_when_it_appears(
        self, harness: KafkaLinkHarness, kafka: Kafka
    ) -> None:
        topic = f"{harness.name}.later"
        harness.sources([harness.source, topic])
        with pytest.raises(ConnectionRefused, match=f"missing address: {topic}"):
            await harness.connect()
        kafka.create(topic)
        link = await harness.connect()
        await harness.send_to(topic, [b"there"])
        assert await DeliveryCollector(link).payloads(1) == [b"there"]
        await link.close()

    @pytest.mark.slow(reason="the library asks about topics every ten seconds")
    async def test_a_topic_that_is_deleted_is_a_lost_link_that_names_it(
        self, harness: KafkaLinkHarness, kafka: Kafka, link: KafkaLink
    ) -> None:
        taker = DeliveryCollector(link)
        await harness.send([b"1"])
        assert await taker.payloads(1) == [b"1"]
        await asyncio.to_thread(kafka.delete, harness.source)
        # The library chooses which request it sends first, and so which error ends the link.
        assert isinstance(await lost(link, 60), LinkError)
        assert f"{Detail.MISSING_ADDRESS.value}: {harness.source}" in str(await refusal_of(harness))
        await asyncio.to_thread(kafka.create, harness.source)
        again = await harness.connect(consumerOffsetReset="earliest")
        await harness.send([b"2"])
        [delivery] = await DeliveryCollector(again).take(1, 60)
        assert delivery.envelope.payload == b"2"
        delivery.settle()
        await again.close()

    @pytest.mark.parametrize(("offset", "topic_id"), [(1, str(Uuid(1, 2))), (5, "")])
    async def test_offsets_of_a_deleted_topic_do_not_apply_to_a_new_one_with_its_name(
        self, harness: KafkaLinkHarness, kafka: Kafka, offset: int, topic_id: str
    ) -> None:
        """The broker forgets the offsets of a deleted topic some time later."""
        await harness.send(numbered(2))
        await asyncio.to_thread(commit_offset, kafka, harness.name, harness.source, offset, topic_id)
        link = await harness.connect(groupId=harness.name)
        assert await DeliveryCollector(link).payloads(2) == numbered(2)
        await link.close()

    async def test_consumers_of_one_client_share_the_partitions_of_their_source(
        self, harness: KafkaLinkHarness, kafka: Kafka
    ) -> None:
        """As many members of the group as there are consumers, each with partitions of its own."""
        topic = f"{harness.name}.four"
        await asyncio.to_thread(kafka.create, topic, partitions=4)
        harness.sources([topic])
        harness.document["sources"][0]["consumerCount"] = 2
        link = await harness.connect()
        taker = DeliveryCollector(link)
        for partition in range(4):
            await harness.send_to(topic, numbered(25, 25 * partition), partition=partition)
        deliveries = await taker.take(100, 30)
        partitions = [each.partition for each in deliveries if isinstance(each, PartitionDelivery)]
        assert {partition.number for partition in partitions} == set(range(4))
        assert len({id(partition.owner) for partition in partitions}) == 2
        for number in range(4):
            of_one = [
                delivery.envelope.payload
                for delivery, partition in zip(deliveries, partitions, strict=True)
                if partition.number == number
            ]
            assert of_one == numbered(25, 25 * number)
        for delivery in deliveries:
            delivery.settle()
        await link.close()

    async def test_b11_committed_offsets_are_reported_when_committed_and_when_assigned(
        self, harness: KafkaLinkHarness
    ) -> None:
        reported: list[tuple[str, int]] = []
        harness.consume = ConsumeOptions(on_committed=lambda partition, offset: reported.append((partition, offset)))
        link = await harness.connect()
        await harness.send([b"one"])
        [first] = await DeliveryCollector(link).take(1)
        first.settle()
        await wait_until(lambda: reported and reported[-1] == (first.position[0], 1))
        await link.close()
        reported.clear()
        link = await harness.connect()
        await wait_until(lambda: reported)
        assert reported == [(first.position[0], 1)]
        assert first.name == f"kafka:{first.position[0]}/0"
        await link.close()

    async def test_offsets_are_committed_soon_after_their_records_are_settled(self, harness: KafkaLinkHarness) -> None:
        """A service that is killed again and again must not read the same records in each of its short lives."""
        reported: list[int] = []
        harness.consume = ConsumeOptions(on_committed=lambda _, offset: reported.append(offset))
        link = await harness.connect()
        collector = DeliveryCollector(link)
        begun = time.monotonic()
        for number in range(1, 6):
            await harness.send([b"one"])
            [delivery] = await collector.take(1)
            delivery.settle()
            await wait_until(partial(reported.__contains__, number))
        assert time.monotonic() - begun < 3.0
        await link.close()

    async def test_another_client_in_our_place_is_a_lost_link(self, harness: KafkaLinkHarness) -> None:
        first = await harness.connect()
        second = await harness.connect()
        assert (await lost(first)).retry
        await first.close()
        await harness.send([b"to the second"])
        assert await DeliveryCollector(second).payloads(1) == [b"to the second"]
        await second.close()

    async def test_a_consumer_that_ends_by_itself_is_a_lost_link(
        self, harness: KafkaLinkHarness, link: KafkaLink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The end of its thread for any reason: otherwise consuming would stop unnoticed."""

        def fail() -> None:
            raise ZeroDivisionError("a mistake")

        monkeypatch.setattr(link._members[0], "_turn", fail)
        error = await lost(link)
        assert error.retry
        assert "a mistake" in str(error)

    async def test_a_connection_without_sources_publishes(self, harness: KafkaLinkHarness) -> None:
        harness.document["sources"] = []
        link = await harness.connect()
        publishing = Publishing(link)
        publishing.give(OutboundMessage(harness.out, Envelope(b"alone")))
        assert await publishing.all_done() == [None]
        await link.close()


def commit_offset(kafka: Kafka, group: str, topic: str, offset: int, metadata: str) -> None:
    """Commit an offset of partition 0 for a group without members."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, offset, metadata=metadata)], asynchronous=False)
    finally:
        consumer.close()

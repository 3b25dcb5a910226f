"""AMQP 0.9.1: what documents may say, and the link against a real RabbitMQ."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from aio_pika import ExchangeType
from aio_pika.abc import AbstractExchange
from structlog.testing import capture_logs

from connectivity.errors import Detail, NotConnected, PublishFailed
from connectivity.transports.amqp.consumer import IN_FLIGHT
from connectivity.transports.amqp.link import WINDOW, AmqpLink
from connectivity.transports.amqp.publisher import EXCHANGE_RECHECK_DELAY
from connectivity.transports.base import OutboundMessage, Outcome, ReaderStatus
from mappings.model.envelope import Envelope
from tests.contract.byte_limits import ByteLimits
from tests.contract.link import BrokerBehaviour, DeliveryCollector, Publishing, lost, numbered, signs_of
from tests.support.amqp_link import AmqpWorld
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.clients.bare_amqp import BareAmqpClient
from tests.support.wait import PATIENCE, wait_until


@pytest.fixture
async def world(rabbitmq: RabbitMQ) -> AsyncIterator[AmqpWorld]:
    async with AmqpWorld.at(rabbitmq) as made:
        yield made


async def exchange(world: AmqpWorld, kind: ExchangeType = ExchangeType.TOPIC) -> AbstractExchange:
    """An exchange of its own that leads to the bystander for keys that begin with `known`."""
    made = await world.bare_client.channel.declare_exchange(f"ex-{uuid4().hex}", kind)
    queue = await world.bare_client.queue(world.inbox)
    await queue.bind(made, "known.#")
    return made


def outgoing(address: str, *payloads: bytes, **headers: str) -> list[OutboundMessage]:
    return [OutboundMessage(address, Envelope(payload, headers)) for payload in payloads]


def messages_of(outcomes: list[Any]) -> list[str | None]:
    assert all(error is None or isinstance(error, PublishFailed) for error in outcomes)
    return [None if error is None else str(error) for error in outcomes]


@pytest.mark.broker("rabbitmq")
class TestAmqp091(BrokerBehaviour, ByteLimits):
    # ── consuming ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_the_queue_is_the_address(self, world: AmqpWorld, link: AmqpLink) -> None:
        taker = DeliveryCollector(link)
        await world.send([b"on"])
        [delivery] = await taker.take(1)
        assert delivery.address == world.source
        delivery.settle()

    async def test_every_type_of_a_table_arrives_as_text(self, world: AmqpWorld, link: AmqpLink) -> None:
        taker = DeliveryCollector(link)
        table = {
            "text": "nörth",
            "yes": True,
            "small": -7,
            "large": 2**40,
            "double": 0.5,
            "decimal": Decimal("12.5"),
            "time": datetime(2030, 1, 15, 7, 30, tzinfo=UTC),
            "bytes": bytearray(b"\xff"),
            "nested": {"list": [1, "a", {"deep": False}]},
            "nothing": None,
        }
        await world.send([b"{}"], table, content_type="text/plain", message_id="m-7")
        [delivery] = await taker.take(1)
        assert dict(delivery.envelope.headers) == {
            "text": "nörth",
            "yes": "true",
            "small": "-7",
            "large": str(2**40),
            "double": "0.5",
            "decimal": "12.5",
            "time": "2030-01-15T07:30:00Z",
            "bytes": "/w==",
            "nested": '{"list":[1,"a",{"deep":false}]}',
            "content-type": "text/plain",
            "message-id": "m-7",
        }
        delivery.settle()

    async def test_a_delivery_is_named_by_its_message_id_or_else_its_correlation(
        self, world: AmqpWorld, link: AmqpLink
    ) -> None:
        taker = DeliveryCollector(link)
        await world.send([b"1"], {"correlation-id": "c-7"}, message_id="m-7")
        # The bystander's library would give it one.
        await world.bare_client.send_bare(world.source, b"2", correlation_id="c-7")
        await world.bare_client.send_bare(world.source, b"3")
        await world.bare_client.send_bare(world.source, b'{"headers": {"correlation-id": "c-8"}}')
        by_id, by_correlation, without, by_envelope = [delivery.name for delivery in await taker.take(4)]
        assert by_id == "amqp:m-7"
        assert str(without).startswith(f"amqp#{world.source}#")
        assert by_envelope is not None, "B14: a change is stored once although its ID is in the envelope alone"
        assert by_envelope.startswith("amqp::")
        assert by_correlation is not None
        assert by_correlation.startswith("amqp:c-7:")

    async def test_8_1_unsettled_commands_with_one_correlation_id_have_names_of_their_own_and_keep_them(
        self, world: AmqpWorld
    ) -> None:
        """On, off, on: three commands, and three again when they come again."""
        link = await world.connect()
        taker = DeliveryCollector(link)
        for payload in (b"on", b"off", b"on"):
            await world.bare_client.send_bare(world.source, payload, correlation_id="c-8")
        first = await taker.take(3)
        names = [delivery.name for delivery in first]
        assert len(set(names)) == 3
        for delivery in first:
            delivery.settle(Outcome.REDELIVER)
        again = await taker.take(3)
        assert [(delivery.name, delivery.redelivered) for delivery in again] == [(name, True) for name in names]
        await world.cut()
        await lost(link)
        await link.close()
        second = await world.connect()
        once_more = await DeliveryCollector(second).take(3)
        assert [delivery.name for delivery in once_more] == names
        for delivery in once_more:
            delivery.settle()
        await second.close()

    async def test_each_source_has_its_queues(self, world: AmqpWorld) -> None:
        queues = [f"{world.source}.{name}" for name in "abc"]
        for queue in queues:
            await world.bare_client.queue(queue)
        world.sources(queues[:2], queues[2:])
        link = await world.connect()
        first, second = DeliveryCollector(link, 0), DeliveryCollector(link, 1)
        for queue in queues:
            await world.bare_client.send(queue, [queue.encode()])
        assert sorted([(d.address, d.envelope.payload.decode()) for d in await first.take(2)]) == [
            (queue, queue) for queue in queues[:2]
        ]
        assert await second.payloads(1) == [queues[2].encode()]
        await link.close()

    async def test_several_consumers_share_the_window_of_their_source(self, world: AmqpWorld) -> None:
        world.sources([world.source], consumerCount=4)
        link = await world.connect()
        taker = DeliveryCollector(link)
        await world.send(numbered(IN_FLIGHT + 100))
        held = await taker.take(IN_FLIGHT)
        for delivery in held:
            delivery.settle()
        await taker.payloads(100)
        await world.send([b"last"])
        assert await taker.payloads(1) == [b"last"]
        await link.close()

    async def test_a_quorum_queue_is_consumed_like_any_other(self, world: AmqpWorld) -> None:
        queue = f"{world.source}.quorum"
        quorum: dict[str, Any] = {"x-queue-type": "quorum"}
        await world.bare_client.queue(queue, **quorum)
        world.sources([queue])
        link = await world.connect()
        await world.bare_client.send(queue, numbered(20))
        assert await DeliveryCollector(link).payloads(20) == numbered(20)
        await link.close()

    async def test_deliveries_are_handed_over_many_at_a_time(self, world: AmqpWorld) -> None:
        await world.send(numbered(600))
        link = await world.connect()
        taker = DeliveryCollector(link)
        assert await taker.payloads(600) == numbered(600)
        assert max(taker.lists) > 10
        await link.close()

    # ── settling ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_consecutive_acknowledgements_are_sent_as_one(
        self, world: AmqpWorld, link: AmqpLink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        taker = DeliveryCollector(link)
        await world.send(numbered(200))
        deliveries = await taker.take(200)
        sent: list[bytes] = []
        monkeypatch.setattr(link.client, "send", sent.append)
        for delivery in deliveries[:100]:
            delivery.settle()
        deliveries[100].settle(Outcome.DROPPED)
        for delivery in deliveries[101:]:
            delivery.settle()
        await wait_until(lambda: sent)
        assert len(sent) == 3

    async def test_a_delivery_is_acknowledged_only_after_all_earlier_ones(
        self, world: AmqpWorld, link: AmqpLink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        taker = DeliveryCollector(link)
        await world.send(numbered(3))
        one, two, three = await taker.take(3)
        sent: list[bytes] = []
        monkeypatch.setattr(link.client, "call_before_send", lambda fill: fill())
        monkeypatch.setattr(link.client, "send", sent.append)
        three.settle()
        two.settle()
        assert sent == []
        one.settle()
        assert len(sent) == 1

    async def test_a_dropped_delivery_goes_where_the_queue_sends_dead_letters(self, world: AmqpWorld) -> None:
        queue = f"{world.source}.strict"
        dead: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": world.inbox}
        await world.bare_client.queue(queue, **dead)
        world.sources([queue])
        link = await world.connect()
        await world.bare_client.send(queue, [b"bad"])
        (await DeliveryCollector(link).take(1))[0].settle(Outcome.DROPPED)
        await wait_until(world.received)
        assert world.received()[0].payload == b"bad"
        await link.close()

    # ── publishing ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_headers_travel_in_the_table_and_as_properties(self, world: AmqpWorld, link: AmqpLink) -> None:
        headers = {"content-type": "a/b", "correlation-id": "c-7", "reply-to": "/r", "message-id": "m-7", "x": "nörth"}
        publishing = Publishing(link)
        publishing.give(OutboundMessage(world.out, Envelope(b"{}", headers)))
        assert await publishing.all_done() == [None]
        await wait_until(world.received)
        [message] = world.bare_client.messages
        assert dict(message.headers) == headers
        assert (message.content_type, message.correlation_id, message.reply_to, message.message_id) == (
            "a/b",
            "c-7",
            "/r",
            "m-7",
        )
        assert message.delivery_mode == 2, "a restart of the broker shall not lose it"

    async def test_an_address_is_an_exchange_and_a_routing_key(self, world: AmqpWorld, link: AmqpLink) -> None:
        made = await exchange(world)
        publishing = Publishing(link)
        publishing.give(*outgoing(f"{made.name}/known.a.b", b"by key"))
        assert await publishing.all_done() == [None]
        await wait_until(world.received)
        assert (world.bare_client.messages[0].exchange, world.bare_client.messages[0].routing_key) == (
            made.name,
            "known.a.b",
        )

    @pytest.mark.parametrize("address", ["", "key", "ex/", "a/b/c", f"ex/{'x' * 256}", "/\ud800"])
    async def test_an_address_that_is_invalid_is_a_failure_with_status_400(
        self, world: AmqpWorld, link: AmqpLink, address: str
    ) -> None:
        publishing = Publishing(link)
        publishing.give(*outgoing(address, b"lost"), *outgoing(world.out, b"fine"))
        refused, fine = await publishing.all_done()
        assert isinstance(refused, PublishFailed)
        assert (refused.fault.status, refused.fault.error) == (400, "connectivity:message.sending.failed")
        assert fine is None

    @pytest.mark.parametrize(
        "headers",
        [{"correlation-id": "x" * 256}, {"x" * 256: "y"}, {"x": "\ud800"}, {"x": "y" * 140_000}],
        ids=["long property", "long name", "half a character", "more than a frame"],
    )
    async def test_a_header_that_cannot_be_carried_is_a_failure_with_status_400(
        self, world: AmqpWorld, link: AmqpLink, headers: dict[str, str]
    ) -> None:
        """Sent all the same, it would end the link, and again after each reconnect."""
        publishing = Publishing(link)
        publishing.give(OutboundMessage(world.out, Envelope(b"{}", headers)), *outgoing(world.out, b"fine"))
        refused, fine = await publishing.all_done()
        assert isinstance(refused, PublishFailed)
        assert (refused.fault.status, fine) == (400, None)

    async def test_a_message_that_the_broker_does_not_keep_is_a_failure(self, world: AmqpWorld, link: AmqpLink) -> None:
        """A full queue that refuses more: RabbitMQ answers with basic.nack."""
        full = f"{world.inbox}.full"
        limit: dict[str, Any] = {"x-max-length": 1, "x-overflow": "reject-publish"}
        await world.bare_client.queue(full, **limit)
        publishing = Publishing(link)
        publishing.give(*outgoing(f"/{full}", b"kept"))
        assert await publishing.all_done() == [None]
        refused = Publishing(link)
        refused.give(*outgoing(f"/{full}", b"refused"))
        [error] = await refused.all_done()
        assert str(error) == "refused by broker: the broker rejected the message (basic.nack)"

    async def test_unroutable_messages_are_failures_and_no_others(self, world: AmqpWorld, link: AmqpLink) -> None:
        """The broker confirms them all the same, after having sent them back."""
        made = await exchange(world)
        publishing = Publishing(link)
        for number in range(40):
            key = "nobody" if number % 3 == 0 else "known.x"
            publishing.give(*outgoing(f"{made.name}/{key}", f"{number}".encode(), number=str(number)))
        outcomes = await publishing.all_done()
        for number, error in enumerate(outcomes):
            assert isinstance(error, PublishFailed) == (number % 3 == 0), number
        assert str(outcomes[0]) == (
            f"missing address: the exchange '{made.name}' routes to no queue for the routing key 'nobody': NO_ROUTE"
        )
        await wait_until(lambda: len(world.received()) == 26)

    async def test_of_messages_alike_but_for_their_headers_the_right_one_is_unroutable(
        self, world: AmqpWorld, link: AmqpLink
    ) -> None:
        made = await world.bare_client.channel.declare_exchange(f"ex-{uuid4().hex}", ExchangeType.HEADERS)
        queue = await world.bare_client.queue(world.inbox)
        await queue.bind(made, arguments={"x-match": "all", "wanted": "yes"})
        publishing = Publishing(link)
        wanted = ["yes", "no", "yes", "no", "no", "yes"]
        for each in wanted:
            publishing.give(*outgoing(f"{made.name}/key", b"the same", wanted=each))
        assert [error is None for error in await publishing.all_done()] == [each == "yes" for each in wanted]

    async def test_a_missing_queue_is_named(self, world: AmqpWorld, link: AmqpLink) -> None:
        signs, publishing = signs_of(link), Publishing(link)
        publishing.give(*outgoing("/never-there", b"lost"), *outgoing(world.out, b""), *outgoing("/never-there", b""))
        words = "missing address: queue 'never-there' does not exist: NO_ROUTE"
        assert messages_of(await publishing.all_done()) == [words, None, words]
        assert Counter(signs) == {("/never-there", ReaderStatus.UNDELIVERED): 2, (world.out, ReaderStatus.HEARD): 1}

    async def test_a_missing_exchange_is_reported_and_does_not_affect_other_messages(
        self, world: AmqpWorld, link: AmqpLink
    ) -> None:
        signs, publishing = signs_of(link), Publishing(link)
        for payload in numbered(20):
            publishing.give(*outgoing(world.out, payload), *outgoing("not-there/key", payload))
        outcomes = messages_of(await publishing.all_done())
        assert (outcomes[::2], signs.count(("not-there/key", ReaderStatus.UNDELIVERED))) == ([None] * 20, 20)
        assert set(outcomes[1::2]) == {"missing address: NOT_FOUND - no exchange 'not-there' in vhost '/'"}
        await wait_until(lambda: len(world.received()) >= 20)
        assert [envelope.payload for envelope in world.received()] == numbered(20)

    async def test_publishing_works_once_the_exchange_is_there(self, world: AmqpWorld, link: AmqpLink) -> None:
        name = f"later-{uuid4().hex}"
        publishing = Publishing(link)
        publishing.give(*outgoing(f"{name}/known", b"too early"))
        assert (await publishing.all_done()) != [None]
        made = await world.bare_client.channel.declare_exchange(name)
        await (await world.bare_client.queue(world.inbox)).bind(made, "known")
        began, outcomes = time.monotonic(), [PublishFailed("not yet")]
        while outcomes[0] is not None:
            assert time.monotonic() - began < EXCHANGE_RECHECK_DELAY + PATIENCE
            again = Publishing(link)
            again.give(*outgoing(f"{name}/known", b"now"))
            outcomes = await again.all_done()  # type: ignore[assignment]
        await wait_until(world.received)
        assert world.received()[0].payload == b"now"

    async def test_an_exchange_that_vanishes_takes_nothing_else_along(self, world: AmqpWorld, link: AmqpLink) -> None:
        """The broker closes the channel: what was on it is sent again, in order, and the culprits are found."""
        made = await exchange(world)
        publishing = Publishing(link)
        publishing.give(*outgoing(f"{made.name}/known", b"first"))
        assert await publishing.all_done() == [None]
        await made.delete()
        for payload in numbered(10):
            publishing.give(*outgoing(world.out, payload), *outgoing(f"{made.name}/known", payload))
        publishing.give(*outgoing(world.out, b"last"))
        outcomes = messages_of(await publishing.all_done())
        missing = f"missing address: NOT_FOUND - no exchange '{made.name}' in vhost '/'"
        assert outcomes == [None, *[None, missing] * 10, None]
        await wait_until(lambda: world.received()[-1].payload == b"last")
        payloads = [envelope.payload for envelope in world.received()]
        assert list(dict.fromkeys(payloads)) == [b"first", *numbered(10), b"last"]
        assert not link.lost.done()

    async def test_a_message_that_the_broker_refuses_is_reported_in_its_words(
        self, world: AmqpWorld, link: AmqpLink
    ) -> None:
        made = await world.bare_client.channel.declare_exchange(f"in-{uuid4().hex}", internal=True)
        signs, publishing = signs_of(link), Publishing(link)
        publishing.give(*outgoing(world.out, b"1"), *outgoing(f"{made.name}/key", b"2"), *outgoing(world.out, b"3"))
        one, two, three = messages_of(await publishing.all_done())
        assert (one, three) == (None, None)
        assert two is not None
        assert two.startswith("not authorized: ACCESS_REFUSED")
        assert made.name in two
        assert (f"{made.name}/key", ReaderStatus.REFUSED) in signs

    async def test_consumers_do_not_notice_refused_messages(self, world: AmqpWorld, link: AmqpLink) -> None:
        taker, publishing = DeliveryCollector(link), Publishing(link)
        await world.send([b"held"])
        [held] = await taker.take(1)
        publishing.give(*outgoing("not-there/key", b"lost"))
        await publishing.all_done()
        held.settle()
        await world.send([b"next"])
        assert await taker.payloads(1) == [b"next"]

    async def test_unconfirmed_messages_never_fill_more_than_the_window(self, world: AmqpWorld, link: AmqpLink) -> None:
        await world.withhold_confirms()
        publishing = Publishing(link)
        publishing.give(*outgoing(world.out, *numbered(WINDOW + 50)))
        assert publishing.given == link.window == WINDOW
        world.proxy.flow()
        assert await publishing.all_done() == [None] * (WINDOW + 50)

    async def test_many_messages_leave_in_few_writes(
        self, world: AmqpWorld, link: AmqpLink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writer = link.client._writer
        assert writer is not None
        writes: list[int] = []
        write = writer.write

        def counted(data: bytes) -> None:
            writes.append(len(data))
            write(data)

        monkeypatch.setattr(writer, "write", counted)
        publishing = Publishing(link)
        publishing.give(*outgoing(world.out, *numbered(100)))
        assert writes == [], "publishing itself writes nothing"
        await wait_until(lambda: writes)
        assert len(writes) == 1
        assert await publishing.all_done() == [None] * 100

    async def test_a_small_frame_is_agreed_upon_and_kept(self, world: AmqpWorld) -> None:
        link = await world.connect(requestedFrameMax="4096")
        assert link.client.frame_demultiplexer.frame_max == 4096
        large = bytes(range(256)) * 100
        taker, publishing = DeliveryCollector(link), Publishing(link)
        publishing.give(*outgoing(world.out, large, large[:4088], large[:4089]))
        assert await publishing.all_done() == [None] * 3
        await world.send([large])
        assert await taker.payloads(1) == [large]
        await wait_until(lambda: len(world.received()) == 3)
        assert [len(envelope.payload) for envelope in world.received()] == [25_600, 4088, 4089]
        await link.close()

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_deleted_queue_is_a_lost_link_that_names_it(self, world: AmqpWorld, link: AmqpLink) -> None:
        await world.bare_client.channel.queue_delete(world.source)
        error = await lost(link)
        assert (type(error), error.detail) == (NotConnected, Detail.MISSING_ADDRESS)
        assert world.source in error.text

    async def test_closing_a_link_sends_all_messages_and_acknowledgements_first(self, world: AmqpWorld) -> None:
        link = await world.connect()
        await world.send([b"done"])
        [delivery] = await DeliveryCollector(link).take(1)
        publishing = Publishing(link)
        publishing.give(*outgoing(world.out, *numbered(50)))
        delivery.settle()
        await link.close()
        await wait_until(lambda: len(world.received()) == 50)
        queue = await world.bare_client.queue(world.source)
        assert queue.declaration_result.message_count == 0

    async def test_a_broker_that_does_not_answer_does_not_hold_up_closing(self, world: AmqpWorld) -> None:
        link = await world.connect(shutdownTimeout="300")
        world.proxy.stall()
        async with asyncio.timeout(PATIENCE):
            await link.close()

    async def test_a_link_shows_its_state(self, world: AmqpWorld) -> None:
        link = await world.connect()
        assert repr(link) == "<AmqpLink up, 0 deliveries unsettled, 0 messages unconfirmed>"
        await link.close()
        assert "over" in repr(link)


@pytest.mark.broker("rabbitmq")
class TestFaultsOfTheBroker:
    """On a broker of their own, since other tests would notice."""

    @pytest.fixture
    def broker(self, own_rabbitmq: RabbitMQ) -> RabbitMQ:
        return own_rabbitmq

    async def test_a_message_that_is_larger_than_the_broker_takes_fails_alone(self, broker: RabbitMQ) -> None:
        """RabbitMQ's bound holds for channels that are opened after it was set."""
        bound = "application:set_env(rabbit, max_message_size, {})."
        await asyncio.to_thread(broker.control, "eval", bound.format(20_000))
        try:
            async with AmqpWorld.at(broker) as world:
                link = await world.connect()
                publishing = Publishing(link)
                for size in (100, 19_000, 30_000, 100):
                    publishing.give(*outgoing(world.out, bytes(size)))
                one, two, refused, four = await publishing.all_done()
                assert (one, two, four) == (None, None, None)
                assert isinstance(refused, PublishFailed)
                assert refused.fault.status == 413
                assert "message size" in str(refused)
                assert not link.lost.done()
                await link.close()
        finally:
            await asyncio.to_thread(broker.control, "eval", bound.format(134_217_728))

    async def test_a_killed_broker_redelivers_unsettled_messages_and_keeps_confirmed_ones(
        self, broker: RabbitMQ
    ) -> None:
        async with AmqpWorld.at(broker) as world:
            world.document["uri"] = broker.uri()
            first = await world.connect()
            await world.send(numbered(3))
            one, _, _ = await DeliveryCollector(first).take(3)
            one.settle()
            kept = f"{world.inbox}.kept"
            await world.bare_client.queue(kept)
            await asyncio.to_thread(broker.write_tables)
            publishing = Publishing(first)
            publishing.give(*outgoing(f"/{kept}", *numbered(20)))
            assert await publishing.all_done() == [None] * 20
            await asyncio.to_thread(broker.kill)
            assert (await lost(first)).retry
            await first.close()
            await asyncio.to_thread(broker.start_again)
            second = await world.connect()
            taker = DeliveryCollector(second)
            await wait_until(lambda: taker.deliveries and taker.deliveries[-1].envelope.payload == b"message 2")
            # The broker may or may not have kept the settlement of the first one.
            payloads = [delivery.envelope.payload for delivery in taker.deliveries]
            assert payloads[-2:] == numbered(2, 1)
            assert len(payloads) <= 3
            assert all(delivery.redelivered for delivery in taker.deliveries)
            await second.close()
        async with BareAmqpClient(broker.uri()) as bare_client:
            queue = await bare_client.queue(kept)
            assert queue.declaration_result.message_count == 20

    @pytest.mark.soak(shard="brokers")
    async def test_a_stopped_broker_is_a_lost_link_with_its_words(self, broker: RabbitMQ) -> None:
        async with AmqpWorld.at(broker) as world:
            world.document["uri"] = broker.uri()
            link = await world.connect()
            await asyncio.to_thread(broker.stop)
            error = await lost(link)
            assert error.retry
            assert error.detail in (Detail.REFUSED_BY_BROKER, Detail.CONNECTING)
            await link.close()
            with pytest.raises(NotConnected, match="connection refused"):
                await world.connect()
            await asyncio.to_thread(broker.start_again)

    async def test_while_the_broker_is_blocked_nothing_is_published_and_then_all_of_it(self, broker: RabbitMQ) -> None:
        async with AmqpWorld.at(broker) as world:
            link = await world.connect()
            publishing = Publishing(link)
            await asyncio.to_thread(broker.raise_alarm)
            with capture_logs() as logs:
                # The broker notifies only clients that publish.
                publishing.give(*outgoing(world.out, b"first"))
                await wait_until(lambda: link.condition)
                assert "blocked" in repr(link)
                [event] = logs
                assert (event["event"], event["log_level"]) == ("publishing blocked by broker", "warning")
                assert event["reason"]
                sent = world.proxy.sent
                publishing.give(*outgoing(world.out, *numbered(WINDOW + 50)))
                assert publishing.given == WINDOW, "a full window holds back whoever publishes"
                await asyncio.to_thread(broker.clear_alarm)
                assert await publishing.all_done() == [None] * (WINDOW + 51)
                assert logs[1]["event"] == "publishing unblocked by broker"
                assert logs[1]["waiting"] == WINDOW - 1
            assert world.proxy.sent > sent
            await wait_until(lambda: len(world.received()) == WINDOW + 51)
            assert [envelope.payload for envelope in world.received()] == [b"first", *numbered(WINDOW + 50)]
            await link.close()

    async def test_a_blocked_link_is_closed_all_the_same(self, broker: RabbitMQ) -> None:
        async with AmqpWorld.at(broker) as world:
            link = await world.connect(shutdownTimeout="300")
            await asyncio.to_thread(broker.raise_alarm)
            publishing = Publishing(link)
            publishing.give(*outgoing(world.out, b"first"))
            await wait_until(lambda: link.condition)
            async with asyncio.timeout(PATIENCE):
                await link.close()
            await asyncio.to_thread(broker.clear_alarm)

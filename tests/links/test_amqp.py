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
from tests.contract.link import BrokerBehavior, DeliveryCollector, Publishing, lost, numbered, signs_of
from tests.support.amqp_link import AmqpLinkHarness
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.clients.bare_amqp import BareAmqpClient
from tests.support.wait import PATIENCE, wait_until


@pytest.fixture
async def harness(rabbitmq: RabbitMQ) -> AsyncIterator[AmqpLinkHarness]:
    async with AmqpLinkHarness.at(rabbitmq) as made:
        yield made


async def exchange(harness: AmqpLinkHarness, kind: ExchangeType = ExchangeType.TOPIC) -> AbstractExchange:
    """An exchange of its own that routes keys that begin with `known` to the direct client."""
    made = await harness.bare_client.channel.declare_exchange(f"ex-{uuid4().hex}", kind)
    queue = await harness.bare_client.queue(harness.inbox)
    await queue.bind(made, "known.#")
    return made


def outgoing(address: str, *payloads: bytes, **headers: str) -> list[OutboundMessage]:
    return [OutboundMessage(address, Envelope(payload, headers)) for payload in payloads]


def messages_of(outcomes: list[Any]) -> list[str | None]:
    assert all(error is None or isinstance(error, PublishFailed) for error in outcomes)
    return [None if error is None else str(error) for error in outcomes]


@pytest.mark.broker("rabbitmq")
class TestAmqp091(BrokerBehavior, ByteLimits):
    # ── consuming ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_the_queue_is_the_address(self, harness: AmqpLinkHarness, link: AmqpLink) -> None:
        taker = DeliveryCollector(link)
        await harness.send([b"on"])
        [delivery] = await taker.take(1)
        assert delivery.address == harness.source
        delivery.settle()

    async def test_every_type_of_a_table_arrives_as_text(self, harness: AmqpLinkHarness, link: AmqpLink) -> None:
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
        await harness.send([b"{}"], table, content_type="text/plain", message_id="m-7")
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
        self, harness: AmqpLinkHarness, link: AmqpLink
    ) -> None:
        taker = DeliveryCollector(link)
        await harness.send([b"1"], {"correlation-id": "c-7"}, message_id="m-7")
        # The direct client's library would add an ID.
        await harness.bare_client.send_bare(harness.source, b"2", correlation_id="c-7")
        await harness.bare_client.send_bare(harness.source, b"3")
        await harness.bare_client.send_bare(harness.source, b'{"headers": {"correlation-id": "c-8"}}')
        by_id, by_correlation, without, by_envelope = [delivery.name for delivery in await taker.take(4)]
        assert by_id == "amqp:m-7"
        assert str(without).startswith(f"amqp#{harness.source}#")
        assert by_envelope is not None, "B14: a change is stored once although its ID is in the envelope alone"
        assert by_envelope.startswith("amqp::")
        assert by_correlation is not None
        assert by_correlation.startswith("amqp:c-7:")

    async def test_8_1_unsettled_commands_with_one_correlation_id_have_names_of_their_own_and_keep_them(
        self, harness: AmqpLinkHarness
    ) -> None:
        """On, off, on: three commands, and three again when they come again."""
        link = await harness.connect()
        taker = DeliveryCollector(link)
        for payload in (b"on", b"off", b"on"):
            await harness.bare_client.send_bare(harness.source, payload, correlation_id="c-8")
        first = await taker.take(3)
        names = [delivery.name for delivery in first]
        assert len(set(names)) == 3
        for delivery in first:
            delivery.settle(Outcome.REDELIVER)
        again = await taker.take(3)
        assert [(delivery.name, delivery.redelivered) for delivery in again] == [(name, True) for name in names]
        await harness.cut()
        await lost(link)
        await link.close()
        second = await harness.connect()
        once_more = await DeliveryCollector(second).take(3)
        assert [delivery.name for delivery in once_more] == names
        for delivery in once_more:
            delivery.settle()
        await second.close()

    async def test_each_source_has_its_queues(self, harness: AmqpLinkHarness) -> None:
        queues = [f"{harness.source}.{name}" for name in "abc"]
        for queue in queues:
            await harness.bare_client.queue(queue)
        harness.sources(queues[:2], queues[2:])
        link = await harness.connect()
        first, second = DeliveryCollector(link, 0), DeliveryCollector(link, 1)
        for queue in queues:
            await harness.bare_client.send(queue, [queue.encode()])
        assert sorted([(d.address, d.envelope.payload.decode()) for d in await first.take(2)]) == [
            (queue, queue) for queue in queues[:2]
        ]
        assert await second.payloads(1) == [queues[2].encode()]
        await link.close()

    async def test_several_consumers_share_the_window_of_their_source(self, harness: AmqpLinkHarness) -> None:
        harness.sources([harness.source], consumerCount=4)
        link = await harness.connect()
        taker = DeliveryCollector(link)
        await harness.send(numbered(IN_FLIGHT + 100))
        held = await taker.take(IN_FLIGHT)
        for delivery in held:
            delivery.settle()
        await taker.payloads(100)
        await harness.send([b"last"])
        assert await taker.payloads(1) == [b"last"]
        await link.close()

    async def test_a_quorum_queue_is_consumed_like_any_other(self, harness: AmqpLinkHarness) -> None:
        queue = f"{harness.source}.quorum"
        quorum: dict[str, Any] = {"x-queue-type": "quorum"}
        await harness.bare_client.queue(queue, **quorum)
        harness.sources([queue])
        link = await harness.connect()
        await harness.bare_client.send(queue, numbered(20))
        assert await DeliveryCollector(link).payloads(20) == numbered(20)
        await link.close()

    async def test_deliveries_are_handed_over_many_at_a_time(self, harness: AmqpLinkHarness) -> None:
        await harness.send(numbered(600))
        link = await harness.connect()
        taker = DeliveryCollector(link)
        assert await taker.payloads(600) == numbered(600)
        assert max(taker.lists) > 10
        await link.close()

    # ── settling ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_consecutive_acknowledgements_are_sent_as_one(
        self, harness: AmqpLinkHarness, link: AmqpLink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        taker = DeliveryCollector(link)
        await harness.send(numbered(200))
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
        self, harness: AmqpLinkHarness, link: AmqpLink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        taker = DeliveryCollector(link)
        await harness.send(numbered(3))
        one, two, three = await taker.take(3)
        sent: list[bytes] = []
        monkeypatch.setattr(link.client, "call_before_send", lambda fill: fill())
        monkeypatch.setattr(link.client, "send", sent.append)
        three.settle()
        two.settle()
        assert sent == []
        one.settle()
        assert len(sent) == 1

    async def test_a_dropped_delivery_goes_where_the_queue_sends_dead_letters(self, harness: AmqpLinkHarness) -> None:
        queue = f"{harness.source}.strict"
        dead: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": harness.inbox}
        await harness.bare_client.queue(queue, **dead)
        harness.sources([queue])
        link = await harness.connect()
        await harness.bare_client.send(queue, [b"bad"])
        (await DeliveryCollector(link).take(1))[0].settle(Outcome.DROPPED)
        await wait_until(harness.received)
        assert harness.received()[0].payload == b"bad"
        await link.close()

    # ── publishing ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_headers_travel_in_the_table_and_as_properties(
        self, harness: AmqpLinkHarness, link: AmqpLink
    ) -> None:
        headers = {"content-type": "a/b", "correlation-id": "c-7", "reply-to": "/r", "message-id": "m-7", "x": "nörth"}
        publishing = Publishing(link)
        publishing.give(OutboundMessage(harness.out, Envelope(b"{}", headers)))
        assert await publishing.all_done() == [None]
        await wait_until(harness.received)
        [message] = harness.bare_client.messages
        assert dict(message.headers) == headers
        assert (message.content_type, message.correlation_id, message.reply_to, message.message_id) == (
            "a/b",
            "c-7",
            "/r",
            "m-7",
        )
        assert message.delivery_mode == 2, "a restart of the broker shall not lose it"

    async def test_an_address_is_an_exchange_and_a_routing_key(self, harness: AmqpLinkHarness, link: AmqpLink) -> None:
        made = await exchange(harness)
        publishing = Publishing(link)
        publishing.give(*outgoing(f"{made.name}/known.a.b", b"by key"))
        assert await publishing.all_done() == [None]
        await wait_until(harness.received)
        assert (harness.bare_client.messages[0].exchange, harness.bare_client.messages[0].routing_key) == (
            made.name,
            "known.a.b",
        )

    @pytest.mark.parametrize("address", ["", "key", "ex/", "a/b/c", f"ex/{'x' * 256}", "/\ud800"])
    async def test_an_address_that_is_invalid_is_a_failure_with_status_400(
        self, harness: AmqpLinkHarness, link: AmqpLink, address: str
    ) -> None:
        publishing = Publishing(link)
        publishing.give(*outgoing(address, b"lost"), *outgoing(harness.out, b"fine"))
        refused, fine = await publishing.all_done()
        assert isinstance(refused, PublishFailed)
        assert (refused.fault.status, refused.fault.error) == (400, "connectivity:message.sending.failed")
        assert fine is None

    @pytest.mark.parametrize(
        "headers",
        [{"x" * 256: "y"}, {"x": "\ud800"}, {"x": "y" * 140_000}],
        ids=["long name", "half a character", "more than a frame"],
    )
    async def test_a_header_that_cannot_be_carried_is_a_failure_with_status_400(
        self, harness: AmqpLinkHarness, link: AmqpLink, headers: dict[str, str]
    ) -> None:
        """Otherwise it would end the link, also after each reconnect."""
        publishing = Publishing(link)
        publishing.give(OutboundMessage(harness.out, Envelope(b"{}", headers)), *outgoing(harness.out, b"fine"))
        refused, fine = await publishing.all_done()
        assert isinstance(refused, PublishFailed)
        assert (refused.fault.status, fine) == (400, None)

    async def test_a_message_that_the_broker_does_not_keep_is_a_failure(
        self, harness: AmqpLinkHarness, link: AmqpLink
    ) -> None:
        """A full queue that refuses more: RabbitMQ answers with basic.nack."""
        full = f"{harness.inbox}.full"
        limit: dict[str, Any] = {"x-max-length": 1, "x-overflow": "reject-publish"}
        await harness.bare_client.queue(full, **limit)
        publishing = Publishing(link)
        publishing.give(*outgoing(f"/{full}", b"kept"))
        assert await publishing.all_done() == [None]
        refused = Publishing(link)
        refused.give(*outgoing(f"/{full}", b"refused"))
        [error] = await refused.all_done()
        assert str(error) == "refused by broker: the broker rejected the message (basic.nack)"

    async def test_unroutable_messages_are_failures_and_no_others(
        self, harness: AmqpLinkHarness, link: AmqpLink
    ) -> None:
        """The broker returns them, and confirms them nevertheless."""
        made = await exchange(harness)
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
        await wait_until(lambda: len(harness.received()) == 26)

    async def test_of_messages_that_differ_only_in_headers_the_right_one_is_unroutable(
        self, harness: AmqpLinkHarness, link: AmqpLink
    ) -> None:
        made = await harness.bare_client.channel.declare_exchange(f"ex-{uuid4().hex}", ExchangeType.HEADERS)
        queue = await harness.bare_client.queue(harness.inbox)
        await queue.bind(made, arguments={"x-match": "all", "wanted": "yes"})
        publishing = Publishing(link)
        wanted = ["yes", "no", "yes", "no", "no", "yes"]
        for each in wanted:
            publishing.give(*outgoing(f"{made.name}/key", b"the same", wanted=each))
        assert [error is None for error in await publishing.all_done()] == [each == "yes" for each in wanted]

    async def test_a_missing_queue_is_named(self, harness: AmqpLinkHarness, link: AmqpLink) -> None:
        signs, publishing = signs_of(link), Publishing(link)
        publishing.give(*outgoing("/never-there", b"lost"), *outgoing(harness.out, b""), *outgoing("/never-there", b""))
        words = "missing address: queue 'never-there' does not exist: NO_ROUTE"
        assert messages_of(await publishing.all_done()) == [words, None, words]
        assert Counter(signs) == {("/never-there", ReaderStatus.UNDELIVERED): 2, (harness.out, ReaderStatus.HEARD): 1}

    async def test_a_missing_exchange_is_reported_and_does_not_affect_other_messages(
        self, harness: AmqpLinkHarness, link: AmqpLink
    ) -> None:
        signs, publishing = signs_of(link), Publishing(link)
        for payload in numbered(20):
            publishing.give(*outgoing(harness.out, payload), *outgoing("not-there/key", payload))
        outcomes = messages_of(await publishing.all_done())
        assert (outcomes[::2], signs.count(("not-there/key", ReaderStatus.UNDELIVERED))) == ([None] * 20, 20)
        assert set(outcomes[1::2]) == {"missing address: NOT_FOUND - no exchange 'not-there' in vhost '/'"}
        await wait_until(lambda: len(harness.received()) >= 20)
        assert [envelope.payload for envelope in harness.received()] == numbered(20)

    async def test_publishing_works_once_the_exchange_exists(self, harness: AmqpLinkHarness, link: AmqpLink) -> None:
        name = f"later-{uuid4().hex}"
        publishing = Publishing(link)
        publishing.give(*outgoing(f"{name}/known", b"too early"))
        assert (await publishing.all_done()) != [None]
        made = await harness.bare_client.channel.declare_exchange(name)
        await (await harness.bare_client.queue(harness.inbox)).bind(made, "known")
        began, outcomes = time.monotonic(), [PublishFailed("not yet")]
        while outcomes[0] is not None:
            assert time.monotonic() - began < EXCHANGE_RECHECK_DELAY + PATIENCE
            again = Publishing(link)
            again.give(*outgoing(f"{name}/known", b"now"))
            outcomes = await again.all_done()  # type: ignore[assignment]
        await wait_until(harness.received)
        assert harness.received()[0].payload == b"now"

    async def test_an_exchange_that_vanishes_takes_nothing_else_along(
        self, harness: AmqpLinkHarness, link: AmqpLink
    ) -> None:
        """The broker closes the channel: its messages are sent again in order, and the failing ones are found."""
        made = await exchange(harness)
        publishing = Publishing(link)
        publishing.give(*outgoing(f"{made.name}/known", b"first"))
        assert await publishing.all_done() == [None]
        await made.delete()
        for payload in numbered(10):
            publishing.give(*outgoing(harness.out, payload), *outgoing(f"{made.name}/known", payload))
        publishing.give(*outgoing(harness.out, b"last"))
        outcomes = messages_of(await publishing.all_done())
        missing = f"missing address: NOT_FOUND - no exchange '{made.name}' in vhost '/'"
        assert outcomes == [None, *[None, missing] * 10, None]
        await wait_until(lambda: harness.received()[-1].payload == b"last")
        payloads = [envelope.payload for envelope in harness.received()]
        assert list(dict.fromkeys(payloads)) == [b"first", *numbered(10), b"last"]
        assert not link.lost.done()

    async def test_a_message_that_the_broker_refuses_is_reported_with_its_reason(
        self, harness: AmqpLinkHarness, link: AmqpLink
    ) -> None:
        made = await harness.bare_client.channel.declare_exchange(f"in-{uuid4().hex}", internal=True)
        signs, publishing = signs_of(link), Publishing(link)
        publishing.give(*outgoing(harness.out, b"1"), *outgoing(f"{made.name}/key", b"2"), *outgoing(harness.out, b"3"))
        one, two, three = messages_of(await publishing.all_done())
        assert (one, three) == (None, None)
        assert two is not None
        assert two.startswith("not authorized: ACCESS_REFUSED")
        assert made.name in two
        assert (f"{made.name}/key", ReaderStatus.REFUSED) in signs

    async def test_consumers_do_not_notice_refused_messages(self, harness: AmqpLinkHarness, link: AmqpLink) -> None:
        taker, publishing = DeliveryCollector(link), Publishing(link)
        await harness.send([b"held"])
        [held] = await taker.take(1)
        publishing.give(*outgoing("not-there/key", b"lost"))
        await publishing.all_done()
        held.settle()
        await harness.send([b"next"])
        assert await taker.payloads(1) == [b"next"]

    async def test_unconfirmed_messages_never_fill_more_than_the_window(
        self, harness: AmqpLinkHarness, link: AmqpLink
    ) -> None:
        await harness.withhold_confirms()
        publishing = Publishing(link)
        publishing.give(*outgoing(harness.out, *numbered(WINDOW + 50)))
        assert publishing.given == link.window == WINDOW
        harness.proxy.flow()
        assert await publishing.all_done() == [None] * (WINDOW + 50)

    async def test_many_messages_leave_in_few_writes(
        self, harness: AmqpLinkHarness, link: AmqpLink, monkeypatch: pytest.MonkeyPatch
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
        publishing.give(*outgoing(harness.out, *numbered(100)))
        assert writes == [], "publishing itself writes nothing"
        await wait_until(lambda: writes)
        assert len(writes) == 1
        assert await publishing.all_done() == [None] * 100

    async def test_a_small_frame_is_agreed_upon_and_kept(self, harness: AmqpLinkHarness) -> None:
        link = await harness.connect(requestedFrameMax="4096")
        assert link.client.frame_demultiplexer.frame_max == 4096
        large = bytes(range(256)) * 100
        taker, publishing = DeliveryCollector(link), Publishing(link)
        publishing.give(*outgoing(harness.out, large, large[:4088], large[:4089]))
        assert await publishing.all_done() == [None] * 3
        await harness.send([large])
        assert await taker.payloads(1) == [large]
        await wait_until(lambda: len(harness.received()) == 3)
        assert [len(envelope.payload) for envelope in harness.received()] == [25_600, 4088, 4089]
        await link.close()

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_deleted_queue_is_a_lost_link_that_names_it(self, harness: AmqpLinkHarness, link: AmqpLink) -> None:
        await harness.bare_client.channel.queue_delete(harness.source)
        error = await lost(link)
        assert (type(error), error.detail) == (NotConnected, Detail.MISSING_ADDRESS)
        assert harness.source in error.text

    async def test_closing_a_link_sends_all_messages_and_acknowledgements_first(self, harness: AmqpLinkHarness) -> None:
        link = await harness.connect()
        await harness.send([b"done"])
        [delivery] = await DeliveryCollector(link).take(1)
        publishing = Publishing(link)
        publishing.give(*outgoing(harness.out, *numbered(50)))
        delivery.settle()
        await link.close()
        await wait_until(lambda: len(harness.received()) == 50)
        queue = await harness.bare_client.queue(harness.source)
        assert queue.declaration_result.message_count == 0

    async def test_a_broker_that_does_not_answer_does_not_hold_up_closing(self, harness: AmqpLinkHarness) -> None:
        link = await harness.connect(shutdownTimeout="300")
        harness.proxy.stall()
        async with asyncio.timeout(PATIENCE):
            await link.close()

    async def test_a_link_shows_its_state(self, harness: AmqpLinkHarness) -> None:
        link = await harness.connect()
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
            async with AmqpLinkHarness.at(broker) as harness:
                link = await harness.connect()
                publishing = Publishing(link)
                for size in (100, 19_000, 30_000, 100):
                    publishing.give(*outgoing(harness.out, bytes(size)))
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
        async with AmqpLinkHarness.at(broker) as harness:
            harness.document["uri"] = broker.uri()
            first = await harness.connect()
            await harness.send(numbered(3))
            one, _, _ = await DeliveryCollector(first).take(3)
            one.settle()
            kept = f"{harness.inbox}.kept"
            await harness.bare_client.queue(kept)
            await asyncio.to_thread(broker.write_tables)
            publishing = Publishing(first)
            publishing.give(*outgoing(f"/{kept}", *numbered(20)))
            assert await publishing.all_done() == [None] * 20
            await asyncio.to_thread(broker.kill)
            assert (await lost(first)).retry
            await first.close()
            await asyncio.to_thread(broker.start_again)
            second = await harness.connect()
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
    async def test_a_stopped_broker_is_a_lost_link_with_its_message(self, broker: RabbitMQ) -> None:
        async with AmqpLinkHarness.at(broker) as harness:
            harness.document["uri"] = broker.uri()
            link = await harness.connect()
            await asyncio.to_thread(broker.stop)
            error = await lost(link)
            assert error.retry
            assert error.detail in (Detail.REFUSED_BY_BROKER, Detail.CONNECTING)
            await link.close()
            with pytest.raises(NotConnected, match="connection refused"):
                await harness.connect()
            await asyncio.to_thread(broker.start_again)

    async def test_while_the_broker_is_blocked_nothing_is_published_and_then_all_of_it(self, broker: RabbitMQ) -> None:
        async with AmqpLinkHarness.at(broker) as harness:
            link = await harness.connect()
            publishing = Publishing(link)
            await asyncio.to_thread(broker.raise_alarm)
            with capture_logs() as logs:
                # The broker notifies only clients that publish.
                publishing.give(*outgoing(harness.out, b"first"))
                await wait_until(lambda: link.condition)
                assert "blocked" in repr(link)
                [event] = logs
                assert (event["event"], event["log_level"]) == ("publishing blocked by broker", "warning")
                assert event["reason"]
                sent = harness.proxy.sent
                publishing.give(*outgoing(harness.out, *numbered(WINDOW + 50)))
                assert publishing.given == WINDOW, "a full window stops the publisher"
                await asyncio.to_thread(broker.clear_alarm)
                assert await publishing.all_done() == [None] * (WINDOW + 51)
                assert logs[1]["event"] == "publishing unblocked by broker"
                assert logs[1]["waiting"] == WINDOW - 1
            assert harness.proxy.sent > sent
            await wait_until(lambda: len(harness.received()) == WINDOW + 51)
            assert [envelope.payload for envelope in harness.received()] == [b"first", *numbered(WINDOW + 50)]
            await link.close()

    async def test_a_blocked_link_can_be_closed(self, broker: RabbitMQ) -> None:
        async with AmqpLinkHarness.at(broker) as harness:
            link = await harness.connect(shutdownTimeout="300")
            await asyncio.to_thread(broker.raise_alarm)
            publishing = Publishing(link)
            publishing.give(*outgoing(harness.out, b"first"))
            await wait_until(lambda: link.condition)
            async with asyncio.timeout(PATIENCE):
                await link.close()
            await asyncio.to_thread(broker.clear_alarm)

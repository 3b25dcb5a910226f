"""Behaviors of links to MQTT brokers in both versions, beyond those of every broker's link."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any
from uuid import uuid4

import pytest

from connectivity.connections.model import Connection, Target
from connectivity.errors import Detail, PublishFailed
from connectivity.transports import load_connection_type
from connectivity.transports.base import (
    CONSUME_DEFAULTS,
    MOST_COUNTS,
    ConsumeOptions,
    OutboundMessage,
    Outcome,
)
from connectivity.transports.mqtt import async_client
from connectivity.transports.mqtt.async_client import AsyncMqttClient
from connectivity.transports.mqtt.link import IN_FLIGHT, MAX_UNACKNOWLEDGED, MqttLink
from connectivity.transports.mqtt.mqtt311 import MAX_LEVELS
from connectivity.transports.mqtt.probe import CHECKED_WHEN_SENT
from mappings.model.envelope import Envelope
from tests.contract.byte_limits import ByteLimits
from tests.contract.link import (
    MANY,
    BrokerBehavior,
    DeliveryCollector,
    LinkSetup,
    Publishing,
    drain,
    examined,
    lost,
    numbered,
)
from tests.contract.mqtt_session_end import MqttSessionEnd
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.brokers.proxy import Proxy
from tests.support.clients.bare_mqtt import BareMqttClient
from tests.support.wait import PATIENCE, wait_until

KEEP_ALIVE = "2s"
"""The broker counts whole seconds and waits half as long again.

So a busy machine may pause for a second.
"""

UNBOUNDED = ("max_inflight_messages 0", "max_queued_messages 0")
"""The broker has no window of its own, so only the client limits deliveries."""


class MqttLinkHarness:
    """A connection through a proxy to Mosquitto, with topics of its own, and a direct client."""

    is_renewed_for_redelivery = True
    absent = None
    marks_what_has_waited = False

    def __init__(self, kind: str, broker: Mosquitto, proxy: Proxy) -> None:
        name = uuid4().hex
        self.source, self.out = f"{name}/in", f"{name}/out"
        self.kind, self.broker, self.proxy = kind, broker, proxy
        self.most_unsettled = IN_FLIGHT if kind == "mqtt-5" else MOST_COUNTS * IN_FLIGHT
        self.bare_client = BareMqttClient(broker.host, broker.port, f"{self.out}/#", is_5=kind == "mqtt-5")
        self.consume: ConsumeOptions = CONSUME_DEFAULTS
        self.document: dict[str, Any] = {
            "id": name,
            "connectionType": kind,
            "connectionStatus": "open",
            "uri": f"tcp://{proxy.host}:{proxy.port}",
            "sources": [{"addresses": [self.source], "qos": 1, "authorizationContext": ["lab:all"]}],
        }

    def sources(self, *filters: Sequence[str], qos: int = 1) -> None:
        self.document["sources"] = [
            {"addresses": list(addresses), "qos": qos, "authorizationContext": ["lab:all"]} for addresses in filters
        ]

    @property
    def definition(self) -> Connection:
        return Connection.model_validate(self.document)

    async def connect(self, **options: str) -> MqttLink:
        self.proxy.flow()
        connect = load_connection_type(self.kind).connect
        link = await connect(Connection.model_validate({**self.document, "specificConfig": options}), 0, self.consume)
        assert isinstance(link, MqttLink)
        return link

    async def connect_client(self, client: int, clients: int) -> MqttLink:
        connect = load_connection_type(self.kind).connect
        link = await connect(Connection.model_validate({**self.document, "clientCount": clients}), client)
        assert isinstance(link, MqttLink)
        return link

    async def send(self, payloads: Sequence[bytes], headers: Mapping[str, str] | None = None) -> None:
        await self.send_to(self.source, payloads, headers)

    async def send_to(
        self, topic: str, payloads: Sequence[bytes], headers: Mapping[str, str] | None = None, qos: int = 1
    ) -> None:
        await asyncio.to_thread(self.bare_client.send, topic, payloads, headers, qos)

    def received(self) -> list[Envelope]:
        return self.bare_client.received

    async def cut(self) -> None:
        self.proxy.cut()

    async def withhold_confirms(self) -> None:
        self.proxy.stall(to_broker=False)


@pytest.mark.broker("mosquitto")
class MqttBehavior(BrokerBehavior, ByteLimits, MqttSessionEnd):
    """Inherit it and set `kind`."""

    kind: str

    @pytest.fixture(scope="class")
    @classmethod
    def broker(cls) -> Iterator[Mosquitto]:
        with Mosquitto.start(config_lines=UNBOUNDED) as broker:
            yield broker

    @pytest.fixture
    async def harness(self, broker: Mosquitto) -> AsyncIterator[MqttLinkHarness]:
        async with Proxy.to(broker.host, broker.port) as proxy:
            harness = MqttLinkHarness(self.kind, broker, proxy)
            with harness.bare_client:
                yield harness

    # ── examining ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_connection_test_reports_missing_addresses_and_continues(self, harness: LinkSetup) -> None:
        """No topic is missing: it exists as soon as a client uses its name. Targets are reported as unknown."""
        target = Target.model_validate({"address": harness.out, "topics": [], "authorizationContext": ["lab:all"]})
        found = await examined(harness.definition.model_copy(update={"targets": (target,)}))
        assert [(each.is_known, each.note) for each in found.targets] == [(False, CHECKED_WHEN_SENT)]

    async def test_a_connection_test_takes_no_message_from_a_shared_subscription(
        self, harness: MqttLinkHarness
    ) -> None:
        shared = f"$share/depot/{harness.source}"
        harness.sources([shared])
        link = await harness.connect()
        taker = DeliveryCollector(link)
        looking = [asyncio.create_task(examined(harness.definition)) for _ in range(3)]
        await harness.send(numbered(MANY))
        assert await taker.payloads(MANY) == numbered(MANY)
        await asyncio.gather(*looking)
        await link.close()

    async def test_a_connection_test_uses_neither_the_client_id_nor_the_last_will(
        self, harness: MqttLinkHarness
    ) -> None:
        harness.document["specificConfig"] = {"clientId": harness.document["id"], "lastWillTopic": harness.out}
        link = await harness.connect(clientId=harness.document["id"])
        await examined(harness.definition)
        await harness.send([b"still here"])
        assert await DeliveryCollector(link).payloads(1) == [b"still here"]
        publishing = Publishing(link)
        publishing.give(OutboundMessage(harness.out, Envelope(b"alone")))
        await wait_until(harness.received)
        assert [envelope.payload for envelope in harness.received()] == [b"alone"]
        await link.close()

    # ── consuming ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_the_topic_is_the_address_and_is_in_the_headers(self, harness: MqttLinkHarness) -> None:
        harness.sources([f"{harness.source}/+"])
        link = await harness.connect()
        await harness.send_to(f"{harness.source}/lamp", [b"on"])
        [delivery] = await DeliveryCollector(link).take(1)
        assert delivery.address == f"{harness.source}/lamp"
        assert dict(delivery.envelope.headers) == {
            "mqtt.topic": f"{harness.source}/lamp",
            "mqtt.qos": "1",
            "mqtt.retain": "false",
        }
        await link.close()

    async def test_a_retained_message_is_marked(self, harness: MqttLinkHarness) -> None:
        await asyncio.to_thread(harness.bare_client.retain, harness.source, b"kept")
        link = await harness.connect()
        [delivery] = await DeliveryCollector(link).take(1)
        assert delivery.envelope.headers["mqtt.retain"] == "true"
        delivery.settle()
        await asyncio.to_thread(harness.bare_client.retain, harness.source, b"")
        await link.close()

    async def test_every_source_that_matches_gets_a_message_once(self, harness: MqttLinkHarness) -> None:
        harness.sources([f"{harness.source}/#"], [f"{harness.source}/a"], [f"{harness.source}/b"])
        link = await harness.connect()
        both, only_a, only_b = (DeliveryCollector(link, index) for index in range(3))
        # A message delivered twice in the first round is found in the second one.
        for number in range(2):
            to_a, to_b = f"to a {number}".encode(), f"to b {number}".encode()
            await harness.send_to(f"{harness.source}/a", [to_a])
            await harness.send_to(f"{harness.source}/b", [to_b])
            assert await both.payloads(2) == [to_a, to_b]
            assert await only_a.payloads(1) == [to_a]
            assert await only_b.payloads(1) == [to_b]
        await link.close()

    async def test_a_message_of_several_sources_is_acknowledged_when_all_have_ended_it(
        self, harness: MqttLinkHarness
    ) -> None:
        """Rejected by one of them, it comes again to both."""
        harness.sources([harness.source], [f"{harness.source}/#"])
        first = await harness.connect()
        await harness.send([b"shared"])
        [one], [two] = await DeliveryCollector(first, 0).take(1), await DeliveryCollector(first, 1).take(1)
        one.settle()
        two.settle(Outcome.REDELIVER)
        await first.close()
        second = await harness.connect()
        assert [(await DeliveryCollector(second, index).take(1))[0].redelivered for index in (0, 1)] == [True, True]
        await second.close()

    async def test_messages_without_a_matching_source_are_acknowledged_and_dropped(
        self, harness: MqttLinkHarness
    ) -> None:
        """Left-overs of a kept session, after the sources have changed."""
        harness.sources([harness.source, f"{harness.source}/old"])
        first = await harness.connect()
        await first.close()
        await harness.send_to(f"{harness.source}/old", [b"old"])
        await harness.send([b"new"])
        harness.sources([harness.source])
        second = await harness.connect()
        assert await DeliveryCollector(second).payloads(1) == [b"new"]
        await second.close()
        harness.sources([harness.source, f"{harness.source}/old"])
        third = await harness.connect()
        await harness.send([b"newest"])
        assert await DeliveryCollector(third).payloads(1) == [b"newest"]
        await third.close()

    async def test_qos_0_has_no_name_and_is_not_delivered_again(self, harness: MqttLinkHarness) -> None:
        harness.sources([harness.source], qos=0)
        first = await harness.connect()
        taker = DeliveryCollector(first)
        await harness.send([b"zero"])
        [delivery] = await taker.take(1)
        assert (delivery.name, delivery.envelope.headers["mqtt.qos"]) == (None, "0")
        delivery.settle(Outcome.REDELIVER)
        await first.close()
        second = await harness.connect()
        await harness.send([b"new"])
        assert await DeliveryCollector(second).payloads(1) == [b"new"]
        await second.close()

    # ── sessions ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_kept_session_delivers_messages_sent_while_the_client_was_disconnected(
        self, harness: MqttLinkHarness
    ) -> None:
        first = await harness.connect()
        await first.close()
        await harness.send(numbered(50))
        second = await harness.connect()
        deliveries = await DeliveryCollector(second).take(50)
        assert [delivery.envelope.payload for delivery in deliveries] == numbered(50)
        assert not any(delivery.redelivered for delivery in deliveries)
        await second.close()

    async def test_a_clean_session_starts_with_nothing(self, harness: MqttLinkHarness) -> None:
        first = await harness.connect()
        await first.close()
        await harness.send([b"missed"])
        second = await harness.connect(cleanSession="true")
        await harness.send([b"seen"])
        assert await DeliveryCollector(second).payloads(1) == [b"seen"]
        await second.close()

    async def test_a_large_backlog_does_not_keep_a_link_from_being_made(self, harness: MqttLinkHarness) -> None:
        """The broker sends it before it answers to our subscriptions."""
        first = await harness.connect()
        await first.close()
        await harness.send(numbered(2 * IN_FLIGHT))
        second = await harness.connect()
        assert await drain(DeliveryCollector(second), 2 * IN_FLIGHT) == numbered(2 * IN_FLIGHT)
        await second.close()

    async def test_deliveries_are_handed_over_many_at_a_time(self, harness: MqttLinkHarness) -> None:
        first = await harness.connect()
        await first.close()
        await harness.send(numbered(600))
        second = await harness.connect()
        taker = DeliveryCollector(second)
        assert await taker.payloads(600) == numbered(600)
        assert max(taker.lists) > 10
        await second.close()

    # ── back-pressure ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_full_link_continues_publishing(self, harness: MqttLinkHarness) -> None:
        """Both directions share a socket: a client that has stopped reading would never receive a confirm."""
        link = await harness.connect()
        taker = DeliveryCollector(link)
        await harness.send(numbered(IN_FLIGHT + 500))
        await wait_until(lambda: len(taker.deliveries) >= IN_FLIGHT)
        publishing = Publishing(link)
        publishing.give(*(OutboundMessage(harness.out, Envelope(payload)) for payload in numbered(200)))
        assert await publishing.all_done() == [None] * 200
        assert await drain(taker, IN_FLIGHT + 500) == numbered(IN_FLIGHT + 500)
        await link.close()

    # ── rejecting ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_rejected_delivery_holds_up_nothing(self, harness: MqttLinkHarness) -> None:
        link = await harness.connect()
        taker = DeliveryCollector(link)
        await harness.send([b"bad"])
        (await taker.take(1))[0].settle(Outcome.REDELIVER)
        await harness.send(numbered(5))
        assert await taker.payloads(5) == numbered(5)
        await link.close()

    async def test_reconnect_for_redelivery_ends_the_link_after_the_delay(self, harness: MqttLinkHarness) -> None:
        link = await harness.connect(reconnectForRedelivery="true", reconnectForRedeliveryDelay="1s")
        taker = DeliveryCollector(link)
        await harness.send([b"again"])
        [first] = await taker.take(1)
        rejected_at = asyncio.get_running_loop().time()
        first.settle(Outcome.REDELIVER)
        error = await lost(link)
        assert asyncio.get_running_loop().time() - rejected_at >= 0.9
        assert (error.detail, error.retry) == (Detail.CONNECTING, True)
        await link.close()
        second = await harness.connect()
        [delivery] = await DeliveryCollector(second).take(1)
        assert (delivery.envelope.payload, delivery.redelivered) == (b"again", True)
        delivery.settle()
        await second.close()

    async def test_many_rejected_deliveries_end_the_link(self, harness: MqttLinkHarness) -> None:
        """The broker's own window may be full of them, and then nothing would come any more."""
        link = await harness.connect()
        taker = DeliveryCollector(link)
        await harness.send(numbered(MAX_UNACKNOWLEDGED))
        for delivery in await taker.take(MAX_UNACKNOWLEDGED):
            delivery.settle(Outcome.REDELIVER)
        await lost(link)
        await link.close()

    # ── publishing ────────────────────────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize("qos", [0, 1, 2])
    async def test_messages_are_published_with_the_qos_of_their_source(
        self, harness: MqttLinkHarness, qos: int
    ) -> None:
        link = await harness.connect()
        publishing = Publishing(link)
        publishing.give(*(OutboundMessage(harness.out, Envelope(payload), qos=qos) for payload in numbered(150)))
        assert await publishing.all_done() == [None] * 150
        await wait_until(lambda: len(harness.received()) >= 150)
        assert [envelope.payload for envelope in harness.received()] == numbered(150)
        assert {envelope.headers["mqtt.qos"] for envelope in harness.received()} == {str(qos)}
        await link.close()

    async def test_case_24_headers_override_topic_qos_and_retain(self, harness: MqttLinkHarness) -> None:
        link = await harness.connect()
        publishing = Publishing(link)
        headers = {"mqtt.topic": f"{harness.out}/other", "mqtt.qos": "2", "mqtt.retain": " True "}
        publishing.give(OutboundMessage(harness.out, Envelope(b"kept", headers)))
        assert await publishing.all_done() == [None]
        await wait_until(harness.received)
        assert harness.received()[0].headers["mqtt.topic"] == f"{harness.out}/other"
        assert harness.received()[0].headers["mqtt.qos"] == "2"
        with BareMqttClient(harness.broker.host, harness.broker.port, f"{harness.out}/other") as late:
            await wait_until(lambda: late.received)
            assert late.retained == [True]
        await asyncio.to_thread(harness.bare_client.retain, f"{harness.out}/other", b"")
        await link.close()

    async def test_a_topic_with_more_levels_than_the_broker_takes_does_not_end_the_link(
        self, harness: MqttLinkHarness
    ) -> None:
        """A client may choose the topic of a response, and Mosquitto closes the link for such a topic."""
        link = await harness.connect()
        publishing = Publishing(link)
        for levels in (MAX_LEVELS, MAX_LEVELS + 1):
            topic = harness.out + "/x" * (levels - 2)
            publishing.give(OutboundMessage(topic, Envelope(b"{}", {}), 1))
        taken, refused = await publishing.all_done()
        assert isinstance(refused, PublishFailed)
        assert (taken, refused.fault.status) == (None, 400)
        assert not link.lost.done()
        await link.close()

    @pytest.mark.parametrize(
        "headers",
        [
            {"mqtt.qos": "3"},
            {"mqtt.qos": "one"},
            {"mqtt.retain": "yes"},
            {"mqtt.topic": "a/#"},
            {"mqtt.topic": ""},
            {"mqtt.topic": "line\nbreak"},
        ],
    )
    async def test_an_override_that_cannot_be_is_a_failure_with_status_400(
        self, harness: MqttLinkHarness, headers: dict[str, str]
    ) -> None:
        link = await harness.connect()
        publishing = Publishing(link)
        publishing.give(
            OutboundMessage(harness.out, Envelope(b"{}", headers)), OutboundMessage(harness.out, Envelope(b"fine"))
        )
        refused, fine = await publishing.all_done()
        assert isinstance(refused, PublishFailed)
        assert (refused.fault.status, refused.fault.error) == (400, "connectivity:message.sending.failed")
        assert fine is None
        await link.close()

    async def test_unconfirmed_messages_never_fill_more_than_the_window(self, harness: MqttLinkHarness) -> None:
        link = await harness.connect()
        await harness.withhold_confirms()
        publishing = Publishing(link)
        publishing.give(*(OutboundMessage(harness.out, Envelope(payload)) for payload in numbered(150)))
        assert publishing.given == link.window == 100
        harness.proxy.flow()
        assert await publishing.all_done() == [None] * 150
        await link.close()

    async def test_many_messages_leave_in_few_writes(
        self, harness: MqttLinkHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writes: list[int] = []
        flush = AsyncMqttClient._flush

        def counted(channel: AsyncMqttClient) -> None:
            writes.append(len(channel.client.unsent))
            flush(channel)

        monkeypatch.setattr(AsyncMqttClient, "_flush", counted)
        link = await harness.connect()
        publishing = Publishing(link)
        publishing.give(*(OutboundMessage(harness.out, Envelope(payload)) for payload in numbered(100)))
        assert await publishing.all_done() == [None] * 100
        assert 100 in writes
        await link.close()

    async def test_a_half_sent_qos_2_message_of_a_former_link_does_no_harm(self, harness: MqttLinkHarness) -> None:
        """The broker remembers its identifier, which the next link uses again."""
        first = await harness.connect()
        await harness.withhold_confirms()
        publishing = Publishing(first)
        publishing.give(OutboundMessage(harness.out, Envelope(b"same"), qos=2))
        await wait_until(lambda: harness.proxy.sent and not first._out.unsent)
        await harness.cut()
        await lost(first)
        await first.close()
        second = await harness.connect()
        again = Publishing(second)
        again.give(
            OutboundMessage(harness.out, Envelope(b"same"), qos=2),
            OutboundMessage(harness.out, Envelope(b"end"), qos=2),
        )
        assert await again.all_done() == [None, None]
        await wait_until(lambda: harness.received() and harness.received()[-1].payload == b"end")
        assert b"same" in [envelope.payload for envelope in harness.received()]
        await second.close()

    async def test_a_separate_publisher_is_a_second_link(self, harness: MqttLinkHarness) -> None:
        links_before = harness.proxy.links
        link = await harness.connect(separatePublisherClient="true")
        assert harness.proxy.links - links_before == 2
        taker, publishing = DeliveryCollector(link), Publishing(link)
        publishing.give(OutboundMessage(harness.out, Envelope(b"out")))
        assert await publishing.all_done() == [None]
        await harness.send([b"in"])
        assert await taker.payloads(1) == [b"in"]
        await link.close()

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_stopped_broker_is_a_lost_link(self, harness: MqttLinkHarness) -> None:
        with Mosquitto.start() as own:
            async with Proxy.to(own.host, own.port) as proxy:
                harness.document["uri"] = f"tcp://{proxy.host}:{proxy.port}"
                link = await harness.connect()
                own.stop()
                assert (await lost(link)).retry
                await link.close()

    async def test_a_restarted_broker_redelivers_unsettled_messages(self, harness: MqttLinkHarness) -> None:
        with Mosquitto.start() as own:
            harness.document["uri"] = f"tcp://{own.host}:{own.port}"
            first = await harness.connect()
            with BareMqttClient(own.host, own.port, harness.out, is_5=self.kind == "mqtt-5") as other:
                await asyncio.to_thread(other.send, harness.source, numbered(3))
                await DeliveryCollector(first).take(3)
            own.restart()
            await lost(first)
            await first.close()
            second = await harness.connect()
            assert await DeliveryCollector(second).payloads(3) == numbered(3)
            await second.close()

    async def test_a_session_taken_over_by_another_client_is_a_lost_link(self, harness: MqttLinkHarness) -> None:
        first = await harness.connect()
        second = await harness.connect()
        assert (await lost(first)).retry
        await first.close()
        await second.close()

    async def test_a_dead_network_is_found_by_the_keep_alive(self, harness: MqttLinkHarness) -> None:
        """Nothing arrives and nothing is refused: only silence shows that the link is lost."""
        link = await harness.connect(keepAlive="1s")
        harness.proxy.stall()
        error = await lost(link)
        assert error.detail is Detail.TIMEOUT
        await link.close()

    async def test_an_idle_link_stays(self, harness: MqttLinkHarness) -> None:
        """The keep-alive keeps it: the broker would end it after one and a half of them."""
        link = await harness.connect(keepAlive=KEEP_ALIVE)
        received = harness.proxy.received
        two_answers = received + 2 * 2
        await wait_until(lambda: link.lost.done() or harness.proxy.received >= two_answers)
        assert not link.lost.done()
        await link.close()

    async def test_a_link_that_has_stopped_reading_stays(self, harness: MqttLinkHarness) -> None:
        """It does not receive the responses to its pings, as expected."""
        link = await harness.connect(keepAlive=KEEP_ALIVE)
        taker = DeliveryCollector(link)
        await harness.send([bytes(200)] * (IN_FLIGHT + 100))
        await wait_until(lambda: len(taker.deliveries) >= IN_FLIGHT)
        link._channels[0].pause()
        sent = harness.proxy.sent
        await wait_until(lambda: link.lost.done() or harness.proxy.sent >= sent + 2 * 2)  # two pings
        assert not link.lost.done()
        assert len(await drain(taker, IN_FLIGHT + 100)) == IN_FLIGHT + 100
        await link.close()

    async def test_the_last_will_is_published_when_the_link_breaks_and_not_when_it_is_closed(
        self, harness: MqttLinkHarness
    ) -> None:
        will = {"lastWillTopic": f"{harness.out}/will", "lastWillMessage": "gone", "lastWillQos": "1"}
        closed = await harness.connect(**will)
        await closed.close()
        broken = await harness.connect(**will)
        await harness.cut()
        await lost(broken)
        await wait_until(harness.received)
        await broken.close()
        assert [envelope.payload for envelope in harness.received()] == [b"gone"]

    async def test_a_full_link_is_closed_quickly_and_in_order(
        self, harness: MqttLinkHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It does not wait for unread messages, and sends its DISCONNECT."""
        monkeypatch.setattr(async_client, "DISCONNECT_TIMEOUT", 10 * PATIENCE)
        link = await harness.connect(lastWillTopic=f"{harness.out}/will", lastWillMessage="gone")
        taker = DeliveryCollector(link)
        await harness.send([bytes(500)] * (IN_FLIGHT + 1000))
        await wait_until(lambda: len(taker.deliveries) >= IN_FLIGHT)
        async with asyncio.timeout(PATIENCE):
            await link.close()
        second = await harness.connect()
        publishing = Publishing(second)
        publishing.give(OutboundMessage(harness.out, Envelope(b"after")))
        await wait_until(harness.received)
        assert [envelope.payload for envelope in harness.received()] == [b"after"]
        await second.close()

    async def test_closing_a_link_sends_all_published_messages_first(self, harness: MqttLinkHarness) -> None:
        link = await harness.connect()
        publishing = Publishing(link)
        publishing.give(*(OutboundMessage(harness.out, Envelope(payload), qos=0) for payload in numbered(50)))
        await link.close()
        await wait_until(lambda: len(harness.received()) == 50)

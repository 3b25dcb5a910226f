"""MQTT 5 against a real Mosquitto."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from connectivity.errors import PublishFailed
from connectivity.transports.base import ConsumeOptions, OutboundMessage, Outcome, ReaderStatus
from connectivity.transports.mqtt.properties import ServerLimits
from mappings.model.envelope import Envelope
from tests.contract.byte_limits import LARGE, LimitedSetup
from tests.contract.link import DeliveryCollector, Publishing, numbered, signs_of
from tests.contract.mqtt_link import MqttBehaviour, MqttWorld
from tests.contract.mqtt_qos_2 import Qos2Behaviour
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.wait import wait_until

EVERYTHING = {
    "correlation-id": "c-7",
    "reply-to": "replies/7",
    "content-type": "application/json",
    "mqtt.message-expiry-interval": "3600",
    "x-line": "nörth",
    "X-Upper": "kept",
}


class TestMqtt5(MqttBehaviour, Qos2Behaviour):
    kind = "mqtt-5"

    async def test_the_payload_of_a_message_that_is_too_large_is_skipped(self, world: LimitedSetup) -> None:
        """The broker knows the largest packet, and drops the message by itself."""
        world.consume = ConsumeOptions(payload=LARGE)
        link = await world.connect()
        taker = DeliveryCollector(link)
        await world.send([bytes(LARGE * 12), b"next"])
        assert await taker.payloads(1) == [b"next"]
        await link.close()

    async def test_case_23_properties_become_headers(self, world: MqttWorld) -> None:
        link = await world.connect()
        taker = DeliveryCollector(link)
        await world.send([b"{}"], EVERYTHING)
        [delivery] = await taker.take(1)
        own = {"mqtt.topic": world.source, "mqtt.qos": "1", "mqtt.retain": "false"}
        assert dict(delivery.envelope.headers) == EVERYTHING | own
        delivery.settle()
        await link.close()

    async def test_a_user_property_cannot_pretend_to_be_another_header(self, world: MqttWorld) -> None:
        link = await world.connect()
        taker = DeliveryCollector(link)
        await world.send([b"{}"], {"mqtt.topic": "forged", "Mqtt.Qos": "9", "Correlation-ID": "forged", "x": "y"})
        [delivery] = await taker.take(1)
        assert set(delivery.envelope.headers) == {"mqtt.topic", "mqtt.qos", "mqtt.retain", "x"}
        assert delivery.envelope.header("mqtt.topic") == world.source
        await link.close()

    async def test_headers_become_properties(self, world: MqttWorld) -> None:
        link = await world.connect()
        publishing = Publishing(link)
        publishing.give(OutboundMessage(world.out, Envelope(b"{}", EVERYTHING | {"blank": " ", "empty": ""})))
        assert await publishing.all_done() == [None]
        await wait_until(world.received)
        assert dict(world.received()[0].headers) == EVERYTHING | {"mqtt.topic": world.out, "mqtt.qos": "1"}
        await link.close()

    async def test_each_confirm_reports_whether_a_reader_received_the_message(self, world: MqttWorld) -> None:
        link = await world.connect()
        signs, publishing = signs_of(link), Publishing(link)
        unread = f"nobody/{world.out}"
        for address in (world.out, unread, world.out, unread):
            publishing.give(OutboundMessage(address, Envelope(b"{}")))
        assert await publishing.all_done() == [None] * 4
        assert Counter(signs) == {(world.out, ReaderStatus.HEARD): 2, (unread, ReaderStatus.UNDELIVERED): 2}
        await link.close()

    async def test_an_address_that_may_not_be_published_to_is_reported(self, world: MqttWorld, tmp_path: Path) -> None:
        rules = tmp_path / "acl"
        rules.write_text(f"topic readwrite {world.source}\ntopic readwrite {world.out}\n")
        rules.chmod(0o644)
        with Mosquitto.start(config_lines=(f"acl_file {rules}",)) as own:
            world.document["uri"] = f"tcp://{own.host}:{own.port}"
            link = await world.connect()
            signs, publishing = signs_of(link), Publishing(link)
            publishing.give(OutboundMessage("lab/closed", Envelope(b"{}")))
            [error] = await publishing.all_done()
            assert isinstance(error, PublishFailed)
            assert signs == [("lab/closed", ReaderStatus.REFUSED)]
            await link.close()

    async def test_an_expiry_interval_of_zero_is_not_sent(self, world: MqttWorld) -> None:
        link = await world.connect()
        publishing = Publishing(link)
        publishing.give(OutboundMessage(world.out, Envelope(b"{}", {"mqtt.message-expiry-interval": "0"})))
        assert await publishing.all_done() == [None]
        await wait_until(world.received)
        assert "mqtt.message-expiry-interval" not in world.received()[0].headers
        await link.close()

    @pytest.mark.parametrize(
        "headers",
        [
            {"mqtt.message-expiry-interval": "soon"},
            {"mqtt.message-expiry-interval": "-1"},
            {"mqtt.message-expiry-interval": "4294967296"},
            {"reply-to": "a/+"},
            {"x-line": "two\nlines"},
            {"x-\x7f": "y"},
            {"content-type": "x" * 70_000},
            {"correlation-id": "x" * 70_000},
            {"x": "\ud800"},
        ],
        ids=lambda headers: "".join(headers)[:20].encode("unicode_escape").decode(),
    )
    async def test_a_header_that_cannot_be_carried_is_a_failure_with_status_400(
        self, world: MqttWorld, headers: dict[str, str]
    ) -> None:
        """Sent all the same, it would end the link, and again after each reconnect."""
        link = await world.connect()
        publishing = Publishing(link)
        publishing.give(OutboundMessage(world.out, Envelope(b"{}", headers)))
        [error] = await publishing.all_done()
        assert isinstance(error, PublishFailed)
        assert error.fault.status == 400
        await link.close()

    async def test_the_window_never_exceeds_the_limit_of_the_broker(self, world: MqttWorld) -> None:
        with Mosquitto.start(config_lines=("max_inflight_messages 7",)) as own:
            world.document["uri"] = f"tcp://{own.host}:{own.port}"
            link = await world.connect()
            assert link.window == 7
            await link.close()

    async def test_a_message_larger_than_the_broker_takes_is_a_failure(self, world: MqttWorld) -> None:
        """Sent all the same, it would end the link."""
        with Mosquitto.start(config_lines=("max_packet_size 2000",)) as own:
            world.document["uri"] = f"tcp://{own.host}:{own.port}"
            link = await world.connect()
            publishing = Publishing(link)
            publishing.give(
                OutboundMessage(world.out, Envelope(bytes(2000))), OutboundMessage(world.out, Envelope(bytes(1000)))
            )
            too_large, fine = await publishing.all_done()
            assert isinstance(too_large, PublishFailed)
            assert (too_large.fault.status, fine) == (413, None)
            await link.close()

    async def test_a_message_of_several_sources_is_acknowledged_when_all_have_ended_it(self, world: MqttWorld) -> None:
        """Here the broker sends one copy for each subscription, so only who rejected it gets it again."""
        world.sources([world.source], [f"{world.source}/#"])
        first = await world.connect()
        await world.send([b"shared"])
        [one], [two] = await DeliveryCollector(first, 0).take(1), await DeliveryCollector(first, 1).take(1)
        one.settle()
        two.settle(Outcome.REDELIVER)
        await first.close()
        second = await world.connect()
        again = DeliveryCollector(second, 1)
        assert (await again.take(1))[0].redelivered
        await world.send([b"new"])
        assert await DeliveryCollector(second, 0).payloads(1) == [b"new"]
        await second.close()

    async def test_a_broker_without_shared_subscriptions_delivers_to_the_first_client_alone(
        self, world: MqttWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ServerLimits, "of", lambda _: ServerLimits(shared_subscriptions=False))
        links = [await world.connect_client(client, 2) for client in range(2)]
        first, second = (DeliveryCollector(link) for link in links)
        await world.send(numbered(30))
        assert await first.payloads(30) == numbered(30)
        publishing = Publishing(links[1])
        publishing.give(OutboundMessage(world.out, Envelope(b"answer")))
        assert await publishing.all_done() == [None]
        assert second.deliveries == [], "the broker would have sent them before its confirm"
        condition = "connected: the broker has no shared subscriptions, only the first client consumes"
        assert [link.condition for link in links] == [condition, condition]
        for link in links:
            await link.close()

    async def test_clients_have_ids_of_their_own_and_keep_them(self, world: MqttWorld) -> None:
        """Under the same names they take up their sessions: what was unsettled comes back to the one that had it."""
        links = [await world.connect_client(client, 2) for client in range(2)]
        takers = [DeliveryCollector(link) for link in links]
        await world.send(numbered(20))
        await wait_until(lambda: sum(len(taker.deliveries) for taker in takers) == 20)
        had = [[delivery.name for delivery in taker.deliveries] for taker in takers]
        assert all(had)
        for link in links:
            await link.close()
        links = [await world.connect_client(client, 2) for client in range(2)]
        takers = [DeliveryCollector(link) for link in links]
        await wait_until(lambda: sum(len(taker.deliveries) for taker in takers) == 20)
        assert [[delivery.name for delivery in taker.deliveries] for taker in takers] == had
        for taker, link in zip(takers, links, strict=True):
            for delivery in taker.deliveries:
                delivery.settle()
            await link.close()

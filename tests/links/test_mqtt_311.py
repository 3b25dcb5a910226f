"""MQTT 3.1.1 against a real Mosquitto."""

from __future__ import annotations

from connectivity.connections.model import Connection
from connectivity.targets.outbox import Outbox
from connectivity.transports import load_connection_type
from connectivity.transports.base import Link, OutboundMessage
from mappings.model.envelope import Envelope
from tests.contract.link import DeliveryCollector, LinkSetup, Publishing
from tests.contract.mqtt_link import MqttBehavior, MqttLinkHarness
from tests.contract.mqtt_qos_2 import Qos2Behavior
from tests.support.wait import wait_until


class TestMqtt(MqttBehavior, Qos2Behavior):
    kind = "mqtt"

    async def test_headers_arrive(self, harness: LinkSetup, link: Link) -> None:
        """MQTT 3.1.1 carries no headers: only those that describe the message itself arrive."""
        taker = DeliveryCollector(link)
        await harness.send([b"{}"], {"x-line": "north"})
        [delivery] = await taker.take(1)
        assert set(delivery.envelope.headers) == {"mqtt.topic", "mqtt.qos", "mqtt.retain"}

    async def test_headers_are_published(self, harness: LinkSetup, link: Link) -> None:
        """MQTT 3.1.1 has no headers: they are omitted, and the message is published."""
        publishing = Publishing(link)
        publishing.give(OutboundMessage(harness.out, Envelope(b"{}", {"x-line": "north\n", "correlation-id": "c-7"})))
        assert await publishing.all_done() == [None]
        await wait_until(harness.received)
        assert set(harness.received()[0].headers) == {"mqtt.topic", "mqtt.qos"}

    async def test_a_response_passes_the_elements_that_the_link_has_not_taken(
        self, harness: LinkSetup, link: Link
    ) -> None:
        outbox, elements = Outbox(), 3 * link.window
        outbox.attach(link)
        for flow in ("a", "b"):
            messages = [
                OutboundMessage(harness.out, Envelope(f"{flow}{number}".encode())) for number in range(elements)
            ]
            outbox.post(messages, flow=flow, is_element=True)
        outbox.post([OutboundMessage(harness.out, Envelope(b"created"))], flow="c")
        await outbox.drain()
        await wait_until(lambda: len(harness.received()) == 2 * elements + 1)
        payloads = [message.payload.decode() for message in harness.received()]
        assert payloads.index("created") == link.window
        assert [each for each in payloads if each[0] == "b"] == [f"b{number}" for number in range(elements)]

    async def test_clients_of_one_connection_share_the_messages(self, harness: LinkSetup) -> None:
        """MQTT 3.1.1 has no shared subscriptions: a document with several clients is refused."""
        assert isinstance(harness, MqttLinkHarness)
        several = Connection.model_validate({**harness.document, "clientCount": 3})
        assert [problem.path for problem in load_connection_type("mqtt").check(several)] == ["clientCount"]

    async def test_closing_one_client_redelivers_only_its_unacknowledged_messages(self, harness: LinkSetup) -> None:
        """There are no others."""
        assert isinstance(harness, MqttLinkHarness)
        more = {**harness.document["sources"][0], "consumerCount": 2}
        several = Connection.model_validate({**harness.document, "sources": [more]})
        assert [problem.path for problem in load_connection_type("mqtt").check(several)] == ["sources[0].consumerCount"]

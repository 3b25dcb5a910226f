"""MQTT 3.1.1 against a real Mosquitto."""

from __future__ import annotations

from connectivity.connections.model import Connection
from connectivity.targets.outbox import Outbox
from connectivity.transports import load_connection_type
from connectivity.transports.base import Link, OutboundMessage
from mappings.model.envelope import Envelope
from tests.contract.link import DeliveryCollector, LinkSetup, Publishing
from tests.contract.mqtt_link import MqttBehaviour, MqttWorld
from tests.contract.mqtt_qos_2 import Qos2Behaviour
from tests.support.wait import wait_until


class TestMqtt(MqttBehaviour, Qos2Behaviour):
    kind = "mqtt"

    async def test_headers_arrive(self, world: LinkSetup, link: Link) -> None:
        """MQTT 3.1.1 carries no headers: only those that describe the message itself arrive."""
        taker = DeliveryCollector(link)
        await world.send([b"{}"], {"x-line": "north"})
        [delivery] = await taker.take(1)
        assert set(delivery.envelope.headers) == {"mqtt.topic", "mqtt.qos", "mqtt.retain"}

    async def test_headers_are_published(self, world: LinkSetup, link: Link) -> None:
        """MQTT 3.1.1 carries none: they are left out, and the message goes."""
        publishing = Publishing(link)
        publishing.give(OutboundMessage(world.out, Envelope(b"{}", {"x-line": "north\n", "correlation-id": "c-7"})))
        assert await publishing.all_done() == [None]
        await wait_until(world.received)
        assert set(world.received()[0].headers) == {"mqtt.topic", "mqtt.qos"}

    async def test_a_response_passes_the_elements_that_the_link_has_not_taken(
        self, world: LinkSetup, link: Link
    ) -> None:
        outbox, elements = Outbox(), 3 * link.window
        outbox.attach(link)
        for flow in ("a", "b"):
            messages = [OutboundMessage(world.out, Envelope(f"{flow}{number}".encode())) for number in range(elements)]
            outbox.post(messages, flow=flow, is_element=True)
        outbox.post([OutboundMessage(world.out, Envelope(b"created"))], flow="c")
        await outbox.drain()
        await wait_until(lambda: len(world.received()) == 2 * elements + 1)
        payloads = [message.payload.decode() for message in world.received()]
        assert payloads.index("created") == link.window
        assert [each for each in payloads if each[0] == "b"] == [f"b{number}" for number in range(elements)]

    async def test_clients_of_one_connection_share_the_messages(self, world: LinkSetup) -> None:
        """MQTT 3.1.1 has no shared subscriptions: a document with several clients is refused."""
        assert isinstance(world, MqttWorld)
        several = Connection.model_validate({**world.document, "clientCount": 3})
        assert [problem.path for problem in load_connection_type("mqtt").check(several)] == ["clientCount"]

    async def test_closing_one_client_redelivers_only_its_unacknowledged_messages(self, world: LinkSetup) -> None:
        """There are no others."""
        assert isinstance(world, MqttWorld)
        more = {**world.document["sources"][0], "consumerCount": 2}
        several = Connection.model_validate({**world.document, "sources": [more]})
        assert [problem.path for problem in load_connection_type("mqtt").check(several)] == ["sources[0].consumerCount"]

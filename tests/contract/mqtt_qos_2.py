"""Consuming with QoS 2 from MQTT brokers, in both versions."""

from __future__ import annotations

from connectivity.transports.base import Outcome
from tests.contract.link import DeliveryCollector, lost
from tests.contract.mqtt_link import MqttLinkHarness
from tests.support.wait import wait_until


class Qos2Behavior:
    """Inherit it together with `MqttBehavior`."""

    async def test_a_delivery_with_qos_2_comes_again_marked_until_it_is_settled(self, harness: MqttLinkHarness) -> None:
        harness.sources([harness.source], qos=2)
        names = []
        for is_again in (False, True, True):
            link = await harness.connect()
            if not is_again:
                await harness.send_to(harness.source, [b"two"], qos=2)
            [delivery] = await DeliveryCollector(link).take(1)
            assert (delivery.envelope.headers["mqtt.qos"], delivery.redelivered) == ("2", is_again)
            names.append(delivery.name)
            await harness.cut()
            await lost(link)
            await link.close()
        assert len(set(names)) == 1

    async def test_a_link_lost_between_pubrec_and_pubrel_redelivers_nothing(self, harness: MqttLinkHarness) -> None:
        """The broker has PUBREC and continues with PUBREL on the next link, which answers it."""
        harness.sources([harness.source], qos=2)
        link = await harness.connect()
        await harness.send_to(harness.source, [b"one", b"two"], qos=2)
        one, two = await DeliveryCollector(link).take(2)
        harness.proxy.stall(to_broker=False)
        sent = harness.proxy.sent
        two.settle()
        one.settle()
        await wait_until(lambda: harness.proxy.sent == sent + 8)
        await harness.send_to(harness.out, [b"after both"])  # the broker has read what came before
        await harness.cut()
        await lost(link)
        await link.close()
        for number in (3, 4):  # what the third link lacks, the second one has completed
            link = await harness.connect()
            await harness.send_to(harness.source, [b"%d" % number], qos=2)
            assert await DeliveryCollector(link).payloads(1) == [b"%d" % number]
            await link.close()

    async def test_a_lost_pubrec_makes_the_delivery_come_again_with_its_name(self, harness: MqttLinkHarness) -> None:
        harness.sources([harness.source], qos=2)
        first = await harness.connect()
        await harness.send_to(harness.source, [b"two"], qos=2)
        [delivery] = await DeliveryCollector(first).take(1)
        harness.proxy.stall(to_client=False)
        delivery.settle()
        await wait_until(lambda: not first._in.unsent)
        await harness.cut()
        await lost(first)
        await first.close()
        second = await harness.connect()
        [again] = await DeliveryCollector(second).take(1)
        assert (again.name, again.redelivered) == (delivery.name, True)
        again.settle()
        await second.close()
        third = await harness.connect()
        await harness.send_to(harness.source, [b"three"], qos=2)
        assert await DeliveryCollector(third).payloads(1) == [b"three"]
        await third.close()

    async def test_a_rejected_delivery_with_qos_2_is_acknowledged_or_comes_again(
        self, harness: MqttLinkHarness
    ) -> None:
        harness.sources([harness.source], qos=2)
        first = await harness.connect()
        await harness.send_to(harness.source, [b"dropped", b"again"], qos=2)
        dropped, again = await DeliveryCollector(first).take(2)
        dropped.settle(Outcome.DROPPED)
        again.settle(Outcome.REDELIVER)
        await first.close()
        second = await harness.connect()
        [delivery] = await DeliveryCollector(second).take(1)
        assert (delivery.envelope.payload, delivery.redelivered) == (b"again", True)
        delivery.settle()
        await second.close()

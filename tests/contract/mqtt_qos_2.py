"""Consuming with QoS 2 from MQTT brokers, in both versions."""

from __future__ import annotations

from connectivity.transports.base import Outcome
from tests.contract.link import DeliveryCollector, lost
from tests.contract.mqtt_link import MqttWorld
from tests.support.wait import wait_until


class Qos2Behaviour:
    """Inherit it together with `MqttBehaviour`."""

    async def test_a_delivery_with_qos_2_comes_again_marked_until_it_is_settled(self, world: MqttWorld) -> None:
        world.sources([world.source], qos=2)
        names = []
        for is_again in (False, True, True):
            link = await world.connect()
            if not is_again:
                await world.send_to(world.source, [b"two"], qos=2)
            [delivery] = await DeliveryCollector(link).take(1)
            assert (delivery.envelope.headers["mqtt.qos"], delivery.redelivered) == ("2", is_again)
            names.append(delivery.name)
            await world.cut()
            await lost(link)
            await link.close()
        assert len(set(names)) == 1

    async def test_a_link_lost_between_pubrec_and_pubrel_redelivers_nothing(self, world: MqttWorld) -> None:
        """The broker has PUBREC and continues with PUBREL on the next link, which answers it."""
        world.sources([world.source], qos=2)
        link = await world.connect()
        await world.send_to(world.source, [b"one", b"two"], qos=2)
        one, two = await DeliveryCollector(link).take(2)
        world.proxy.stall(to_broker=False)
        sent = world.proxy.sent
        two.settle()
        one.settle()
        await wait_until(lambda: world.proxy.sent == sent + 8)
        await world.send_to(world.out, [b"after both"])  # the broker has read what came before
        await world.cut()
        await lost(link)
        await link.close()
        for number in (3, 4):  # what the third link lacks, the second one has completed
            link = await world.connect()
            await world.send_to(world.source, [b"%d" % number], qos=2)
            assert await DeliveryCollector(link).payloads(1) == [b"%d" % number]
            await link.close()

    async def test_a_lost_pubrec_makes_the_delivery_come_again_with_its_name(self, world: MqttWorld) -> None:
        world.sources([world.source], qos=2)
        first = await world.connect()
        await world.send_to(world.source, [b"two"], qos=2)
        [delivery] = await DeliveryCollector(first).take(1)
        world.proxy.stall(to_client=False)
        delivery.settle()
        await wait_until(lambda: not first._in.unsent)
        await world.cut()
        await lost(first)
        await first.close()
        second = await world.connect()
        [again] = await DeliveryCollector(second).take(1)
        assert (again.name, again.redelivered) == (delivery.name, True)
        again.settle()
        await second.close()
        third = await world.connect()
        await world.send_to(world.source, [b"three"], qos=2)
        assert await DeliveryCollector(third).payloads(1) == [b"three"]
        await third.close()

    async def test_a_rejected_delivery_with_qos_2_is_acknowledged_or_comes_again(self, world: MqttWorld) -> None:
        world.sources([world.source], qos=2)
        first = await world.connect()
        await world.send_to(world.source, [b"dropped", b"again"], qos=2)
        dropped, again = await DeliveryCollector(first).take(2)
        dropped.settle(Outcome.DROPPED)
        again.settle(Outcome.REDELIVER)
        await first.close()
        second = await world.connect()
        [delivery] = await DeliveryCollector(second).take(1)
        assert (delivery.envelope.payload, delivery.redelivered) == (b"again", True)
        delivery.settle()
        await second.close()

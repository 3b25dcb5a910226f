"""The end of a session, of an MQTT client that will not come back or at a broker that has not kept it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from connectivity.errors import LinkRenewed, NotConnected
from connectivity.transports.base import ConsumeOptions, Delivery, Outcome
from connectivity.transports.mqtt.async_client import AsyncMqttClient
from connectivity.transports.mqtt.link import IN_FLIGHT, MAX_UNACKNOWLEDGED, MqttLink
from tests.contract.link import DeliveryCollector, numbered
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.clients.bare_mqtt import BareMqttClient
from tests.support.wait import PATIENCE, wait_until

if TYPE_CHECKING:
    from tests.contract.mqtt_link import MqttLinkHarness


class MqttSessionEnd:
    """Tests with a `harness`; see `MqttBehavior`."""

    async def test_a_session_that_the_broker_has_not_kept_is_reported_before_its_deliveries(
        self, harness: MqttLinkHarness
    ) -> None:
        """Its packet identifiers are those of earlier deliveries."""
        begun: list[str] = []

        async def on_new_session(prefix: str) -> None:
            begun.append(prefix)

        harness.consume = ConsumeOptions(on_new_session=on_new_session)
        first = await harness.connect()
        assert begun == ["mqtt:"]
        await first.close()
        second = await harness.connect()
        await harness.send([b"kept"])
        [delivery] = await DeliveryCollector(second).take(1)
        assert (begun, delivery.name) == (["mqtt:"], "mqtt:1")
        await second.close()
        clean = await harness.connect(cleanSession="true")
        assert begun == ["mqtt:", "mqtt:"]
        await harness.send([b"another"])
        [delivery] = await DeliveryCollector(clean).take(1)
        assert delivery.name == "mqtt:1"
        await clean.close()

    async def test_a_session_ends_when_all_messages_that_the_broker_has_kept_are_settled(
        self, harness: MqttLinkHarness
    ) -> None:
        kept = 2 * IN_FLIGHT
        first = await harness.connect()
        await first.close()
        await harness.send(numbered(kept))
        link = await harness.connect()
        taker = DeliveryCollector(link)
        ending = asyncio.create_task(link.end_session())
        for payload in numbered(kept - 1):
            assert await taker.payloads(1) == [payload]
        [last] = await taker.take(1)
        await harness.send([b"after the subscription"])
        assert not ending.done()
        last.settle()
        await asyncio.wait_for(ending, PATIENCE)
        await link.close()
        assert taker.deliveries == []
        await harness.send([b"after the session"])
        successor = await harness.connect()
        await harness.send([b"of the next session"])
        assert await DeliveryCollector(successor).payloads(1) == [b"of the next session"]
        await successor.close()

    async def test_a_session_does_not_end_between_the_steps_of_a_qos_2_delivery(
        self, harness: MqttLinkHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Only after the last step the broker sends what does not fit in its window; the way there may be long."""
        unsubscribe = AsyncMqttClient.unsubscribe
        waiting: list[Delivery] = []

        async def end_and_close(link: MqttLink) -> None:
            await link.end_session()
            await link.close()

        async def settle_after(channel: AsyncMqttClient, filters: Sequence[str]) -> None:
            await unsubscribe(channel, filters)
            while waiting:
                waiting.pop(0).settle()

        monkeypatch.setattr(AsyncMqttClient, "unsubscribe", settle_after)
        monkeypatch.setattr("connectivity.transports.mqtt.link.SETTLING_PAUSE", 0)
        with Mosquitto.start(config_lines=("max_inflight_messages 7",)) as broker:
            harness.document["uri"] = f"tcp://{broker.host}:{broker.port}"
            harness.sources([harness.source], qos=2)
            link = await harness.connect()
            taker = DeliveryCollector(link)
            with BareMqttClient(broker.host, broker.port, harness.out, is_5=harness.kind == "mqtt-5") as sender:
                for payload in numbered(8):
                    # The broker's window is one for what it receives, too.
                    await asyncio.to_thread(sender.send, harness.source, [payload], qos=2)
            waiting += await taker.take(7)
            ending = asyncio.create_task(end_and_close(link))
            await wait_until(lambda: taker.deliveries or ending.done())
            assert await taker.payloads(len(taker.deliveries)) == numbered(8)[-1:]
            await asyncio.wait_for(ending, PATIENCE)

    async def test_a_session_ends_with_its_subscriptions_of_earlier_documents(self, harness: MqttLinkHarness) -> None:
        harness.sources([harness.source, f"{harness.source}/old"])
        first = await harness.connect()
        await first.close()
        harness.sources([harness.source])
        second = await harness.connect()
        await second.end_session()
        await second.close()
        await harness.send_to(f"{harness.source}/old", [b"between"])
        harness.sources([harness.source, f"{harness.source}/old"])
        third = await harness.connect()
        await harness.send([b"new"])
        assert await DeliveryCollector(third).payloads(1) == [b"new"]
        await third.close()

    async def test_a_session_does_not_end_if_its_link_is_renewed_before(self, harness: MqttLinkHarness) -> None:
        """The broker keeps what was requeued and what it has not sent."""
        first = await harness.connect()
        await harness.send(numbered(MAX_UNACKNOWLEDGED))
        deliveries = await DeliveryCollector(first).take(MAX_UNACKNOWLEDGED)
        ending = asyncio.create_task(first.end_session())
        for delivery in deliveries:
            delivery.settle(Outcome.REDELIVER)
        with pytest.raises(NotConnected):
            await asyncio.wait_for(ending, PATIENCE)
        await first.close()
        second = await harness.connect()
        assert await DeliveryCollector(second).payloads(MAX_UNACKNOWLEDGED) == numbered(MAX_UNACKNOWLEDGED)
        await second.close()

    async def test_a_session_does_not_end_before_the_broker_has_redelivered_what_was_requeued(
        self, harness: MqttLinkHarness
    ) -> None:
        first = await harness.connect()
        await harness.send(numbered(1))
        [delivery] = await DeliveryCollector(first).take(1)
        delivery.settle(Outcome.REDELIVER)
        with pytest.raises(NotConnected):
            await asyncio.wait_for(first.end_session(), PATIENCE)
        assert isinstance(await asyncio.wait_for(first.lost, PATIENCE), LinkRenewed)
        await first.close()
        second = await harness.connect()
        [again] = await DeliveryCollector(second).take(1)
        assert again.envelope.payload == delivery.envelope.payload
        again.settle()
        await asyncio.wait_for(second.end_session(), PATIENCE)
        await second.close()

    @pytest.mark.parametrize("is_lost", [True, False])
    async def test_a_session_does_not_end_if_its_link_is_lost_or_closed_before(
        self, harness: MqttLinkHarness, is_lost: bool
    ) -> None:
        link = await harness.connect()
        await harness.withhold_confirms()
        ending = asyncio.create_task(link.end_session())
        await asyncio.sleep(0)
        if is_lost:
            await harness.cut()
        else:
            await link.close()
        with pytest.raises(NotConnected):
            await asyncio.wait_for(ending, PATIENCE)
        await link.close()

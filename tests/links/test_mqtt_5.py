"""MQTT 5 against a real Mosquitto."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from uuid import uuid4

import pytest

from connectivity.errors import PublishFailed
from connectivity.transports.base import ConsumeOptions, OutboundMessage, Outcome, ReaderStatus
from connectivity.transports.mqtt.mqtt311 import MAX_LEVELS
from connectivity.transports.mqtt.properties import ServerLimits
from mappings.model.envelope import Envelope
from tests.contract.byte_limits import LARGE, LimitedSetup
from tests.contract.link import DeliveryCollector, Publishing, numbered, signs_of
from tests.contract.mqtt_link import MqttBehavior, MqttLinkHarness
from tests.contract.mqtt_qos_2 import Qos2Behavior
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


class TestMqtt5(MqttBehavior, Qos2Behavior):
    kind = "mqtt-5"

    async def test_the_payload_of_a_message_that_is_too_large_is_skipped(self, harness: LimitedSetup) -> None:
        """The broker knows the largest packet, and drops the message."""
        harness.consume = ConsumeOptions(payload=LARGE)
        link = await harness.connect()
        taker = DeliveryCollector(link)
        await harness.send([bytes(LARGE * 12), b"next"])
        assert await taker.payloads(1) == [b"next"]
        await link.close()

    async def test_a_client_without_a_session_leaves_no_share_of_the_messages_at_the_broker(
        self, harness: MqttLinkHarness
    ) -> None:
        harness.document["specificConfig"] = {"cleanSession": "true"}
        stays, leaves = [await harness.connect_client(client, 2) for client in range(2)]
        await leaves.close()
        await harness.send(numbered(10))
        assert await DeliveryCollector(stays).payloads(10) == numbered(10)
        await stays.close()

    async def test_case_23_properties_become_headers(self, harness: MqttLinkHarness) -> None:
        link = await harness.connect()
        taker = DeliveryCollector(link)
        await harness.send([b"{}"], EVERYTHING)
        [delivery] = await taker.take(1)
        own = {"mqtt.topic": harness.source, "mqtt.qos": "1", "mqtt.retain": "false"}
        assert dict(delivery.envelope.headers) == EVERYTHING | own
        delivery.settle()
        await link.close()

    async def test_a_user_property_cannot_pretend_to_be_another_header(self, harness: MqttLinkHarness) -> None:
        link = await harness.connect()
        taker = DeliveryCollector(link)
        await harness.send([b"{}"], {"mqtt.topic": "forged", "Mqtt.Qos": "9", "Correlation-ID": "forged", "x": "y"})
        [delivery] = await taker.take(1)
        assert set(delivery.envelope.headers) == {"mqtt.topic", "mqtt.qos", "mqtt.retain", "x"}
        assert delivery.envelope.header("mqtt.topic") == harness.source
        await link.close()

    async def test_headers_become_properties(self, harness: MqttLinkHarness) -> None:
        link = await harness.connect()
        publishing = Publishing(link)
        publishing.give(OutboundMessage(harness.out, Envelope(b"{}", EVERYTHING | {"blank": " ", "empty": ""})))
        assert await publishing.all_done() == [None]
        await wait_until(harness.received)
        assert dict(harness.received()[0].headers) == EVERYTHING | {"mqtt.topic": harness.out, "mqtt.qos": "1"}
        await link.close()

    async def test_each_confirm_reports_whether_a_reader_received_the_message(self, harness: MqttLinkHarness) -> None:
        link = await harness.connect()
        signs, publishing = signs_of(link), Publishing(link)
        unread = f"nobody/{harness.out}"
        for address in (harness.out, unread, harness.out, unread):
            publishing.give(OutboundMessage(address, Envelope(b"{}")))
        assert await publishing.all_done() == [None] * 4
        assert Counter(signs) == {(harness.out, ReaderStatus.HEARD): 2, (unread, ReaderStatus.UNDELIVERED): 2}
        await link.close()

    async def test_an_address_that_may_not_be_published_to_is_reported(
        self, harness: MqttLinkHarness, tmp_path: Path
    ) -> None:
        rules = tmp_path / "acl"
        rules.write_text(f"topic readwrite {harness.source}\ntopic readwrite {harness.out}\n")
        rules.chmod(0o644)
        with Mosquitto.start(config_lines=(f"acl_file {rules}",)) as own:
            harness.document["uri"] = f"tcp://{own.host}:{own.port}"
            link = await harness.connect()
            signs, publishing = signs_of(link), Publishing(link)
            publishing.give(OutboundMessage("lab/closed", Envelope(b"{}")))
            [error] = await publishing.all_done()
            assert isinstance(error, PublishFailed)
            assert signs == [("lab/closed", ReaderStatus.REFUSED)]
            await link.close()

    async def test_an_expiry_interval_of_zero_is_not_sent(self, harness: MqttLinkHarness) -> None:
        link = await harness.connect()
        publishing = Publishing(link)
        publishing.give(OutboundMessage(harness.out, Envelope(b"{}", {"mqtt.message-expiry-interval": "0"})))
        assert await publishing.all_done() == [None]
        await wait_until(harness.received)
        assert "mqtt.message-expiry-interval" not in harness.received()[0].headers
        await link.close()

    @pytest.mark.parametrize(
        "headers",
        [
            {"mqtt.message-expiry-interval": "soon"},
            {"mqtt.message-expiry-interval": "-1"},
            {"mqtt.message-expiry-interval": "4294967296"},
            {"x-line": "x" * 70_000},
            {"content-type": "x" * 70_000},
            {"correlation-id": "x" * 70_000},
        ],
        ids=lambda headers: "".join(headers)[:20].encode("unicode_escape").decode(),
    )
    async def test_a_header_that_cannot_be_carried_is_a_failure_with_status_400(
        self, harness: MqttLinkHarness, headers: dict[str, str]
    ) -> None:
        """Otherwise it would end the link, also after each reconnect."""
        link = await harness.connect()
        publishing = Publishing(link)
        publishing.give(OutboundMessage(harness.out, Envelope(b"{}", headers)))
        [error] = await publishing.all_done()
        assert isinstance(error, PublishFailed)
        assert error.fault.status == 400
        await link.close()

    async def test_texts_that_mqtt_does_not_allow_prevent_no_message(self, harness: MqttLinkHarness) -> None:
        """Devices choose headers; the broker would end the link."""
        link = await harness.connect()
        publishing = Publishing(link)
        headers = {"x-line": "two\nlines", "x-\x7f": "\ufdd0y", "content-type": "\0a", "x": "\ud800"}
        topics = ["a/+", "a\nb", "$SYS/a", "/x" * MAX_LEVELS]
        for each in topics:
            publishing.give(OutboundMessage(harness.out, Envelope(b"{}", headers | {"reply-to": each})))
        assert await publishing.all_done() == [None] * len(topics)
        await wait_until(lambda: len(harness.received()) == len(topics))
        sent = {"x-line": "two\ufffdlines", "x-\ufffd": "\ufffdy", "content-type": "\ufffda", "x": "\ufffd"}
        for received in harness.received():
            assert dict(received.headers) == sent | {"mqtt.topic": harness.out, "mqtt.qos": "1"}
        await link.close()

    async def test_the_window_never_exceeds_the_limit_of_the_broker(self, harness: MqttLinkHarness) -> None:
        with Mosquitto.start(config_lines=("max_inflight_messages 7",)) as own:
            harness.document["uri"] = f"tcp://{own.host}:{own.port}"
            link = await harness.connect()
            assert link.window == 7
            await link.close()

    async def test_a_message_larger_than_the_broker_takes_is_a_failure(self, harness: MqttLinkHarness) -> None:
        """Otherwise it would end the link."""
        with Mosquitto.start(config_lines=("max_packet_size 2000",)) as own:
            harness.document["uri"] = f"tcp://{own.host}:{own.port}"
            link = await harness.connect()
            publishing = Publishing(link)
            publishing.give(
                OutboundMessage(harness.out, Envelope(bytes(2000))), OutboundMessage(harness.out, Envelope(bytes(1000)))
            )
            too_large, fine = await publishing.all_done()
            assert isinstance(too_large, PublishFailed)
            assert (too_large.fault.status, fine) == (413, None)
            await link.close()

    async def test_a_payload_larger_than_the_broker_takes_is_a_failure_for_good(self, harness: MqttLinkHarness) -> None:
        with Mosquitto.start(config_lines=("message_size_limit 1000",)) as own:
            harness.document["uri"] = f"tcp://{own.host}:{own.port}"
            link = await harness.connect()
            publishing = Publishing(link)
            publishing.give(OutboundMessage(harness.out, Envelope(bytes(1001))))
            [error] = await publishing.all_done()
            assert isinstance(error, PublishFailed)
            assert (str(error), error.fault.status) == ("the broker refused the message: Packet too large", 413)
            await link.close()

    async def test_a_message_of_several_sources_is_acknowledged_when_all_have_ended_it(
        self, harness: MqttLinkHarness
    ) -> None:
        """Here the broker sends one copy for each subscription, so only who rejected it gets it again."""
        harness.sources([harness.source], [f"{harness.source}/#"])
        first = await harness.connect()
        await harness.send([b"shared"])
        [one], [two] = await DeliveryCollector(first, 0).take(1), await DeliveryCollector(first, 1).take(1)
        one.settle()
        two.settle(Outcome.REDELIVER)
        await first.close()
        second = await harness.connect()
        again = DeliveryCollector(second, 1)
        assert (await again.take(1))[0].redelivered
        await harness.send([b"new"])
        assert await DeliveryCollector(second, 0).payloads(1) == [b"new"]
        await second.close()

    async def test_sources_with_the_same_or_overlapping_filters_handle_a_message_once(
        self, harness: MqttLinkHarness
    ) -> None:
        harness.sources([harness.source], [harness.source], [f"{harness.source}/#", "#", harness.source])
        link = await harness.connect()
        takers = [DeliveryCollector(link, index) for index in range(3)]
        await harness.send([b"first", b"second"])
        for taker in takers:
            assert await taker.payloads(2) == [b"first", b"second"]
        await harness.send([b"third"])
        for taker in takers:
            assert await taker.payloads(1) == [b"third"]
        await link.close()

    async def test_after_a_change_of_the_filter_a_message_arrives_once(self, harness: MqttLinkHarness) -> None:
        """The broker keeps the subscription of the old filter with the session."""
        harness.sources([f"{harness.source}/#"])
        await (await harness.connect()).close()
        await harness.send_to(f"{harness.source}/1", [b"while away"])
        harness.sources([f"{harness.source}/+"])
        link = await harness.connect()
        taker = DeliveryCollector(link)
        await harness.send_to(f"{harness.source}/1", [b"first"])
        await wait_until(lambda: any(it.envelope.payload == b"first" for it in taker.deliveries))
        for payload in (b"second", b"third", b"last"):
            await harness.send_to(f"{harness.source}/1", [payload])
        await wait_until(lambda: any(it.envelope.payload == b"last" for it in taker.deliveries))
        found = Counter(it.envelope.payload for it in taker.deliveries)
        assert found.keys() == {b"while away", b"first", b"second", b"third", b"last"}
        assert found[b"first"] in (1, 2), "its first copy may be that of the old filter"
        assert [found[it] for it in (b"while away", b"second", b"third", b"last")] == [1, 1, 1, 1]
        await link.close()

    async def test_a_new_filter_of_a_source_loses_no_message_that_was_queued_for_its_other_filters(
        self, harness: MqttLinkHarness
    ) -> None:
        """Messages of the other source, whose filter has not changed, are in the queue before it."""
        unchanged, changed = f"{harness.source}/unchanged", f"{harness.source}/changed"
        harness.sources([unchanged], [changed])
        await (await harness.connect()).close()
        for number in range(3):
            for topic in (unchanged, changed):
                await harness.send_to(topic, [f"{number}".encode()])
        harness.sources([unchanged], [f"{harness.source}/+", changed, f"{harness.source}/new"])
        link = await harness.connect()
        takers = [DeliveryCollector(link, index) for index in range(2)]
        for taker in takers:
            assert await taker.payloads(3) == [b"0", b"1", b"2"]
        await link.close()

    async def test_several_clients_consume_a_shared_subscription_of_the_document(
        self, harness: MqttLinkHarness
    ) -> None:
        harness.sources([f"$share/{uuid4().hex}/{harness.source}"])
        links = [await harness.connect_client(client, 2) for client in range(2)]
        first, second = (DeliveryCollector(link) for link in links)
        await harness.send(numbered(30))
        await wait_until(lambda: len(first.deliveries) + len(second.deliveries) == 30)
        assert sorted(it.envelope.payload for it in (*first.deliveries, *second.deliveries)) == sorted(numbered(30))
        for link in links:
            await link.close()

    async def test_a_broker_without_shared_subscriptions_delivers_to_the_first_client_alone(
        self, harness: MqttLinkHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ServerLimits, "of", lambda _: ServerLimits(shared_subscriptions=False))
        links = [await harness.connect_client(client, 2) for client in range(2)]
        first, second = (DeliveryCollector(link) for link in links)
        await harness.send(numbered(30))
        assert await first.payloads(30) == numbered(30)
        publishing = Publishing(links[1])
        publishing.give(OutboundMessage(harness.out, Envelope(b"answer")))
        assert await publishing.all_done() == [None]
        assert second.deliveries == [], "the broker would have sent them before its confirm"
        condition = "connected: the broker has no shared subscriptions, only the first client consumes"
        assert [link.condition for link in links] == [condition, condition]
        for link in links:
            await link.close()

    async def test_clients_have_ids_of_their_own_and_keep_them(self, harness: MqttLinkHarness) -> None:
        """With the same IDs the clients resume their sessions: each gets its unacknowledged messages again."""
        links = [await harness.connect_client(client, 2) for client in range(2)]
        takers = [DeliveryCollector(link) for link in links]
        await harness.send(numbered(20))
        await wait_until(lambda: sum(len(taker.deliveries) for taker in takers) == 20)
        had = [[delivery.name for delivery in taker.deliveries] for taker in takers]
        assert all(had)
        for link in links:
            await link.close()
        links = [await harness.connect_client(client, 2) for client in range(2)]
        takers = [DeliveryCollector(link) for link in links]
        await wait_until(lambda: sum(len(taker.deliveries) for taker in takers) == 20)
        assert [[delivery.name for delivery in taker.deliveries] for taker in takers] == had
        for taker, link in zip(takers, links, strict=True):
            for delivery in taker.deliveries:
                delivery.settle()
            await link.close()

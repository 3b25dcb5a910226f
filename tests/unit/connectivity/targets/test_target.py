"""The signals that a target receives, and the messages that it publishes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from connectivity.errors import ConnectivityError, PublishFailed
from connectivity.mapping.script_host import ScriptHost
from connectivity.monitoring.prometheus import PrometheusRegistry
from connectivity.targets import outbox
from connectivity.targets import target as target_module
from connectivity.targets.outbox import Outbox
from connectivity.targets.target import TargetPublisher
from mappings.ids import EntityId, EntityType
from mappings.model.signals import Message, Request, Response, SubscriptionKind, TwinEvent
from tests.support.in_process.fakes import Link
from tests.support.in_process.service import LAMP, NOW, connection, target
from tests.support.wait import wait_until

MESSAGES = "_/_/things/live/messages"
BLINK = Message(LAMP, "to", "blink", "/inbox/messages/blink", b"1", {"correlation-id": "c-1", "desk": "d-4"})

LINES = {
    "mappingEngine": "JavaScript",
    "options": {
        "outgoingScript": """
            function mapFromDittoProtocolMsg(namespace, name, group, channel, criterion, action, path, headers, value) {
                if (value === null) return null;
                if (value === 'bad') throw new Error('bad');
                return [value, value + 1].map((line) => Ditto.buildExternalMsg({}, `${line}`, null, 'text/plain'));
            }
        """
    },
}


class Way:
    """A target with an outbox, a link with confirms on demand, and its counters."""

    def __init__(self, *topics: str, type: str = "memory", **more: Any) -> None:
        self.monitor = PrometheusRegistry()
        self.outbox, self.link = Outbox(), Link()
        self.outbox.attach(self.link)
        made = connection(targets=[target(*topics, **more)], connectionType=type, mappingDefinitions={"lines": LINES})
        self.host = ScriptHost()
        self.route = TargetPublisher(made, 0, self.outbox, self.monitor.meter("site"), lambda: NOW, self.host)
        self.ended: list[ConnectivityError | None] = []

    def count(self, outcome: str) -> float:
        labels = {"connection": "site", "direction": "out", "outcome": outcome}
        return self.monitor.registry.get_sample_value("connectivity_deliveries_total", labels) or 0.0


def test_case_17_the_address_and_the_headers_are_resolved_for_the_signal() -> None:
    mapping = {"subject": "{{ topic:subject }}", "desk": "{{ header:desk | fn:upper() }}", "no": "{{ header:no }}"}
    way = Way(MESSAGES, address="to/{{ thing:name }}/{{ topic:channel }}", headerMapping=mapping, qos=2)
    way.route.post(BLINK, way.ended.append)
    (message,) = way.link.published
    assert (message.address, message.qos) == ("to/lamp-7/live", 2)
    assert message.envelope.headers == {
        "content-type": "application/vnd.eclipse.ditto+json",
        "correlation-id": "c-1",
        "subject": "blink",
        "desk": "D-4",
    }


def test_case_20_mapped_headers_stand_beside_those_of_the_mapper() -> None:
    mapping = {"what": "{{ topic:action }}", "site": "{{ thing-json:attributes/site | fn:default('-') }}"}
    way = Way("_/_/things/twin/events", address="to/{{ thing:name }}/{{ feature:id }}", headerMapping=mapping)
    headers = {"correlation-id": "c-1"}
    event = TwinEvent(
        LAMP, 7, "", "modified", "/features/bulb/properties/on", b"1", headers, b'{"attributes":{"site":"N"}}'
    )
    way.route.post(event, way.ended.append)
    (message,) = way.link.published
    assert message.address == "to/lamp-7/bulb"
    assert message.envelope.headers == {
        "content-type": "application/vnd.eclipse.ditto+json",
        "correlation-id": "c-1",
        "what": "modified",
        "site": "N",
    }


def test_an_event_for_an_address_without_a_value_is_dropped_and_counted() -> None:
    way = Way("_/_/things/twin/events", address="to/{{ feature:id }}")
    event = TwinEvent(LAMP, 7, "", "modified", "/attributes/on", b"1", {})
    assert way.route.post(event, way.ended.append) is None
    assert (way.link.published, way.ended, way.count("address_unresolved")) == ([], [], 1)


def test_without_an_address_nothing_is_published() -> None:
    way = Way(MESSAGES, address="{{ header:no }}")
    assert way.route.post(BLINK, way.ended.append) is None
    assert (way.link.published, way.ended, way.count("address_unresolved")) == ([], [], 1)


def test_a_missing_target_address_is_logged_once_as_a_warning_and_then_at_debug_level() -> None:
    way = Way(MESSAGES, address="{{ header:no }}")
    with capture_logs() as lines:
        way.route.post(BLINK, way.ended.append)
        way.route.post(BLINK, way.ended.append)
    assert [(line["log_level"], line["event"]) for line in lines] == [
        ("warning", "signal has no address"),
        ("debug", "signal has no address"),
    ]
    assert (lines[0]["target"], lines[0]["address"]) == (0, "{{ header:no }}")


def test_an_address_that_a_sender_has_spoiled_is_a_failure() -> None:
    way = Way(MESSAGES, address="{{ header:desk }}/x")
    with capture_logs() as lines:
        assert way.route.post(Message(*_blink_at("a/#")), way.ended.append) is not None
    assert (way.link.published, way.count("failed"), len(lines)) == ([], 1, 1)
    assert failures(way) == [400]


def failures(way: Way) -> list[int]:
    """Return the statuses that waiters received, each of which must be a failure."""
    assert all(isinstance(error, PublishFailed) for error in way.ended)
    return [error.fault.status for error in way.ended if isinstance(error, PublishFailed)]


def _blink_at(desk: str) -> tuple[Any, ...]:
    return LAMP, "to", "blink", "/inbox/messages/blink", None, {"desk": desk}


def test_a_signal_that_cannot_be_encoded_fails_with_status_500() -> None:
    way = Way(MESSAGES)
    with capture_logs():
        way.route.post(Request(SubscriptionKind.HISTORY, "k", 1, {}, LAMP), way.ended.append)  # type: ignore[arg-type]
    assert (way.count("failed"), failures(way)) == (1, [500])


def test_a_live_signal_is_not_sent_when_its_time_is_over_and_an_answer_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A live signal must not be late, also where no client waits for it."""
    way = Way(MESSAGES)
    way.outbox.detach()
    monkeypatch.setattr(target_module, "monotonic", lambda: 0.0)
    monkeypatch.setattr(outbox, "monotonic", lambda: 60.0)
    way.route.post(replace(BLINK, value=b"1"), way.ended.append)
    monkeypatch.setattr(target_module, "monotonic", lambda: 1.0)
    way.route.post(replace(BLINK, value=b"2"), way.ended.append)
    way.route.post(Response(LAMP, "modify", "/attributes/on", 204, None, {}), way.ended.append)
    monkeypatch.setattr(outbox, "monotonic", lambda: 60.5)
    with capture_logs() as lines:
        way.outbox.attach(way.link)
    assert [json.loads(text).get("value", "answer") for text in texts(way)] == [2, "answer"]
    assert failures(way) == [408]
    assert (way.count("failed"), [line["event"] for line in lines]) == (1, ["message not published"])
    way.link.confirm()
    assert way.ended[1:] == [None, None]


def test_an_event_of_a_twin_can_be_written_too() -> None:
    event = TwinEvent(LAMP, 7, "2030-01-15T07:30:00.250000Z", "modified", "/attributes/on", b"true", {})
    way = Way(address="{{ topic:channel }}/{{ topic:action }}")
    way.route.post(event, way.ended.append)
    (message,) = way.link.published
    assert message.address == "twin/modified"


def test_the_sender_of_a_signal_gets_one_result() -> None:
    way = Way(MESSAGES)
    way.route.post(BLINK, way.ended.append)
    assert way.ended == []
    way.link.confirm()
    assert (way.ended, way.count("published")) == ([None], 1)
    refused = PublishFailed("not authorized")
    way.route.post(BLINK, way.ended.append)
    with capture_logs() as lines:
        way.link.confirm(error=refused)
    assert (way.ended, way.count("failed")) == ([None, refused], 1)
    assert (lines[0]["target"], lines[0]["correlation_id"]) == (0, "c-1")


def test_a_full_target_drops_signals_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_module, "MAX_WAITING", 2)
    way = Way(MESSAGES)
    with capture_logs():
        for _ in range(3):
            way.route.post(BLINK, way.ended.append)
    assert [type(error) for error in way.ended] == [PublishFailed]
    way.link.confirm()
    assert way.ended[1:] == [None, None]


def test_a_closed_target_fails_its_waiting_signals_and_sends_no_more() -> None:
    way = Way(MESSAGES)
    way.link.window = 1
    for _ in range(2):
        way.route.post(BLINK, way.ended.append)
    way.route.close()
    assert [str(error) for error in way.ended] == ["the connection is closed"] * 2
    way.link.confirm()
    assert len(way.ended) == 2
    assert len(way.link.published) == 1


@pytest.mark.parametrize(("type", "status"), [("memory", 200), ("kafka", 204), ("mqtt", 200), ("amqp-091", 200)])
def test_a_confirm_has_the_status_of_its_broker(type: str, status: int) -> None:
    assert Way(type=type).route.confirmed_status == status


def test_rule_2_4_an_event_of_a_thing_with_a_wildcard_in_its_id_is_published_under_its_id_as_kafka_key() -> None:
    pump = EntityId(EntityType.THING, "acme.site", "pump#1+")
    way = Way(MESSAGES, type="kafka", address="events/{{ thing:id }}")
    way.route.post(replace(BLINK, entity=pump), way.ended.append)
    assert [message.address for message in way.link.published] == ["events/acme.site:pump#1+"]


def test_a_label_may_hold_the_connections_id() -> None:
    assert Way(issuedAcknowledgementLabel="{{ connection:id }}:sent").route.label == "site:sent"


def texts(way: Way) -> list[str]:
    return [message.envelope.payload.decode() for message in way.link.published]


@pytest.fixture
async def scripted() -> AsyncIterator[Way]:
    made = Way(MESSAGES, payloadMapping=["lines", "RawMessage"])
    yield made
    await made.host.close()


@pytest.mark.extra("javascript")
async def test_scripts_make_messages_in_the_order_of_the_list_and_of_the_signals(scripted: Way) -> None:
    for value in (b"1", b"3"):
        assert scripted.route.post(replace(BLINK, value=value), scripted.ended.append) is not None
    assert texts(scripted) == []
    await wait_until(lambda: len(texts(scripted)) == 6, 60)
    assert texts(scripted) == ["1", "2", "1", "3", "4", "3"]
    scripted.link.confirm()
    assert (scripted.ended, scripted.count("published")) == ([None, None], 6)


@pytest.mark.extra("javascript")
@pytest.mark.parametrize(
    ("value", "mapping", "outcome"),
    [
        (b"null", ["lines"], "unwritten"),
        (b'"bad"', ["lines"], "failed"),
        (b'"bad"', ["RawMessage", "lines"], "failed"),
    ],
)
async def test_a_signal_that_scripts_turn_into_no_message_completes(
    value: bytes, mapping: list[str], outcome: str
) -> None:
    way = Way(MESSAGES, payloadMapping=mapping)
    way.route.post(replace(BLINK, value=value), way.ended.append)
    await wait_until(lambda: way.ended, 60)
    await way.host.close()
    assert (failures(way) if outcome == "failed" else way.ended) == ([400] if outcome == "failed" else [None])
    assert (texts(way), way.count(outcome), way.count("published")) == ([], 1, 0)


async def test_messages_that_scripts_produce_after_the_connection_is_closed_are_not_sent(scripted: Way) -> None:
    scripted.route.post(BLINK, scripted.ended.append)
    scripted.route.close()
    assert [str(error) for error in scripted.ended] == ["the connection is closed"]
    await wait_until(lambda: len(scripted.outbox) == 0, 60)
    assert (texts(scripted), len(scripted.ended)) == ([], 1)

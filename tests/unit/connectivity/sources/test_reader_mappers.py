"""Deliveries read by several payload mappers: signals, their routes, and the error that is answered.

Case numbers are those of the cases for connections.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from connectivity.mapping.script_host import ScriptHost
from connectivity.mapping.script_protocol import ScriptLimits
from connectivity.monitoring.prometheus import PrometheusRegistry
from connectivity.sources.reader import DecodedDelivery, SourceReader
from connectivity.targets.outbox import Outbox
from connectivity.targets.reply_target import reply_publishers
from connectivity.transports.base import Delivery
from mappings.ids import EntityId, EntityType
from mappings.model.envelope import Envelope
from mappings.model.signals import Command, Message
from tests.support.in_process.fixed_codec import FixedCodec
from tests.support.in_process.service import LAMP, NOW, connection, source, turn

MESSAGE = "application/vnd.eclipse.ditto+json"
EVENT = {"ce-specversion": "1.0", "ce-type": "t", "ce-source": "s", "ce-id": "e-1"}
OTHER = EntityId(EntityType.THING, "acme.site", "lamp-8")
DEFINITIONS = {
    "creating": {"mappingEngine": "ImplicitThingCreation", "options": {"thing": {"thingId": "{{ header:device_id }}"}}},
    "status": {"mappingEngine": "ConnectionStatus", "options": {"thingId": "{{ header:device_id }}"}},
    "alarms": {
        "mappingEngine": "Ditto",
        "options": {},
        "incomingConditions": {"isAlarm": "fn:filter(header:kind,'eq','alarm')"},
    },
}
SETTING = """
function mapToDittoProtocolMsg(headers, textPayload) {
    if (textPayload === 'bad') throw new Error('bad');
    return Ditto.buildDittoProtocolMsg(
        'acme.site', 'lamp-7', 'things', 'twin', 'commands', 'modify', '/attributes/on', {}, textPayload);
}
"""
SCRIPTED = {
    "first": {"mappingEngine": "JavaScript", "options": {"incomingScript": SETTING}},
    "second": {
        "mappingEngine": "JavaScript",
        "options": {"incomingScript": SETTING, "content-type-blocklist": "image/png"},
        "incomingConditions": {"isReading": "fn:filter(header:kind,'eq','reading')"},
    },
}
GATEWAY = ["creating", "status", "Ditto"]
ENFORCED = {"enforcement": {"input": "{{ header:device_id }}", "filters": ["{{ thing:id }}"]}}


def reader(*mapping: str, **more: Any) -> SourceReader:
    made = connection(source(payloadMapping=list(mapping), **more), mappingDefinitions=DEFINITIONS)
    return SourceReader(*reply_publishers(made, 0, Outbox(), PrometheusRegistry().meter("site"), lambda: NOW))


def receive(by: SourceReader, payload: bytes, headers: dict[str, str] | None = None) -> DecodedDelivery:
    return by.receive(Delivery(Envelope(payload, headers or {}), "in", "d1", False, lambda *_: None))


def signals_of(received: DecodedDelivery) -> list[tuple[str, str, str]]:
    """Return for each signal its contents, its mapper and its name."""
    return [(each.signal.action, each.route.mapper.name, each.name) for each in received.signals]  # type: ignore[union-attr]


def device(name: EntityId = LAMP, **more: str) -> dict[str, str]:
    return {"device_id": str(name), "creation-time": "1569333903000", "ttd": "20", **more}


def test_every_mapper_reads_and_the_results_come_in_its_order() -> None:
    received = receive(reader(*GATEWAY), turn(True), device())
    assert received.error is None
    assert signals_of(received) == [
        ("create", "creating", "#creating"),
        ("modify", "status", "#status"),
        ("modify", "Ditto", ""),
    ]


def test_each_signal_is_answered_through_its_own_mapper_at_the_same_reply_target() -> None:
    by = reader("Ditto", "CloudEvents")
    received = receive(by, turn(True), {"content-type": MESSAGE, **EVENT})
    first, second = (each.route for each in received.signals)
    assert first is by.route
    assert (second.source, second.outbox, second.source_key) == (first.source, first.outbox, first.source_key)
    assert [each.signal.headers["correlation-id"] for each in received.signals][1] == "e-1"


def test_a_mapper_that_is_listed_twice_names_its_signals_apart() -> None:
    received = receive(reader("Ditto", "Ditto", "CloudEvents"), turn(True), {"content-type": MESSAGE, **EVENT})
    assert [name for _, _, name in signals_of(received)] == ["", "#Ditto.1", "#CloudEvents"]


def test_a_name_does_not_change_with_the_mappers_around_it() -> None:
    """A command redelivered after an edit of the document is still recognized."""
    alone, among = receive(reader("Ditto"), turn(True)), receive(reader(*GATEWAY), turn(True), device())
    assert alone.signals[-1].name == among.signals[-1].name


@pytest.mark.parametrize(("kind", "mappers"), [("alarm", ["alarms", "Ditto"]), ("report", ["Ditto"])])
def test_a_condition_excludes_its_mapper_for_a_delivery(kind: str, mappers: list[str]) -> None:
    received = receive(reader("alarms", "Ditto"), turn(True), {"kind": kind})
    assert [mapper for _, mapper, _ in signals_of(received)] == mappers


def test_a_delivery_that_no_mapper_accepts_is_dropped() -> None:
    received = receive(reader("alarms"), b"{ no JSON", {"kind": "report"})
    assert (received.signals, received.error) == ([], None)


# errors


def test_a_failing_mapper_adds_one_error_and_keeps_the_signals_of_others() -> None:
    received = receive(reader(*GATEWAY), b"{ no JSON", device())
    assert [mapper for _, mapper, _ in signals_of(received)] == ["creating", "status"]
    assert received.error is not None
    assert (received.error.fault.error, received.error.entity) == ("json.invalid", LAMP)


def test_of_several_errors_the_first_one_is_answered() -> None:
    received = receive(reader("creating", "Ditto"), b"{ no JSON")
    assert received.error is not None
    assert (received.signals, received.error.fault.error) == ([], "placeholder:unresolved")


@pytest.mark.parametrize("mapping", [("Ditto",), ("alarms",), ("CloudEvents",), ("creating", "Ditto")])
def test_an_unreadable_delivery_is_answered_by_the_default_mapper(mapping: tuple[str, ...]) -> None:
    by = reader(*mapping)
    received = receive(by, b"{ no JSON", {"kind": "alarm", "content-type": MESSAGE, **EVENT})
    assert received.route is not None
    assert received.route.mapper.is_default
    assert received.route.outbox is by.route.outbox


def test_a_signal_that_is_not_allowed_is_answered_by_its_mapper() -> None:
    headers = {"content-type": MESSAGE, **EVENT, "device_id": str(OTHER)}
    received = receive(reader("CloudEvents", **ENFORCED), turn(True), headers)
    assert received.route is not None
    assert received.error is not None
    assert received.route.mapper.name == "CloudEvents"
    assert (received.error.entity, received.error.headers["correlation-id"]) == (LAMP, "e-1")


def test_a_delivery_that_is_too_large_is_refused_before_any_mapper_reads() -> None:
    made = connection(source(payloadMapping=GATEWAY), mappingDefinitions=DEFINITIONS)
    by = SourceReader(
        *reply_publishers(made, 0, Outbox(), PrometheusRegistry().meter("site"), lambda: NOW), max_payload=10
    )
    received = receive(by, turn(True), device())
    assert received.error is not None
    assert received.route is not None
    assert (received.signals, received.error.fault.status, received.route.mapper.name) == ((), 413, "Ditto")


def test_an_internal_error_in_one_mapper_is_answered_and_the_others_continue() -> None:
    by = reader("CloudEvents", "Ditto")
    by.route.mapper.codec = FixedCodec(RuntimeError("an internal error"))
    received = receive(by, turn(True))
    assert received.error is not None
    assert (received.error.fault.status, [mapper for _, mapper, _ in signals_of(received)]) == (500, ["Ditto"])


# enforcement and headers


def test_case_11_every_signal_of_every_mapper_has_to_be_about_the_sender() -> None:
    """The template fits the sender, the payload does not: it is refused, and other signals remain."""
    received = receive(reader(*GATEWAY, **ENFORCED), turn(True), device(OTHER))
    assert received.error is not None
    assert received.error.fault.error == "connectivity:connection.id.enforcement.failed"
    assert received.error.entity == LAMP
    assert [(each.signal.entity, each.route.mapper.name) for each in received.signals] == [
        (OTHER, "creating"),
        (OTHER, "status"),
    ]


def test_case_11_the_refusal_of_a_mapper_without_responses_is_written_by_ditto() -> None:
    made = {"input": "{{ header:speaks-for }}", "filters": ["{{ thing:id }}"]}
    received = receive(reader("creating", enforcement=made), b"", {**device(), "speaks-for": str(OTHER)})
    assert received.route is not None
    assert (received.signals, received.route.mapper.is_default) == ([], True)


def test_case_13_a_sender_that_may_act_for_the_thing_passes_with_every_mapper() -> None:
    received = receive(reader(*GATEWAY, **ENFORCED), turn(True), device())
    assert (len(received.signals), received.error) == (3, None)


def test_case_53_headers_of_the_mapper_are_kept_and_the_source_fills_the_others() -> None:
    mapped = {"if-none-match": "{{ header:tag }}", "correlation-id": "{{ header:cid }}"}
    received = receive(reader("creating", headerMapping=mapped), b"", device(tag='"rev:7"', cid="c-7"))
    headers = received.signals[0].signal.headers
    assert (headers["if-none-match"], headers["correlation-id"]) == ("*", "c-7")


def test_a_raw_message_is_read_as_a_message() -> None:
    headers = {"ditto-message-thing-id": str(LAMP), "ditto-message-subject": "turn", "content-type": "text/plain"}
    (only,) = receive(reader("RawMessage"), b"on", headers).signals
    assert isinstance(only.signal, Message)
    assert (only.signal.subject, json.loads(only.signal.value or b"")) == ("turn", "on")


def test_a_command_is_still_a_command_after_the_mapping() -> None:
    (only,) = receive(reader("Ditto"), turn(True)).signals
    assert isinstance(only.signal, Command)


@pytest.fixture
async def host() -> AsyncIterator[ScriptHost]:
    made = ScriptHost(ScriptLimits(seconds=10.0))
    yield made
    await made.close()


async def prepared(host: ScriptHost, payload: bytes, headers: dict[str, str], **more: Any) -> DecodedDelivery:
    """Read a delivery by a source with scripts in its list of mappers."""
    made = connection(
        source(payloadMapping=["first", "status", "second"], **more), mappingDefinitions={**DEFINITIONS, **SCRIPTED}
    )
    by = SourceReader(*reply_publishers(made, 0, Outbox(), PrometheusRegistry().meter("site"), lambda: NOW, host))
    delivery = Delivery(Envelope(payload, headers), "in", "d1", False, lambda *_: None)
    (preparation,) = await by.prepare([delivery])
    return by.receive(delivery, preparation)


@pytest.mark.extra("javascript")
async def test_scripts_stand_anywhere_in_the_list_and_the_results_come_in_its_order(host: ScriptHost) -> None:
    received = await prepared(host, b"21", device(kind="reading"))
    assert received.error is None
    assert signals_of(received) == [
        ("modify", "first", "#first"),
        ("modify", "status", "#status"),
        ("modify", "second", "#second"),
    ]


@pytest.mark.extra("javascript")
@pytest.mark.parametrize("headers", [device(kind="other"), {**device(kind="reading"), "content-type": "image/png"}])
async def test_the_script_of_a_skipped_mapper_does_not_run(host: ScriptHost, headers: dict[str, str]) -> None:
    received = await prepared(host, b"21", headers)
    assert received.error is None
    assert [name for _, name, _ in signals_of(received)] == ["first", "status"]


async def test_a_failing_script_keeps_signals_of_others_and_ditto_answers(
    host: ScriptHost,
) -> None:
    received = await prepared(host, b"bad", device())
    assert [name for _, name, _ in signals_of(received)] == ["status"]
    assert received.error is not None
    assert received.error.fault.error == "connectivity:message.mapping.failed"
    assert received.route is not None
    assert received.route.mapper.name == "Ditto"


@pytest.mark.extra("javascript")
async def test_a_scripted_signal_that_is_not_allowed_is_answered_by_its_mapper(host: ScriptHost) -> None:
    received = await prepared(host, b"21", device(OTHER), **ENFORCED)
    assert received.error is not None
    assert received.error.fault.error == "connectivity:connection.id.enforcement.failed"
    assert received.route is not None
    assert received.route.mapper.name == "first"


async def test_a_source_without_scripts_prepares_nothing() -> None:
    delivery = Delivery(Envelope(turn(True), {}), "in", "d1", False, lambda *_: None)
    assert await reader("Ditto").prepare([delivery]) == ()

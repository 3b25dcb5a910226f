"""Deliveries with several signals: each response has the mapper of its signal.

A redelivery is recognized.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from connectivity.transports.base import Outcome
from mappings.ids import EntityId, EntityType
from tests.support.in_process.service import ConnectionHarness, command, creation, source, streaming, turn, until

pytestmark = pytest.mark.usefixtures("harnesses")

MESSAGE = "application/vnd.eclipse.ditto+json"
STRUCTURED = "application/cloudevents+json"
FAN = EntityId(EntityType.THING, "acme.site", "fan-1")
EVENT: dict[str, Any] = {
    "content_type": MESSAGE,
    "ce_specversion": "1.0",
    "ce_type": "t",
    "ce_source": "s",
    "ce_id": "e-1",
}
DEFINITIONS = {
    "creating": {
        "mappingEngine": "ImplicitThingCreation",
        "options": {"thing": {"thingId": "{{ header:device }}", "attributes": {"on": False}}},
    },
    "alarms": {
        "mappingEngine": "Ditto",
        "options": {},
        "incomingConditions": {"isAlarm": "fn:filter(header:kind,'eq','alarm')"},
        "outgoingConditions": {"failed": "fn:filter(topic:criterion,'eq','errors')"},
    },
}


def harness(*mapping: str, **more: Any) -> ConnectionHarness:
    return ConnectionHarness(source(payloadMapping=list(mapping), **more), mappingDefinitions=DEFINITIONS)


def types(of: ConnectionHarness) -> list[str]:
    return [message.envelope.headers["content-type"] for message in of.link.published]


async def test_case_53_each_command_is_answered_by_its_own_mapper() -> None:
    made = harness("Ditto", "CloudEvents")
    made.deliver(creation(correlation_id="own"), **EVENT)
    # A create of an existing thing is a failure that a retry would not fix.
    assert await made.ended(1) == [Outcome.DROPPED]
    assert types(made) == [MESSAGE, STRUCTURED]
    first, second = made.answers()
    assert (first["status"], first["headers"]["correlation-id"]) == (201, "own")
    assert (second["id"], second["data"]["status"]) == ("e-1", 400)


async def test_an_error_and_the_commands_of_other_mappers_are_answered_before_the_acknowledgement() -> None:
    made = harness("CloudEvents", "creating", "Ditto")
    made.deliver(b"{ no JSON", device=str(FAN))
    await made.settled(1)
    assert [(answer["status"], answer["value"]["error"]) for answer in made.answers()] == [(400, "json.invalid")]
    assert [event.action for event in made.history(FAN)] == ["created"]
    assert (made.count("in", "malformed"), made.count("out", "unwritten")) == (1, 1)


async def test_a_thing_is_created_once_for_a_device_that_reports_often() -> None:
    made = harness("creating", "Ditto")
    reports = [command("modify", "/attributes/on", value, name="fan-1") for value in (True, False)]
    made.deliver(*reports, device=str(FAN))
    await made.settled(2)
    assert made.statuses() == [204, 204]
    assert [event.action for event in made.history(FAN)] == ["created", "modified", "modified"]
    assert (made.count("out", "unwritten"), made.count("out", "failed")) == (2, 0)


async def test_a_thing_that_cannot_be_created_is_only_logged() -> None:
    made = ConnectionHarness(
        source(payloadMapping=["copying"]),
        mappingDefinitions={
            "copying": {
                "mappingEngine": "ImplicitThingCreation",
                "options": {"thing": {"thingId": "{{ header:device }}", "_copyPolicyFrom": "acme.site:nowhere"}},
            }
        },
    )
    with capture_logs() as lines:
        made.deliver(b"", device=str(FAN))
        await made.settled(1)
    assert (made.answers(), made.count("out", "failed")) == ([], 1)
    assert [line["event"] for line in lines] == ["command refused", "signal not mapped"]
    assert "policies:policy.notfound" in lines[-1]["error"]


async def test_a_redelivery_of_several_commands_is_answered_again_and_not_executed() -> None:
    made = harness("creating", "Ditto", "Ditto")
    report = command("modify", "/attributes/on", True, name="fan-1", correlation_id="c-1")
    first = made.delivery(report, "m-1", device=str(FAN))
    made.handle(first)
    await made.settled(1)
    answers = made.answers()
    made.handle(made.delivery(report, "m-1", redelivered=True, device=str(FAN)))
    await made.settled(2)
    assert made.answers() == [*answers, *answers]
    assert [event.action for event in made.history(FAN)] == ["created", "modified", "modified"]


async def test_an_idempotency_key_is_separate_for_each_mapper() -> None:
    """Two mappers read a command to create the same thing: the second is not a redelivery of the first."""
    made = harness("creating", "Ditto")
    for number in (1, 2):
        made.deliver(creation("fan-1", idempotency_key="k"), device=str(FAN), idempotency_key="k")
        await made.ended(number)
    assert [answer["value"]["error"] for answer in made.answers()] == ["things:thing.notcreatable"] * 2
    assert made.count("in", "answered_again") == 1


async def test_a_subscription_sends_by_the_mapper_of_its_latest_command() -> None:
    made = harness("alarms", "CloudEvents")
    made.deliver(creation(), kind="alarm")
    made.deliver(streaming("subscribeForPersistedEvents"), **EVENT)
    await made.settled(2)
    (created,) = made.answers()
    asked = {"subscriptionId": created["data"]["value"]["subscriptionId"], "demand": 10}
    made.deliver(streaming("request", asked), **EVENT)
    await until(lambda: len(made.link.published) == 3)
    assert [json.loads(each.envelope.payload)["type"].rpartition("/")[2] for each in made.link.published] == [
        "created",
        "next",
        "complete",
    ]


async def test_a_delivery_that_no_mapper_accepts_is_counted_as_dropped_and_acknowledged() -> None:
    made = harness("alarms")
    made.deliver(turn(True), kind="report")
    await made.settled(1)
    assert (made.answers(), made.count("in", "unread")) == ([], 1)


async def test_an_outgoing_condition_drops_answers() -> None:
    made = harness("alarms")
    made.deliver(creation(), turn(True), command("retrieve", name="lamp-9"), kind="alarm")
    await made.settled(3)
    assert (made.statuses(), made.count("out", "unwritten")) == ([404], 2)


async def test_a_raw_message_is_a_live_message_to_its_thing() -> None:
    made = harness("RawMessage")
    made.deliver(
        b"on", ditto_message_thing_id="acme.site:lamp-7", ditto_message_subject="turn", content_type="text/plain"
    )
    await made.ended(1)
    (answer,) = made.answers()
    assert (answer["status"], answer["value"]["error"]) == (404, "things:thing.notfound")

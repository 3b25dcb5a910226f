"""Metrics and log of a running connection, with an in-process broker."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from connectivity.connections.lifecycle import Status
from connectivity.errors import ConnectionRefused, Detail
from connectivity.management.client import Backoff
from tests.support.in_process.running_connection import Running
from tests.support.in_process.service import creation, source, target, turn, until

pytestmark = pytest.mark.usefixtures("runs")


def entries(running: Running, category: str) -> list[tuple[str, str]]:
    """Return type and level of the entries of a category, oldest first."""
    logs = running.log_entries()
    return [(entry["type"], entry["level"]) for entry in logs if entry["category"] == category]


def log_messages(running: Running, category: str) -> list[str]:
    logs = running.log_entries()
    return [entry["message"] for entry in logs if entry["category"] == category]


def counted(running: Running, kind: str, address: str, level: str = "success") -> dict[str, int]:
    """Return the counts of an address within the last minute, by type, without zeros."""
    found = running.metrics()[f"{kind}Metrics"]["addressMetrics"][address]
    return {type: both[level]["PT1M"] for type, both in found.items() if both[level]["PT1M"]}


def forget(running: Running) -> None:
    running.meter.reset()
    running.meter.log.reset()


async def test_case_49_the_log_shows_that_a_connection_was_opened_and_every_step_of_a_message() -> None:
    running = await Running.opened(targets=[target("_/_/things/twin/events")])
    assert entries(running, "connection") == [("other", "success")]
    forget(running)
    running.send(turn(1, correlation_id="c-1"))
    await running.answered(1)
    steps = ["consumed", "mapped", "acknowledged"]
    await until(lambda: len(entries(running, "source")) == 3)
    assert entries(running, "source") == [(step, "success") for step in steps]
    assert entries(running, "response") == [(step, "success") for step in ("dispatched", "mapped", "published")]
    found = running.log_entries()
    assert {entry["correlationId"] for entry in found} == {"c-1"}
    assert {entry["entityId"] for entry in found} == {"acme.site:lamp-7"}
    assert {entry["address"] for entry in found if entry["category"] == "source"} == {"in"}


async def test_case_49_the_log_shows_every_step_of_an_event_on_its_way_to_a_target() -> None:
    running = await Running.opened(id="other", targets=[target("_/_/things/twin/events")])
    running.harness.deliver(turn(1, correlation_id="c-1"))
    steps = ["dispatched", "filtered", "mapped", "published"]
    await until(lambda: len(entries(running, "target")) == 4)
    assert entries(running, "target") == [(step, "success") for step in steps]
    found = [entry for entry in running.log_entries() if entry["category"] == "target"]
    assert {(entry["address"], entry["correlationId"]) for entry in found} == {("events", "c-1")}
    assert counted(running, "target", "events") == dict.fromkeys(steps, 1)


async def test_case_49_after_a_reset_the_log_is_shorter() -> None:
    running = await Running.opened()
    before = len(running.log_entries())
    running.meter.log.reset()
    assert len(running.log_entries()) < before


async def test_case_50_an_unreadable_payload_without_a_reply_address_is_acknowledged_and_logged() -> None:
    running = Running(source(replyTarget={"address": "{{ header:reply-to }}"}))
    running.supervisor.open()
    await running.open_again()
    with capture_logs():
        running.send(b"{", response_required="false")
        await until(lambda: ("acknowledged", "success") in entries(running, "source"))
    assert entries(running, "source") == [("consumed", "success"), ("mapped", "failure"), ("acknowledged", "success")]
    assert entries(running, "response") == [("dispatched", "failure"), ("mapped", "success"), ("dropped", "success")]
    assert log_messages(running, "response")[-1] == "Signal dropped, target address unresolved"
    assert counted(running, "source", "in", "failure") == {"mapped": 1}
    assert counted(running, "target", "_responses") == {"mapped": 1, "dropped": 1}
    assert running.metrics()["containsFailures"] is True


async def test_the_log_has_the_reason_of_a_lost_link_and_the_time_of_the_next_attempt() -> None:
    running = await Running.opened(pauses=Backoff(60, 60))
    with capture_logs():
        running.broker.cut("the cable was cut")
        await until(lambda: running.supervisor.status is Status.FAILED)
    await until(lambda: len(entries(running, "connection")) == 2)
    assert entries(running, "connection")[-1] == ("other", "failure")
    words = log_messages(running, "connection")[-1]
    assert words.startswith("Connection failed due to: connecting: the cable was cut. Will reconnect after PT")


async def test_the_log_says_that_a_connection_without_failover_is_not_tried_again() -> None:
    running = Running(failoverEnabled=False)
    running.broker.refusal = ConnectionRefused(Detail.BAD_CREDENTIALS, "who are you")
    with capture_logs():
        running.supervisor.open()
        await until(lambda: not running.supervisor.clients[0].is_running)
    assert log_messages(running, "connection") == [
        "Connection failed due to: bad credentials: who are you. Will not reconnect."
    ]


async def test_the_log_names_the_client_of_a_connection_with_several() -> None:
    running = Running(clientCount=2)
    running.supervisor.open()
    await running.open_again()
    assert sorted(log_messages(running, "connection")) == [
        "Connection successful (client 0)",
        "Connection successful (client 1)",
    ]


async def test_a_closed_connection_has_no_log_and_cannot_be_made_to_keep_one() -> None:
    running = await Running.opened()
    await running.supervisor.close()
    running.supervisor.enable_logs()
    assert running.meter.log.read() == {"connectionLogs": []}


async def test_a_connection_that_is_opened_keeps_a_log_from_the_beginning() -> None:
    running = Running()
    running.supervisor.open()
    running.supervisor.enable_logs()
    assert {"enabledSince", "enabledUntil"} < set(running.meter.log.read())
    await running.open_again()
    assert log_messages(running, "connection") == ["Connection successful"]


async def test_a_delivery_that_is_requeued_was_not_acknowledged() -> None:
    running = await Running.opened()
    forget(running)
    with capture_logs():
        running.send(turn(1, requested_acks=["site:nobody"], timeout="1s"))
        await until(lambda: running.harness.waiting_deliveries())
        running.harness.clock.advance(2)
        running.harness.request_reply.pending.expire()
        await until(lambda: counted(running, "source", "in", "failure"))
    assert counted(running, "source", "in", "failure") == {"acknowledged": 1}
    assert "Message was requeued for redelivery." in log_messages(running, "source")


async def test_a_delivery_of_a_sender_without_authority_for_the_entity_fails_enforcement() -> None:
    by_header = {"input": "{{ header:device }}", "filters": ["{{ thing:id }}"]}
    running = Running(source(enforcement=by_header))
    running.supervisor.open()
    await running.open_again()
    running.send(creation(), device="acme.site:lamp-7")
    await running.answered(1)
    await until(lambda: counted(running, "source", "in").get("acknowledged"))
    forget(running)
    with capture_logs():
        running.send(turn(1), device="acme.site:other")
        running.send(turn(1))
        running.send(turn(1), device="acme.site:lamp-7")
        await running.answered(4)
    await until(lambda: counted(running, "source", "in").get("acknowledged") == 3)
    assert counted(running, "source", "in") == {"consumed": 3, "mapped": 1, "enforced": 1, "acknowledged": 3}
    assert counted(running, "source", "in", "failure") == {"enforced": 2}


async def test_a_message_without_a_matching_mapper_is_dropped() -> None:
    never = {
        "mappingEngine": "Ditto",
        "options": {},
        "incomingConditions": {"never": "fn:filter(header:wanted,'exists')"},
    }
    running = Running(source(payloadMapping=["never"]), mappingDefinitions={"never": never})
    running.supervisor.open()
    await running.open_again()
    running.send(turn(1))
    await until(lambda: counted(running, "source", "in").get("acknowledged") == 1)
    assert counted(running, "source", "in") == {"consumed": 1, "dropped": 1, "acknowledged": 1}


async def test_a_signal_excluded_by_the_filter_of_a_target_is_counted_as_dispatched_and_filtered() -> None:
    topic = "_/_/things/twin/events?filter=gt(attributes/on,5)"
    running = await Running.opened(id="other", targets=[target(topic)])
    await running.harness.ask(turn(1))
    await running.harness.ask(turn(6))
    await until(lambda: counted(running, "target", "events").get("published"))
    assert counted(running, "target", "events") == {"dispatched": 2, "filtered": 1, "mapped": 1, "published": 1}


async def test_an_event_the_target_has_no_permission_to_read_is_not_counted() -> None:
    running = await Running.opened(
        id="other", targets=[target("_/_/things/twin/events", authorizationContext=["acme:stranger"])]
    )
    await running.harness.ask(turn(1))
    await until(lambda: running.harness.event_publisher.of("other")[0].judged == running.harness.store.tail.newest)
    assert counted(running, "target", "events") == counted(running, "target", "events", "failure") == {}


async def test_an_event_refused_by_the_broker_is_counted_as_a_publish_failure() -> None:
    running = await Running.opened(id="other", targets=[target("_/_/things/twin/events")])
    running.broker.refused_addresses.add("events")
    with capture_logs():
        await running.harness.ask(turn(1))
        await until(lambda: counted(running, "target", "events", "failure"))
    assert "published" in counted(running, "target", "events", "failure")
    assert log_messages(running, "target")[-1] == "address events takes no messages"


async def test_elements_of_subscriptions_are_counted_under_responses() -> None:
    running = await Running.opened()
    forget(running)
    running.send(turn(1))
    await running.answered(1)
    assert counted(running, "target", "_responses") == {"dispatched": 1, "mapped": 1, "published": 1}

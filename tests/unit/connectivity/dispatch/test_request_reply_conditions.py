"""Conditions of live signals, and claim messages."""

from __future__ import annotations

import pytest

from connectivity.transports.base import Outcome
from tests.support.in_process.service import ConnectionHarness, document, source, target, turn, until
from tests.support.in_process.two_connections import (
    COMMANDS,
    EVENTS,
    MESSAGES,
    collected,
    live,
    message,
    other_connection,
    with_status,
)

pytestmark = pytest.mark.usefixtures("harnesses")


async def turned_on() -> ConnectionHarness:
    harness = await collected()
    harness.deliver(turn(True))
    await harness.settled(1)
    harness.forget()
    return harness


@pytest.mark.parametrize(
    "payload",
    [
        message(condition="eq(attributes/on,false)"),
        message(box="outbox", condition="exists(attributes/none)"),
        live("modify", "/attributes/on", 1, condition="eq(attributes/on,false)"),
        live("retrieve", "/attributes/on", condition="eq(attributes/on,false)"),
        document(
            "acme.site/lamp-7/things/live/events/modified",
            "/attributes/on",
            1,
            correlation_id="c-1",
            condition="eq(attributes/on,false)",
        ),
    ],
    ids=["message", "message from the thing", "modify", "retrieve", "event"],
)
async def test_a_live_signal_with_a_false_condition_is_refused_and_not_delivered(payload: bytes) -> None:
    harness = await turned_on()
    other = other_connection(harness, target(MESSAGES, COMMANDS, EVENTS))
    harness.deliver(payload)
    assert await harness.ended(1) == [Outcome.SETTLED]
    (answer,) = harness.answers()
    assert (answer["status"], answer["value"]["error"]) == (412, "things:condition.failed")
    assert answer["topic"] == "acme.site/lamp-7/things/live/errors"
    assert other.answers() == []


async def test_a_live_signal_with_a_true_condition_is_delivered() -> None:
    harness = await turned_on()
    other = other_connection(harness, target(MESSAGES, COMMANDS))
    condition = "and(eq(attributes/on,true),ne(_modified,time:now))"
    harness.deliver(message(condition=condition, response_required=False))
    await until(lambda: len(other.answers()) == 1)
    harness.deliver(live("create", "/", {}, condition="eq(attributes/on,false)", response_required=False))
    await until(lambda: len(other.answers()) == 2)
    assert not any("condition" in sent["headers"] for sent in other.answers())


async def test_a_live_signal_with_an_invalid_condition_is_refused() -> None:
    harness = await turned_on()
    harness.deliver(turn([1] * 45_000))
    await harness.settled(1)
    harness.forget()
    other = other_connection(harness, target(MESSAGES))
    for payload, error in (
        (message(condition="eq("), "rql.expression.invalid"),
        (live("modify", "/attributes/on", 1, condition="eq("), "things:condition.invalid"),
        (live("modify", "/attributes/on", 1, condition="eq(foo,1)"), "rql.expression.invalid"),
        (
            message(condition="or(eq(attributes/on,'2'),eq(attributes/on,'3'),eq(attributes/on,'4'))"),
            "rql.expression.invalid",
        ),
    ):
        answer = await harness.ask(payload)
        assert (answer["status"], answer["value"]["error"], other.answers()) == (400, error, [])


async def test_a_condition_of_a_message_compares_only_what_its_sender_can_read() -> None:
    harness = await turned_on()
    other = other_connection(harness, target(MESSAGES))
    strange = ConnectionHarness(source("in", "acme:stranger"), beside=harness, id="strange")
    answer = await strange.ask(message("claim", condition="eq(attributes/on,true)"))
    assert (answer["status"], answer["value"]["error"], other.answers()) == (412, "things:condition.failed", [])


async def test_a_claim_message_reaches_its_thing_without_any_permission() -> None:
    harness = await collected()
    other = other_connection(harness, target(MESSAGES))
    strange = ConnectionHarness(source("in", "acme:stranger"), beside=harness, id="strange")
    strange.deliver(message("claim", "let me in"))
    await until(lambda: other.answers())
    (sent,) = other.answers()
    assert (sent["path"], sent["value"]) == ("/inbox/messages/claim", "let me in")
    other.deliver(with_status(message("claim", "welcome"), 200))
    await strange.settled(1)
    (answer,) = strange.answers()
    assert (answer["status"], answer["value"]) == (200, "welcome")


@pytest.mark.parametrize(
    "payload",
    [
        message("claim", box="outbox"),
        message("claims"),
        message("claim", name="lamp-9"),
        document("acme.site/lamp-7/things/live/messages/claim", "/features/f/inbox/messages/claim"),
    ],
)
async def test_only_a_claim_message_to_an_existing_thing_needs_no_permission(payload: bytes) -> None:
    harness = await collected()
    other = other_connection(harness, target(MESSAGES))
    strange = ConnectionHarness(source("in", "acme:stranger"), beside=harness, id="strange")
    answer = await strange.ask(payload)
    assert (answer["status"], answer["value"]["error"]) == (404, "things:thing.notfound")
    assert other.answers() == []

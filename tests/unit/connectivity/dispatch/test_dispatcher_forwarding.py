"""Deliveries that change a twin and forward a signal: it is sent once, when the change is durable.

A mapper reads the same payload twice: as a command, and as a live message with the command's text as its value.
"""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from connectivity.dispatch import request_reply
from connectivity.dispatch.response_router import ResponseRouter
from connectivity.transports.base import Outcome
from connectivity.twins.access import may_send
from tests.support.in_process.service import LAMP, ConnectionHarness, pause, source, target, turn, until
from tests.support.in_process.two_connections import MESSAGES, message, other_connection

pytestmark = pytest.mark.usefixtures("harnesses")

SETTLED, REDELIVER, DROPPED = Outcome.SETTLED, Outcome.REDELIVER, Outcome.DROPPED
BLINK = {
    "content-type": "text/plain",
    "ditto-message-thing-id": LAMP.id,
    "ditto-message-subject": "blink",
    "correlation-id": "c-1",
}


async def site_with_two_mappers(headers: dict[str, str] = BLINK, *mapping: str, **more: Any) -> ConnectionHarness:
    """A site whose second source reads deliveries as commands and as messages with these headers."""
    options = {"incomingMessageHeaders": headers}
    harness = ConnectionHarness(
        source(),
        source("both", payloadMapping=list(mapping or ("Ditto", "blink"))),
        mappingDefinitions={"blink": {"mappingEngine": "RawMessage", "options": options}},
        **more,
    )
    if "beside" not in more:
        await harness.has_lamp()
    return harness


async def retried(harness: ConnectionHarness) -> None:
    """Wait until the store is available, and retry the postponed deliveries."""
    harness.disk.full = harness.disk.unreadable = False
    await until(lambda: harness.store.commits.is_available)
    arrivals, harness.postponed = harness.postponed, []
    harness.dispatcher.handle(arrivals, harness.postponed.extend)


async def test_a_forwarded_signal_is_sent_when_the_change_beside_it_is_durable() -> None:
    harness = await site_with_two_mappers()
    other = other_connection(harness, target(MESSAGES))
    harness.disk.hold()
    harness.deliver(turn(1), source=1)
    await pause()
    assert (other.answers(), harness.outcomes) == ([], [])
    harness.disk.release()
    await until(lambda: other.answers())
    assert harness.outcomes == [], "it waits for the answer"
    other.deliver(message_answer())
    await harness.settled(1)


def message_answer() -> bytes:
    return message(value="done").replace(b'"path"', b'"status": 200, "path"', 1)


async def test_a_delivery_retried_after_a_failed_commit_forwards_its_signal_once() -> None:
    harness = await site_with_two_mappers()
    other = other_connection(harness, target(MESSAGES))
    harness.disk.full = True
    harness.deliver(turn(1), source=1)
    await until(lambda: harness.postponed)
    assert (other.answers(), harness.link.published, harness.waiting_deliveries()) == ([], [], 0)
    await retried(harness)
    await until(lambda: other.answers())
    other.deliver(message_answer())
    await harness.settled(1)
    assert (len(other.answers()), len(harness.link.published), harness.values()) == (1, 2, [1])


async def test_a_live_response_beside_a_change_is_passed_on_when_the_change_is_durable() -> None:
    harness = ConnectionHarness()
    await harness.has_lamp()
    other = await site_with_two_mappers(
        {**BLINK, "status": "200"}, beside=harness, id="other", targets=[target(MESSAGES)]
    )
    harness.deliver(message())
    harness.disk.full = True
    other.deliver(turn(1), source=1)
    await until(lambda: other.postponed)
    assert harness.answers() == []
    await retried(other)
    await other.settled(1)
    await harness.settled(1)
    assert (harness.statuses(), other.count("in", "unmatched")) == ([200], 0)


async def test_an_unexpected_live_response_beside_a_change_is_acknowledged_with_it() -> None:
    harness = await site_with_two_mappers({**BLINK, "status": "200"})
    with capture_logs() as lines:
        harness.deliver(turn(1), source=1)
        await harness.settled(1)
    assert [line["event"] for line in lines] == ["live response not delivered"]
    assert harness.count("in", "unmatched") == 1


async def test_a_store_that_becomes_unreadable_while_a_message_is_sent_has_no_effect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The state is read when the message is checked: nothing is answered and then retried."""
    harness = await site_with_two_mappers()
    other = other_connection(harness, target(MESSAGES))

    def check_then_break_store(*judged: Any) -> Any:
        fault = may_send(*judged)
        harness.store._cache.clear()
        harness.store._decided.clear()
        harness.disk.unreadable = True
        return fault

    monkeypatch.setattr(request_reply, "may_send", check_then_break_store)
    harness.handle(harness.delivery(turn(1), None), source=1)
    await until(lambda: other.answers())
    harness.disk.unreadable = False
    assert (harness.postponed, harness.values()) == ([], [1])
    other.deliver(message_answer())
    await harness.settled(1)
    assert len(harness.link.published) == 2


async def test_a_message_past_its_timeout_is_not_sent_and_its_requester_gets_an_error() -> None:
    harness = await site_with_two_mappers({**BLINK, "timeout": "1s"})
    other = other_connection(harness, target(MESSAGES))
    harness.disk.hold()
    harness.deliver(turn(1), source=1)
    harness.clock.advance(1)
    harness.request_reply.pending.expire()
    await pause()
    assert harness.link.published == []
    harness.disk.release()
    assert await harness.ended(1) == [REDELIVER]
    assert (other.answers(), len(harness.link.published)) == ([], 2)


async def test_a_change_that_cannot_be_stored_does_not_suppress_the_message_beside_it() -> None:
    harness = await site_with_two_mappers({**BLINK, "response-required": "false"})
    other = other_connection(harness, target(MESSAGES))
    harness.disk.rejected.add(b'"bad"')
    with capture_logs():
        harness.deliver(turn("bad"), source=1)
        assert await harness.ended(1) == [DROPPED]
    assert (harness.statuses(), len(other.answers())) == ([500], 1)


async def test_two_messages_of_one_redelivery_do_not_replace_each_other() -> None:
    harness = await site_with_two_mappers(BLINK, "blink", "blink")
    other = other_connection(harness, target(MESSAGES))
    harness.handle(harness.delivery(b"on", redelivered=True), source=1)
    await until(lambda: other.answers())
    await pause()
    other.deliver(message_answer())
    assert await harness.ended(1) == [Outcome.DROPPED]
    assert len(other.answers()) == 1


async def test_b4_an_internal_error_in_answering_rejects_that_delivery_and_affects_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = ConnectionHarness()
    await harness.has_lamp()

    def fail(*_: object, **__: object) -> None:
        monkeypatch.undo()
        raise ZeroDivisionError("an internal error")

    monkeypatch.setattr(ResponseRouter, "post", fail)
    with capture_logs() as lines:
        harness.handle(harness.delivery(turn(1, correlation_id="c-1"), "x"), harness.delivery(turn(2), "y"))
        assert await harness.ended(2) == [Outcome.DROPPED, Outcome.SETTLED]
    assert [(line["event"], line["correlation_id"]) for line in lines] == [("response not sent", "c-1")]
    assert harness.values() == [1, 2]
    # A retry of the sender finds the change done.
    assert (await harness.redeliver(turn(1, correlation_id="c-1"), "x"))["status"] == 201
    assert harness.values() == [1, 2]

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
from tests.support.in_process.two_connections import MESSAGES, beside, message

pytestmark = pytest.mark.usefixtures("sites")

SETTLED, REDELIVER = Outcome.SETTLED, Outcome.REDELIVER
BLINK = {
    "content-type": "text/plain",
    "ditto-message-thing-id": LAMP.id,
    "ditto-message-subject": "blink",
    "correlation-id": "c-1",
}


async def site_with_two_mappers(headers: dict[str, str] = BLINK, *mapping: str, **more: Any) -> ConnectionHarness:
    """A site whose second source reads deliveries as commands and as messages with these headers."""
    options = {"incomingMessageHeaders": headers}
    site = ConnectionHarness(
        source(),
        source("both", payloadMapping=list(mapping or ("Ditto", "blink"))),
        mappingDefinitions={"blink": {"mappingEngine": "RawMessage", "options": options}},
        **more,
    )
    if "beside" not in more:
        await site.has_lamp()
    return site


async def retried(site: ConnectionHarness) -> None:
    """Wait until the store is available, and retry the postponed deliveries."""
    site.disk.full = site.disk.unreadable = False
    await until(lambda: site.store.is_available)
    arrivals, site.postponed = site.postponed, []
    site.dispatcher.handle(arrivals, site.postponed.extend)


async def test_a_forwarded_signal_is_sent_when_the_change_beside_it_is_durable() -> None:
    site = await site_with_two_mappers()
    other = beside(site, target(MESSAGES))
    site.disk.hold()
    site.deliver(turn(1), source=1)
    await pause()
    assert (other.answers(), site.outcomes) == ([], [])
    site.disk.release()
    await until(lambda: other.answers())
    assert site.outcomes == [], "it waits for the answer"
    other.deliver(message_answer())
    await site.settled(1)


def message_answer() -> bytes:
    return message(value="done").replace(b'"path"', b'"status": 200, "path"', 1)


async def test_a_delivery_retried_after_a_failed_commit_forwards_its_signal_once() -> None:
    site = await site_with_two_mappers()
    other = beside(site, target(MESSAGES))
    site.disk.full = True
    site.deliver(turn(1), source=1)
    await until(lambda: site.postponed)
    assert (other.answers(), site.link.published, site.dispatcher.waiting_deliveries("site")) == ([], [], 0)
    await retried(site)
    await until(lambda: other.answers())
    other.deliver(message_answer())
    await site.settled(1)
    assert (len(other.answers()), len(site.link.published), site.values()) == (1, 2, [1])


async def test_a_live_response_beside_a_change_is_passed_on_when_the_change_is_durable() -> None:
    site = ConnectionHarness()
    await site.has_lamp()
    other = await site_with_two_mappers({**BLINK, "status": "200"}, beside=site, id="other", targets=[target(MESSAGES)])
    site.deliver(message())
    site.disk.full = True
    other.deliver(turn(1), source=1)
    await until(lambda: other.postponed)
    assert site.answers() == []
    await retried(other)
    await other.settled(1)
    await site.settled(1)
    assert (site.statuses(), other.count("in", "unmatched")) == ([200], 0)


async def test_an_unexpected_live_response_beside_a_change_is_acknowledged_with_it() -> None:
    site = await site_with_two_mappers({**BLINK, "status": "200"})
    with capture_logs() as lines:
        site.deliver(turn(1), source=1)
        await site.settled(1)
    assert [line["event"] for line in lines] == ["live response not delivered"]
    assert site.count("in", "unmatched") == 1


async def test_a_store_that_becomes_unreadable_while_a_message_is_sent_has_no_effect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The state is read when the message is checked: nothing is answered and then retried."""
    site = await site_with_two_mappers()
    other = beside(site, target(MESSAGES))

    def check_then_break_store(*judged: Any) -> Any:
        fault = may_send(*judged)
        site.store._cache.clear()
        site.store._decided.clear()
        site.disk.unreadable = True
        return fault

    monkeypatch.setattr(request_reply, "may_send", check_then_break_store)
    site.handle(site.delivery(turn(1), None), source=1)
    await until(lambda: other.answers())
    site.disk.unreadable = False
    assert (site.postponed, site.values()) == ([], [1])
    other.deliver(message_answer())
    await site.settled(1)
    assert len(site.link.published) == 2


async def test_a_message_past_its_timeout_is_not_sent_and_its_requester_gets_an_error() -> None:
    site = await site_with_two_mappers({**BLINK, "timeout": "1s"})
    other = beside(site, target(MESSAGES))
    site.disk.hold()
    site.deliver(turn(1), source=1)
    site.clock.advance(1)
    site.dispatcher._request_reply.pending.expire()
    await pause()
    assert site.link.published == []
    site.disk.release()
    assert await site.ended(1) == [REDELIVER]
    assert (other.answers(), len(site.link.published)) == ([], 2)


async def test_a_change_that_cannot_be_stored_does_not_suppress_the_message_beside_it() -> None:
    site = await site_with_two_mappers({**BLINK, "response-required": "false"})
    other = beside(site, target(MESSAGES))
    site.disk.rejected.add(b'"bad"')
    with capture_logs():
        site.deliver(turn("bad"), source=1)
        assert await site.ended(1) == [REDELIVER]
    assert (site.statuses(), len(other.answers())) == ([500], 1)


async def test_two_messages_of_one_redelivery_do_not_replace_each_other() -> None:
    site = await site_with_two_mappers(BLINK, "blink", "blink")
    other = beside(site, target(MESSAGES))
    site.handle(site.delivery(b"on", redelivered=True), source=1)
    await until(lambda: other.answers())
    await pause()
    other.deliver(message_answer())
    assert await site.ended(1) == [Outcome.DROPPED]
    assert len(other.answers()) == 1


async def test_an_internal_error_in_answering_a_delivery_leaves_it_unacknowledged_and_affects_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = ConnectionHarness()
    await site.has_lamp()

    def fail(*_: object, **__: object) -> None:
        monkeypatch.undo()
        raise ZeroDivisionError("an internal error")

    monkeypatch.setattr(ResponseRouter, "post", fail)
    with capture_logs() as lines:
        site.handle(site.delivery(turn(1, correlation_id="c-1"), "x"), site.delivery(turn(2), "y"))
        assert await site.settled(1) == ["y"]
    assert [(line["event"], line["correlation_id"]) for line in lines] == [("response not sent", "c-1")]
    assert (await site.redeliver(turn(1, correlation_id="c-1"), "x"))["status"] == 201
    assert await site.settled(2) == ["y", "x"]
    assert site.values() == [1, 2]

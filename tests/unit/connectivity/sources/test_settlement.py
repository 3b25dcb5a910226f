"""Deliveries that nothing settles: their age is measured, and they are rejected as the last resort."""

from __future__ import annotations

import time
from typing import Any

import pytest
from structlog.testing import capture_logs

from connectivity.dispatch.dispatcher import Dispatcher
from connectivity.targets import outbox
from tests.support.in_process.running_connection import Running, numbered
from tests.support.in_process.service import pause, source, turn, until
from tests.support.in_process.two_connections import acknowledgement

pytestmark = pytest.mark.usefixtures("runs")

DITTO = "application/vnd.eclipse.ditto+json"
TIMEOUT = 300.0
LATER = TIMEOUT + 1


async def reject_overdue(running: Running, after: float = LATER) -> list[Any]:
    """Check for overdue deliveries so many seconds later; return the log."""
    with capture_logs() as lines:
        running.supervisor.deliveries.reject_overdue(time.monotonic() + after, TIMEOUT)
        await pause()
    return [line for line in lines if line["event"] == "delivery not settled in time"]


async def forgetful(monkeypatch: pytest.MonkeyPatch, *sources: dict[str, Any]) -> Running:
    """A connection whose deliveries are lost by a mistake in the dispatcher."""
    running = await Running.opened(*sources)
    monkeypatch.setattr(running.supervisor.deliveries, "process", lambda *_: None)
    return running


async def test_the_age_of_the_oldest_unsettled_delivery_is_known_for_each_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = await forgetful(monkeypatch, source("in"), source("other"))
    running.send(*numbered(1, 2))
    await pause()
    found = running.supervisor.deliveries.unsettled_seconds(time.monotonic() + 60)
    assert (found[0] > 60, found[1]) == (True, 0.0)


async def test_settled_deliveries_are_forgotten_although_no_other_arrives() -> None:
    running = await Running.opened()
    running.send(turn(1, requested_acks=["twin-persisted", "other:seen"], timeout="30s"), *numbered(2))
    await running.answered(1)
    assert running.unsettled() == 1
    running.supervisor.deliveries.unsettled_seconds(time.monotonic())
    (consumer,) = running.supervisor.deliveries._consumers
    assert [delivery.outcome for delivery in consumer._unsettled] == [None]


async def test_a_delivery_that_nothing_settles_is_rejected_without_requeue(monkeypatch: pytest.MonkeyPatch) -> None:
    running = await forgetful(monkeypatch)
    running.send(*numbered(1))
    await pause()
    assert await reject_overdue(running, TIMEOUT - 1) == []
    assert running.unsettled() == 1
    (line,) = await reject_overdue(running)
    assert (line["connection"], line["source"], line["log_level"]) == ("site", 0, "error")
    assert (running.unsettled(), len(running.broker.dropped)) == (0, 1)
    assert running.harness.count("in", "overdue") == 1
    assert await reject_overdue(running) == []


async def test_a_response_after_the_deadline_does_not_settle_the_delivery_again() -> None:
    running = await Running.opened()
    running.broker.withheld_confirms = 1
    running.send(turn(1))
    await running.answered(1)
    assert len(await reject_overdue(running)) == 1
    with capture_logs():
        await running.linked_again()
    await running.answered(2)
    assert (running.unsettled(), len(running.broker.dropped)) == (0, 1)


async def test_deliveries_that_an_unavailable_store_holds_are_not_overdue() -> None:
    running = await Running.opened()
    running.harness.disk.full = True
    with capture_logs():
        running.send(*numbered(1))
        await until(lambda: not running.harness.store.commits.is_available)
        assert await reject_overdue(running) == []
        running.harness.disk.full = False
        assert await running.answered(1) == ["1"]
    assert running.broker.dropped == []


async def test_a_broker_that_takes_no_messages_makes_no_delivery_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    running = await forgetful(monkeypatch)
    running.send(*numbered(1))
    await pause()
    for link in running.broker.links:
        link.condition = "refused by broker: connection blocked"
    assert await reject_overdue(running) == []


async def test_a_note_on_a_working_link_does_not_extend_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    running = await forgetful(monkeypatch)
    running.send(*numbered(1))
    await pause()
    for link in running.broker.links:
        link.condition = "connected: the broker has no shared subscriptions"
    assert len(await reject_overdue(running)) == 1


async def test_a_full_outbox_makes_no_delivery_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliveries behind it are not processed yet."""
    running = await forgetful(monkeypatch)
    running.send(*numbered(1))
    await pause()
    monkeypatch.setattr(outbox, "FULL_BYTES", 0)
    assert await reject_overdue(running) == []


async def test_a_delivery_that_waits_for_acknowledgements_has_a_timeout_of_its_own() -> None:
    running = await Running.opened()
    running.send(turn(1, requested_acks=["twin-persisted", "other:seen"], timeout="30s"))
    await until(lambda: running.harness.waiting_deliveries())
    assert await reject_overdue(running) == []
    assert running.unsettled() == 1


async def test_the_settle_timeout_does_not_run_while_one_of_several_signals_waits_for_acknowledgements() -> None:
    running = await Running.opened(
        source("in"),
        source("both", payloadMapping=["Ditto", "CloudEvents"]),
        source("acks", declaredAcks=["{{ connection:id }}:seen"]),
    )
    event = {"ce_specversion": "1.0", "ce_type": "t", "ce_source": "s", "ce_id": "e-1", "content_type": DITTO}
    asked = turn(1, correlation_id="c-1", requested_acks=["twin-persisted", "site:seen"], timeout="30s")
    running.send(asked, to="both", **event)
    await until(lambda: len(running.harness.request_reply.pending) == 2)
    running.send(acknowledgement("site:seen", correlation_id="c-1"), to="acks")
    await running.answered(1)
    assert await reject_overdue(running) == []
    assert running.unsettled(1) == 1


async def test_the_settle_timeout_counts_from_the_end_of_a_wait_for_acknowledgements() -> None:
    reply = {"address": "out", "expectedResponseTypes": ["response", "error", "nack"]}
    running = await Running.opened(source("in", replyTarget=reply))
    running.broker.withheld_confirms = 1
    running.send(turn(1, requested_acks=["twin-persisted", "other:seen"], timeout="30s"))
    await until(lambda: running.harness.waiting_deliveries())
    (consumer,) = running.supervisor.deliveries._consumers
    (delivery,) = consumer.unsettled()
    delivery.arrived -= LATER
    consumer.working_since -= LATER
    running.harness.clock.advance(31)
    running.harness.request_reply.pending.expire()
    await running.answered(1)
    assert running.unsettled() == 1
    assert await reject_overdue(running, TIMEOUT - 1) == []
    assert len(await reject_overdue(running)) == 1


async def test_the_settle_timeout_of_a_redelivery_runs_when_the_wait_of_its_first_delivery_has_ended() -> None:
    reply = {"address": "out", "expectedResponseTypes": ["response", "error", "nack"]}
    running = await Running.opened(source("in", replyTarget=reply))
    running.send(turn(1, requested_acks=["twin-persisted", "other:seen"], timeout="30s"))
    # It waits for others before its commit has ended, and only afterwards is a redelivery settled with it.
    await until(lambda: running.supervisor.deliveries.ledger.pending)
    (inbound,) = running.supervisor.deliveries.ledger.pending.values()
    assert running.harness.waiting_deliveries() == 1
    with capture_logs():
        await running.linked_again()
    await until(lambda: len(inbound.redeliveries) == 1)
    assert await reject_overdue(running) == []
    running.broker.withheld_confirms = 1
    running.harness.clock.advance(31)
    running.harness.request_reply.pending.expire()
    await running.answered(1)
    assert len(await reject_overdue(running)) == 1
    assert running.unsettled() == 0


async def test_the_settle_timeout_of_a_redelivery_does_not_run_while_its_first_delivery_waits() -> None:
    running = await Running.opened()
    running.broker.withheld_confirms = 2
    running.send(turn(1))
    await running.answered(1)
    with capture_logs():
        await running.linked_again()
    await running.answered(2)
    (inbound,) = running.supervisor.deliveries.ledger.pending.values()
    assert len(inbound.redeliveries) == 1
    inbound.count_waits(1)
    assert await reject_overdue(running) == []
    inbound.count_waits(-1)
    assert len(await reject_overdue(running)) == 1


async def test_a_handler_that_ends_a_batch_early_stalls_no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """The link ends, and the broker redelivers."""
    running = await Running.opened()
    handle, mistakes = Dispatcher.handle, [ZeroDivisionError("an internal error")]

    def fail(self: Dispatcher, *arguments: Any) -> None:
        if mistakes:
            raise mistakes.pop()
        handle(self, *arguments)

    monkeypatch.setattr(Dispatcher, "handle", fail)
    with capture_logs():
        running.send(*numbered(1, 2))
        assert await running.answered(2) == ["1", "2"]
    await until(lambda: running.unsettled() == 0)

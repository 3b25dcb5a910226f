"""Commands that request acknowledgements: their responses, and the outcomes of their deliveries.

Case numbers are those of the cases for connections.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from connectivity.dispatch.response_router import ResponseRouter
from connectivity.transports.base import Outcome
from tests.support.in_process.service import ConnectionHarness, command, document, pause, source, turn, until
from tests.support.in_process.two_connections import (
    NACKS,
    SEEN,
    acknowledgement,
    asking,
    beside,
    collected,
    with_status,
)

pytestmark = pytest.mark.usefixtures("sites")

SETTLED, DROPPED, REDELIVER = Outcome.SETTLED, Outcome.DROPPED, Outcome.REDELIVER


async def durable(site: ConnectionHarness) -> None:
    """Wait until everything so far is durable, and the callbacks have run."""
    await site.store.barrier()
    await pause()


# commands on the twin


async def test_case_34_several_labels_are_answered_together() -> None:
    site = await collected()
    other = beside(site)
    site.deliver(asking("twin-persisted", SEEN))
    await until(lambda: site.history())
    await site.store.barrier()
    await pause()
    assert (site.answers(), site.outcomes) == ([], [])
    assert site.dispatcher.waiting_deliveries("site") == 1
    other.deliver(acknowledgement(value={"offset": 991}))
    assert await site.ended(1) == [SETTLED]
    (answer,) = site.answers()
    assert (answer["topic"], answer["path"], answer["status"]) == ("acme.site/lamp-7/things/twin/acks", "/", 200)
    assert answer["headers"]["correlation-id"] == "c-1"
    assert answer["value"]["twin-persisted"]["status"] == 201
    assert answer["value"]["twin-persisted"]["payload"] is True
    assert answer["value"]["twin-persisted"]["headers"]["entity-revision"] == 2
    seen = answer["value"][SEEN]
    assert (seen["status"], seen["payload"]) == (200, {"offset": 991})
    assert seen["headers"]["ditto-connection-id"] == "other"
    assert await other.settled(1)
    assert other.answers() == []
    assert site.dispatcher.waiting_deliveries("site") == 0


async def test_an_acknowledgement_may_come_before_the_change_is_durable() -> None:
    site = await collected()
    other = beside(site)
    site.disk.hold()
    site.deliver(asking("twin-persisted", SEEN))
    other.deliver(acknowledgement())
    await pause()
    assert site.answers() == []
    site.disk.release()
    await site.settled(1)
    assert site.statuses() == [200]


async def test_nothing_is_answered_before_the_change_is_durable() -> None:
    """Not even a command that requests only labels of others, and not at the timeout."""
    site = await collected()
    other = beside(site)
    site.disk.hold()
    site.deliver(
        asking(SEEN, timeout="1s"), turn(2, correlation_id="c-2", requested_acks=["nobody:there"], timeout="1s")
    )
    other.deliver(acknowledgement())
    site.clock.advance(2)
    site.dispatcher._request_reply.pending.expire()
    await pause()
    assert (site.answers(), site.outcomes) == ([], [])
    site.disk.release()
    assert await site.ended(2) == [SETTLED, REDELIVER]
    assert site.statuses() == [200, 408]


async def test_search_persisted_succeeds_with_the_commit() -> None:
    site = await collected()
    site.deliver(asking("twin-persisted", "search-persisted"))
    await site.settled(1)
    assert {label: ack["status"] for label, ack in site.answers()[0]["value"].items()} == {
        "twin-persisted": 201,
        "search-persisted": 201,
    }


async def test_one_label_that_is_not_the_services_own_is_answered_as_an_acknowledgement() -> None:
    site = await collected()
    other = beside(site)
    site.deliver(asking(SEEN))
    other.deliver(acknowledgement(status=409))
    assert await site.ended(1) == [DROPPED]
    (answer,) = site.answers()
    assert (answer["status"], list(answer["value"])) == (409, [SEEN])


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(204, SETTLED), (400, DROPPED), (412, DROPPED), (408, REDELIVER), (424, REDELIVER), (503, REDELIVER)],
)
async def test_3_9_the_delivery_ends_as_its_acknowledgements_say(status: int, outcome: Outcome) -> None:
    site = await collected()
    other = beside(site)
    site.deliver(asking("twin-persisted", SEEN))
    other.deliver(acknowledgement(status=status))
    assert await site.ended(1) == [outcome]
    assert site.statuses() == [200 if status < 300 else 424]


async def test_case_36_a_label_without_acknowledgement_times_out() -> None:
    site = await collected()
    site.deliver(asking("twin-persisted", "nobody:there", timeout="2s"))
    await until(lambda: site.dispatcher.waiting_deliveries("site"))
    await site.store.barrier()
    await pause()
    site.clock.advance(1.9)
    site.dispatcher._request_reply.pending.expire()
    assert site.answers() == []
    site.clock.advance(0.2)
    site.dispatcher._request_reply.pending.expire()
    assert await site.ended(1) == [REDELIVER]
    (answer,) = site.answers()
    assert answer["status"] == 424
    assert answer["value"]["nobody:there"]["payload"]["error"] == "acknowledgement:request.timeout"
    assert answer["value"]["twin-persisted"]["status"] == 201


async def test_the_timeout_fires_by_itself() -> None:
    site = await collected()
    site.deliver(asking("nobody:there", timeout="20ms"))
    site.clock.advance(0.02)
    assert await site.ended(1) == [REDELIVER]


async def test_a_late_acknowledgement_is_dropped_silently() -> None:
    site = await collected()
    other = beside(site)
    site.deliver(asking(SEEN, timeout="1s"))
    await until(lambda: site.values())
    await pause()
    site.clock.advance(1)
    site.dispatcher._request_reply.pending.expire()
    other.deliver(acknowledgement())
    await other.settled(1)
    assert (other.answers(), other.count("in", "unmatched")) == ([], 1)
    assert len(site.answers()) == 1


async def test_an_acknowledgement_after_the_timeout_is_late_even_during_a_commit() -> None:
    site = await collected()
    other = beside(site)
    site.disk.hold()
    site.deliver(asking(SEEN, timeout="1s"))
    site.clock.advance(1)
    site.dispatcher._request_reply.pending.expire()
    other.deliver(acknowledgement())
    await other.settled(1)
    assert other.count("in", "unmatched") == 1
    site.disk.release()
    assert await site.ended(1) == [REDELIVER]
    assert site.statuses() == [408]


async def test_of_one_label_ten_acknowledgements_are_kept_while_another_is_missing() -> None:
    site = await collected()
    other = beside(site)
    site.deliver(asking(SEEN, "nobody:there", timeout="1s"))
    await durable(site)
    for number in range(15):
        other.deliver(acknowledgement(value=number))
    await other.settled(15)
    assert other.count("in", "unmatched") == 5
    site.clock.advance(1)
    site.dispatcher._request_reply.pending.expire()
    assert await site.ended(1) == [REDELIVER]
    assert [ack["payload"] for ack in site.answers()[0]["value"][SEEN]] == list(range(10))


@pytest.mark.parametrize(
    "wrong",
    [
        acknowledgement(correlation_id="c-2"),
        acknowledgement(channel="live"),
        document("acme.site/lamp-8/things/twin/acks/other:seen", correlation_id="c-1"),
    ],
    ids=["another correlation id", "another channel", "another thing"],
)
async def test_an_acknowledgement_is_for_one_signal(wrong: bytes) -> None:
    site = await collected()
    other = beside(site)
    site.deliver(asking(SEEN))
    await durable(site)
    other.deliver(with_status(wrong, 200))
    await other.settled(1)
    await durable(site)
    assert (site.answers(), site.dispatcher.waiting_deliveries("site")) == ([], 1)


async def test_case_38_an_undeclared_label_is_refused_and_not_forwarded() -> None:
    site = await collected()
    other = beside(site)
    site.deliver(asking("other:unseen"))
    other.deliver(acknowledgement("other:unseen"), acknowledgement("twin-persisted"))
    await other.settled(2)
    errors = [answer["value"]["error"] for answer in other.answers()]
    assert errors == ["acknowledgement:label.not.declared", "acknowledgement:ditto.acklabel.forbidden"]
    assert other.answers()[0]["status"] == 400
    assert site.answers() == []


async def test_an_acknowledgement_without_correlation_id_is_refused() -> None:
    site = await collected()
    other = beside(site)
    payload = with_status(document("acme.site/lamp-7/things/twin/acks/other:seen"), 200)
    other.deliver(payload)
    await other.settled(1)
    assert other.answers()[0]["value"]["error"] == "acknowledgement:correlation-id.missing"


async def test_several_acknowledgements_may_come_together() -> None:
    site = await collected()
    other = ConnectionHarness(source("in", declaredAcks=["other:one", "other:two"]), beside=site, id="other")
    site.deliver(asking("other:one", "other:two"))
    both = {"other:one": {"status": 200}, "other:two": [{"status": 204, "payload": 1}]}
    other.deliver(with_status(document("acme.site/lamp-7/things/twin/acks", value=both, correlation_id="c-1"), 200))
    await site.settled(1)
    assert {label: ack["status"] for label, ack in site.answers()[0]["value"].items()} == {
        "other:one": 200,
        "other:two": 204,
    }


async def test_case_40_failures_are_published_only_where_nacks_are_expected() -> None:
    site = await collected(source())
    other = beside(site)
    site.deliver(asking("twin-persisted", SEEN))
    other.deliver(acknowledgement(status=500))
    assert await site.ended(1) == [REDELIVER]
    assert (site.answers(), site.count("out", "not_expected")) == ([], 1)


async def test_case_41_without_a_response_the_delivery_still_waits_for_its_acknowledgements() -> None:
    site = await collected()
    other = beside(site)
    site.deliver(asking("twin-persisted", SEEN, response_required=False))
    await until(lambda: site.dispatcher.waiting_deliveries("site"))
    await site.store.barrier()
    assert site.outcomes == []
    other.deliver(acknowledgement())
    await site.settled(1)
    assert site.answers() == []


@pytest.mark.parametrize("requested", [["twin-persisted", SEEN], ["twin-persisted"]])
async def test_a_failed_command_is_answered_with_its_own_error(requested: list[str]) -> None:
    site = await collected()
    site.deliver(command("modify", "/features/no/properties", {}, correlation_id="c-1", requested_acks=requested))
    assert await site.ended(1) == [DROPPED]
    assert (site.statuses(), site.answers()[0]["topic"]) == ([404], "acme.site/lamp-7/things/twin/errors")
    assert site.dispatcher.waiting_deliveries("site") == 0


@pytest.mark.parametrize(
    ("headers", "outcome"),
    [({}, SETTLED), ({"requested_acks": []}, SETTLED)],
    ids=["it asked for one", "it asked for none"],
)
async def test_a_failed_condition_acknowledges_the_delivery(headers: dict[str, Any], outcome: Outcome) -> None:
    site = await collected()
    site.deliver(turn(True, condition="eq(attributes/on,5)", **headers))
    assert await site.ended(1) == [outcome]
    assert site.statuses() == [412]


async def test_a_command_without_requested_acknowledgements_is_always_acknowledged() -> None:
    site = await collected()
    site.deliver(command("modify", "/features/no/properties", {}, requested_acks=[]))
    site.deliver(command("modify", "/features/no/properties", {}, response_required=False))
    await site.settled(2)
    assert site.statuses() == [404]


@pytest.mark.parametrize("headers", [{"requested_acks": ["twin-persisted"]}, {"response_required": True}], ids=str)
async def test_3_9_a_timeout_of_zero_is_an_error_and_rejects_the_delivery(headers: dict[str, Any]) -> None:
    site = await collected()
    site.deliver(turn(True, timeout=0, **headers))
    assert await site.ended(1) == [DROPPED]
    assert [answer["value"]["error"] for answer in site.answers()] == ["header.invalid"]
    assert site.values() == []


async def test_the_same_correlation_id_twice_is_refused_while_the_first_waits() -> None:
    site = await collected()
    site.deliver(asking(SEEN), asking(SEEN))
    assert await site.ended(1) == [DROPPED]
    assert site.statuses() == [409]
    assert site.values() == [True]


async def test_a_source_may_request_acknowledgements_for_its_commands() -> None:
    site = ConnectionHarness(source(acknowledgementRequests={"includes": ["twin-persisted", SEEN]}, **NACKS))
    other = beside(site)
    await other.has_lamp()
    site.deliver(turn(True, correlation_id="c-1"))
    await until(lambda: site.dispatcher.waiting_deliveries("site"))
    other.deliver(acknowledgement())
    await site.settled(1)
    assert set(site.answers()[0]["value"]) == {"twin-persisted", SEEN}


# redeliveries


async def test_case_35_a_redelivery_uses_the_stored_response_and_collects_again() -> None:
    site = await collected()
    other = beside(site)
    site.deliver(asking("twin-persisted", SEEN))
    other.deliver(acknowledgement(status=408))
    assert await site.ended(1) == [REDELIVER]
    site.handle(site.delivery(asking("twin-persisted", SEEN), "d2", redelivered=True))
    other.deliver(acknowledgement(status=200))
    assert await site.ended(2) == [REDELIVER, SETTLED]
    first, second = site.answers()
    assert (first["status"], second["status"]) == (424, 200)
    assert first["value"]["twin-persisted"] == second["value"]["twin-persisted"]
    assert site.values() == [True]


async def test_after_five_redeliveries_a_delivery_is_acknowledged_anyway() -> None:
    site = await collected()
    other = beside(site)
    for again in range(6):
        site.handle(site.delivery(asking("twin-persisted", SEEN), "x", redelivered=again > 0))
        other.deliver(acknowledgement(status=503))
        await site.ended(again + 1)
    assert [outcome for _, outcome in site.outcomes] == [REDELIVER] * 5 + [SETTLED]
    assert site.values() == [True]


async def test_a_delivery_without_a_name_is_requeued_once() -> None:
    site = await collected()
    other = beside(site)
    for again in range(2):
        site.handle(site.delivery(asking(SEEN), None, redelivered=again > 0))
        other.deliver(acknowledgement(status=503))
        await site.ended(again + 1)
    assert [outcome for _, outcome in site.outcomes] == [REDELIVER, SETTLED]


@pytest.mark.parametrize("is_durable", [True, False])
async def test_a_redelivery_over_a_new_link_while_waiting_is_acknowledged_instead(
    is_durable: bool,
) -> None:
    site = await collected()
    other = beside(site)
    ends: list[Outcome] = []
    again = site.delivery(asking(SEEN), "x", redelivered=True)
    site.handle(site.delivery(asking(SEEN), "x"))
    if is_durable:
        await durable(site)
    site.handle(replace(again, ended=lambda _, outcome: ends.append(outcome)))
    other.deliver(acknowledgement())
    await until(lambda: ends)
    await pause()
    assert (ends, site.outcomes, len(site.answers()), site.values()) == ([SETTLED], [], 1, [True])


async def test_an_unnamed_redelivery_while_waiting_replaces_the_first() -> None:
    site = await collected()
    other = beside(site)
    site.handle(site.delivery(asking(SEEN), None))
    site.handle(site.delivery(asking(SEEN), None, redelivered=True))
    other.deliver(acknowledgement())
    await site.settled(1)
    await pause()
    assert (len(site.outcomes), site.statuses()) == (1, [200])


async def test_a_redelivery_of_another_source_replaces_no_request() -> None:
    site = await collected(source(**NACKS), source("elsewhere", **NACKS))
    other = beside(site)
    site.handle(site.delivery(asking(SEEN), None))
    site.handle(site.delivery(asking(SEEN), None, redelivered=True), source=1)
    assert await site.ended(1) == [DROPPED]
    assert (site.statuses(), site.dispatcher.waiting_deliveries("site")) == ([409], 1)
    other.deliver(acknowledgement())
    assert await site.ended(2) == [DROPPED, SETTLED]


async def test_a_replaced_request_is_executed_at_its_own_redelivery() -> None:
    """The broker marks another delivery with the same correlation ID; the first request is replaced, not lost."""
    site = await collected()
    other = beside(site)
    site.handle(site.delivery(asking(SEEN), "x"))
    await durable(site)
    site.handle(site.delivery(asking(SEEN), "y", redelivered=True))
    other.deliver(acknowledgement())
    await site.settled(1)
    site.handle(site.delivery(asking(SEEN), "x", redelivered=True))
    other.deliver(acknowledgement())
    assert await site.settled(2) == ["y", "x"]


async def test_after_an_internal_error_at_the_end_a_redelivery_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = await collected()
    other = beside(site)
    site.handle(site.delivery(asking(SEEN), "x"))
    await durable(site)

    def fail(*_: object) -> None:
        raise ZeroDivisionError("an internal error")

    with capture_logs() as lines, monkeypatch.context() as broken:
        broken.setattr(ResponseRouter, "post", fail)
        other.deliver(acknowledgement())
        await other.settled(1)
    assert [line["event"] for line in lines] == ["finishing a pending request failed"]
    site.handle(site.delivery(asking(SEEN), "x", redelivered=True))
    other.deliver(acknowledgement())
    await site.settled(1)
    assert (site.statuses(), site.values()) == ([200], [True])


async def test_while_the_store_is_unavailable_no_acknowledgements_are_collected() -> None:
    site = await collected()
    other = beside(site)
    site.disk.full = True
    site.deliver(asking("twin-persisted", SEEN))
    await until(lambda: site.postponed)
    assert site.dispatcher.waiting_deliveries("site") == 0
    site.disk.full = False
    await until(lambda: site.store.is_available)
    arrivals, site.postponed = site.postponed, []
    site.dispatcher.handle(arrivals, site.postponed.extend)
    other.deliver(acknowledgement())
    await site.settled(1)
    assert (site.statuses(), site.values()) == ([200], [True])


async def test_a_closed_connection_waits_for_nothing() -> None:
    site = await collected()
    other = beside(site)
    site.deliver(asking(SEEN))
    site.dispatcher.close_connection("site")
    other.deliver(acknowledgement())
    await other.settled(1)
    assert (site.outcomes, site.answers(), site.dispatcher.waiting_deliveries("site")) == ([], [], 0)

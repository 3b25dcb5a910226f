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
from tests.support.in_process.service import OWNER, ConnectionHarness, command, document, pause, source, turn, until
from tests.support.in_process.two_connections import (
    NACKS,
    SEEN,
    acknowledgement,
    asking,
    collected,
    other_connection,
    with_status,
)

DITTO = "application/vnd.eclipse.ditto+json"
pytestmark = pytest.mark.usefixtures("harnesses")

SETTLED, DROPPED, REDELIVER = Outcome.SETTLED, Outcome.DROPPED, Outcome.REDELIVER


async def durable(harness: ConnectionHarness) -> None:
    """Wait until everything so far is durable, and the callbacks have run."""
    await harness.store.commits.barrier()
    await pause()


# commands on the twin


async def test_case_34_several_labels_are_answered_together() -> None:
    harness = await collected()
    other = other_connection(harness)
    harness.deliver(asking("twin-persisted", SEEN))
    await until(lambda: harness.history())
    await harness.store.commits.barrier()
    await pause()
    assert (harness.answers(), harness.outcomes) == ([], [])
    assert harness.waiting_deliveries() == 1
    other.deliver(acknowledgement(value={"offset": 991}))
    assert await harness.ended(1) == [SETTLED]
    (answer,) = harness.answers()
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
    assert harness.waiting_deliveries() == 0


async def test_an_acknowledgement_of_a_sender_who_cannot_read_the_change_is_not_accepted() -> None:
    """Even if it has the correlation ID, and its source declares the label."""
    label = "site:seen"
    answered = {"declaredAcks": ["{{ connection:id }}:seen"]}
    harness = await collected(
        source(**NACKS), source("stranger", "acme:stranger", **answered), source("owner", **answered)
    )
    harness.deliver(asking(label))
    await until(lambda: harness.waiting_deliveries() == 1)
    harness.deliver(acknowledgement(label, value={"forged": True}), source=1)
    await pause()
    assert (harness.answers(), harness.waiting_deliveries()) == ([], 1)
    harness.deliver(acknowledgement(label, value={"offset": 991}), source=2)
    await until(lambda: harness.answers())
    (answer,) = harness.answers()
    assert answer["value"][label]["payload"] == {"offset": 991}


async def test_an_acknowledgement_is_accepted_from_the_connection_whose_target_can_read_the_change() -> None:
    label = "site:seen"
    harness = ConnectionHarness(
        source(**NACKS),
        source("acknowledgements", "acme:stranger", declaredAcks=["{{ connection:id }}:seen"]),
        targets=[{"address": "events", "topics": ["_/_/things/twin/events"], "authorizationContext": [OWNER]}],
    )
    await harness.has_lamp()
    harness.deliver(asking(label))
    await until(lambda: harness.waiting_deliveries() == 1)
    harness.deliver(acknowledgement(label, value={"offset": 991}), source=1)
    await until(lambda: harness.waiting_deliveries() == 0)


async def test_an_acknowledgement_may_come_before_the_change_is_durable() -> None:
    harness = await collected()
    other = other_connection(harness)
    harness.disk.hold()
    harness.deliver(asking("twin-persisted", SEEN))
    other.deliver(acknowledgement())
    await pause()
    assert harness.answers() == []
    harness.disk.release()
    await harness.settled(1)
    assert harness.statuses() == [200]


async def test_nothing_is_answered_before_the_change_is_durable() -> None:
    """Not even a command that requests only labels of others, and not at the timeout."""
    harness = await collected()
    other = other_connection(harness)
    harness.disk.hold()
    harness.deliver(
        asking(SEEN, timeout="1s"), turn(2, correlation_id="c-2", requested_acks=["nobody:there"], timeout="1s")
    )
    other.deliver(acknowledgement())
    harness.clock.advance(2)
    harness.request_reply.pending.expire()
    await pause()
    assert (harness.answers(), harness.outcomes) == ([], [])
    harness.disk.release()
    assert await harness.ended(2) == [SETTLED, REDELIVER]
    assert harness.statuses() == [200, 408]


async def test_search_persisted_succeeds_with_the_commit() -> None:
    harness = await collected()
    harness.deliver(asking("twin-persisted", "search-persisted"))
    await harness.settled(1)
    assert {label: ack["status"] for label, ack in harness.answers()[0]["value"].items()} == {
        "twin-persisted": 201,
        "search-persisted": 201,
    }


async def test_one_label_that_is_not_the_services_own_is_answered_as_an_acknowledgement() -> None:
    harness = await collected()
    other = other_connection(harness)
    harness.deliver(asking(SEEN))
    other.deliver(acknowledgement(status=409))
    assert await harness.ended(1) == [DROPPED]
    (answer,) = harness.answers()
    assert (answer["status"], list(answer["value"])) == (409, [SEEN])


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(204, SETTLED), (400, DROPPED), (412, DROPPED), (408, REDELIVER), (424, REDELIVER), (503, REDELIVER)],
)
async def test_3_9_the_acknowledgements_determine_how_the_delivery_ends(status: int, outcome: Outcome) -> None:
    harness = await collected()
    other = other_connection(harness)
    harness.deliver(asking("twin-persisted", SEEN))
    other.deliver(acknowledgement(status=status))
    assert await harness.ended(1) == [outcome]
    assert harness.statuses() == [200 if status < 300 else 424]


async def test_case_36_a_label_without_acknowledgement_times_out() -> None:
    harness = await collected()
    harness.deliver(asking("twin-persisted", "nobody:there", timeout="2s"))
    await until(lambda: harness.waiting_deliveries())
    await harness.store.commits.barrier()
    await pause()
    harness.clock.advance(1.9)
    harness.request_reply.pending.expire()
    assert harness.answers() == []
    harness.clock.advance(0.2)
    harness.request_reply.pending.expire()
    assert await harness.ended(1) == [REDELIVER]
    (answer,) = harness.answers()
    assert answer["status"] == 424
    assert answer["value"]["nobody:there"]["payload"]["error"] == "acknowledgement:request.timeout"
    assert answer["value"]["twin-persisted"]["status"] == 201


async def test_the_timeout_fires_without_further_input() -> None:
    harness = await collected()
    harness.deliver(asking("nobody:there", timeout="20ms"))
    harness.clock.advance(0.02)
    assert await harness.ended(1) == [REDELIVER]


async def test_a_late_acknowledgement_is_dropped_silently() -> None:
    harness = await collected()
    other = other_connection(harness)
    harness.deliver(asking(SEEN, timeout="1s"))
    await until(lambda: harness.values())
    await pause()
    harness.clock.advance(1)
    harness.request_reply.pending.expire()
    other.deliver(acknowledgement())
    await other.settled(1)
    assert (other.answers(), other.count("in", "unmatched")) == ([], 1)
    await until(lambda: harness.answers())
    assert len(harness.answers()) == 1


async def test_an_acknowledgement_after_the_timeout_is_late_even_during_a_commit() -> None:
    harness = await collected()
    other = other_connection(harness)
    harness.disk.hold()
    harness.deliver(asking(SEEN, timeout="1s"))
    harness.clock.advance(1)
    harness.request_reply.pending.expire()
    other.deliver(acknowledgement())
    await other.settled(1)
    assert other.count("in", "unmatched") == 1
    harness.disk.release()
    assert await harness.ended(1) == [REDELIVER]
    assert harness.statuses() == [408]


async def test_of_one_label_ten_acknowledgements_are_kept_while_another_is_missing() -> None:
    harness = await collected()
    other = other_connection(harness)
    harness.deliver(asking(SEEN, "nobody:there", timeout="1s"))
    await durable(harness)
    for number in range(15):
        other.deliver(acknowledgement(value=number))
    await other.settled(15)
    assert other.count("in", "unmatched") == 5
    harness.clock.advance(1)
    harness.request_reply.pending.expire()
    assert await harness.ended(1) == [REDELIVER]
    assert [ack["payload"] for ack in harness.answers()[0]["value"][SEEN]] == list(range(10))


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
    harness = await collected()
    other = other_connection(harness)
    harness.deliver(asking(SEEN))
    await durable(harness)
    other.deliver(with_status(wrong, 200))
    await other.settled(1)
    await durable(harness)
    assert (harness.answers(), harness.waiting_deliveries()) == ([], 1)


async def test_case_38_an_undeclared_label_is_refused_and_not_forwarded() -> None:
    harness = await collected()
    other = other_connection(harness)
    harness.deliver(asking("other:unseen"))
    other.deliver(acknowledgement("other:unseen"), acknowledgement("twin-persisted"))
    await other.settled(2)
    errors = [answer["value"]["error"] for answer in other.answers()]
    assert errors == ["acknowledgement:label.not.declared", "acknowledgement:ditto.acklabel.forbidden"]
    assert other.answers()[0]["status"] == 400
    assert harness.answers() == []


async def test_an_acknowledgement_without_correlation_id_is_refused() -> None:
    harness = await collected()
    other = other_connection(harness)
    payload = with_status(document("acme.site/lamp-7/things/twin/acks/other:seen"), 200)
    other.deliver(payload)
    await other.settled(1)
    assert other.answers()[0]["value"]["error"] == "acknowledgement:correlation-id.missing"


async def test_several_acknowledgements_may_come_together() -> None:
    harness = await collected()
    other = ConnectionHarness(source("in", declaredAcks=["other:one", "other:two"]), beside=harness, id="other")
    harness.deliver(asking("other:one", "other:two"))
    both = {"other:one": {"status": 200}, "other:two": [{"status": 204, "payload": 1}]}
    other.deliver(with_status(document("acme.site/lamp-7/things/twin/acks", value=both, correlation_id="c-1"), 200))
    await harness.settled(1)
    assert {label: ack["status"] for label, ack in harness.answers()[0]["value"].items()} == {
        "other:one": 200,
        "other:two": 204,
    }


async def test_case_40_failures_are_published_only_where_nacks_are_expected() -> None:
    harness = await collected(source())
    other = other_connection(harness)
    harness.deliver(asking("twin-persisted", SEEN))
    other.deliver(acknowledgement(status=500))
    assert await harness.ended(1) == [REDELIVER]
    assert (harness.answers(), harness.count("out", "not_expected")) == ([], 1)


async def test_case_41_without_a_response_the_delivery_still_waits_for_its_acknowledgements() -> None:
    harness = await collected()
    other = other_connection(harness)
    harness.deliver(asking("twin-persisted", SEEN, response_required=False))
    await until(lambda: harness.waiting_deliveries())
    await harness.store.commits.barrier()
    assert harness.outcomes == []
    other.deliver(acknowledgement())
    await harness.settled(1)
    assert harness.answers() == []


@pytest.mark.parametrize("requested", [["twin-persisted", SEEN], ["twin-persisted"]])
async def test_a_failed_command_is_answered_with_its_own_error(requested: list[str]) -> None:
    harness = await collected()
    harness.deliver(command("modify", "/features/no/properties", {}, correlation_id="c-1", requested_acks=requested))
    assert await harness.ended(1) == [DROPPED]
    assert (harness.statuses(), harness.answers()[0]["topic"]) == ([404], "acme.site/lamp-7/things/twin/errors")
    assert harness.waiting_deliveries() == 0


@pytest.mark.parametrize(
    ("headers", "outcome"),
    [({}, SETTLED), ({"requested_acks": []}, SETTLED)],
    ids=["it asked for one", "it asked for none"],
)
async def test_a_failed_condition_acknowledges_the_delivery(headers: dict[str, Any], outcome: Outcome) -> None:
    harness = await collected()
    harness.deliver(turn(True, condition="eq(attributes/on,5)", **headers))
    assert await harness.ended(1) == [outcome]
    assert harness.statuses() == [412]


async def test_a_command_without_requested_acknowledgements_is_always_acknowledged() -> None:
    harness = await collected()
    harness.deliver(command("modify", "/features/no/properties", {}, requested_acks=[]))
    harness.deliver(command("modify", "/features/no/properties", {}, response_required=False))
    await harness.settled(2)
    assert harness.statuses() == [404]


@pytest.mark.parametrize("headers", [{"requested_acks": ["twin-persisted"]}, {"response_required": True}], ids=str)
async def test_3_9_a_timeout_of_zero_is_an_error_and_rejects_the_delivery(headers: dict[str, Any]) -> None:
    harness = await collected()
    harness.deliver(turn(True, timeout=0, **headers))
    assert await harness.ended(1) == [DROPPED]
    assert [answer["value"]["error"] for answer in harness.answers()] == ["header.invalid"]
    assert harness.values() == []


async def test_the_same_correlation_id_twice_is_refused_while_the_first_waits() -> None:
    harness = await collected()
    harness.deliver(asking(SEEN), asking(SEEN))
    assert await harness.ended(1) == [DROPPED]
    assert harness.statuses() == [409]
    assert harness.values() == [True]


async def test_a_source_may_request_acknowledgements_for_its_commands() -> None:
    harness = ConnectionHarness(source(acknowledgementRequests={"includes": ["twin-persisted", SEEN]}, **NACKS))
    other = other_connection(harness)
    await other.has_lamp()
    harness.deliver(turn(True, correlation_id="c-1"))
    await until(lambda: harness.waiting_deliveries())
    other.deliver(acknowledgement())
    await harness.settled(1)
    assert set(harness.answers()[0]["value"]) == {"twin-persisted", SEEN}


# redeliveries


async def test_case_35_a_redelivery_uses_the_stored_response_and_collects_again() -> None:
    harness = await collected()
    other = other_connection(harness)
    harness.deliver(asking("twin-persisted", SEEN))
    other.deliver(acknowledgement(status=408))
    assert await harness.ended(1) == [REDELIVER]
    harness.handle(harness.delivery(asking("twin-persisted", SEEN), "d2", redelivered=True))
    other.deliver(acknowledgement(status=200))
    assert await harness.ended(2) == [REDELIVER, SETTLED]
    first, second = harness.answers()
    assert (first["status"], second["status"]) == (424, 200)
    assert first["value"]["twin-persisted"] == second["value"]["twin-persisted"]
    assert harness.values() == [True]


@pytest.mark.parametrize("acks", [{"c-1": 200, "c-2": 408}, {"c-1": 408, "c-2": 200}])
@pytest.mark.parametrize("is_failure_first", [False, True])
async def test_a_redelivery_of_two_commands_collects_only_what_each_of_them_misses(
    acks: dict[str, int], is_failure_first: bool
) -> None:
    harness = await collected(source(payloadMapping=["Ditto", "CloudEvents"], **NACKS))
    other = other_connection(harness)
    event = {"ce_specversion": "1.0", "ce_type": "t", "ce_source": "s", "ce_id": "c-2", "content_type": DITTO}
    harness.handle(harness.delivery(asking(SEEN), "x", redelivered=False, **event))
    await until(lambda: harness.waiting_deliveries() == 2)
    for name, status in sorted(acks.items(), key=lambda it: it[1], reverse=is_failure_first):
        other.deliver(acknowledgement(status=status, correlation_id=name))
    assert await harness.ended(1) == [REDELIVER]
    harness.handle(harness.delivery(asking(SEEN), "x", redelivered=True, **event))
    await until(lambda: harness.waiting_deliveries() == 1)
    [missing] = [name for name, status in acks.items() if status == 408]
    other.deliver(acknowledgement(correlation_id=missing))
    assert await harness.ended(2) == [REDELIVER, SETTLED]


async def test_after_five_redeliveries_a_delivery_is_acknowledged_anyway() -> None:
    harness = await collected()
    other = other_connection(harness)
    for again in range(6):
        harness.handle(harness.delivery(asking("twin-persisted", SEEN), "x", redelivered=again > 0))
        other.deliver(acknowledgement(status=503))
        await harness.ended(again + 1)
    assert [outcome for _, outcome in harness.outcomes] == [REDELIVER] * 5 + [SETTLED]
    assert harness.values() == [True]


async def test_a_delivery_without_a_name_is_requeued_once() -> None:
    harness = await collected()
    other = other_connection(harness)
    for again in range(2):
        harness.handle(harness.delivery(asking(SEEN), None, redelivered=again > 0))
        other.deliver(acknowledgement(status=503))
        await harness.ended(again + 1)
    assert [outcome for _, outcome in harness.outcomes] == [REDELIVER, SETTLED]


@pytest.mark.parametrize("is_durable", [True, False])
async def test_a_redelivery_over_a_new_link_while_waiting_is_acknowledged_too(
    is_durable: bool,
) -> None:
    harness = await collected()
    other = other_connection(harness)
    ends: list[Outcome] = []
    again = harness.delivery(asking(SEEN), "x", redelivered=True)
    harness.handle(harness.delivery(asking(SEEN), "x"))
    if is_durable:
        await durable(harness)
    harness.handle(replace(again, ended=lambda _, outcome: ends.append(outcome)))
    other.deliver(acknowledgement())
    await until(lambda: ends)
    await pause()
    assert (ends, await harness.settled(1)) == ([SETTLED], ["x"])
    assert (len(harness.answers()), harness.values()) == (1, [True])


async def test_an_unnamed_redelivery_while_waiting_replaces_the_first() -> None:
    harness = await collected()
    other = other_connection(harness)
    harness.handle(harness.delivery(asking(SEEN), None))
    harness.handle(harness.delivery(asking(SEEN), None, redelivered=True))
    other.deliver(acknowledgement())
    await harness.settled(2)
    assert harness.statuses() == [200]


async def test_a_redelivery_of_another_source_replaces_no_request() -> None:
    harness = await collected(source(**NACKS), source("elsewhere", **NACKS))
    other = other_connection(harness)
    harness.handle(harness.delivery(asking(SEEN), None))
    harness.handle(harness.delivery(asking(SEEN), None, redelivered=True), source=1)
    assert await harness.ended(1) == [DROPPED]
    assert (harness.statuses(), harness.waiting_deliveries()) == ([409], 1)
    other.deliver(acknowledgement())
    assert await harness.ended(2) == [DROPPED, SETTLED]


async def test_a_redelivered_retry_under_another_name_replaces_no_request() -> None:
    """It gets 409 as before; the first request is settled, also over the link on which it came again."""
    harness = await collected()
    other = other_connection(harness)
    harness.handle(harness.delivery(asking(SEEN), "x"))
    await durable(harness)
    harness.handle(harness.delivery(asking(SEEN), "x", redelivered=True))
    harness.handle(harness.delivery(asking(SEEN), "y", redelivered=True))
    assert await harness.ended(1) == [DROPPED]
    other.deliver(acknowledgement())
    assert await harness.ended(3) == [DROPPED, SETTLED, SETTLED]
    assert (harness.statuses(), harness.values()) == ([409, 200], [True])


async def test_b4_an_internal_error_in_finishing_a_request_rejects_its_delivery(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = await collected()
    other = other_connection(harness)
    harness.handle(harness.delivery(asking(SEEN), "x"))
    await durable(harness)

    def fail(*_: object) -> None:
        raise ZeroDivisionError("an internal error")

    with capture_logs() as lines, monkeypatch.context() as broken:
        broken.setattr(ResponseRouter, "post", fail)
        other.deliver(acknowledgement())
        await other.settled(1)
    assert [line["event"] for line in lines] == ["finishing a pending request failed"]
    assert await harness.ended(1) == [Outcome.DROPPED]
    assert (harness.statuses(), harness.values()) == ([], [True])


async def test_while_the_store_is_unavailable_no_acknowledgements_are_collected() -> None:
    harness = await collected()
    other = other_connection(harness)
    harness.disk.full = True
    harness.deliver(asking("twin-persisted", SEEN))
    await until(lambda: harness.postponed)
    assert harness.waiting_deliveries() == 0
    harness.disk.full = False
    await until(lambda: harness.store.commits.is_available)
    arrivals, harness.postponed = harness.postponed, []
    harness.dispatcher.handle(arrivals, harness.postponed.extend)
    other.deliver(acknowledgement())
    await harness.settled(1)
    assert (harness.statuses(), harness.values()) == ([200], [True])


async def test_a_closed_connection_waits_for_nothing() -> None:
    harness = await collected()
    other = other_connection(harness)
    harness.deliver(asking(SEEN))
    harness.close_connection()
    other.deliver(acknowledgement())
    await other.settled(1)
    assert (harness.outcomes, harness.answers(), harness.waiting_deliveries()) == ([], [], 0)

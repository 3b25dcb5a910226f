"""Which connections acknowledge an event, and weak acknowledgements. Case numbers are those for twins."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from connectivity.errors import PublishFailed
from connectivity.targets.signal_context import SubjectView
from connectivity.transports.base import Outcome
from tests.support.in_process.event_followers import (
    EVENTS,
    SEEN,
    SENT,
    add_follower,
    cursor,
    events,
    revisions,
    sent,
    site_and_follower,
)
from tests.support.in_process.service import ConnectionHarness, command, document, pause, source, target, turn, until
from tests.support.in_process.two_connections import NACKS, acknowledgement

pytestmark = pytest.mark.usefixtures("harnesses")

READ = {"grant": ["READ"], "revoke": []}
SETTLED, DROPPED, REDELIVER = Outcome.SETTLED, Outcome.DROPPED, Outcome.REDELIVER
ISSUING = target(EVENTS, issuedAcknowledgementLabel="{{ connection:id }}:sent")
NOT_THESE = target(f"{EVENTS}?filter=eq(attributes/on,77)", issuedAcknowledgementLabel="{{ connection:id }}:sent")
BLIND = {**ISSUING, "authorizationContext": ["acme:stranger"]}


def turn_with_labels(*labels: str, value: Any = True, **headers: Any) -> bytes:
    return turn(value, correlation_id="c-1", requested_acks=["twin-persisted", *labels], **headers)


def statuses(harness: ConnectionHarness) -> dict[str, int]:
    """Return the statuses by label in the newest response."""
    return {label: ack["status"] for label, ack in harness.answers()[-1]["value"].items()}


def is_weak(harness: ConnectionHarness, label: str) -> bool:
    return bool(harness.answers()[-1]["value"][label]["headers"].get("ditto-weak-ack", False))


async def test_case_97_an_ordinary_change_is_acknowledged_when_it_is_durable() -> None:
    """Its response is the usual one, for any targets."""
    harness, other = await site_and_follower(ISSUING)
    other.link.confirms = False
    harness.disk.hold()
    harness.deliver(turn(True, correlation_id="c-1"))
    await pause()
    assert (harness.answers(), harness.outcomes) == ([], [])
    harness.disk.release()
    assert await harness.ended(1) == [SETTLED]
    assert (harness.answers()[0]["topic"].rpartition("/")[2], harness.answers()[0]["status"]) == ("modify", 201)


async def test_case_98_a_subscriber_acknowledges_the_event_that_it_was_sent() -> None:
    """The event has the labels that its reader may give."""
    harness, other = await site_and_follower()
    harness.deliver(turn_with_labels(SEEN))
    await sent(other, 1)
    (event,) = events(other)
    assert event["headers"]["requested-acks"] == [SEEN]
    await pause()
    assert harness.outcomes == []
    other.deliver(acknowledgement(status=208, value={"x": 1}))
    assert await harness.ended(1) == [SETTLED]
    assert (harness.answers()[0]["status"], statuses(harness)) == (200, {"twin-persisted": 201, SEEN: 208})


async def test_an_issued_label_is_given_when_the_broker_has_confirmed() -> None:
    harness, other = await site_and_follower(ISSUING)
    other.link.confirms = False
    harness.deliver(turn_with_labels(SENT))
    await sent(other, 1)
    await pause()
    assert (harness.answers(), harness.outcomes) == ([], [])
    other.link.confirm()
    assert await harness.ended(1) == [SETTLED]
    assert statuses(harness) == {"twin-persisted": 201, SENT: 200}
    assert not is_weak(harness, SENT)


@pytest.mark.parametrize("kept_by", [NOT_THESE, BLIND], ids=["filter", "permission"])
async def test_case_103_a_connection_with_a_filter_that_excludes_the_event_acknowledges_weakly(
    kept_by: dict[str, Any],
) -> None:
    harness, other = await site_and_follower(kept_by)
    harness.deliver(turn_with_labels(SENT, SEEN))
    assert await harness.ended(1) == [SETTLED]
    assert (harness.answers()[0]["status"], statuses(harness)) == (200, {"twin-persisted": 201, SENT: 200, SEEN: 200})
    assert is_weak(harness, SENT)
    assert is_weak(harness, SEEN)
    assert other.answers() == []


@pytest.mark.parametrize("besides", [(), (target(EVENTS, address="b"),)], ids=["alone", "beside another target"])
async def test_case_103_a_target_without_a_topic_of_events_is_acknowledged_weakly(
    besides: tuple[dict[str, Any], ...],
) -> None:
    live = target("_/_/things/live/messages", issuedAcknowledgementLabel="{{ connection:id }}:sent")
    harness, _other = await site_and_follower(live, *besides)
    harness.deliver(turn_with_labels(SENT))
    assert await harness.ended(1) == [SETTLED]
    assert is_weak(harness, SENT)


async def test_case_103_there_is_no_weak_acknowledgement_for_the_connection_that_caused_the_event() -> None:
    _site, other = await site_and_follower(ISSUING)
    other.deliver(turn_with_labels(SENT, SEEN, timeout="5s"))
    await other.store.commits.barrier()
    await pause()
    assert other.outcomes == []
    other.clock.advance(5)
    other.request_reply.pending.expire()
    assert await other.ended(1) == [REDELIVER]


async def test_a_label_is_waited_for_that_another_target_can_give() -> None:
    harness, other = await site_and_follower(NOT_THESE, {**ISSUING, "address": "b"})
    other.link.confirms = False
    harness.deliver(turn_with_labels(SENT, SEEN))
    await sent(other, 1)
    await pause()
    other.deliver(acknowledgement())
    await pause()
    assert harness.outcomes == []
    other.link.confirm()
    assert await harness.ended(1) == [SETTLED]
    assert not is_weak(harness, SENT)
    assert not is_weak(harness, SEEN)


async def test_a_target_with_an_unresolved_address_acknowledges_weakly() -> None:
    """Its address has no value, which is only known when it is to be sent."""
    harness, _other = await site_and_follower({**ISSUING, "address": "{{ header:device }}"})
    harness.deliver(turn_with_labels(SENT))
    assert await harness.ended(1) == [SETTLED]
    assert is_weak(harness, SENT)


async def test_case_100_after_a_failure_the_event_is_sent_again_to_those_that_failed() -> None:
    """The same event is sent, other acknowledgements remain valid, and there is no second event."""
    harness, other = await site_and_follower(ISSUING)
    third = await add_follower(other, ISSUING, id="third")
    other.link.confirms = False
    payload = turn_with_labels(SENT, "third:sent", timeout="5s")
    harness.handle(harness.delivery(payload, "d1"))
    assert await sent(other, 1) == await sent(third, 1) == [2]
    await pause()
    harness.clock.advance(5)
    harness.request_reply.pending.expire()
    assert await harness.ended(1) == [REDELIVER]
    assert statuses(harness) == {"twin-persisted": 201, SENT: 408, "third:sent": 200}
    other.link.confirm()
    await pause()
    for again in range(3):
        harness.handle(harness.delivery(payload, "d1", redelivered=True))
        assert await sent(other, again + 2) == [2] * (again + 2)
        other.link.confirm(error=PublishFailed("full", status=507) if again < 2 else None)
        assert await harness.ended(again + 2) == [REDELIVER, REDELIVER, REDELIVER, SETTLED][: again + 2]
    assert statuses(harness) == {"twin-persisted": 201, SENT: 200, "third:sent": 200}
    assert revisions(third) == [2]
    assert len(harness.history()) == 2


async def test_case_99_a_silent_subscriber_is_sent_the_event_again_at_most_five_times() -> None:
    harness, other = await site_and_follower()
    payload = turn_with_labels(SEEN, timeout="3s")
    for time in range(1, 7):
        harness.handle(harness.delivery(payload, "d1", redelivered=time > 1))
        assert await sent(other, time) == [2] * time
        await pause()
        harness.clock.advance(3)
        harness.request_reply.pending.expire()
        assert (await harness.ended(time))[-1] == (REDELIVER if time <= 5 else SETTLED)
        assert statuses(harness) == {"twin-persisted": 201, SEEN: 408}
    assert harness.answers()[-1]["value"][SEEN]["payload"]["error"] == "acknowledgement:request.timeout"
    assert len(harness.history()) == 2


async def test_case_100_a_refusal_of_the_subscriber_does_not_requeue_the_delivery() -> None:
    harness, other = await site_and_follower()
    harness.deliver(turn_with_labels(SEEN))
    await sent(other, 1)
    other.deliver(acknowledgement(status=400))
    assert await harness.ended(1) == [DROPPED]
    assert harness.answers()[0]["status"] == 424


async def test_case_102_a_label_that_its_sender_does_not_declare_is_refused() -> None:
    harness, other = await site_and_follower()
    harness.deliver(turn_with_labels(SEEN))
    await sent(other, 1)
    other.deliver(acknowledgement("other:unseen"))
    await until(lambda: len(other.answers()) == 2)
    answer = other.answers()[1]
    assert (answer["status"], answer["value"]["error"]) == (400, "acknowledgement:label.not.declared")
    await pause()
    assert harness.outcomes == []


async def test_case_104_a_refused_command_does_not_wait_for_acknowledgements() -> None:
    harness = ConnectionHarness(source("in", "acme:stranger", **NACKS))
    owner = ConnectionHarness(beside=harness, id="owner")
    await owner.has_lamp()
    policy_of_a_reader = {"subjects": {"acme:stranger": {"type": "t"}}, "resources": {"thing:/": READ}}
    payload = document("acme.site/lamp-7/policies/commands/modify", "/entries/READER", policy_of_a_reader)
    assert (await owner.ask(payload))["status"] == 201
    await add_follower(harness)
    harness.deliver(turn_with_labels(SEEN))
    assert await harness.ended(1) == [DROPPED]
    (answer,) = harness.answers()
    assert (answer["topic"].rpartition("/")[2], answer["status"]) == ("errors", 403)


async def test_case_105_a_reply_target_for_responses_only_gets_no_failure() -> None:
    only: dict[str, Any] = {"replyTarget": {"address": "out", "expectedResponseTypes": ["response"]}}
    harness = ConnectionHarness(source(**only))
    await harness.has_lamp()
    other = await add_follower(harness)
    harness.deliver(turn_with_labels(SEEN))
    await sent(other, 1)
    other.deliver(acknowledgement(status=400))
    harness.deliver(command("retrieve", name="nowhere"))
    assert await harness.ended(2) == [DROPPED, SETTLED]
    assert harness.answers() == []


async def test_an_event_being_published_is_not_sent_again_for_a_redelivery() -> None:
    harness, other = await site_and_follower(ISSUING)
    other.link.confirms = False
    payload = turn_with_labels(SENT, timeout="5s")
    harness.handle(harness.delivery(payload, "d1"))
    await sent(other, 1)
    await pause()
    harness.clock.advance(5)
    harness.request_reply.pending.expire()
    await harness.ended(1)
    harness.handle(harness.delivery(payload, "d1", redelivered=True))
    await pause()
    assert len(other.link.published) == 1
    other.link.confirm()
    assert (await harness.ended(2))[-1] == SETTLED


async def test_a_label_of_a_connection_without_event_targets_is_waited_for() -> None:
    harness, other = await site_and_follower(target("_/_/things/live/events"))
    harness.deliver(turn_with_labels(SEEN))
    await harness.store.commits.barrier()
    await pause()
    assert harness.outcomes == []
    other.deliver(acknowledgement())
    assert await harness.ended(1) == [SETTLED]
    assert not is_weak(harness, SEEN)


async def test_a_deletion_is_acknowledged_like_any_event() -> None:
    harness, other = await site_and_follower(ISSUING)
    harness.deliver(command("delete", correlation_id="c-1", requested_acks=["twin-persisted", SENT]))
    assert await harness.ended(1) == [SETTLED]
    assert statuses(harness) == {"twin-persisted": 204, SENT: 200}
    assert [event["topic"].rpartition("/")[2] for event in events(other)] == ["deleted"]


async def test_a_target_with_an_unavailable_broker_fails_at_the_timeout_and_gets_the_event_later() -> None:
    harness, other = await site_and_follower(ISSUING)
    other.outbox.detach()
    harness.deliver(turn_with_labels(SENT, timeout="5s"))
    await harness.store.commits.barrier()
    await pause()
    harness.clock.advance(5)
    harness.request_reply.pending.expire()
    assert await harness.ended(1) == [REDELIVER]
    other.outbox.attach(other.link)
    harness.event_publisher.wake()
    assert await sent(other, 1) == [2]
    await until(lambda: not other.event_publisher.of("other")[0].listeners)


async def test_an_event_without_its_extra_fields_is_skipped_logged_and_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    extra = target(f"{EVENTS}?extraFields=attributes/on", issuedAcknowledgementLabel="{{ connection:id }}:sent")
    harness, other = await site_and_follower(extra)
    monkeypatch.setattr(SubjectView, "readable_thing", lambda _seen, _selection: None)
    with capture_logs() as lines:
        harness.deliver(turn_with_labels(SENT))
        await until(lambda: cursor(other).skipped == 1)
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == ["signal.enrichment.failed"]
    assert (other.answers(), other.count("out", "failed")) == ([], 1)
    assert await harness.ended(1) == [REDELIVER]
    assert (is_weak(harness, SENT), statuses(harness)[SENT]) == (False, 500)


async def test_an_event_of_which_a_filter_compares_very_much_is_a_failure_that_is_not_retried() -> None:
    comparisons = ",".join(f"eq(attributes/on,'x{number}')" for number in range(3))
    topic = f"{EVENTS}?filter=not(or({comparisons}))"
    harness, other = await site_and_follower(target(topic, issuedAcknowledgementLabel="{{ connection:id }}:sent"))
    harness.deliver(turn_with_labels(SENT, value=[1] * 45_000))
    assert await harness.ended(1) == [DROPPED]
    assert (is_weak(harness, SENT), statuses(harness)[SENT], other.answers()) == (False, 400, [])

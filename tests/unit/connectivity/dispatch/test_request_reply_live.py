"""Live signals between connections: their recipients, and their responses.

Case numbers are those of the cases for connections.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from connectivity.dispatch import request_reply
from connectivity.transports.base import Outcome
from mappings.ditto.messages import MERGE_PATCH
from tests.support.in_process.service import (
    OWNER,
    ConnectionHarness,
    command,
    document,
    pause,
    policy,
    source,
    target,
    turn,
    until,
)
from tests.support.in_process.two_connections import (
    COMMANDS,
    EVENTS,
    MESSAGES,
    NACKS,
    SEEN,
    acknowledgement,
    collected,
    live,
    message,
    other_connection,
    with_status,
)
from tests.support.wait import wait_until

pytestmark = pytest.mark.usefixtures("harnesses")

SETTLED, DROPPED, REDELIVER = Outcome.SETTLED, Outcome.DROPPED, Outcome.REDELIVER


async def test_case_07_a_message_reaches_its_receiver_and_the_response_its_requester() -> None:
    harness = await collected()
    other = other_connection(harness, target(MESSAGES))
    harness.deliver(message(value={"times": 3}, mine="x"))
    (sent,) = other.answers()
    assert (sent["topic"], sent["path"]) == (
        "acme.site/lamp-7/things/live/messages/blink",
        "/inbox/messages/blink",
    )
    assert (sent["value"], sent["headers"]["mine"]) == ({"times": 3}, "x")
    assert sent["headers"]["correlation-id"] == "c-1"
    assert (sent["headers"]["response-required"], sent["headers"]["requested-acks"]) == (True, ["live-response"])
    assert (harness.answers(), harness.outcomes) == ([], [])
    other.deliver(with_status(message(value="done", theirs="y", content_type="text/plain"), 200))
    await harness.settled(1)
    (answer,) = harness.answers()
    assert (answer["topic"], answer["status"], answer["value"]) == (sent["topic"], 200, "done")
    headers = answer["headers"]
    assert (headers["correlation-id"], headers["mine"], headers["theirs"]) == ("c-1", "x", "y")
    assert (headers["content-type"], headers["response-required"]) == ("text/plain", False)
    assert await other.settled(1)
    assert len(other.answers()) == 1, "a live answer causes no reply"


async def test_case_08_without_a_response_the_requester_gets_408_and_the_message_is_requeued() -> None:
    harness = await collected(source())
    other_connection(harness, target(MESSAGES))
    harness.deliver(message(timeout="2s"))
    harness.clock.advance(2)
    harness.request_reply.pending.expire()
    assert await harness.ended(1) == [REDELIVER]
    (answer,) = harness.answers()
    assert (answer["status"], answer["value"]["error"]) == (408, "command.timeout")


@pytest.mark.parametrize("status", [200, 404, 500])
async def test_3_9_a_refusal_by_the_device_acknowledges_the_message(status: int) -> None:
    harness = await collected()
    other = other_connection(harness, target(MESSAGES))
    harness.deliver(message())
    other.deliver(with_status(message(), status))
    await harness.settled(1)
    assert harness.statuses() == [status]


async def test_case_58_a_live_command_is_answered_by_a_response_with_response_required_false() -> None:
    harness = await collected()
    other = other_connection(harness, target(COMMANDS))
    harness.deliver(live("retrieve", "/attributes/on"))
    other.deliver(with_status(live("retrieve", "/attributes/on", True, response_required=False), 200))
    await harness.settled(1)
    assert harness.values() == []
    assert (harness.statuses(), harness.answers()[0]["value"]) == ([200], True)
    assert harness.answers()[0]["topic"] == "acme.site/lamp-7/things/live/commands/retrieve"


STRANGER = "acme:stranger"


@pytest.mark.parametrize(
    ("targets", "subject"),
    [
        ([], OWNER),
        ([target(EVENTS)], OWNER),
        ([target(f"{MESSAGES}?namespaces=acme.elsewhere")], OWNER),
        ([target(MESSAGES, authorizationContext=[STRANGER])], OWNER),
        ([target(MESSAGES)], STRANGER),
    ],
    ids=["without a target", "another topic", "another namespace", "a target that cannot read", "a source that cannot"],
)
async def test_a_response_of_a_client_that_did_not_receive_or_cannot_read_the_message_is_not_delivered(
    targets: list[dict[str, Any]], subject: str
) -> None:
    harness = await collected()
    other = other_connection(harness, target(MESSAGES))
    third = ConnectionHarness(source("in", authorizationContext=[subject]), beside=harness, id="third", targets=targets)
    harness.deliver(message())
    with capture_logs() as lines:
        third.deliver(with_status(message(value="false"), 200))
    assert [line["event"] for line in lines] == ["live response not delivered"]
    assert harness.answers() == []
    other.deliver(with_status(message(value="true"), 200))
    await harness.settled(1)
    assert [answer["value"] for answer in harness.answers()] == ["true"]


async def test_a_connection_that_the_message_could_not_be_sent_to_does_not_answer_it() -> None:
    harness = await collected()
    other = other_connection(harness, target(MESSAGES))
    third = ConnectionHarness(source("in"), beside=harness, id="third", targets=[target(MESSAGES)])
    third.outbox.detach()
    harness.deliver(message())
    third.outbox.attach(third.link)
    third.deliver(with_status(message(value="false"), 200))
    assert harness.answers() == []
    other.deliver(with_status(message(value="true"), 200))
    await harness.settled(1)
    assert [answer["value"] for answer in harness.answers()] == ["true"]


async def test_a_live_response_without_requested_acks_comes_and_the_delivery_does_not_wait_for_it() -> None:
    harness = await collected()
    other = other_connection(harness, target(COMMANDS))
    harness.deliver(live("modify", "/attributes/on", True, requested_acks=[]))
    await harness.settled(1)
    other.deliver(with_status(live("modify", "/attributes/on"), 204))
    await until(lambda: harness.answers())
    assert (harness.statuses(), len(harness.outcomes)) == ([204], 1)


async def test_requests_that_wait_without_holding_their_delivery_are_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing else limits them: the broker treats these as acknowledged and continues."""
    monkeypatch.setattr(request_reply, "MAX_WITHOUT_DELIVERY", 2)
    harness = await collected()
    other = other_connection(harness, target(MESSAGES))
    for number in range(3):
        harness.deliver(message(requested_acks=[], correlation_id=f"c-{number}"))
    await harness.settled(3)
    assert [(answer["status"], answer["value"]["error"]) for answer in harness.answers()] == [
        (429, "live.response.limit")
    ]
    assert (other.correlations(), harness.waiting_deliveries()) == (["c-0", "c-1"], 0)
    other.deliver(with_status(message(correlation_id="c-0"), 200))
    harness.deliver(message(requested_acks=[], correlation_id="c-3"))
    await harness.settled(4)
    assert other.correlations() == ["c-0", "c-1", "c-3"]


async def test_a_message_without_required_response_is_acknowledged_at_once() -> None:
    harness = await collected()
    other = other_connection(harness, target(MESSAGES))
    harness.deliver(message(response_required=False))
    await harness.settled(1)
    assert other.answers()[0]["headers"]["response-required"] is False
    other.deliver(with_status(message(), 200))
    await other.settled(1)
    assert harness.answers() == []


async def test_live_response_and_another_label_are_answered_together() -> None:
    harness = await collected()
    other = other_connection(harness, target(MESSAGES))
    harness.deliver(message(requested_acks=["live-response", SEEN]))
    other.deliver(with_status(message(value=1), 200))
    await other.settled(1)
    assert harness.answers() == []
    other.deliver(acknowledgement(channel="live"))
    await harness.settled(1)
    (answer,) = harness.answers()
    assert (answer["topic"], answer["status"]) == ("acme.site/lamp-7/things/live/acks", 200)
    assert {label: ack["status"] for label, ack in answer["value"].items()} == {"live-response": 200, SEEN: 200}


@pytest.mark.parametrize(
    ("answer", "is_asked"),
    [
        (message("bleep"), False),
        (live("modify", "/attributes/on"), True),
        (message(name="lamp-8"), True),
        (message(correlation_id="c-2"), False),
    ],
    ids=["another subject", "a command's answer", "another thing", "another correlation id"],
)
async def test_3_10_an_unexpected_response_is_logged_and_answered_only_on_request(
    answer: bytes, is_asked: bool
) -> None:
    harness = await collected()
    other = other_connection(harness, target(MESSAGES))
    harness.deliver(message())
    other.forget()
    if is_asked:
        document = json.loads(answer)
        document["headers"]["response-required"] = True
        answer = json.dumps(document).encode()
    with capture_logs() as lines:
        other.deliver(with_status(answer, 200))
    await other.settled(1)
    assert lines[0]["event"] == "live response not delivered"
    assert (harness.answers(), other.statuses()) == ([], [400] if is_asked else [])


async def test_a_live_event_is_forwarded_and_acknowledged() -> None:
    harness = await collected()
    other = other_connection(harness, target(EVENTS))
    harness.deliver(
        document("acme.site/lamp-7/things/live/events/modified", "/attributes/on", True, correlation_id="c-1")
    )
    await harness.settled(1)
    (sent,) = other.answers()
    assert (sent["topic"], sent["value"]) == ("acme.site/lamp-7/things/live/events/modified", True)
    assert harness.values() == []


async def test_4_6_a_signal_is_not_sent_to_its_own_connection() -> None:
    """There is no weak acknowledgement for a label of its own either."""
    harness = ConnectionHarness(
        source(declaredAcks=["site:mine"], **NACKS), targets=[target(MESSAGES, issuedAcknowledgementLabel="site:sent")]
    )
    await harness.has_lamp()
    harness.deliver(message(requested_acks=["site:mine", "site:sent"], timeout="1s"))
    assert harness.answers() == []
    harness.clock.advance(1)
    harness.request_reply.pending.expire()
    assert await harness.ended(1) == [REDELIVER]
    assert {ack["status"] for ack in harness.answers()[0]["value"].values()} == {408}


async def grant_read(harness: ConnectionHarness, resource: str) -> None:
    """Let the stranger read a part of the lamp."""
    entry = {
        "subjects": {"acme:stranger": {"type": "test"}},
        "resources": {resource: {"grant": ["READ"], "revoke": []}},
    }
    assert (await harness.ask(document("acme.site/lamp-7/policies/commands/modify", "/entries/STRANGE", entry)))[
        "status"
    ] == 201
    await harness.settled(1)
    harness.forget()


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (message(), "messages:send.notallowed"),
        (live("modify", "/attributes/on", 1), "things:attribute.notmodifiable"),
        (live("retrieve", "/attributes/on"), "things:attribute.notfound"),
        (message(name="lamp-9"), "things:thing.notfound"),
    ],
)
async def test_a_sender_without_permission_gets_an_error_and_nothing_is_sent(payload: bytes, error: str) -> None:
    harness = await collected(source(**NACKS), source("strange", "acme:stranger"))
    await grant_read(harness, "thing:/features")
    other = other_connection(harness, target(MESSAGES, COMMANDS, EVENTS))
    harness.deliver(payload, source=1)
    assert await harness.ended(1) == [DROPPED]
    assert (harness.answers()[-1]["value"]["error"], other.answers()) == (error, [])
    assert harness.answers()[-1]["topic"].endswith("/things/live/errors")


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (target(f"{MESSAGES}?namespaces=acme.other"), "namespace"),
        (target(f"{MESSAGES}?filter=eq(attributes/on,true)"), "filter"),
        (target(f"{MESSAGES}?filter=eq(attributes/on,true)&extraFields=attributes/on"), "filter with extra fields"),
        (target(f"{MESSAGES}?filter=ne(topic:subject,'blink')"), "filter on the signal"),
        (target(COMMANDS), "topic"),
        (target(MESSAGES, authorizationContext=["acme:stranger"]), "permission"),
    ],
    ids=["namespace", "filter", "filter with extra fields", "filter on the signal", "topic", "permission"],
)
async def test_case_36_and_37_targets_that_are_not_recipients_acknowledge_weakly(
    other: dict[str, Any], why: str
) -> None:
    harness = await collected()
    reached = other_connection(harness, {**other, "issuedAcknowledgementLabel": "other:sent"})
    harness.deliver(message(requested_acks=[SEEN, "other:sent"]))
    await harness.settled(1)
    assert reached.answers() == [], why
    (answer,) = harness.answers()
    assert answer["status"] == 200
    assert [ack["headers"]["ditto-weak-ack"] for ack in answer["value"].values()] == [True, True]


async def test_a_live_merge_with_a_pattern_that_the_twin_refuses_reaches_every_target_that_it_is_for() -> None:
    """The device decides about the pattern: `(a+)+` could take the service too long."""
    harness = await collected()
    topics = (f"{COMMANDS}?filter=exists(attributes/on)", f"{COMMANDS}?filter=exists(attributes/off)", COMMANDS)
    other = other_connection(harness, *(target(topic) for topic in topics))
    for pattern in ("{{ ~(a+)+~ }}", "{{ ~(~ }}"):
        patch = {"on": True, "off": None, pattern: None}
        harness.deliver(live("merge", "/attributes", patch, content_type=MERGE_PATCH, correlation_id=pattern))
        assert [sent["value"] for sent in other.answers()] == [patch] * 2
        other.forget()


async def test_every_target_gets_its_configured_extra_fields() -> None:
    """The fields are those of the twin, restricted by the target's permissions, without a store read."""
    harness = await collected()
    harness.deliver(turn(True))
    await harness.settled(1)
    topics = (MESSAGES, f"{MESSAGES}?extraFields=attributes/on,_policy(policyId)", f"{MESSAGES}?extraFields=features")
    other = other_connection(harness, *(target(topic) for topic in topics))
    harness.deliver(message(response_required=False, requested_acks=[]))
    await until(lambda: len(other.answers()) == len(topics))
    extras = [sent.get("extra") for sent in other.answers()]
    assert extras == [None, {"attributes": {"on": True}, "_policy": {"policyId": "acme.site:lamp-7"}}, None]


async def test_case_39_a_target_acknowledges_when_its_broker_has_confirmed() -> None:
    harness = await collected()
    other = other_connection(harness, target(MESSAGES, issuedAcknowledgementLabel="{{ connection:id }}:sent"))
    other.link.confirms = False
    harness.deliver(message(requested_acks=["other:sent"]))
    await pause()
    assert (len(other.answers()), harness.outcomes) == (1, [])
    other.link.confirm()
    await harness.settled(1)
    (answer,) = harness.answers()
    assert answer["value"]["other:sent"]["status"] == 200
    assert answer["value"]["other:sent"]["headers"]["ditto-connection-id"] == "other"


async def test_a_target_that_issues_live_response_answers_for_the_device() -> None:
    harness = await collected()
    other_connection(harness, target(MESSAGES, COMMANDS, issuedAcknowledgementLabel="live-response"))
    harness.deliver(message())
    harness.deliver(live("modify", "/attributes/on", True, correlation_id="c-2"))
    await harness.settled(2)
    assert harness.statuses() == [200, 200]
    assert [answer["topic"].split("/")[4] for answer in harness.answers()] == ["messages", "commands"]


@pytest.mark.parametrize("is_first", [True, False], ids=["before", "behind"])
@pytest.mark.parametrize("kept", [f"{MESSAGES}?namespaces=acme.other", COMMANDS])
async def test_case_37_there_is_no_weak_acknowledgement_for_a_reached_device(kept: str, is_first: bool) -> None:
    """At every connection without recipients: its 200 would be taken for the device's response."""
    harness = await collected()
    other_target = target(kept, issuedAcknowledgementLabel="live-response")
    if is_first:
        other_connection(harness, other_target)
    device = ConnectionHarness(source("in"), beside=harness, id="device", targets=[target(MESSAGES)])
    if not is_first:
        other_connection(harness, other_target)
    harness.deliver(message())
    await pause()
    assert (len(device.answers()), harness.answers(), harness.outcomes) == (1, [], [])
    device.deliver(with_status(message(value="done"), 201))
    await harness.settled(1)
    assert [(answer["status"], answer["value"]) for answer in harness.answers()] == [(201, "done")]
    assert device.count("in", "unmatched") == 0


SILENT = {
    "mappingDefinitions": {
        "silent": {
            "mappingEngine": "JavaScript",
            "options": {"outgoingScript": "function mapFromDittoProtocolMsg() { return null; }"},
        }
    }
}


@pytest.mark.extra("javascript")
@pytest.mark.parametrize("label", ["live-response", "other:sent"])
@pytest.mark.parametrize("is_device_there", [True, False])
async def test_case_37_a_target_with_a_script_that_drops_the_signal_acknowledges_weakly(
    label: str, is_device_there: bool
) -> None:
    """The result of the script is only known later."""
    harness = await collected()
    other = other_connection(
        harness, target(MESSAGES, payloadMapping=["silent"], issuedAcknowledgementLabel=label), **SILENT
    )
    device = ConnectionHarness(
        source("in"), beside=harness, id="device", targets=[target(MESSAGES if is_device_there else EVENTS)]
    )
    harness.deliver(message(requested_acks=[label, SEEN]))
    await wait_until(lambda: other.count("out", "unwritten"), 60)
    await pause()
    if is_device_there and label == "live-response":
        assert harness.answers() == []
        device.deliver(with_status(message(value="done"), 201))
    await harness.settled(1)
    acks = harness.answers()[0]["value"]
    assert acks[SEEN]["headers"]["ditto-weak-ack"] is True
    is_weak = acks[label]["headers"].get("ditto-weak-ack", False)
    assert (acks[label]["status"], is_weak) == (
        (201, False) if is_device_there and label == "live-response" else (200, True)
    )


async def test_case_37_without_recipients_live_response_is_weak() -> None:
    harness = await collected()
    other_connection(harness, target(COMMANDS, issuedAcknowledgementLabel="live-response"))
    harness.deliver(message())
    await harness.settled(1)
    assert harness.statuses() == [200]


async def test_case_37_a_label_that_a_recipient_issues_is_not_given_weakly_for_another_target() -> None:
    harness = await collected()
    sent = {"issuedAcknowledgementLabel": "other:sent"}
    other = other_connection(harness, target(COMMANDS, **sent), target(MESSAGES, **sent))
    other.link.confirms = False
    harness.deliver(message(requested_acks=["other:sent"]))
    await pause()
    assert harness.answers() == []
    other.link.confirm()
    await harness.settled(1)
    assert "ditto-weak-ack" not in harness.answers()[0]["value"]["other:sent"]["headers"]


async def test_a_target_that_cannot_encode_the_signal_fails() -> None:
    harness = await collected()
    other_connection(harness, target(MESSAGES, address="{{ header:desk }}/x", issuedAcknowledgementLabel="other:sent"))
    with capture_logs():
        harness.deliver(message(requested_acks=["other:sent"], desk="a/#"))
        assert await harness.ended(1) == [DROPPED]
    (ack,) = harness.answers()[0]["value"].values()
    assert ack["status"] == 400
    assert "ditto-weak-ack" not in ack["headers"]


async def test_no_live_signal_waits_for_an_unavailable_broker() -> None:
    harness = await collected()
    other = other_connection(harness, target(MESSAGES, issuedAcknowledgementLabel="other:sent"))
    other.outbox.detach()
    harness.deliver(message(requested_acks=["other:sent"]))
    assert await harness.ended(1) == [REDELIVER]
    assert harness.answers()[0]["value"]["other:sent"]["status"] == 503
    other.outbox.attach(other.link)
    assert other.answers() == []


async def test_a_message_that_no_link_takes_before_its_timeout_is_not_sent() -> None:
    harness = await collected()
    other = other_connection(harness, target(MESSAGES))
    other.link.window, other.link.confirms = 1, False
    harness.deliver(message(), message(correlation_id="c-2", timeout="1s"))
    harness.clock.advance(1)
    harness.request_reply.pending.expire()
    other.link.confirm()
    await pause()
    assert other.correlations() == ["c-1"]


async def test_an_internal_error_in_forwarding_is_answered_and_the_next_delivery_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = await collected()

    def fail(*_: object) -> None:
        raise ZeroDivisionError("an internal error")

    monkeypatch.setattr(harness.request_reply, "prepare", fail)
    with capture_logs():
        harness.deliver(message(), turn(1))
    await harness.settled(2)
    assert harness.statuses() == [500, 201]


# queries for the device, by the state of the twin


def query(condition: str = "eq(attributes/on,true)", path: str = "/attributes/on", **headers: Any) -> bytes:
    headers.setdefault("correlation_id", "c-1")
    return command("retrieve", path, live_channel_condition=condition, **headers)


async def turned_on() -> ConnectionHarness:
    harness = await collected()
    harness.deliver(turn(True))
    await harness.settled(1)
    harness.forget()
    return harness


async def test_the_device_answers_a_query_when_the_live_channel_condition_matches() -> None:
    harness = await turned_on()
    other = other_connection(harness, target(COMMANDS))
    harness.deliver(query(mine="x"))
    await until(lambda: other.answers())
    (sent,) = other.answers()
    assert (sent["topic"], sent["path"]) == ("acme.site/lamp-7/things/live/commands/retrieve", "/attributes/on")
    assert (sent["headers"]["channel"], sent["headers"]["mine"]) == ("live", "x")
    assert "live-channel-condition" not in sent["headers"]
    other.deliver(with_status(live("retrieve", "/attributes/on", "brightly"), 200))
    await harness.settled(1)
    (answer,) = harness.answers()
    assert (answer["topic"], answer["status"], answer["value"]) == (sent["topic"], 200, "brightly")
    assert (answer["headers"]["channel"], answer["headers"]["correlation-id"]) == ("live", "c-1")


async def test_the_twin_answers_a_query_when_the_live_channel_condition_does_not_match() -> None:
    harness = await turned_on()
    other = other_connection(harness, target(COMMANDS))
    answer = await harness.ask(query("eq(attributes/on,false)"))
    assert (answer["topic"], answer["value"]) == ("acme.site/lamp-7/things/twin/commands/retrieve", True)
    harness.deliver(query(response_required=False))
    await harness.settled(2)
    assert (len(harness.answers()), other.answers()) == (1, [])


@pytest.mark.parametrize(
    ("strategy", "status", "channel", "outcome"),
    [({}, 408, "live", REDELIVER), ({"live_channel_timeout_strategy": "use-twin"}, 200, "twin", SETTLED)],
)
async def test_a_device_without_response_is_an_error_or_answered_by_the_twin(
    strategy: dict[str, Any], status: int, channel: str, outcome: Outcome
) -> None:
    harness = await turned_on()
    other_connection(harness, target(COMMANDS))
    harness.deliver(query(timeout="1s", **strategy))
    await until(lambda: harness.waiting_deliveries() == 1)
    harness.clock.advance(1)
    harness.request_reply.pending.expire()
    assert await harness.ended(1) == [outcome]
    (answer,) = harness.answers()
    assert answer["status"] == status
    assert answer["topic"].split("/")[3] == channel
    assert answer["value"] is True if status == 200 else answer["value"]["error"] == "command.timeout"


@pytest.mark.parametrize(
    ("payload", "refusal"),
    [
        (query("eq("), (400, "things:condition.invalid")),
        (query(path="/attributes/none"), (404, "things:attribute.notfound")),
        (query(at_historical_revision=1), (400, "header.notsupported")),
        (turn(False, live_channel_condition="exists(thingId)"), (405, "things:live.channelcondition.notallowed")),
    ],
)
async def test_a_query_that_cannot_be_sent_to_the_device_is_refused(payload: bytes, refusal: tuple[int, str]) -> None:
    harness = await turned_on()
    other = other_connection(harness, target(COMMANDS))
    answer = await harness.ask(payload)
    assert (answer["status"], answer["value"]["error"], other.answers()) == (*refusal, [])


async def test_a_condition_on_an_unreadable_field_sends_nothing_to_the_device() -> None:
    harness = await turned_on()
    other = other_connection(harness, target(COMMANDS))
    strange = ConnectionHarness(source("in", "acme:stranger"), beside=harness, id="strange")
    await grant_read(harness, "thing:/policyId")
    answer = await strange.ask(query(path="/policyId"))
    assert (answer["status"], answer["value"]["error"]) == (412, "things:condition.failed")
    assert other.answers() == []


@pytest.mark.parametrize(("namespace", "is_readable"), [("acme.site", False), ("acme.pool", True)])
async def test_extra_fields_show_the_policy_as_far_as_its_own_namespace_permits(
    namespace: str, is_readable: bool
) -> None:
    """As a retrieve: an entry for the namespace of the thing does not apply to a policy of another one."""
    harness, viewer = ConnectionHarness(), {"acme:viewer": {"type": "test"}}
    shared = policy(OWNER) | {"policyId": "acme.pool:shared"}
    read = {"grant": ["READ"], "revoke": []}
    shared["entries"]["MESSAGES"] = {"subjects": viewer, "resources": {"message:/": read, "thing:/": read}}
    shared["entries"]["POLICY"] = {"subjects": viewer, "resources": {"policy:/": read}, "namespaces": [namespace]}
    await harness.ask(document("acme.pool/shared/policies/commands/create", value=shared))
    await harness.ask(command("create", value={"policyId": "acme.pool:shared"}))
    fields = target(f"{MESSAGES}?extraFields=_policy/policyId", authorizationContext=list(viewer))
    other = other_connection(harness, fields)
    harness.deliver(message())
    (sent,) = other.answers()
    assert ("extra" in sent) is is_readable

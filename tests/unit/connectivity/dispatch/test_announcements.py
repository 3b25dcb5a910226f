"""Announcements of policies: their targets, their order after the change, and their acknowledgements."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from connectivity.dispatch import announcements as module
from connectivity.dispatch.announcements import MAX_ATTEMPTS, TOPIC
from connectivity.errors import PublishFailed
from mappings.ids import EntityId, EntityType
from mappings.model.signals import Acknowledgement, PolicyAnnouncement
from tests.support.in_process.service import OWNER, ConnectionHarness, document, pause, source, target, until

pytestmark = pytest.mark.usefixtures("harnesses")

POLICY = EntityId(EntityType.POLICY, "acme.site", "pol-7")
GUEST = "acme:guest"
ACKS = "acme.site/pol-7/policies/acks"
ANNOUNCEMENT = PolicyAnnouncement(
    POLICY, "subjectDeletion", (GUEST,), b'{"deleteAt":"x"}', {"response-required": False}
)


def a_target(topic: str = TOPIC, *subjects: str) -> dict[str, Any]:
    return target(topic, authorizationContext=list(subjects or (GUEST,)))


def test_case_the_announced_subject_is_sent_the_announcement_with_a_new_correlation_id() -> None:
    harness = ConnectionHarness(targets=[a_target(TOPIC, OWNER, GUEST)])
    harness.assembly.announcements.announce(ANNOUNCEMENT)
    harness.assembly.announcements.announce(ANNOUNCEMENT)
    first, second = harness.answers()
    assert (first["topic"], first["path"]) == ("acme.site/pol-7/policies/announcements/subjectDeletion", "/")
    assert (first["value"], first["headers"]["content-type"]) == ({"deleteAt": "x"}, "application/json")
    assert first["headers"]["correlation-id"] != second["headers"]["correlation-id"]


@pytest.mark.parametrize(
    ("topic", "subjects", "is_notified"),
    [
        (TOPIC, (GUEST,), True),
        (TOPIC, (OWNER,), False),
        (f"{TOPIC}?namespaces=acme.site,other", (GUEST,), True),
        (f"{TOPIC}?namespaces=acme", (GUEST,), False),
        ("_/_/things/live/messages", (GUEST,), False),
    ],
)
def test_targets_are_selected_by_subject_and_namespace(
    topic: str, subjects: tuple[str, ...], is_notified: bool
) -> None:
    harness = ConnectionHarness(targets=[a_target(topic, *subjects)])
    harness.assembly.announcements.announce(ANNOUNCEMENT)
    assert len(harness.answers()) == is_notified


def test_every_connection_is_sent_the_announcement() -> None:
    """Including the connection of the command."""
    harness = ConnectionHarness(targets=[a_target(), a_target()])
    other = ConnectionHarness(source("in"), beside=harness, id="other", targets=[a_target()])
    harness.assembly.announcements.announce(ANNOUNCEMENT)
    assert (len(harness.answers()), len(other.answers())) == (2, 1)


def announcement_with_labels(*labels: str, **headers: Any) -> PolicyAnnouncement:
    return replace(ANNOUNCEMENT, headers={"response-required": False, "requested-acks": list(labels), **headers})


def awaited(harness: ConnectionHarness) -> int:
    return len(harness.assembly.announcements)


async def test_9_05_an_announcement_without_acknowledgement_is_sent_again() -> None:
    harness = ConnectionHarness(targets=[a_target()])
    with capture_logs() as lines:
        harness.assembly.announcements.announce(announcement_with_labels("site:seen", timeout="1ms"))
        await until(lambda: awaited(harness) == 0)
    answers = harness.answers()
    assert len(answers) == MAX_ATTEMPTS
    assert len({answer["headers"]["correlation-id"] for answer in answers}) == 1
    assert lines[-1]["event"] == "announcement not acknowledged"


async def test_9_05_a_source_that_declares_the_label_acknowledges_it() -> None:
    harness = ConnectionHarness(source("in", declaredAcks=["{{ connection:id }}:seen"]), targets=[a_target()])
    harness.assembly.announcements.announce(announcement_with_labels("site:seen", timeout="50s"))
    (announcement,) = harness.answers()
    assert awaited(harness) == 1
    headers = {"correlation-id": announcement["headers"]["correlation-id"]}
    harness.deliver(
        json.dumps({"topic": f"{ACKS}/other:seen", "headers": headers, "path": "/", "status": 200}).encode()
    )
    assert awaited(harness) == 1, "nobody's label"
    harness.deliver(json.dumps({"topic": f"{ACKS}/site:seen", "headers": headers, "path": "/", "status": 200}).encode())
    await until(lambda: awaited(harness) == 0)
    await until(lambda: len(harness.answers()) == 2)
    refused = harness.answers()[1]
    assert refused["topic"] == "acme.site/pol-7/policies/errors"
    assert refused["value"]["error"] == "acknowledgement:label.not.declared"


async def test_9_05_a_target_that_issues_the_label_acknowledges_it_when_its_broker_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.001)
    harness = ConnectionHarness(targets=[{**a_target(), "issuedAcknowledgementLabel": "site:notified"}])
    harness.link.confirms = False
    harness.assembly.announcements.announce(announcement_with_labels("site:notified"))
    harness.link.confirm(1, PublishFailed("busy"))
    await until(lambda: len(harness.answers()) == 2)
    assert awaited(harness) == 1, "a failure that may go well later"
    harness.link.confirm()
    await until(lambda: awaited(harness) == 0)
    harness.assembly.announcements.announce(announcement_with_labels("site:notified"))
    harness.link.confirm(1, PublishFailed("too large", status=413))
    await until(lambda: awaited(harness) == 0)
    assert len(harness.answers()) == 3, "what can never be taken is not sent again"


@pytest.mark.parametrize("more", [{"payloadMapping": ["Normalized"]}, {"address": "{{ thing:id }}"}])
async def test_3_8_a_target_that_makes_no_message_of_it_acknowledges_its_label_weakly(more: dict[str, Any]) -> None:
    issuing = {**a_target(), "issuedAcknowledgementLabel": "site:notified"}
    harness = ConnectionHarness(targets=[{**issuing, **more}])
    harness.assembly.announcements.announce(announcement_with_labels("site:notified", timeout="50s"))
    assert (len(harness.answers()), awaited(harness)) == (0, 0)
    harness.assembly.announcements.announce(announcement_with_labels("site:notified", "site:seen", timeout="50s"))
    assert awaited(harness) == 1, "the other label is waited for"


def test_an_acknowledgement_that_was_not_requested_is_ignored() -> None:
    late = Acknowledgement(POLICY, "site:seen", 200, None, {"correlation-id": "c-1"})
    assert not ConnectionHarness().assembly.announcements.acknowledge(late)


def test_labels_of_the_service_itself_are_not_waited_for() -> None:
    harness = ConnectionHarness(targets=[a_target()])
    harness.assembly.announcements.announce(announcement_with_labels("twin-persisted"))
    assert (len(harness.answers()), awaited(harness)) == (1, 0)


async def test_announcements_beyond_the_limit_are_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PENDING_ANNOUNCEMENTS", 1)
    harness = ConnectionHarness(targets=[a_target()])
    for _ in range(2):
        harness.assembly.announcements.announce(announcement_with_labels("site:seen", timeout="50s"))
    assert (len(harness.answers()), awaited(harness)) == (2, 1)


async def test_a_deletion_is_announced_when_it_is_durable() -> None:
    harness = ConnectionHarness(targets=[a_target()])
    topic = "acme.site/pol-7/policies/commands"
    everything = {"grant": ["READ", "WRITE"], "revoke": []}
    guest = {"type": "t", "announcement": {"whenDeleted": True}}
    entries = {
        "OWNER": {"subjects": {OWNER: {"type": "t"}}, "resources": {"policy:/": everything}},
        "GUEST": {"subjects": {GUEST: guest}, "resources": {}},
    }
    value = {"policyId": "acme.site:pol-7", "entries": entries}
    assert (await harness.ask(document(f"{topic}/create", value=value)))["status"] == 201
    await harness.settled(1)
    harness.forget()
    harness.disk.hold()
    harness.deliver(document(f"{topic}/delete", f"/entries/GUEST/subjects/{GUEST}"))
    await pause()
    assert harness.answers() == []
    harness.disk.release()
    await harness.settled(1)
    response, announcement = harness.answers()
    assert response["status"] == 204
    assert announcement["topic"].endswith("/announcements/subjectDeletion")
    assert announcement["value"]["subjectIds"] == [GUEST]
    assert [event.action for event in harness.history(POLICY)] == ["created", "deleted"]

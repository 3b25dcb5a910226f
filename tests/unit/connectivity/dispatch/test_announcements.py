"""Announcements of policies: their targets, their order after the change, and their acknowledgements."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from connectivity.dispatch import announcements as module
from connectivity.dispatch.announcements import MAX_ATTEMPTS, TOPIC
from connectivity.errors import PublishFailed
from mappings.ids import EntityId, EntityType
from mappings.model.signals import Acknowledgement, PolicyAnnouncement
from tests.support.in_process.service import OWNER, ConnectionHarness, document, pause, source, target, until

pytestmark = pytest.mark.usefixtures("sites")

POLICY = EntityId(EntityType.POLICY, "acme.site", "pol-7")
GUEST = "acme:guest"
ACKS = "acme.site/pol-7/policies/acks"
ANNOUNCEMENT = PolicyAnnouncement(
    POLICY, "subjectDeletion", (GUEST,), b'{"deleteAt":"x"}', {"response-required": False}
)


def a_target(topic: str = TOPIC, *subjects: str) -> dict[str, Any]:
    return target(topic, authorizationContext=list(subjects or (GUEST,)))


def test_case_the_announced_subject_is_sent_the_announcement_with_a_new_correlation_id() -> None:
    site = ConnectionHarness(targets=[a_target(TOPIC, OWNER, GUEST)])
    site.dispatcher.announce(ANNOUNCEMENT)
    site.dispatcher.announce(ANNOUNCEMENT)
    first, second = site.answers()
    assert (first["topic"], first["path"]) == ("acme.site/pol-7/policies/announcements/subjectDeletion", "/")
    assert (first["value"], first["headers"]["content-type"]) == ({"deleteAt": "x"}, "application/json")
    assert first["headers"]["correlation-id"] != second["headers"]["correlation-id"]


@pytest.mark.parametrize(
    ("topic", "subjects", "is_told"),
    [
        (TOPIC, (GUEST,), True),
        (TOPIC, (OWNER,), False),
        (f"{TOPIC}?namespaces=acme.site,other", (GUEST,), True),
        (f"{TOPIC}?namespaces=acme", (GUEST,), False),
        ("_/_/things/live/messages", (GUEST,), False),
    ],
)
def test_targets_are_selected_by_subject_and_namespace(topic: str, subjects: tuple[str, ...], is_told: bool) -> None:
    site = ConnectionHarness(targets=[a_target(topic, *subjects)])
    site.dispatcher.announce(ANNOUNCEMENT)
    assert len(site.answers()) == is_told


def test_every_connection_is_sent_the_announcement() -> None:
    """Including the connection of the command."""
    site = ConnectionHarness(targets=[a_target(), a_target()])
    other = ConnectionHarness(source("in"), beside=site, id="other", targets=[a_target()])
    site.dispatcher.announce(ANNOUNCEMENT)
    assert (len(site.answers()), len(other.answers())) == (2, 1)


def asking(*labels: str, **headers: Any) -> PolicyAnnouncement:
    return replace(ANNOUNCEMENT, headers={"response-required": False, "requested-acks": list(labels), **headers})


def awaited(site: ConnectionHarness) -> int:
    return len(site.dispatcher._request_reply.announcements)


async def test_9_05_an_announcement_without_acknowledgement_is_sent_again() -> None:
    site = ConnectionHarness(targets=[a_target()])
    with capture_logs() as lines:
        site.dispatcher.announce(asking("site:seen", timeout="1ms"))
        await until(lambda: awaited(site) == 0)
    answers = site.answers()
    assert len(answers) == MAX_ATTEMPTS
    assert len({answer["headers"]["correlation-id"] for answer in answers}) == 1
    assert lines[-1]["event"] == "announcement not acknowledged"


async def test_9_05_a_source_that_declares_the_label_acknowledges_it() -> None:
    site = ConnectionHarness(source("in", declaredAcks=["{{ connection:id }}:seen"]), targets=[a_target()])
    site.dispatcher.announce(asking("site:seen", timeout="50s"))
    (announcement,) = site.answers()
    assert awaited(site) == 1
    headers = {"correlation-id": announcement["headers"]["correlation-id"]}
    site.deliver(json.dumps({"topic": f"{ACKS}/other:seen", "headers": headers, "path": "/", "status": 200}).encode())
    assert awaited(site) == 1, "nobody's label"
    site.deliver(json.dumps({"topic": f"{ACKS}/site:seen", "headers": headers, "path": "/", "status": 200}).encode())
    await until(lambda: awaited(site) == 0)
    await until(lambda: len(site.answers()) == 2)
    refused = site.answers()[1]
    assert refused["topic"] == "acme.site/pol-7/policies/errors"
    assert refused["value"]["error"] == "acknowledgement:label.not.declared"


async def test_9_05_a_target_that_issues_the_label_acknowledges_it_when_its_broker_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.001)
    site = ConnectionHarness(targets=[{**a_target(), "issuedAcknowledgementLabel": "site:told"}])
    site.link.confirms = False
    site.dispatcher.announce(asking("site:told"))
    site.link.confirm(1, PublishFailed("busy"))
    await until(lambda: len(site.answers()) == 2)
    assert awaited(site) == 1, "a failure that may go well later"
    site.link.confirm()
    await until(lambda: awaited(site) == 0)
    site.dispatcher.announce(asking("site:told"))
    site.link.confirm(1, PublishFailed("too large", status=413))
    await until(lambda: awaited(site) == 0)
    assert len(site.answers()) == 3, "what can never be taken is not sent again"


def test_an_acknowledgement_that_was_not_requested_is_ignored() -> None:
    late = Acknowledgement(POLICY, "site:seen", 200, None, {"correlation-id": "c-1"})
    assert not ConnectionHarness().dispatcher._request_reply.announcements.acknowledge(late)


def test_labels_of_the_service_itself_are_not_waited_for() -> None:
    site = ConnectionHarness(targets=[a_target()])
    site.dispatcher.announce(asking("twin-persisted"))
    assert (len(site.answers()), awaited(site)) == (1, 0)


async def test_announcements_beyond_the_limit_are_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PENDING_ANNOUNCEMENTS", 1)
    site = ConnectionHarness(targets=[a_target()])
    for _ in range(2):
        site.dispatcher.announce(asking("site:seen", timeout="50s"))
    assert (len(site.answers()), awaited(site)) == (2, 1)


async def test_a_deletion_is_announced_when_it_is_durable() -> None:
    site = ConnectionHarness(targets=[a_target()])
    topic = "acme.site/pol-7/policies/commands"
    everything = {"grant": ["READ", "WRITE"], "revoke": []}
    guest = {"type": "t", "announcement": {"whenDeleted": True}}
    entries = {
        "OWNER": {"subjects": {OWNER: {"type": "t"}}, "resources": {"policy:/": everything}},
        "GUEST": {"subjects": {GUEST: guest}, "resources": {}},
    }
    value = {"policyId": "acme.site:pol-7", "entries": entries}
    assert (await site.ask(document(f"{topic}/create", value=value)))["status"] == 201
    await site.settled(1)
    site.forget()
    site.disk.hold()
    site.deliver(document(f"{topic}/delete", f"/entries/GUEST/subjects/{GUEST}"))
    await pause()
    assert site.answers() == []
    site.disk.release()
    await site.settled(1)
    response, announcement = site.answers()
    assert response["status"] == 204
    assert announcement["topic"].endswith("/announcements/subjectDeletion")
    assert announcement["value"]["subjectIds"] == [GUEST]
    assert [event.action for event in site.history(POLICY)] == ["created", "deleted"]

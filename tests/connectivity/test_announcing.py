"""Announcements of policies: which targets are sent them, and that they follow what they tell."""

from __future__ import annotations

from typing import Any

import pytest

from connectivity.announcing import TOPIC
from mappings.ids import EntityId, EntityType
from mappings.signals import PolicyAnnouncement
from tests.connectivity.site import OWNER, Site, document, pause, source, target

pytestmark = pytest.mark.usefixtures("sites")

POLICY = EntityId(EntityType.POLICY, "acme.site", "pol-7")
GUEST = "acme:guest"
ANNOUNCEMENT = PolicyAnnouncement(
    POLICY, "subjectDeletion", (GUEST,), b'{"deleteAt":"x"}', {"response-required": False}
)


def a_target(topic: str = TOPIC, *subjects: str) -> dict[str, Any]:
    return target(topic, authorizationContext=list(subjects or (GUEST,)))


def test_case_the_announced_subject_is_told_under_a_correlation_id_of_its_own() -> None:
    site = Site(targets=[a_target(TOPIC, OWNER, GUEST)])
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
def test_a_target_is_told_by_subject_and_namespace(topic: str, subjects: tuple[str, ...], is_told: bool) -> None:
    site = Site(targets=[a_target(topic, *subjects)])
    site.dispatcher.announce(ANNOUNCEMENT)
    assert len(site.answers()) == is_told


def test_every_connection_is_told() -> None:
    """Also the one that the command came by."""
    site = Site(targets=[a_target(), a_target()])
    other = Site(source("in"), beside=site, id="other", targets=[a_target()])
    site.dispatcher.announce(ANNOUNCEMENT)
    assert (len(site.answers()), len(other.answers())) == (2, 1)


async def test_who_is_deleted_hears_of_it_when_it_is_durable() -> None:
    site = Site(targets=[a_target()])
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

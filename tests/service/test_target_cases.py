"""Messages at a connection's targets, with the running service and a real broker.

Case numbers are those of the cases for connections.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.brokers.mosquitto import Mosquitto
from tests.support.clients.mqtt import MqttClient
from tests.support.connection_documents import EVERYTHING, client, connection, policy_for, source, topic
from tests.support.service_process import ServiceProcess
from tests.support.wait import wait_until_sync

pytestmark = pytest.mark.broker("mosquitto")

OWNER, VIEWER = "acme:owner", "acme:viewer"
EVENTS = "_/_/things/twin/events"

SEVERAL = """
function mapFromDittoProtocolMsg(namespace, name, group, channel, criterion, action, path, dittoHeaders, value) {
    const payload = n => JSON.stringify({name: name, part: n, value: value});
    return [1, 2, 3].map(n => Ditto.buildExternalMsg({}, payload(n), null, 'text/plain'));
}
"""


def target(address: str, *topics: str, subject: str = OWNER, **more: Any) -> dict[str, Any]:
    return {"address": address, "topics": list(topics), "authorizationContext": [subject], "qos": 1, **more}


TARGETS = [
    target("cases/several", EVENTS, payloadMapping=["several"]),
    target("cases/viewer", EVENTS, subject=VIEWER),
    target("cases/lifecycle", f'{EVENTS}?filter=in(topic:action,"created","deleted")'),
    target(
        "cases/both",
        f"{EVENTS}?extraFields=attributes/first&filter=exists(attributes/first)",
        f"{EVENTS}?extraFields=attributes/second/shown",
    ),
]
ENRICHED = [target("cases/enriched", f"{EVENTS}?extraFields=attributes/n,features/*/properties/t")]


class Listener:
    """The messages at each target, by the last part of its address."""

    def __init__(self, broker: Mosquitto) -> None:
        self._client = MqttClient(broker.host, broker.port, ask="nothing", answers="cases/#")

    def received(self, address: str, name: str) -> list[dict[str, Any]]:
        """Return the messages about a thing received so far."""
        messages = [json.loads(it.payload) for it in list(self._client.messages) if it.topic == f"cases/{address}"]
        return [it for it in messages if name in (it.get("name"), it.get("topic", "/").split("/")[1])]

    def wait(self, address: str, name: str, number: int) -> list[dict[str, Any]]:
        """Wait for so many messages about a thing, and return them."""
        wait_until_sync(lambda: len(self.received(address, name)) >= number)
        return self.received(address, name)

    def close(self) -> None:
        self._client.close()


@pytest.fixture(scope="module")
def owner(mosquitto: Mosquitto, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqttClient]:
    script = {"mappingEngine": "JavaScript", "options": {"outgoingScript": SEVERAL}}
    documents = [
        connection(mosquitto, source("cases-desk", OWNER), id="cases-desk"),
        connection(mosquitto, id="cases-ears", targets=TARGETS, mappingDefinitions={"several": script}),
        connection(mosquitto, id="cases-more", targets=ENRICHED),
    ]
    with (
        ServiceProcess.start(tmp_path_factory.mktemp("cases"), documents),
        client(mosquitto, "cases-desk") as requester,
    ):
        yield requester


@pytest.fixture(scope="module")
def listener(mosquitto: Mosquitto, owner: MqttClient) -> Iterator[Listener]:
    listening = Listener(mosquitto)
    yield listening
    listening.close()


def make(owner: MqttClient, name: str, policy: dict[str, Any], **thing: Any) -> None:
    answer = owner.ask_for(topic(name, "commands/create"), value={"_policy": policy, **thing})
    assert answer["status"] == 201, answer


def change(owner: MqttClient, name: str, path: str, value: Any, verb: str = "modify") -> None:
    headers = {"content-type": "application/merge-patch+json"} if verb == "merge" else {}
    answer = owner.ask_for(topic(name, f"commands/{verb}"), path, value, headers)
    assert answer["status"] in (201, 204), answer


def test_case_54_a_mapper_that_returns_several_messages_has_all_of_them_published_in_order(
    owner: MqttClient, listener: Listener
) -> None:
    make(owner, "case-54", policy_for(OWNER))
    change(owner, "case-54", "/attributes/n", 7)
    received = listener.wait("several", "case-54", 6)
    assert [it["part"] for it in received] == [1, 2, 3, 1, 2, 3]
    assert [it["value"] for it in received[3:]] == [7, 7, 7]


def test_case_59_an_event_lacks_the_feature_that_a_policy_revokes(owner: MqttClient, listener: Listener) -> None:
    hidden = {"grant": [], "revoke": ["READ"]}
    policy = policy_for(OWNER, acme_viewer={"thing:/": EVERYTHING, "thing:/features/secret": hidden})
    features = {"open": {"properties": {"n": 1}}, "secret": {"properties": {"n": 2}}}
    make(owner, "case-59", policy, features=features)
    change(owner, "case-59", "/features/secret/properties/n", 3)
    change(owner, "case-59", "/features/open/properties/n", 4)
    created, changed = listener.wait("viewer", "case-59", 2)
    assert created["value"]["features"] == {"open": features["open"]}
    assert (changed["path"], changed["value"]) == ("/features/open/properties/n", 4)


def test_case_60_a_filter_on_the_action_lets_the_beginning_and_the_end_pass(
    owner: MqttClient, listener: Listener
) -> None:
    make(owner, "case-60", policy_for(OWNER), attributes={"n": 0})
    change(owner, "case-60", "/attributes/n", 1)
    change(owner, "case-60", "/attributes/n", 2)
    change(owner, "case-60", "/attributes", {"n": 3}, verb="merge")
    change(owner, "case-60", "/", None, verb="delete")
    received = listener.wait("lifecycle", "case-60", 2)
    assert [(it["topic"].rsplit("/", 1)[1], it["revision"]) for it in received] == [("created", 1), ("deleted", 5)]


def test_case_61_two_topics_that_match_make_one_message_with_the_fields_of_one(
    owner: MqttClient, listener: Listener
) -> None:
    attributes = {"first": 1, "second": {"shown": 2, "sibling": 3}}
    make(owner, "case-61", policy_for(OWNER), attributes=attributes)
    change(owner, "case-61", "/attributes/n", 1)
    owner.ask_for(topic("case-61", "commands/delete"), "/attributes/first")
    change(owner, "case-61", "/attributes/n", 2)
    received = listener.wait("both", "case-61", 4)
    assert [it["revision"] for it in received] == [1, 2, 3, 4]
    assert received[1]["extra"] == {"attributes": {"first": 1}}
    assert received[3]["extra"] == {"attributes": {"second": {"shown": 2}}}


def test_case_62_extra_fields_have_the_new_value_and_every_feature_that_has_one(
    owner: MqttClient, listener: Listener
) -> None:
    features = {"a": {"properties": {"t": 1}}, "b": {"properties": {"u": 2}}, "c": {"properties": {"t": 3, "u": 4}}}
    make(owner, "case-62", policy_for(OWNER), attributes={"n": 1}, features=features)
    change(owner, "case-62", "/attributes/n", 2)
    changed = listener.wait("enriched", "case-62", 2)[1]
    assert changed["extra"] == {
        "attributes": {"n": 2},
        "features": {"a": {"properties": {"t": 1}}, "c": {"properties": {"t": 3}}},
    }

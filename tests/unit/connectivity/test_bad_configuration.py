"""Configuration errors of a connection, when they are reported and how: the table of operations.

A missing exchange is reported by a real broker (`tests/links/test_amqp.py`), and in a connection test
(`test_connection_test.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from prometheus_client import generate_latest

from connectivity.connections.lifecycle import Status
from connectivity.security.keys import new_key
from mappings.errors import Fault
from tests.support.in_process.connection_management import ManagementHarness, agree, document, refused
from tests.support.in_process.running_connection import Running
from tests.support.in_process.service import source
from tests.support.wait import wait_until

CONFIGURATION = "connectivity:connection.configuration.invalid"
SOURCE = {"addresses": ["in"], "qos": 1, "authorizationContext": ["acme:x"]}
TARGET = {"address": "out", "topics": ["_/_/things/twin/events"], "qos": 1, "authorizationContext": ["acme:x"]}


class InvalidDocument(NamedTuple):
    """An invalid document, and the expected error."""

    what: str
    change: dict[str, Any]
    code: str
    status: int = 400

    def __str__(self) -> str:
        return self.what


def scripted(**options: str) -> dict[str, Any]:
    return {
        "mappingDefinitions": {"own": {"mappingEngine": "JavaScript", "options": options}},
        "sources": [{**SOURCE, "payloadMapping": ["own"]}],
    }


WRONG = (
    InvalidDocument("a missing field", {"uri": None}, "connectivity:connection.uri.invalid"),
    InvalidDocument("an invalid field", {"clientCount": 0}, CONFIGURATION),
    InvalidDocument("an unknown field", {"wishes": []}, CONFIGURATION),
    InvalidDocument("a uri without a port", {"uri": "tcp://127.0.0.1"}, "connectivity:connection.uri.invalid"),
    InvalidDocument(
        "an unknown placeholder", {"targets": [{**TARGET, "address": "{{ no:such }}"}]}, "placeholder:unresolved"
    ),
    InvalidDocument(
        "an unknown function",
        {"targets": [{**TARGET, "address": "{{ thing:id | fn:no() }}"}]},
        "placeholder:function.unknown",
    ),
    InvalidDocument(
        "a filter that is no RQL",
        {"targets": [{**TARGET, "topics": ["_/_/things/twin/events?filter=eq("]}]},
        "rql.expression.invalid",
    ),
    InvalidDocument(
        "an unknown topic", {"targets": [{**TARGET, "topics": ["_/_/no/such"]}]}, "connectivity:topic.invalid"
    ),
    InvalidDocument("too many sources", {"sources": [SOURCE] * 5}, CONFIGURATION),
    InvalidDocument("too many targets", {"targets": [TARGET] * 5}, CONFIGURATION),
    InvalidDocument("no source and no target", {"sources": []}, CONFIGURATION),
    InvalidDocument("no authorization subject", {"sources": [{**SOURCE, "authorizationContext": []}]}, CONFIGURATION),
    InvalidDocument(
        "case 22: what MQTT 3.1.1 has no header for",
        {"sources": [{**SOURCE, "headerMapping": {"a": "{{ header:b }}"}}]},
        CONFIGURATION,
    ),
    InvalidDocument(
        "case 44: one label twice",
        {"id": "depot", "targets": [{**TARGET, "issuedAcknowledgementLabel": "depot:a"}] * 2},
        "acknowledgement:label.not.unique",
        409,
    ),
    InvalidDocument(
        "case 45: somebody else's label",
        {"id": "depot", "targets": [{**TARGET, "issuedAcknowledgementLabel": "x:a"}]},
        "acknowledgement:label.invalid",
    ),
    InvalidDocument(
        "case 47: announcements of two clients",
        {
            "connectionType": "mqtt-5",
            "clientCount": 2,
            "targets": [{**TARGET, "topics": ["_/_/connections/announcements"]}],
        },
        CONFIGURATION,
    ),
    InvalidDocument(
        "a script that does not compile",
        scripted(incomingScript="function ("),
        "connectivity:message.mapper.config.failed",
    ),
    InvalidDocument(
        "a script that is too large", scripted(incomingScript="/" * 50_001), "connectivity:message.mapper.config.failed"
    ),
)

AWAY = {
    "wrong credentials": (Status.MISCONFIGURED, "bad credentials: not authorised"),
    "bad TLS": (Status.MISCONFIGURED, "certificate: self-signed certificate"),
    "host down": (Status.MISCONFIGURED, "connection refused: [Errno 111]"),
    "queue missing": (Status.MISCONFIGURED, "missing address: no queue 'in' in vhost '/'"),
}
FAILED = (504, "connectivity:connection.failed")


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[ManagementHarness]:
    made = await ManagementHarness(tmp_path, (new_key(),)).started()
    yield made
    await made.store.close()


Ask = Callable[[ManagementHarness, dict[str, Any]], Awaitable[object]]
ASKED: dict[str, Ask] = {
    "created": lambda harness, given: harness.manager.create(given, "ada"),
    "put": lambda harness, given: harness.manager.put(given.get("id", "depot"), given, "ada", agree),
    "tested": lambda harness, given: harness.manager.test(given),
}


def status_and_code(fault: Fault) -> tuple[int, str]:
    return fault.status, fault.error


@pytest.mark.parametrize("how", ASKED)
@pytest.mark.parametrize("wrong", WRONG, ids=str)
async def test_7_8_a_wrong_document_is_refused_and_nothing_is_kept(
    harness: ManagementHarness, wrong: InvalidDocument, how: str
) -> None:
    given = document(**wrong.change)
    if how == "created":
        given.pop("id", None)
        if wrong.what.startswith("case 4") and "label" in wrong.what:
            # It has no id yet that a label could begin with.
            wrong = wrong._replace(code="acknowledgement:label.invalid", status=400)
    assert status_and_code(await refused(ASKED[how](harness, given))) == (wrong.status, wrong.code)
    assert harness.manager.ids() == []
    assert harness.reported == []


@pytest.mark.parametrize("away", AWAY)
async def test_7_8_a_broker_that_cannot_be_used_shows_after_it_is_stored(harness: ManagementHarness, away: str) -> None:
    """POST → 201; opening and modifying → 504, with the reason; it stays wanted, and is tried again."""
    harness.broker = status, details = AWAY[away]
    made = await harness.manager.create(document(), "ada")
    fault = await refused(harness.manager.put(made.id, document(name="changed"), "ada", agree))
    assert (status_and_code(fault), fault.description) == (FAILED, details)
    fault = await refused(harness.manager.open(made.id, "ada"))
    assert (status_and_code(fault), fault.description) == (FAILED, details)
    kept = await harness.manager.definition(made.id)
    assert (kept.document["name"], kept.document["connectionStatus"]) == ("changed", "open")
    shown = harness.manager.status(made.id)
    assert (shown["connectionStatus"], shown["liveStatus"]) == ("open", status.value)


THROWS = """
function mapToDittoProtocolMsg(headers, textPayload) {
    throw new Error('no such lamp');
}
"""


@pytest.mark.extra("javascript")
async def test_7_8_a_mapper_that_throws_costs_its_message_alone(runs: None) -> None:
    running = await Running.opened(
        source(),
        source("in/1", payloadMapping=["own"], replyTarget={"address": "out/1"}),
        mappingDefinitions={"own": {"mappingEngine": "JavaScript", "options": {"incomingScript": THROWS}}},
    )
    running.send(b"anything", to="in/1")
    await wait_until(lambda: running.answers("out/1"))
    [answer] = running.answers("out/1")
    assert (answer["status"], answer["value"]["error"]) == (400, "connectivity:message.mapping.failed")
    assert "no such lamp" in answer["value"]["message"]
    assert running.supervisor.status is Status.OPEN


async def test_7_8_an_answer_without_an_address_is_dropped_and_nothing_else(runs: None) -> None:
    running = await Running.opened(source(), source("in/1", replyTarget={"address": "{{ header:reply-to }}"}))
    running.send(b"not even JSON", to="in/1")
    metrics = running.harness.monitor.registry
    await wait_until(lambda: b'outcome="address_unresolved"} 1.0' in generate_latest(metrics))
    assert running.broker.taken == [] or all(each.address == "in/1" for each in running.broker.taken)
    assert running.supervisor.status is Status.OPEN

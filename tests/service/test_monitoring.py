"""A connection of a running service and a real broker, as operators see it: status, metrics, log.

Case numbers are those of the behavior cases of connections. The service runs inside the test, so that its management is at
hand; the broker, the journal and the wire are real.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from connectivity.config.settings import Settings
from connectivity.service import Service
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.clients.mqtt import MqttClient
from tests.support.connection_documents import client, connection, policy_for, source, topic
from tests.support.wait import PATIENCE, wait_until

pytestmark = pytest.mark.broker("mosquitto")

OWNER = "acme:owner"
STEPS = ("dispatched", "filtered", "mapped", "published")

CONNECTIONS: dict[str, dict[str, Any]] = {
    "inward": {},
    "outward": {
        "targets": [
            {
                "address": "watch/events",
                "topics": ["_/_/things/twin/events"],
                "authorizationContext": [OWNER],
                "qos": 1,
            },
            {
                "address": "watch/{{ thing:name }}",
                "topics": ["_/_/things/live/messages"],
                "authorizationContext": [OWNER],
                "qos": 1,
            },
        ]
    },
}


class Operator:
    """An operator of the connections of a service."""

    def __init__(self, service: Service, broker: Mosquitto) -> None:
        self.service, self.broker = service, broker
        self.management = service.management

    def entries(self, connection_id: str, correlation_id: str | None = None) -> set[tuple[str, str, str]]:
        """Return category, type and level of the entries, or of those of one conversation."""
        return {
            (entry["category"], entry["type"], entry["level"])
            for entry in self.logs(connection_id)
            if correlation_id in (None, entry["correlationId"])
        }

    def logs(self, connection_id: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.management.logs(connection_id)["connectionLogs"]
        return found

    def counted(self, connection_id: str, kind: str, address: str, level: str = "success") -> dict[str, int]:
        """Return the counts within the last minute, without zeros."""
        found = self.management.metrics(connection_id)[f"{kind}Metrics"]["addressMetrics"][address]
        return {type: both[level]["PT1M"] for type, both in found.items() if both[level]["PT1M"]}

    async def requester(self, name: str) -> MqttClient:
        return await asyncio.to_thread(client, self.broker, name)

    async def is_open(self, *connection_ids: str) -> None:
        await wait_until(lambda: all(self.management.status(each)["liveStatus"] == "open" for each in connection_ids))


@pytest.fixture
async def operator(tmp_path: Path, mosquitto: Mosquitto) -> AsyncIterator[Operator]:
    """A service with a thing and two connections, one for requests and one that receives events."""
    folder = tmp_path / "connections"
    folder.mkdir()
    sources = {
        "inward": (source("in", OWNER), source("wild", OWNER, addresses=["wild/+/ask"])),
        "outward": (source("mute", OWNER, replyTarget={"address": "{{ header:reply-to }}"}),),
    }
    for name, more in CONNECTIONS.items():
        document = {**connection(mosquitto, *sources[name], **more), "id": name}
        (folder / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")
    settings = Settings.model_validate({"connections_dir": folder, "data_dir": tmp_path, "spark": {"mode": "off"}})
    service = Service(settings)
    await service.management.load()
    await service.registry.refresh()
    made = Operator(service, mosquitto)
    try:
        await made.is_open("inward", "outward")
        with await made.requester("in") as requester:
            created = await asyncio.to_thread(
                requester.ask_for, topic("lamp", "commands/create"), value={"_policy": policy_for(OWNER)}
            )
            assert created["status"] == 201
        yield made
    finally:
        await service.close()


async def test_case_49_the_log_follows_a_message_from_its_source_to_the_target(operator: Operator) -> None:
    for name in CONNECTIONS:
        assert ("connection", "other", "success") in operator.entries(name), "it was opened"
    with await operator.requester("in") as requester:
        asked = requester.command(topic("lamp", "commands/modify"), "/attributes/on", True)
        await asyncio.to_thread(requester.next, PATIENCE)
    await wait_until(lambda: ("source", "acknowledged", "success") in operator.entries("inward", asked))
    assert operator.entries("inward", asked) == {
        *(("source", step, "success") for step in ("consumed", "mapped", "acknowledged")),
        *(("response", step, "success") for step in ("dispatched", "mapped", "published")),
    }
    await wait_until(lambda: ("target", "published", "success") in operator.entries("outward", asked))
    assert operator.entries("outward", asked) == {("target", step, "success") for step in STEPS}
    assert operator.counted("outward", "target", "watch/events") == dict.fromkeys(STEPS, 2), "created and modified"
    before = len(operator.logs("inward"))
    await operator.management.reset_logs("inward", "ada")
    assert len(operator.logs("inward")) < before


async def test_case_50_an_unreadable_message_without_a_reply_address_is_acknowledged_and_logged(
    operator: Operator,
) -> None:
    await operator.management.reset_logs("outward", "ada")
    with await operator.requester("mute") as requester:
        requester.send(b"no JSON")
        await wait_until(lambda: ("source", "acknowledged", "success") in operator.entries("outward"))
    assert operator.entries("outward") == {
        ("source", "consumed", "success"),
        ("source", "mapped", "failure"),
        ("source", "acknowledged", "success"),
        ("response", "dispatched", "failure"),
        ("response", "mapped", "success"),
        ("response", "dropped", "success"),
    }
    (dropped,) = [entry for entry in operator.logs("outward") if entry["type"] == "dropped"]
    assert dropped["message"] == "Signal dropped, target address unresolved"
    assert operator.counted("outward", "source", "mute/ask", "failure") == {"mapped": 1}
    assert operator.management.metrics("outward")["containsFailures"] is True
    await operator.management.reset_metrics("outward", "ada")
    assert operator.management.metrics("outward")["containsFailures"] is False


async def test_the_metrics_of_a_message_are_under_its_topic_filter(operator: Operator) -> None:
    with await operator.requester("wild/7") as requester:
        requester.command(topic("lamp", "commands/retrieve"))
        await wait_until(lambda: operator.counted("inward", "source", "wild/+/ask").get("acknowledged"))
    assert operator.counted("inward", "source", "wild/+/ask") == {"consumed": 1, "mapped": 1, "acknowledged": 1}


async def test_status_7_3_follows_a_connection_that_is_closed_and_opened(operator: Operator) -> None:
    status = operator.management.status("outward")
    assert [part["status"] for part in status["targetStatus"]] == ["open", "unknown"]
    assert status["targetStatus"][1]["statusDetails"].startswith("Producers for targets with placeholders")
    await operator.management.close("outward", "ada")
    closed = operator.management.status("outward")
    assert (closed["connectionStatus"], closed["liveStatus"], closed["sourceStatus"]) == ("closed", "closed", [])
    assert operator.management.logs("outward") == {"connectionId": "outward", "connectionLogs": []}
    assert operator.counted("outward", "target", "watch/events") == dict.fromkeys(STEPS, 1)
    await operator.management.open("outward", "ada")
    await operator.is_open("outward")
    assert ("connection", "other", "success") in operator.entries("outward"), "it keeps a log again"


async def test_status_7_8_a_lost_broker_is_reported_and_reconnected(operator: Operator) -> None:
    with Mosquitto.start(persistence=False) as other:
        document = {**connection(other, source("in", OWNER)), "id": "passing"}
        await operator.management.create(document, "ada")
        await operator.is_open("passing")
    await wait_until(lambda: operator.management.status("passing")["liveStatus"] == "failed")
    status = operator.management.status("passing")
    assert (status["connectionStatus"], status["recoveryStatus"]) == ("open", "ongoing")
    await wait_until(lambda: ("connection", "other", "failure") in operator.entries("passing"))
    words = [entry["message"] for entry in operator.logs("passing") if entry["level"] == "failure"][-1]
    assert words.startswith("Connection failed due to: ")
    assert "Will reconnect after PT" in words

"""A RabbitMQ target whose address contains the thing's name; the queue of one thing is missing."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.clients.amqp import AmqpClient
from tests.support.connection_documents import policy_for, topic
from tests.support.service_process import ServiceProcess
from tests.support.wait import wait_until_sync

pytestmark = pytest.mark.broker("rabbitmq")

OWNER = "acme:owner"
TURNS = 5


def revisions(reader: AmqpClient) -> list[int]:
    return [json.loads(message.body)["revision"] for message in list(reader.messages)]


def is_stored(service: ServiceProcess) -> bool:
    """Return whether the journal has the newest position of the target."""
    with closing(sqlite3.connect(f"file:{service.data / 'journal.db'}?mode=ro", uri=True)) as journal:
        found = journal.execute("SELECT seq = value FROM places, counters WHERE name = 'seq'").fetchall()
    return found == [(1,)]


def document(rabbitmq: RabbitMQ, ask: str) -> list[dict[str, Any]]:
    common = {"connectionType": "amqp-091", "connectionStatus": "open", "uri": rabbitmq.uri()}
    target = {
        "address": "/events.{{ thing:name }}",
        "topics": ["_/_/things/twin/events"],
        "authorizationContext": [OWNER],
        "qos": 1,
    }
    commands = {"addresses": [ask], "authorizationContext": [OWNER], "replyTarget": {"address": f"/{ask}.answers"}}
    return [{"id": "desk", "sources": [commands], **common}, {"id": "hall", "targets": [target], **common}]


def test_a_missing_queue_delays_the_events_of_its_thing_alone(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    """Also through a kill of the service. When the queue exists, its events come in order.

    Other events do not come again.
    """
    number = uuid4().hex[:8]
    ask, lost, fine = f"desk-{number}", f"lost-{number}", f"fine-{number}"
    labels = {"connection": "hall", "target": "0"}
    with (
        closing(AmqpClient(rabbitmq.uri(), ask=ask, answers=f"{ask}.answers")) as owner,
        closing(AmqpClient(rabbitmq.uri(), ask=f"{fine}.unused", answers=f"events.{fine}")) as others,
        ServiceProcess.start(tmp_path, document(rabbitmq, ask)) as service,
    ):
        for name in (lost, fine):
            created = owner.ask_for(topic(name, "commands/create"), value={"_policy": policy_for(OWNER)})
            assert created["status"] == 201, created
        for value in range(TURNS):
            for name in (lost, fine):
                owner.ask_for(topic(name, "commands/modify"), "/attributes/on", value)
        wait_until_sync(lambda: revisions(others) == list(range(1, TURNS + 2)))
        details = service.status("hall")["details"]
        expected = (
            f"targets[0] has parked 1 thing, acme.site:{lost}: missing address: queue 'events.{lost}' does not exist"
        )
        assert expected in details, details
        assert service.metric("connectivity_target_parked_things", **labels) == 1
        wait_until_sync(lambda: is_stored(service))
        service.kill()
        service.start_again()
        with closing(AmqpClient(rabbitmq.uri(), ask=f"{lost}.unused", answers=f"events.{lost}")) as late:
            wait_until_sync(lambda: len(late.messages) > TURNS)
            assert revisions(late) == list(range(1, TURNS + 2))
            wait_until_sync(lambda: service.metric("connectivity_target_parked_things", **labels) == 0)
            owner.ask_for(topic(lost, "commands/modify"), "/attributes/on", TURNS)
            wait_until_sync(lambda: revisions(late)[-1] == TURNS + 2)
        assert revisions(others) == list(range(1, TURNS + 2)), "nothing is repeated"
        assert service.metric("connectivity_target_skipped_total", **labels) == 0

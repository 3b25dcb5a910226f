"""Events of twins at targets on three real brokers: changed over MQTT, received over AMQP and Kafka.

Case numbers are those of the cases for twins.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from tests.support.brokers.kafka import Kafka
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.brokers.proxy import ProxyThread
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.clients.amqp import AmqpClient
from tests.support.clients.kafka import KafkaClient
from tests.support.clients.mqtt import BrokerClient, MqttClient
from tests.support.connection_documents import READ, connection, policy_for, source, topic
from tests.support.service_process import ServiceProcess
from tests.support.wait import wait_until_sync

pytestmark = [pytest.mark.broker("mosquitto"), pytest.mark.broker("rabbitmq"), pytest.mark.broker("kafka")]

OWNER, VIEWER = "acme:owner", "acme:viewer"
EVENTS = "_/_/things/twin/events"


class TargetsSetup:
    """One service with four connections.

    An operator writes (MQTT), a subscriber receives and acknowledges (AMQP), an archive receives (Kafka), and four targets
    have filters or few permissions (MQTT).
    """

    def __init__(self, mosquitto: Mosquitto, rabbitmq: RabbitMQ, kafka: Kafka, proxy: ProxyThread) -> None:
        number = uuid4().hex[:8]
        self.operator, self.subscriber, self.archive, self.filtered = (
            f"{name}-{number}" for name in ("operator", "subscriber", "archive", "filtered")
        )
        nacks = {"address": f"{self.operator}/answers", "expectedResponseTypes": ["response", "error", "nack"]}
        self.documents: list[dict[str, Any]] = [
            connection(
                mosquitto,
                source(self.operator, OWNER, replyTarget=nacks),
                id=self.operator,
                targets=[self._target(f"{self.operator}/answers", OWNER)],
            ),
            {
                "id": self.subscriber,
                "connectionType": "amqp-091",
                "connectionStatus": "open",
                "uri": rabbitmq.uri(host=proxy.host, port=proxy.port),
                "sources": [
                    {
                        "addresses": [f"{self.subscriber}.answers"],
                        "authorizationContext": ["acme:subscriber"],
                        "replyTarget": {"address": f"/{self.subscriber}.events"},
                        "declaredAcks": [f"{self.subscriber}:seen"],
                    }
                ],
                "targets": [
                    self._target(
                        f"/{self.subscriber}.events", OWNER, issuedAcknowledgementLabel=f"{self.subscriber}:sent"
                    )
                ],
            },
            {
                "id": self.archive,
                "connectionType": "kafka",
                "connectionStatus": "open",
                "uri": kafka.uri(),
                "specificConfig": {"bootstrapServers": kafka.bootstrap},
                "targets": [self._target(f"{self.archive}/{{{{ thing:id }}}}", OWNER)],
            },
            connection(
                mosquitto,
                id=self.filtered,
                targets=[
                    self._target(f"{self.filtered}/events/plant", OWNER, f"{EVENTS}?namespaces=acme.site"),
                    self._target(f"{self.filtered}/events/low", OWNER, f"{EVENTS}?filter=le(attributes/c,10)"),
                    self._target(
                        f"{self.filtered}/events/both",
                        OWNER,
                        f"{EVENTS}?extraFields=attributes/place&filter=exists(attributes/place)",
                        f"{EVENTS}?extraFields=attributes/z",
                        issuedAcknowledgementLabel=f"{self.filtered}:both",
                    ),
                    self._target(
                        f"{self.filtered}/events/viewer", VIEWER, issuedAcknowledgementLabel=f"{self.filtered}:viewer"
                    ),
                ],
            ),
        ]

    def _target(self, address: str, subject: str, *topics: str, **more: Any) -> dict[str, Any]:
        return {
            "address": address,
            "topics": list(topics or (EVENTS,)),
            "authorizationContext": [subject],
            "qos": 1,
            **more,
        }


class TargetClients:
    """The service, and one client of each kind."""

    def __init__(
        self,
        setup: TargetsSetup,
        service: ServiceProcess,
        operator: BrokerClient,
        subscriber: BrokerClient,
        archive: BrokerClient,
        filtered: FilteredTargets,
    ) -> None:
        self.setup, self.service = setup, service
        self.operator, self.subscriber, self.archive, self.filtered = operator, subscriber, archive, filtered

    def make(self, name: str, namespace: str = "acme.site", **readers: Any) -> None:
        created = {
            "topic": f"{namespace}/{name}/things/twin/commands/create",
            "value": {"_policy": policy_for(OWNER, **readers)},
        }
        assert self.operator.ask_for(**created)["status"] == 201

    def write(self, name: str, path: str, value: Any, **headers: Any) -> str:
        return self.operator.command(topic(name, "commands/modify"), path, value, headers)


class FilteredTargets:
    """The messages at each target with a filter, by the last part of the address."""

    def __init__(self, client: MqttClient) -> None:
        self.client = client

    def received(self, address: str, name: str) -> list[dict[str, Any]]:
        """Return the received events of a thing."""
        found = [
            json.loads(message.payload) for message in list(self.client.messages) if message.topic.endswith(address)
        ]
        return [event for event in found if event["topic"].split("/")[1] == name]


@pytest.fixture(scope="module")
def proxy(rabbitmq: RabbitMQ) -> Iterator[ProxyThread]:
    with ProxyThread(rabbitmq.host, rabbitmq.port) as made:
        yield made


@pytest.fixture(scope="module")
def clients(
    mosquitto: Mosquitto,
    rabbitmq: RabbitMQ,
    kafka: Kafka,
    proxy: ProxyThread,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[TargetClients]:
    setup = TargetsSetup(mosquitto, rabbitmq, kafka, proxy)
    kafka.create(setup.archive)
    with contextlib.ExitStack() as stack:
        subscriber = stack.enter_context(
            AmqpClient(rabbitmq.uri(), ask=f"{setup.subscriber}.answers", answers=f"{setup.subscriber}.events")
        )
        archive = stack.enter_context(KafkaClient(kafka, ask=setup.archive, answers=setup.archive))
        operator = stack.enter_context(
            MqttClient(mosquitto.host, mosquitto.port, ask=f"{setup.operator}/ask", answers=f"{setup.operator}/answers")
        )
        filtered = stack.enter_context(
            MqttClient(mosquitto.host, mosquitto.port, ask="nothing", answers=f"{setup.filtered}/events/#")
        )
        service = stack.enter_context(
            ServiceProcess.start(
                tmp_path_factory.mktemp("targets"), setup.documents, reconnect={"min": "0.1s", "max": "1s"}
            )
        )
        yield TargetClients(setup, service, operator, subscriber, archive, FilteredTargets(filtered))


def next_events(requester: BrokerClient, name: str, number: int) -> list[dict[str, Any]]:
    """Return the next `number` events of a thing from a client that receives all events."""
    found: list[dict[str, Any]] = []
    while len(found) < number:
        event = requester.next()
        if event["topic"].split("/")[1] == name and "/events/" in event["topic"]:
            found.append(event)
    return found


def revisions(events: list[dict[str, Any]]) -> list[int]:
    return [event["revision"] for event in events]


def test_cases_106_107_111_114_115_116_each_target_receives_its_topics_in_order(clients: TargetClients) -> None:
    """Twenty quick changes of one thing, and one of a thing elsewhere."""
    clients.make("lamp-1")
    clients.make("lamp-1", "acme")
    for number in range(1, 21):
        clients.write("lamp-1", "/attributes/c", number)
    for _ in range(20):
        assert clients.operator.next()["topic"].endswith(("commands/create", "commands/modify"))
    clients.operator.assert_nothing_came("lamp-1")
    # 115, on two more brokers: in order, without a gap.
    for requester in (clients.subscriber, clients.archive):
        (first, *events) = next_events(requester, "lamp-1", 22)
        assert first["topic"] == topic("lamp-1", "events/created")
        inside = [event for event in events if event["topic"].startswith("acme.site/")]
        assert revisions(inside) == list(range(2, 22))
        assert [event["value"] for event in inside] == list(range(1, 21))
    filtered = clients.filtered
    wait_until_sync(lambda: len(filtered.received("plant", "lamp-1")) == 21)
    wait_until_sync(lambda: len(filtered.received("both", "lamp-1")) == 22)
    assert {event["topic"].split("/")[0] for event in filtered.received("plant", "lamp-1")} == {"acme.site"}
    assert [event["value"] for event in filtered.received("low", "lamp-1") if event["path"] == "/attributes/c"] == list(
        range(1, 11)
    )
    correlation = clients.write(
        "lamp-1", "/attributes/place", "hall N", **{"my-own": "x", "condition": "exists(thingId)"}
    )
    wait_until_sync(lambda: len(filtered.received("both", "lamp-1")) == 23)
    newest = filtered.received("both", "lamp-1")[-1]
    assert newest["extra"] == {"attributes": {"place": "hall N"}}
    assert newest["headers"].items() >= {"correlation-id": correlation, "my-own": "x"}.items()
    assert not {"condition", "etag"} & set(newest["headers"])
    assert clients.operator.next()["status"] == 201


def test_case_112_a_target_receives_only_the_parts_it_can_read(clients: TargetClients) -> None:
    clients.make("lamp-2", acme_viewer={"thing:/attributes/open": READ})
    clients.write("lamp-2", "/attributes", {"open": 1, "secret": 2})
    clients.write("lamp-2", "/attributes/secret", 3)
    clients.write("lamp-2", "/attributes/open", 4)
    wait_until_sync(lambda: len(clients.filtered.received("viewer", "lamp-2")) == 2)
    # Only the ID of the creation is readable.
    found = [(event["path"], event.get("value")) for event in clients.filtered.received("viewer", "lamp-2")]
    assert found == [("/attributes", {"open": 1}), ("/attributes/open", 4)]
    for _ in range(3):
        clients.operator.next()


def test_cases_98_and_103_acknowledgements_of_targets_and_subscribers(clients: TargetClients) -> None:
    """The broker confirms one label, the subscriber another, and a target without permission a weak one."""
    clients.make("lamp-3")
    sent, seen, viewer = (
        f"{clients.setup.subscriber}:sent",
        f"{clients.setup.subscriber}:seen",
        f"{clients.setup.filtered}:viewer",
    )
    asked = {"requested-acks": ["twin-persisted", sent, seen, viewer], "timeout": "50s"}
    correlation = clients.write("lamp-3", "/attributes/on", True, **asked)
    event = next_events(clients.subscriber, "lamp-3", 2)[1]
    assert event["headers"]["requested-acks"] == [sent, seen, viewer]
    ack = {"topic": topic("lamp-3", f"acks/{seen}"), "path": "/", "value": {"x": 1}, "status": 208}
    clients.subscriber.send({**ack, "headers": {"correlation-id": correlation}})
    answer = clients.operator.next()
    assert (answer["topic"], answer["status"]) == (topic("lamp-3", "acks"), 200)
    assert {label: each["status"] for label, each in answer["value"].items()} == {
        "twin-persisted": 201,
        sent: 200,
        seen: 208,
        viewer: 200,
    }
    assert answer["value"][viewer]["headers"]["ditto-weak-ack"] is True
    assert not {sent, seen} & {label for label, each in answer["value"].items() if "ditto-weak-ack" in each["headers"]}


@pytest.mark.slow(reason="a thousand events wait while the service is killed")
def test_a_target_with_a_lost_broker_reports_its_lag_blocks_no_other_and_receives_every_event(
    clients: TargetClients, proxy: ProxyThread
) -> None:
    """Through a restart of the service, too. Its status and metrics say how far it is behind."""
    clients.make("lamp-4")
    next_events(clients.subscriber, "lamp-4", 1)
    labels = {"connection": clients.setup.subscriber, "target": "0"}
    # A received event may not be confirmed yet.
    wait_until_sync(lambda: clients.service.metric("connectivity_target_lag_events", **labels) == 0)
    proxy.refuse()
    proxy.cut()
    wait_until_sync(lambda: clients.service.status(clients.setup.subscriber)["status"] != "open")
    for number in range(1100):
        clients.operator.command(topic("lamp-4", "commands/modify"), "/attributes/n", number, wait=False)
    for _ in range(1100):
        assert clients.operator.next()["status"] in (201, 204)
    details = clients.service.status(clients.setup.subscriber)["details"]
    assert "targets[0] is 1100 events behind" in details, details
    assert clients.service.metric("connectivity_target_lag_events", **labels) == 1100
    clients.service.kill()
    clients.service.start_again(ready=False)
    proxy.admit()
    events = next_events(clients.subscriber, "lamp-4", 1100)
    assert [event["value"] for event in events] == list(range(1100))
    wait_until_sync(lambda: clients.service.metric("connectivity_target_lag_events", **labels) == 0)
    assert clients.service.metric("connectivity_target_skipped_total", **labels) == 0

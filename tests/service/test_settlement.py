"""Settlement of deliveries at real brokers: acknowledged, requeued, or rejected.

Case numbers are those of the cases for connections. Acknowledgements come by a second source of the same connection.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from tests.support.brokers.kafka import Kafka
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.brokers.proxy import ProxyThread
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.clients.bare_amqp import BareAmqpClient
from tests.support.clients.bare_mqtt import BareMqttClient
from tests.support.clients.kafka import KafkaClient
from tests.support.clients.mqtt import BrokerClient, MqttClient
from tests.support.connection_documents import added, connection, policy_for, source, topic, while_added
from tests.support.service_process import ServiceProcess
from tests.support.wait import PATIENCE, TimedOut, wait_until, wait_until_sync

OWNER = "acme:owner"
NACKS = ["response", "error", "nack"]
CHANGES = 300


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service to which each test adds its connection."""
    reconnect = {"min": "0.1s", "max": "0.5s"}
    with ServiceProcess.start(tmp_path_factory.mktemp("settlement"), [], reconnect=reconnect) as started:
        yield started


def made(requester: BrokerClient, name: str) -> None:
    answer = requester.ask_for(
        topic(name, "commands/create"), value={"_policy": policy_for(OWNER), "attributes": {"n": 0}}
    )
    assert answer["status"] == 201, answer


def modify(name: str, value: Any, *labels: str, **headers: Any) -> dict[str, Any]:
    """Return a command that requests acknowledgements with these labels."""
    requested = {"requested-acks": ["twin-persisted", *labels]} if labels else {}
    return {
        "topic": topic(name, "commands/modify"),
        "path": "/attributes/n",
        "value": value,
        "headers": {"correlation-id": f"c-{name}", **requested, **headers},
    }


def acknowledgement(name: str, label: str, status: int) -> dict[str, Any]:
    headers = {"correlation-id": f"c-{name}"}
    return {"topic": topic(name, f"acks/{label}"), "path": "/", "status": status, "headers": headers}


def acknowledged(sender: BrokerClient, receiver: BrokerClient, name: str, label: str, status: int) -> dict[str, Any]:
    """Acknowledge until there is an answer: early acknowledgements are ignored."""

    def try_again() -> bool:
        sender.send(acknowledgement(name, label, status))
        try:
            wait_until_sync(lambda: not receiver.received.empty(), 0.5)
        except TimedOut:
            return False
        return True

    wait_until_sync(try_again)
    received: dict[str, Any] = receiver.next()
    return received


def revisions(requester: BrokerClient, name: str) -> int:
    """Return the revision of a thing."""
    answer = requester.ask_for(topic(name, "commands/retrieve"), fields="_revision")
    return int(answer["value"]["_revision"])


def statuses(answer: dict[str, Any]) -> dict[str, int]:
    return {label: ack["status"] for label, ack in answer["value"].items()}


@pytest.mark.broker("mosquitto")
def test_case_35_mqtt_delivers_again_over_a_new_link(mosquitto: Mosquitto, service: ServiceProcess) -> None:
    """The broker keeps unacknowledged messages, and `reconnectForRedelivery` fetches them."""
    name = f"settle-{uuid4().hex[:8]}"
    document = connection(
        mosquitto,
        source(f"{name}/c", OWNER, replyTarget={"address": f"{name}/c/answers", "expectedResponseTypes": NACKS}),
        source(f"{name}/a", OWNER, declaredAcks=[f"{name}:seen"]),
        id=name,
        specificConfig={"reconnectForRedelivery": "true", "reconnectForRedeliveryDelay": "1s"},
    )
    with (
        added(service, document),
        MqttClient(mosquitto.host, mosquitto.port, ask=f"{name}/c/ask", answers=f"{name}/c/answers") as client,
        MqttClient(mosquitto.host, mosquitto.port, ask=f"{name}/a/ask", answers=f"{name}/a/answers") as seer,
    ):
        made(client, "lamp-mqtt")
        client.send(modify("lamp-mqtt", 1, f"{name}:seen"))
        first = acknowledged(seer, client, "lamp-mqtt", f"{name}:seen", 503)
        assert (first["status"], statuses(first)) == (424, {"twin-persisted": 204, f"{name}:seen": 503})
        second = acknowledged(seer, client, "lamp-mqtt", f"{name}:seen", 200)
        assert (second["status"], statuses(second)) == (200, {"twin-persisted": 204, f"{name}:seen": 200})
        assert revisions(client, "lamp-mqtt") == 2
        assert service.metric("connectivity_deliveries_total", outcome="requeued", connection=name) == 1


@pytest.mark.broker("mosquitto")
def test_changes_with_qos_2_are_in_the_history_once_despite_many_cuts_of_the_link(
    mosquitto: Mosquitto, service: ServiceProcess
) -> None:
    """Each cut falls somewhere between PUBLISH, PUBREC, PUBREL and PUBCOMP of some of them."""
    name = f"twice-{uuid4().hex[:8]}"
    answers = f"{name}/answers"
    with ProxyThread(mosquitto.host, mosquitto.port) as proxy:
        document = connection(proxy, source(name, OWNER, qos=2), id=name)
        with (
            added(service, document),
            MqttClient(mosquitto.host, mosquitto.port, ask=f"{name}/ask", answers=answers) as client,
            BareMqttClient(mosquitto.host, mosquitto.port, answers) as sender,
        ):
            made(client, name)
            proxy.cut_every(5_000, 10)
            changes = [modify(name, number, **{"correlation-id": f"c-{number}"}) for number in range(CHANGES)]
            sender.send(f"{name}/ask", [json.dumps(change).encode() for change in changes], qos=2)
            expected = {f"c-{number}" for number in range(CHANGES)}
            answered: dict[str, set[int]] = {}

            def all_answered() -> bool:
                while not client.received.empty():
                    answer = client.next()
                    answered.setdefault(answer["headers"]["correlation-id"], set()).add(answer["status"])
                return answered.keys() >= expected

            wait_until_sync(all_answered, 2 * PATIENCE)
            assert proxy.sent > 10 * 5_000
            assert {status for statuses in answered.values() for status in statuses} == {204}
            assert revisions(client, name) == 1 + CHANGES


@pytest.mark.broker("kafka")
def test_case_35_kafka_reads_again_from_the_record_that_failed(kafka: Kafka, service: ServiceProcess) -> None:
    name = uuid4().hex
    topics = [f"{name}.{part}" for part in ("ask", "acks", "answers", "nobody")]
    kafka.create(*topics)
    ask, acks, answers, unread = topics
    shared = {"qos": 1, "authorizationContext": [OWNER]}
    document = {
        "id": name,
        "connectionType": "kafka",
        "connectionStatus": "open",
        "uri": kafka.uri(),
        "specificConfig": {"bootstrapServers": kafka.bootstrap, "consumerOffsetReset": "earliest"},
        "sources": [
            {**shared, "addresses": [ask], "replyTarget": {"address": answers, "expectedResponseTypes": NACKS}},
            {**shared, "addresses": [acks], "replyTarget": {"address": unread}, "declaredAcks": [f"{name}:seen"]},
        ],
    }
    with (
        added(service, document),
        KafkaClient(kafka, ask=ask, answers=answers) as client,
        KafkaClient(kafka, ask=acks, answers=unread) as seer,
    ):
        made(client, "lamp-kafka")
        client.send(modify("lamp-kafka", 1, f"{name}:seen"))
        first = acknowledged(seer, client, "lamp-kafka", f"{name}:seen", 503)
        assert first["status"] == 424
        second = acknowledged(seer, client, "lamp-kafka", f"{name}:seen", 204)
        assert (second["status"], statuses(second)) == (200, {"twin-persisted": 204, f"{name}:seen": 204})
        assert revisions(client, "lamp-kafka") == 2
        assert service.metric("connectivity_deliveries_total", outcome="requeued", connection=name) == 1


class Queues:
    """A connection with a queue for commands and their dead letters, and one for acknowledgements."""

    def __init__(self, broker: RabbitMQ, bare_client: BareAmqpClient) -> None:
        self._bystander = bare_client
        self.name = f"settle-{uuid4().hex[:8]}"
        self.ask, self.acks, self.answers, self.dead = (f"{self.name}-{part}" for part in ("c", "a", "answers", "dead"))
        reply = {"address": f"/{self.answers}", "expectedResponseTypes": NACKS}
        self.document = {
            "id": self.name,
            "connectionType": "amqp-091",
            "connectionStatus": "open",
            "uri": broker.uri(),
            "sources": [
                {"addresses": [self.ask], "authorizationContext": [OWNER], "replyTarget": reply},
                {
                    "addresses": [self.acks],
                    "authorizationContext": [OWNER],
                    "replyTarget": {"enabled": False},
                    "declaredAcks": [f"{self.name}:seen"],
                },
            ],
        }
        self._read = 0

    async def declare(self) -> None:
        bare_client = self._bystander
        await bare_client.queue(self.dead)
        dead_letters: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": self.dead}
        await bare_client.queue(self.ask, **dead_letters)
        await bare_client.queue(self.acks)
        await bare_client.listen(self.answers)

    async def send(self, document: Any, queue: str | None = None) -> None:
        payload = document if isinstance(document, bytes) else json.dumps(document).encode()
        await self._bystander.send(queue or self.ask, [payload], message_id=secrets.token_hex(8))

    async def next(self, deadline: float = PATIENCE) -> dict[str, Any]:
        await wait_until(lambda: len(self._bystander.messages) > self._read, deadline)
        self._read += 1
        answer: dict[str, Any] = json.loads(self._bystander.messages[self._read - 1].body)
        return answer

    async def acknowledged(self, thing: str, status: int) -> dict[str, Any]:
        """See `acknowledged`."""
        end = asyncio.get_running_loop().time() + PATIENCE
        while asyncio.get_running_loop().time() < end:
            await self.send(acknowledgement(thing, f"{self.name}:seen", status), self.acks)
            try:
                return await self.next(0.5)
            except TimedOut:
                continue
        raise AssertionError("no answer to what was acknowledged")

    async def dead_letters(self) -> list[bytes]:
        queue = await self._bystander.queue(self.dead)
        found = []
        while (message := await queue.get(no_ack=True, fail=False)) is not None:
            found.append(message.body)
        return found

    async def make(self, thing: str) -> None:
        await self.send(
            {"topic": topic(thing, "commands/create"), "path": "/", "value": {"_policy": policy_for(OWNER)}}
        )
        assert (await self.next())["status"] == 201


@pytest.mark.broker("rabbitmq")
async def test_case_35_amqp_requeues_and_the_command_is_not_carried_out_again(
    rabbitmq: RabbitMQ, service: ServiceProcess
) -> None:
    async with BareAmqpClient(rabbitmq.uri()) as bare_client:
        queues = Queues(rabbitmq, bare_client)
        await queues.declare()
        async with while_added(service, queues.document):
            await queues.make("lamp-amqp")
            await queues.send(modify("lamp-amqp", 1, f"{queues.name}:seen"))
            assert (await queues.acknowledged("lamp-amqp", 503))["status"] == 424
            second = await queues.acknowledged("lamp-amqp", 200)
            assert (second["status"], statuses(second)["twin-persisted"]) == (200, 201)
            await queues.send({"topic": topic("lamp-amqp", "commands/retrieve"), "path": "/", "fields": "_revision"})
            assert (await queues.next())["value"]["_revision"] == 2
            requeued = await asyncio.to_thread(
                service.metric, "connectivity_deliveries_total", outcome="requeued", connection=queues.name
            )
            assert requeued == 1
        assert await queues.dead_letters() == []


@pytest.mark.broker("rabbitmq")
async def test_3_9_amqp_sends_permanently_rejected_messages_to_the_dead_letter_queue(
    rabbitmq: RabbitMQ, service: ServiceProcess
) -> None:
    """A refused command and a negative acknowledgement are; an unreadable message or a condition is not."""
    async with BareAmqpClient(rabbitmq.uri()) as bare_client:
        queues = Queues(rabbitmq, bare_client)
        await queues.declare()
        async with while_added(service, queues.document):
            await queues.make("lamp-dead")
            refused = modify("nothing-dead", 1)
            for document in (b"no json", modify("lamp-dead", 1, condition="eq(attributes/n,5)"), refused):
                await queues.send(document)
            assert [(await queues.next())["status"] for _ in range(3)] == [400, 412, 404]
            nacked = modify("lamp-dead", 1, f"{queues.name}:seen")
            await queues.send(nacked)
            assert (await queues.acknowledged("lamp-dead", 400))["status"] == 424
        answers = len(bare_client.messages)
        await bare_client.listen(queues.dead)
        await wait_until(lambda: len(bare_client.messages) - answers == len((refused, nacked)))
        assert [json.loads(message.body) for message in bare_client.messages[answers:]] == [refused, nacked]
        assert (await bare_client.queue(queues.acks)).declaration_result.message_count == 0

"""The live channel and diverted responses: back ends send over MQTT, devices receive over AMQP.

Case numbers are those of the cases for connections.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from tests.support.brokers.mosquitto import Mosquitto
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.clients.bare_amqp import BareAmqpClient
from tests.support.clients.mqtt import MqttClient
from tests.support.connection_documents import connection, policy_for, source, topic
from tests.support.service_process import ServiceProcess
from tests.support.wait import PATIENCE, wait_until

pytestmark = [
    pytest.mark.broker("mosquitto"),
    pytest.mark.broker("rabbitmq"),
    pytest.mark.asyncio(loop_scope="module"),
]

OWNER, STRANGER = "acme:owner", "acme:stranger"
LIVE = "things/live"


class LiveSetup:
    """One service with a back end, a device, one who may read nothing, and one who takes diverted answers."""

    def __init__(self, mosquitto: Mosquitto, rabbitmq: RabbitMQ, bare_client: BareAmqpClient) -> None:
        number = uuid4().hex[:8]
        self.operator, self.device = f"desk-{number}", f"device-{number}"
        self.blind, self.taker = f"blind-{number}", f"taker-{number}"
        self.device_outbox, self.device_inbox, self.status_queue = (
            f"{number}-out",
            f"{number}-in",
            f"{number}-noticed",
        )
        self.bare_client = bare_client
        self.keeper: BareAmqpClient
        self.service: ServiceProcess
        self._read = 0
        nacks = {"address": f"{self.operator}/answers", "expectedResponseTypes": ["response", "error", "nack"]}
        divert = {"divert-response-to-connection": self.taker}
        amqp = {"connectionType": "amqp-091", "connectionStatus": "open", "uri": rabbitmq.uri()}
        self.documents = [
            connection(
                mosquitto,
                source(self.operator, OWNER, replyTarget=nacks),
                source(f"{self.operator}/aside", OWNER, headerMapping=divert, replyTarget=nacks),
                source(f"{self.operator}/strange", STRANGER, replyTarget=nacks),
                id=self.operator,
                specificConfig={"is-diversion-source": "true"},
            ),
            {
                **amqp,
                "id": self.device,
                "sources": [
                    {
                        "addresses": [self.device_outbox],
                        "authorizationContext": [OWNER],
                        "replyTarget": {"address": f"/{self.device_inbox}"},
                        "declaredAcks": [f"{self.device}:seen"],
                    }
                ],
                "targets": [self._target(self.device_inbox, OWNER, self.device), self._status()],
            },
            {**amqp, "id": self.blind, "targets": [self._target(self.device_inbox, STRANGER, self.blind)]},
            {
                **amqp,
                "id": self.taker,
                "targets": [{**self._target(self.device_inbox, OWNER, self.taker), "topics": []}],
                "specificConfig": {
                    "is-diversion-target": "true",
                    "authorized-connections-as-sources": self.operator,
                },
            },
        ]

    def _target(self, queue: str, subject: str, connection_id: str) -> dict[str, Any]:
        return {
            "address": f"/{queue}",
            "topics": [
                "_/_/things/live/messages",
                "_/_/things/live/commands",
                "_/_/things/live/events?filter=eq(topic:action,'modified')&extraFields=policyId,attributes",
            ],
            "authorizationContext": [subject],
            "headerMapping": {"subject": "{{ topic:action-subject }}"},
            "issuedAcknowledgementLabel": f"{connection_id}:sent",
        }

    def _status(self) -> dict[str, Any]:
        """Return a target that receives the announcements of the device's connection."""
        topics = ["_/_/connections/announcements"]
        return {
            "address": f"/{self.status_queue}",
            "topics": topics,
            "authorizationContext": [OWNER],
            "headerMapping": {"subject": "{{ topic:subject }}"},
        }

    async def next_message(self) -> dict[str, Any]:
        """Return the next message of the device's queue, or of the connection that takes diverted responses."""
        messages = self.bare_client.messages
        await wait_until(lambda: len(messages) > self._read)
        self._read += 1
        found: dict[str, Any] = json.loads(messages[self._read - 1].body)
        return found

    def subject(self) -> object:
        """Return the header `subject` of the latest message."""
        return self.bare_client.messages[self._read - 1].headers.get("subject")

    async def send_from_device(self, document: dict[str, Any]) -> None:
        await self.bare_client.send(self.device_outbox, [json.dumps(document).encode()])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def field(
    mosquitto: Mosquitto, rabbitmq: RabbitMQ, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[LiveSetup]:
    """A running service."""
    async with BareAmqpClient(rabbitmq.uri()) as bare_client:
        made = LiveSetup(mosquitto, rabbitmq, bare_client)
        await bare_client.queue(made.device_outbox)
        await bare_client.listen(made.device_inbox)
        folder = tmp_path_factory.mktemp("live")
        async with BareAmqpClient(rabbitmq.uri()) as made.keeper:
            await made.keeper.listen(made.status_queue)
            with await asyncio.to_thread(ServiceProcess.start, folder, made.documents) as made.service:
                yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def operator(field: LiveSetup, mosquitto: Mosquitto) -> AsyncIterator[MqttClient]:
    """The back end, which has made a lamp."""
    with await asyncio.to_thread(client, mosquitto, field.operator) as requester:
        created = {"topic": topic("lamp-1", "commands/create"), "value": {"_policy": policy_for(OWNER)}}
        answer = await asyncio.to_thread(requester.ask_for, **created)
        assert answer["status"] == 201, answer
        yield requester


def client(broker: Mosquitto, name: str) -> MqttClient:
    return MqttClient(broker.host, broker.port, ask=f"{name}/ask", answers=f"{name.split('/', maxsplit=1)[0]}/answers")


async def next_of(operator: MqttClient) -> dict[str, Any]:
    return await asyncio.to_thread(operator.next, PATIENCE)


def message(subject: str = "blink", *, more: dict[str, Any] | None = None, **headers: Any) -> dict[str, Any]:
    return {
        "topic": topic("lamp-1", f"messages/{subject}", LIVE),
        "path": f"/inbox/messages/{subject}",
        "value": {"times": 3},
        "headers": {**headers, **(more or {})},
    }


async def test_case_07_a_message_is_answered_by_its_device(field: LiveSetup, operator: MqttClient) -> None:
    correlation = operator.command(**message(mine="x"))
    received = await field.next_message()
    assert (received["topic"], received["value"]) == (topic("lamp-1", "messages/blink", LIVE), {"times": 3})
    assert (received["headers"]["correlation-id"], received["headers"]["mine"]) == (correlation, "x")
    assert field.subject() == "blink"
    await field.send_from_device(
        {**received, "value": "done", "status": 200, "headers": {"correlation-id": correlation}}
    )
    answer = await next_of(operator)
    assert (answer["topic"], answer["status"], answer["value"]) == (received["topic"], 200, "done")
    assert (answer["headers"]["correlation-id"], answer["headers"]["mine"]) == (correlation, "x")


async def test_case_58_a_live_command_gets_a_response_that_requires_no_response(
    field: LiveSetup, operator: MqttClient
) -> None:
    read = topic("lamp-1", "commands/retrieve", LIVE)
    correlation = operator.command(read, "/attributes/on")
    assert (await field.next_message())["topic"] == read
    headers = {"correlation-id": correlation, "response-required": False}
    await field.send_from_device(
        {"topic": read, "path": "/attributes/on", "value": True, "status": 200, "headers": headers}
    )
    answer = await next_of(operator)
    assert (answer["topic"], answer["status"], answer["value"]) == (read, 200, True)
    twin = await asyncio.to_thread(operator.ask_for, topic("lamp-1", "commands/retrieve"), "/attributes")
    assert twin["status"] == 404, "nothing of it is in the twin"


async def test_live_events_pass_a_filter_on_their_topic_and_get_extra_fields(
    field: LiveSetup, operator: MqttClient
) -> None:
    """The one that the filter keeps comes first; fields that the thing has not are left out."""
    for action in ("merged", "modified"):
        operator.command(topic("lamp-1", f"events/{action}", LIVE), "/attributes/on", value=True)
    received = await field.next_message()
    assert (received["topic"], received["value"]) == (topic("lamp-1", "events/modified", LIVE), True)
    assert list(received["extra"]) == ["policyId"]


async def test_case_08_a_message_without_an_answer_is_reported_408(field: LiveSetup, operator: MqttClient) -> None:
    correlation = operator.command(**message(timeout="2s"))
    await field.next_message()
    answer = await next_of(operator)
    assert (answer["status"], answer["value"]["error"]) == (408, "command.timeout")
    assert answer["headers"]["correlation-id"] == correlation


async def test_case_39_a_target_acknowledges_the_messages_it_has_sent(field: LiveSetup, operator: MqttClient) -> None:
    """Together with a label that the device acknowledges itself."""
    sent, seen = f"{field.device}:sent", f"{field.device}:seen"
    correlation = operator.command(**message(more={"requested-acks": [sent, seen]}))
    assert (await field.next_message())["headers"]["requested-acks"] == [sent, seen]
    ack = {"topic": topic("lamp-1", f"acks/{seen}", LIVE), "path": "/", "status": 204}
    await field.send_from_device({**ack, "headers": {"correlation-id": correlation}})
    answer = await next_of(operator)
    assert (answer["topic"], answer["status"]) == (topic("lamp-1", "acks", LIVE), 200)
    assert {label: each["status"] for label, each in answer["value"].items()} == {sent: 200, seen: 204}
    assert answer["value"][sent]["headers"]["ditto-connection-id"] == field.device


async def test_case_36_and_37_a_target_without_read_permission_acks_weakly_and_an_unknown_label_times_out(
    field: LiveSetup, operator: MqttClient
) -> None:
    weak, unknown = f"{field.blind}:sent", "nobody:there"
    correlation = operator.command(**message(more={"requested-acks": [weak, unknown], "timeout": "2s"}))
    assert (await field.next_message())["headers"]["correlation-id"] == correlation, "the device may read it"
    answer = await next_of(operator)
    assert answer["status"] == 424
    assert {label: each["status"] for label, each in answer["value"].items()} == {weak: 200, unknown: 408}
    assert answer["value"][weak]["headers"]["ditto-weak-ack"] is True


async def test_case_38_an_undeclared_label_is_refused(field: LiveSetup) -> None:
    ack = {"topic": topic("lamp-1", f"acks/{field.device}:unseen"), "path": "/", "status": 200}
    await field.send_from_device({**ack, "headers": {"correlation-id": "c-1"}})
    answer = await field.next_message()
    assert (answer["status"], answer["value"]["error"]) == (400, "acknowledgement:label.not.declared")


async def test_a_message_without_any_permission_on_the_thing_finds_no_thing(
    field: LiveSetup, operator: MqttClient, mosquitto: Mosquitto
) -> None:
    with await asyncio.to_thread(client, mosquitto, f"{field.operator}/strange") as strange:
        correlation = strange.command(**message())
        answer = await next_of(operator)
    assert (answer["status"], answer["value"]["error"]) == (404, "things:thing.notfound")
    assert answer["headers"]["correlation-id"] == correlation


async def test_case_57_an_answer_is_diverted_to_another_broker(
    field: LiveSetup, operator: MqttClient, mosquitto: Mosquitto
) -> None:
    """The other connection takes it from those that it lists; the source's own reply-target gets nothing."""
    with await asyncio.to_thread(client, mosquitto, f"{field.operator}/aside") as aside:
        read = topic("lamp-1", "commands/retrieve")
        correlations = [aside.command(read), aside.command(topic("lamp-2", "commands/retrieve"))]
        answers = [await field.next_message() for _ in correlations]
    assert [answer["headers"]["correlation-id"] for answer in answers] == correlations
    assert [answer["status"] for answer in answers] == [200, 404]
    assert {answer["headers"]["diverted-response-from-connection"] for answer in answers} == {field.operator}
    await asyncio.to_thread(operator.assert_nothing_came, "lamp-1")


async def test_case_21_and_56_a_connection_announces_that_it_opens_and_that_it_closes(field: LiveSetup) -> None:
    """The last test here: it ends the service. The announcements are mapped like any signal."""
    await asyncio.to_thread(field.service.stop)
    received = field.keeper.messages
    await wait_until(lambda: len(received) == 2)
    announced = f"_/{field.device}/connections/announcements"
    notices = [(message.headers.get("subject"), json.loads(message.body)["topic"]) for message in received]
    assert notices == [(name, f"{announced}/{name}") for name in ("opened", "closed")]

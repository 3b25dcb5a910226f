"""Conversations through the whole service over a real RabbitMQ, with queues that the client declares."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.clients.bare_amqp import BareAmqpClient
from tests.support.connection_documents import policy_for, running, topic, while_added
from tests.support.service_process import ServiceProcess
from tests.support.wait import wait_until, wait_until_sync

pytestmark = pytest.mark.broker("rabbitmq")

OWNER = "acme:owner"
PAUSES = {"min": "0.2s", "max": "0.5s"}
STREAMING = "streaming/subscribeForPersistedEvents"


@pytest.fixture(scope="module")
def own_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with ServiceProcess.start(tmp_path_factory.mktemp("amqp"), [], reconnect=PAUSES) as started:
        yield started


@pytest.fixture
def service(own_service: ServiceProcess) -> ServiceProcess:
    """A service to which each test adds its connection; the test may kill it."""
    return running(own_service)


def connection(broker: RabbitMQ, ask: str, **more: Any) -> dict[str, Any]:
    """Return a connection whose source answers to the queue in the property `reply-to`."""
    return {
        "id": f"site-{ask}",
        "connectionType": "amqp-091",
        "connectionStatus": "open",
        "uri": broker.uri(),
        "sources": [
            {
                "addresses": [ask],
                "authorizationContext": [OWNER],
                "headerMapping": {
                    "reply-to": "{{ header:reply-to }}",
                    "correlation-id": "{{ header:correlation-id }}",
                },
                "replyTarget": {
                    "address": "/{{ header:reply-to }}",
                    "headerMapping": {"correlation-id": "{{ header:correlation-id }}"},
                },
                **more,
            }
        ],
    }


class BrokerClient:
    """A client that sends to the source's queue and consumes its own."""

    def __init__(self, bare_client: BareAmqpClient, ask: str, answers: str) -> None:
        self._bystander, self._ask, self._answers = bare_client, ask, answers
        self._read = 0

    async def send(self, topic: str, path: str = "/", value: Any = None, **properties: Any) -> str:
        """A Ditto protocol command; its correlation id travels as AMQP's own."""
        correlation = secrets.token_hex(4)
        document: dict[str, Any] = {"topic": topic, "path": path}
        if value is not None:
            document["value"] = value
        headers = {"correlation-id": correlation, "reply-to": self._answers}
        await self._bystander.send(self._ask, [json.dumps(document).encode()], headers, **properties)
        return correlation

    async def next(self) -> dict[str, Any]:
        """The next answer, with the AMQP correlation id beside the one inside."""
        await wait_until(lambda: len(self._bystander.messages) > self._read)
        message = self._bystander.messages[self._read]
        self._read += 1
        answer: dict[str, Any] = json.loads(message.body)
        assert message.correlation_id == answer["headers"]["correlation-id"]
        return answer

    async def ask_for(self, *arguments: Any, **more: Any) -> dict[str, Any]:
        correlation = await self.send(*arguments, **more)
        answer = await self.next()
        assert answer["headers"]["correlation-id"] == correlation
        return answer

    async def make(self, name: str, changes: int) -> None:
        """A thing whose counter has changed so many times."""
        made = await self.ask_for(
            topic(name, "commands/create"), value={"_policy": policy_for(OWNER), "attributes": {"counter": 0}}
        )
        assert made["status"] == 201, made
        for number in range(1, changes + 1):
            await self.send(topic(name, "commands/modify"), "/attributes/counter", number)
        assert [(await self.next())["status"] for _ in range(changes)] == [204] * changes

    async def items(self, count: int) -> list[int]:
        """The revisions of the next events."""
        return [(await self.next())["value"]["item"]["revision"] for _ in range(count)]


async def test_a_twin_is_written_and_replayed_over_amqp(rabbitmq: RabbitMQ, service: ServiceProcess) -> None:
    """Created, exactly the requested events, complete: all to the client's reply queue."""
    ask, answers = f"ask-{secrets.token_hex(4)}", f"answers-{secrets.token_hex(4)}"
    async with BareAmqpClient(rabbitmq.uri()) as bare_client:
        await bare_client.queue(ask)
        await bare_client.listen(answers)
        async with while_added(service, connection(rabbitmq, ask)):
            requester = BrokerClient(bare_client, ask, answers)
            await requester.make("boiler-07", 20)
            created = await requester.ask_for(topic("boiler-07", STREAMING))
            assert created["topic"] == topic("boiler-07", "streaming/created")
            subscription = created["value"]
            await requester.send(topic("boiler-07", "streaming/request"), value={**subscription, "demand": 5})
            assert await requester.items(5) == [1, 2, 3, 4, 5]
            await requester.send(topic("boiler-07", "streaming/request"), value={**subscription, "demand": 100})
            assert await requester.items(16) == list(range(6, 22))
            last = await requester.next()
            assert (last["topic"], last["value"]) == (topic("boiler-07", "streaming/complete"), subscription)
        assert (await bare_client.queue(ask)).declaration_result.message_count == 0, "every command is settled"


async def test_a_redelivered_command_is_in_the_history_once(rabbitmq: RabbitMQ, service: ServiceProcess) -> None:
    """The service is killed with unsettled commands; the broker redelivers them with their message IDs."""
    ask, answers = f"ask-{secrets.token_hex(4)}", f"answers-{secrets.token_hex(4)}"
    async with BareAmqpClient(rabbitmq.uri()) as bare_client:
        await bare_client.queue(ask)
        await bare_client.listen(answers)
        async with while_added(service, connection(rabbitmq, ask)):
            requester = BrokerClient(bare_client, ask, answers)
            await requester.make("boiler-08", 0)
            modify = topic("boiler-08", "commands/modify")
            for number in range(100):
                await requester.send(modify, "/attributes/counter", number, message_id=f"m-{number}")
            await asyncio.to_thread(service.kill)
            await asyncio.to_thread(service.start_again)
            # Answers may come twice; that of the last command comes last.
            end = await requester.send(modify, "/attributes/counter", "end", message_id="m-end")
            while (await requester.next())["headers"]["correlation-id"] != end:
                pass
            created = await requester.ask_for(topic("boiler-08", STREAMING))
            await requester.send(topic("boiler-08", "streaming/request"), value={**created["value"], "demand": 1000})
            values = []
            while "item" in (value := (await requester.next())["value"]):
                values.append(value["item"]["value"])
            assert values[1:] == [*range(100), "end"]


def ended_first_try(service: ServiceProcess, connection_id: str) -> dict[str, str]:
    """The status of a connection that cannot be opened, as soon as that is known."""
    wait_until_sync(lambda: service.status(connection_id).get("status") == "misconfigured")
    return service.status(connection_id)


async def test_a_missing_queue_is_shown_and_consumed_once_it_exists(
    rabbitmq: RabbitMQ, service: ServiceProcess
) -> None:
    ask, answers = f"ask-{secrets.token_hex(4)}", f"answers-{secrets.token_hex(4)}"
    async with BareAmqpClient(rabbitmq.uri()) as bare_client:
        await bare_client.listen(answers)
        document = connection(rabbitmq, ask)
        async with while_added(service, document, connected=False):
            shown = await asyncio.to_thread(ended_first_try, service, document["id"])
            assert shown["status"] == "misconfigured"
            assert shown["details"] == f"missing address: NOT_FOUND - no queue '{ask}' in vhost '/'"
            await bare_client.queue(ask)
            await BrokerClient(bare_client, ask, answers).make("boiler-09", 1)


@pytest.mark.soak(shard="brokers")
async def test_a_subscription_outlives_a_restart_of_the_broker(tmp_path: Path) -> None:
    with await asyncio.to_thread(RabbitMQ.start) as broker:
        async with BareAmqpClient(broker.uri()) as bare_client:
            await bare_client.queue("ask")
            await bare_client.listen("answers")
            with await asyncio.to_thread(
                ServiceProcess.start, tmp_path, [connection(broker, "ask")], reconnect=PAUSES
            ) as service:
                requester = BrokerClient(bare_client, "ask", "answers")
                await requester.make("boiler-10", 9)
                created = await requester.ask_for(topic("boiler-10", STREAMING))
                request = {**created["value"], "demand": 5}
                await requester.send(topic("boiler-10", "streaming/request"), value=request)
                assert await requester.items(5) == [1, 2, 3, 4, 5]
                await asyncio.to_thread(broker.restart)
                async with BareAmqpClient(broker.uri()) as again:
                    await again.listen("answers")
                    requester = BrokerClient(again, "ask", "answers")
                    await requester.send(topic("boiler-10", "streaming/request"), value=request)
                    assert await requester.items(5) == [6, 7, 8, 9, 10]
                assert (await asyncio.to_thread(service.status, "site-ask"))["status"] == "open"

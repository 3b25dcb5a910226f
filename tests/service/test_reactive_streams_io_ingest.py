"""Commands in streams over a broker: requested at the pace of the disk, and complete after a kill.

The service subscribes to a device; the requested elements show the device what is stored (cases W01 to W04).
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from mappings.reactive_streams_io.endpoint import Endpoint, EndpointRole
from mappings.reactive_streams_io.events import (
    Closed,
    DemandReceived,
    ElementsReceived,
    EndpointEvent,
    SubscribeReceived,
)
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.clients.amqp import AmqpClient
from tests.support.in_process.service import policy
from tests.support.service_process import ServiceProcess
from tests.support.wait import PATIENCE

pytestmark = pytest.mark.broker("rabbitmq")

OPERATOR = "acme:operator"
WINDOW = 256
KILLS_IN_SOAK = 20


class Device:
    """Sends numbers to a thing, as commands in the stream `ingest/telemetry`, and reads its history.

    `wanted` elements were requested in this session, so those before the last 256 of them are stored. Elements of
    earlier sessions are known by their keys.
    """

    def __init__(self, requester: AmqpClient, thing: str, *, has_keys: bool = True) -> None:
        self._client = requester
        self._has_keys = has_keys
        self._thing = thing
        self._read = 0
        self.kept = 0
        """The last number that is known to be stored."""
        self.begin()

    def begin(self) -> None:
        """Start a new session, and continue after the last element known to be stored."""
        self._session = secrets.token_hex(16)
        self.endpoint = Endpoint(EndpointRole.CLIENT, time.monotonic(), has_messages=True)
        self.stream: int | None = None
        self.sent = self.first = self.kept
        self.wanted = 0
        self.reported: list[EndpointEvent] = []
        self.send()

    def send(self) -> None:
        while raw := self.endpoint.take():
            self._client.send(raw, headers={"rsio-session": self._session})

    def offer(self, upto: int) -> None:
        """Send as much as is wanted."""
        if self.stream is None:
            return
        count = min(self.endpoint.session.capacity(self.stream), max(0, upto - self.sent))
        self.endpoint.session.offer(self.stream, [self._command(self.sent + n + 1) for n in range(count)])
        self.sent += count
        self.send()

    def _command(self, number: int) -> bytes:
        command: dict[str, Any] = {
            "topic": f"acme.site/{self._thing}/things/twin/commands/modify",
            "path": "/attributes/n",
            "value": number,
            "headers": {"idempotency-key": f"{self._thing}-{number}"} if self._has_keys else {},
        }
        if number % 100 == 0:
            command["headers"] |= {"response-required": True, "correlation-id": str(number)}
        return json.dumps(command).encode()

    def receive(self, patience: float = PATIENCE) -> None:
        """The next message of this session; those of others are over."""
        payload = self._client.next(patience)
        message = self._client.messages[self._read]
        self._read += 1
        if message.headers.get("rsio-session") != self._session:
            return
        for event in self.endpoint.receive(payload, time.monotonic()):
            self.reported.append(event)
            match event:
                case SubscribeReceived(stream, "ingest/telemetry", demand):
                    self.stream = stream
                    self.endpoint.session.accept(stream)
                    self.wanted += demand
                case DemandReceived(_, demand):
                    self.wanted += demand
                    self.kept = self.first + self.wanted - WINDOW
        self.send()

    def until(self, condition: Callable[[], bool], upto: int = 0) -> None:
        """Send up to this number, as wanted, until this is true."""
        end = time.monotonic() + PATIENCE
        self.offer(upto)
        while not condition():
            assert time.monotonic() < end, f"{condition} is not true, {self.wanted} wanted, {self.sent} sent"
            self.receive()
            assert not any(isinstance(event, Closed) for event in self.reported), self.reported[-1]
            self.offer(upto)

    def send_until_stored(self, upto: int, kept: int) -> None:
        """Send up to this number, until another one is known to be stored."""
        self.until(lambda: self.kept >= kept, upto)

    def numbers(self, stream: int) -> list[int]:
        """Return the values of a history received so far."""
        events = [
            json.loads(element)
            for event in self.reported
            if isinstance(event, ElementsReceived) and event.stream == stream
            for element in event.elements
        ]
        return [event["value"] for event in events]

    def stored(self, count: int) -> list[int]:
        """The first so many numbers that the thing's history has, as soon as it has them."""
        stream = self.endpoint.subscribe(f"things/acme.site:{self._thing}/history?from=2&follow=true", count)
        self.send()
        self.until(lambda: len(self.numbers(stream)) == count)
        self.endpoint.session.cancel(stream)
        self.send()
        return self.numbers(stream)


class IngestingService:
    """A service at RabbitMQ, with clients for an operator and for devices."""

    def __init__(self, rabbitmq: RabbitMQ, folder: Path) -> None:
        self._uri = rabbitmq.uri()
        self._name = f"i{secrets.token_hex(4)}"
        self._clients: list[AmqpClient] = []
        self.answers = self._make_client("nobody", "answers")
        self.operator = self._make_client("operator", "operator-answers")
        self.devices = self._make_client("up", "down")
        self.service = ServiceProcess.start(folder, [self._document()])

    def _make_client(self, ask: str, answers: str) -> AmqpClient:
        requester = AmqpClient(self._uri, ask=f"{self._name}.{ask}", answers=f"{self._name}.{answers}")
        self._clients.append(requester)
        return requester

    def _document(self) -> dict[str, Any]:
        shared = {
            "authorizationContext": [OPERATOR],
            "replyTarget": {"address": "/{{ header:reply-to }}"},
            "headerMapping": {"reply-to": "{{ header:reply-to }}"},
        }
        options = {"ingest": ["telemetry"], "ingestReplyAddress": f"/{self._name}.answers"}
        return {
            "id": self._name,
            "connectionType": "amqp-091",
            "connectionStatus": "open",
            "uri": self._uri,
            "mappingDefinitions": {"rsio": {"mappingEngine": "ReactiveStreamsIO", "options": options}},
            "sources": [
                {"addresses": [f"{self._name}.operator"], **shared},
                {"addresses": [f"{self._name}.up"], "payloadMapping": ["rsio"], **shared},
            ],
        }

    def device(self, thing: str, *, has_keys: bool = True) -> Device:
        """A device with a thing of its own."""
        topic = f"acme.site/{thing}/things/twin/commands/create"
        made = self.operator.ask_for(topic, value={"_policy": policy(OPERATOR)})
        assert made["status"] == 201, made
        self.devices.read = bytes
        return Device(self.devices, thing, has_keys=has_keys)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.service.__exit__(None, None, None)
        for requester in self._clients:
            requester.close()


@pytest.fixture
def ingest_service(rabbitmq: RabbitMQ, tmp_path: Path) -> Iterator[IngestingService]:
    with IngestingService(rabbitmq, tmp_path) as made:
        yield made


def test_a_device_streams_commands_at_the_speed_of_the_disk_and_reads_the_responses(
    ingest_service: IngestingService,
) -> None:
    """Cases W01 to W04, beside a stream the other way, with answers for those who want them."""
    device = ingest_service.device("meter")
    count = 2000
    began = time.monotonic()
    device.send_until_stored(count, count - WINDOW // 2)
    print(f"{count} commands in {time.monotonic() - began:.2f} s")
    assert device.wanted <= device.sent + WINDOW
    assert device.stored(count) == list(range(1, count + 1))
    responses = [ingest_service.answers.next() for _ in range(count // 100)]
    assert [(each["headers"]["correlation-id"], each["status"]) for each in responses] == [
        (str(number), 201 if number == 1 else 204) for number in range(100, count + 1, 100)
    ]


def kill(ingest_service: IngestingService, rounds: int) -> None:
    """Kill the service during an ingest; the device continues after the elements known to be stored."""
    device = ingest_service.device("meter")
    most = 0
    for round in range(rounds):
        target = device.kept + WINDOW + secrets.randbelow(500)
        most = max(most, target + WINDOW)
        device.send_until_stored(target + WINDOW, target)
        ingest_service.service.kill()
        ingest_service.service.start_again()
        kept = device.kept
        device.begin()
        assert device.stored(kept) == list(range(1, kept + 1)), f"after the kill {round}"
    device.send_until_stored(most + WINDOW, most)
    stored = device.stored(device.sent)
    assert stored == list(range(1, device.sent + 1))


def test_commands_sent_again_after_a_kill_are_stored_exactly_once(ingest_service: IngestingService) -> None:
    kill(ingest_service, 1)


@pytest.mark.soak(shard="kills-streams")
def test_a_session_outlives_its_broker_and_nothing_is_carried_out_twice_or_not_at_all(tmp_path: Path) -> None:
    """The broker redelivers unsettled messages, and the device resends commands; no command has a key."""
    broker = RabbitMQ.start()
    try:
        with IngestingService(broker, tmp_path) as ingest_service:
            device = ingest_service.device("meter", has_keys=False)
            count = 0
            for _ in range(KILLS_IN_SOAK // 4):
                count += WINDOW + secrets.randbelow(1000)
                device.send_until_stored(count, count - WINDOW)
                broker.kill()
                broker.start_again()
            count += WINDOW
            device.send_until_stored(count, count - WINDOW // 2)
            assert device.stored(count) == list(range(1, count + 1))
    finally:
        broker.close()


@pytest.mark.soak(shard="kills-streams")
def test_the_same_through_many_kills(ingest_service: IngestingService) -> None:
    kill(ingest_service, KILLS_IN_SOAK)

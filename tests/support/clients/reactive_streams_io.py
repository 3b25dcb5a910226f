"""A client of reactive-streams-io over any broker: an endpoint on top of a client of the broker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from mappings.reactive_streams_io.endpoint import Endpoint, EndpointRole
from mappings.reactive_streams_io.events import ElementsReceived, EndpointEvent, StreamFailed
from tests.support.clients.mqtt import BrokerClient
from tests.support.wait import PATIENCE


class Client:
    """A client of reactive-streams-io."""

    def __init__(self, kind: str, requester: BrokerClient) -> None:
        self.kind, self._party = kind, requester
        requester.read = bytes
        self.reported: list[EndpointEvent] = []
        self.endpoint = Endpoint(EndpointRole.CLIENT, time.monotonic(), has_messages=True)

    def say(self) -> None:
        """Send all frames that the endpoint has to send."""
        while raw := self.endpoint.take():
            self.send(raw)

    def send(self, raw: bytes) -> None:
        address = self._party.answers
        around: dict[str, dict[str, Any]] = {
            "mqtt-5": {"ResponseTopic": address},
            "amqp-091": {"reply_to": address},
            "kafka": {"headers": [("reply-to", address)]},
        }
        self._party.send(raw, **around.get(self.kind, {}))

    def subscribe(self, publisher: str, demand: int) -> int:
        """Subscribe to a publisher and return the number of the stream."""
        stream = self.endpoint.subscribe(publisher, demand)
        self.say()
        return stream

    def until(self, condition: Callable[[], bool], patience: float = PATIENCE) -> None:
        """Receive and respond until the condition is true."""
        while not condition():
            self.reported += self.endpoint.receive(self._party.next(patience), time.monotonic())
            self.say()

    def elements(self, stream: int) -> list[bytes]:
        return [
            element
            for event in self.reported
            if isinstance(event, ElementsReceived) and event.stream == stream
            for element in event.elements
        ]

    def revisions(self, stream: int) -> list[int]:
        return [json.loads(element)["revision"] for element in self.elements(stream)]

    def failure(self, stream: int) -> str | None:
        """Return why a stream failed; None while it has not."""
        return next(
            (event.reason for event in self.reported if isinstance(event, StreamFailed) and event.stream == stream),
            None,
        )

    def has(self, event: EndpointEvent) -> bool:
        return event in self.reported

    def close(self) -> None:
        self._party.close()

"""A client of the examples at a broker, which can print every message that it sends and receives.

The messages are the same over every broker. A subclass for each protocol carries them: `MqttClient`, `AmqpClient`,
`KafkaClient`.
"""

from __future__ import annotations

import json
import queue
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

TIMEOUT = 60.0
"""Seconds to wait for the broker or for a message."""

MessagePrinter = Callable[["BrokerClient", str, dict[str, Any]], None]
"""Takes the client, `->` for a sent or `<-` for a received message, and the message."""


class NoResponse(RuntimeError):
    """The service or a broker did not respond in time."""


def print_nothing(_client: BrokerClient, _arrow: str, _message: dict[str, Any]) -> None:
    """The printer of a client whose messages are not printed."""


class BrokerClient(ABC):
    """A client that publishes to one address and receives from another.

    `transport` is the name of its protocol.
    """

    transport: str
    reply_to: str | None = None
    """The header `reply-to` of commands, for transports without a field for the reply address."""

    def __init__(self, name: str, printer: MessagePrinter = print_nothing) -> None:
        self.name = name
        self._printer = printer
        self._received: queue.Queue[dict[str, Any]] = queue.Queue()

    @abstractmethod
    def _publish(self, payload: bytes, correlation_id: str) -> None:
        """Publish a payload to the address of this client."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect from the broker."""

    def _on_payload(self, payload: bytes) -> None:
        """Print and queue a received message. A subclass calls this for every message."""
        message = json.loads(payload)
        self._printer(self, "<-", message)
        self._received.put(message)

    def send(self, topic: str, path: str = "/", value: Any = None, **more: str) -> None:
        """Send a command. Further keywords are headers, with `_` for `-`.

        The keyword `fields` selects the fields of the response.
        """
        fields = more.pop("fields", None)
        headers = {"correlation-id": secrets.token_hex(3)} | {name.replace("_", "-"): it for name, it in more.items()}
        if self.reply_to is not None:
            headers["reply-to"] = self.reply_to
        command: dict[str, Any] = {"topic": topic, "headers": headers, "path": path}
        if fields is not None:
            command["fields"] = fields
        if value is not None:
            command["value"] = value
        self.publish(command)

    def publish(self, message: dict[str, Any]) -> None:
        """Publish a message unchanged."""
        self._printer(self, "->", message)
        self._publish(json.dumps(message).encode(), message["headers"]["correlation-id"])

    def receive(self) -> dict[str, Any]:
        """The next message. Raises NoResponse if none arrives in time."""
        try:
            return self._received.get(timeout=TIMEOUT)
        except queue.Empty:
            raise NoResponse(f"{self.name}: no message arrived over {self.transport} within {TIMEOUT:.0f} s") from None

    def receives_nothing(self, seconds: float) -> bool:
        """Whether no message arrives for so many seconds."""
        try:
            self._received.get(timeout=seconds)
        except queue.Empty:
            return True
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

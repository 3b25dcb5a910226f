"""A party to the conversation, for the examples: somebody at a broker who shows every message sent and received.

What is said is the same over every broker. How it travels is a class of its own: `MqttParty`, `AmqpParty`, `KafkaParty`.
"""

from __future__ import annotations

import json
import queue
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

PATIENCE = 60.0

Show = Callable[["Party", str, dict[str, Any]], None]
"""Takes the party, an arrow, and the message."""


class NoAnswer(RuntimeError):
    """The service, or a broker, did not answer in time."""


def quiet(_party: Party, _arrow: str, _message: dict[str, Any]) -> None:
    """Show nothing."""


class Party(ABC):
    """Somebody with a place to speak to and a place to listen at. `transport` is the word for the broker's protocol."""

    transport: str
    answers_in_message: str | None = None
    """Where answers are to go, for transports that can say it in the message alone."""

    def __init__(self, name: str, show: Show = quiet) -> None:
        self.name = name
        self._show = show
        self._received: queue.Queue[dict[str, Any]] = queue.Queue()

    @abstractmethod
    def _send(self, payload: bytes, correlation_id: str) -> None:
        """Publish a message to where this party speaks."""

    @abstractmethod
    def close(self) -> None:
        """Leave the broker."""

    def _heard(self, payload: bytes) -> None:
        """To be called with every message that comes."""
        message = json.loads(payload)
        self._show(self, "<-", message)
        self._received.put(message)

    def send(self, topic: str, path: str = "/", value: Any = None, **more: str) -> None:
        """Send a command. `fields` is what its answers are to show; other keywords are headers, `_` for `-`."""
        fields = more.pop("fields", None)
        headers = {"correlation-id": secrets.token_hex(3)} | {name.replace("_", "-"): it for name, it in more.items()}
        if self.answers_in_message is not None:
            headers["reply-to"] = self.answers_in_message
        command: dict[str, Any] = {"topic": topic, "headers": headers, "path": path}
        if fields is not None:
            command["fields"] = fields
        if value is not None:
            command["value"] = value
        self.publish(command)

    def publish(self, message: dict[str, Any]) -> None:
        """Send a message as it is."""
        self._show(self, "->", message)
        self._send(json.dumps(message).encode(), message["headers"]["correlation-id"])

    def receive(self) -> dict[str, Any]:
        """The next answer. Raises NoAnswer when none comes in time."""
        try:
            return self._received.get(timeout=PATIENCE)
        except queue.Empty:
            raise NoAnswer(f"{self.name}: nothing came over {self.transport} within {PATIENCE:.0f} s") from None

    def hears_nothing(self, seconds: float) -> bool:
        """Whether nothing arrives for a while."""
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

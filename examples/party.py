"""A party to the conversation, for the examples: an MQTT client that shows every message it sends and receives."""

from __future__ import annotations

import json
import queue
import secrets
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

PATIENCE = 15.0

Show = Callable[[str, str, dict[str, Any]], None]
"""Takes the party's name, an arrow, and the message."""


class NoAnswer(RuntimeError):
    """The service did not answer in time."""


class Party:
    """Somebody with a topic to speak on and a topic to listen to."""

    def __init__(self, name: str, host: str, port: int, *, speaks: str, listens: str, show: Show) -> None:
        self.name, self.speaks, self.listens = name, speaks, listens
        self._show = show
        self._received: queue.Queue[dict[str, Any]] = queue.Queue()
        self._listening = threading.Event()
        self._client = Client(CallbackAPIVersion.VERSION2, f"{name}-{secrets.token_hex(3)}")
        self._client.on_connect = lambda *_: self._client.subscribe(listens, 1)
        self._client.on_subscribe = lambda *_: self._listening.set()
        self._client.on_message = self._on_message
        self._client.connect(host, port)
        self._client.loop_start()
        if not self._listening.wait(PATIENCE):
            raise NoAnswer(f"{name}: the broker did not confirm the subscription to {listens}")

    def _on_message(self, _client: Client, _userdata: Any, message: MQTTMessage) -> None:
        answer = json.loads(message.payload)
        self._show(self.name, "<-", answer)
        self._received.put(answer)

    def say(self, topic: str, path: str = "/", value: Any = None) -> None:
        """Send a command. What comes back goes to `listens`."""
        headers = {"correlation-id": secrets.token_hex(3), "reply-to": self.listens}
        command = {"topic": topic, "headers": headers, "path": path}
        if value is not None:
            command["value"] = value
        self.publish(command)

    def publish(self, message: dict[str, Any]) -> None:
        """Send a message as it is."""
        self._show(self.name, "->", message)
        self._client.publish(self.speaks, json.dumps(message), 1)

    def hear(self) -> dict[str, Any]:
        """The next answer. Raises NoAnswer when none comes in time."""
        try:
            return self._received.get(timeout=PATIENCE)
        except queue.Empty:
            raise NoAnswer(f"{self.name}: nothing came within {PATIENCE:.0f} s") from None

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
        self._client.disconnect()
        self._client.loop_stop()

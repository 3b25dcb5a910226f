"""Clients of the service, for tests: they send commands and wait for responses.

A thread collects received messages; `next` and `until` wait for them with a deadline.
"""

from __future__ import annotations

import json
import queue
import secrets
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from paho.mqtt.client import Client, ConnectFlags, MQTTMessage, MQTTv5, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from tests.support.clients.paho_end import end_client
from tests.support.wait import PATIENCE

if TYPE_CHECKING:
    from paho.mqtt.client import SocketLike


def answer_at_once(_client: Client, _userdata: Any, link: SocketLike) -> None:
    """Send small packets immediately: otherwise they wait up to 40 ms for the peer's acknowledgement."""
    assert isinstance(link, socket.socket)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class BrokerClient(ABC):
    """Sends commands over a broker, and collects the responses in `received`."""

    ask: str
    answers: str

    def __init__(self) -> None:
        self.received: queue.Queue[Any] = queue.Queue()
        self.read: Callable[[bytes], Any] = json.loads
        """Decodes a payload for `received`."""
        self.on_resend: Callable[[bytes], object] = lambda payload: None
        """Called in a thread of the client before it sends an unconfirmed payload again."""

    @property
    def is_linked(self) -> bool:
        """Whether the client is linked: then new messages do not overtake those sent before."""
        return True

    @abstractmethod
    def send(self, document: Any, *, wait: bool = True, to: str | None = None) -> None:
        """Publish a JSON document or bytes to `to` or `ask`; with `wait`, until the broker confirms."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect."""

    def command(
        self,
        topic: str,
        path: str = "/",
        value: Any = None,
        headers: dict[str, Any] | None = None,
        *,
        wait: bool = True,
        **envelope: Any,
    ) -> str:
        """Send a Ditto protocol command and return its correlation ID. A `value` of None is left out."""
        correlation = (headers or {}).get("correlation-id") or secrets.token_hex(4)
        document = {"topic": topic, "path": path, "headers": {**(headers or {}), "correlation-id": correlation}}
        if value is not None:
            document["value"] = value
        self.send({**document, **envelope}, wait=wait)
        return str(correlation)

    def next(self, patience: float = PATIENCE) -> Any:
        """Return the next response. Raises AssertionError if none arrives in time."""
        try:
            return self.received.get(timeout=patience)
        except queue.Empty:
            raise AssertionError(f"no answer within {patience} s") from None

    def ask_for(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        """Send a command and return the response with its correlation ID."""
        correlation = self.command(*arguments, **options)
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            answer: dict[str, Any] = self.next()
            if answer["headers"].get("correlation-id") == correlation:
                return answer
        raise AssertionError(f"no answer to {correlation}")

    def until(self, action: str) -> list[dict[str, Any]]:
        """Return the responses up to and including the first whose topic ends with `action`."""
        answers = [self.next()]
        while not answers[-1]["topic"].endswith(f"/{action}"):
            answers.append(self.next())
        return answers

    def assert_nothing_came(self, thing: str = "nothing", **options: Any) -> dict[str, Any]:
        """Prove that nothing came: retrieve a thing, and require that the next message is the response.

        Responses about one thing keep their order, so name the `thing` that unwanted messages would be about. `options`
        are those of `send`. Returns the response.
        """
        correlation = secrets.token_hex(4)
        headers = {"correlation-id": correlation, "reply-to": self.answers}
        command = {"topic": f"acme.site/{thing}/things/twin/commands/retrieve", "path": "/", "headers": headers}
        answer: dict[str, Any] = self.assert_next_answers(
            command, lambda message: message["headers"].get("correlation-id") == correlation, **options
        )
        return answer

    def assert_next_answers(self, document: Any, is_answer: Callable[[Any], bool], **options: Any) -> Any:
        """Send a document, and require that the next message is its response and nothing came before it."""
        self.send(document, **options)
        message = self.next()
        assert is_answer(message), f"came before the answer: {message}"
        return message

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class MqttClient(BrokerClient):
    """A client over MQTT: it publishes to `ask` and receives everything on `answers`."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        ask: str,
        answers: str,
        version: MQTTProtocolVersion = MQTTv311,
        keeps_session: bool = False,
        **login: str,
    ) -> None:
        """`keeps_session`: the broker keeps messages for the client while its link is down."""
        super().__init__()
        self.ask, self.answers, self._version = ask, answers, version
        self.messages: list[MQTTMessage] = []
        self.links = 0
        """The number of links to the broker so far."""
        self._subscribed = threading.Event()
        self._client = Client(
            CallbackAPIVersion.VERSION2,
            f"test-{secrets.token_hex(6)}",
            clean_session=None if version == MQTTv5 else not keeps_session,
            protocol=version,
        )
        self._client.reconnect_delay_set(0.1, 1)  # type: ignore[arg-type] # seconds; a fraction is as good
        if login:
            self._client.username_pw_set(login["username"], login["password"])
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = lambda *_: self._subscribed.clear()
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.on_message = self._on_message
        self._client.on_socket_open = answer_at_once
        self._client.connect(host, port)
        self._client.loop_start()
        assert self._subscribed.wait(PATIENCE), "the client's own subscription was not confirmed"

    def _on_connect(
        self, client: Client, _userdata: Any, _flags: ConnectFlags, _reason: ReasonCode, _properties: Any
    ) -> None:
        client.subscribe(self.answers, 1)
        self.links += 1
        for message in list(self._client._out_messages.values()):
            # The library sends all of these next; `dup` marks those that it has sent before.
            if message.dup:
                self.on_resend(bytes(message.payload))

    @property
    def is_linked(self) -> bool:
        return self._subscribed.is_set()

    def _on_message(self, _client: Client, _userdata: Any, message: MQTTMessage) -> None:
        self.messages.append(message)
        self.received.put(self.read(bytes(message.payload)))

    def send(self, document: Any, *, qos: int = 1, wait: bool = True, to: str | None = None, **properties: Any) -> None:
        """Publish a JSON document or bytes. `properties` are those of MQTT 5."""
        payload = document if isinstance(document, bytes) else json.dumps(document).encode()
        extra = None
        if self._version == MQTTv5:
            extra = Properties(PacketTypes.PUBLISH)
            for name, value in properties.items():
                setattr(extra, name, value)
        sent = self._client.publish(to or self.ask, payload, qos, properties=extra)
        if wait:
            sent.wait_for_publish(PATIENCE)
            assert sent.is_published(), "the broker has not confirmed the message"

    def close(self) -> None:
        end_client(self._client)

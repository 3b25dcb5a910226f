"""A second client of an MQTT broker: the bare library in a thread, without code of the service."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from mappings.model.envelope import Envelope
from tests.support.clients.paho_end import end_client
from tests.support.wait import PATIENCE

WINDOW = 100


class BareMqttClient:
    """Publishes, and receives the messages of a topic filter into the list `received`."""

    def __init__(self, host: str, port: int, topic: str, *, is_5: bool = False, qos: int = 2) -> None:
        self.received: list[Envelope] = []
        self.retained: list[bool] = []
        self._is_5 = is_5
        self._room = threading.Semaphore(WINDOW)
        self._subscribed = threading.Event()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5 if is_5 else paho.MQTTv311)
        self._client.max_inflight_messages_set(0)
        self._client.on_connect = lambda client, *_: client.subscribe(topic, qos)
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.on_message = self._on_message
        self._client.on_publish = lambda *_: self._room.release()
        self._client.connect(host, port)

    def __enter__(self) -> Self:
        self._client.loop_start()
        assert self._subscribed.wait(PATIENCE), "the direct client is not subscribed"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_client(self._client)

    def send(
        self, topic: str, payloads: Sequence[bytes], headers: Mapping[str, str] | None = None, qos: int = 1
    ) -> None:
        """Send in order, and return when the broker has confirmed all. `headers` are those of `properties_of`."""
        properties = properties_of(headers) if self._is_5 and headers else None
        for payload in payloads:
            assert self._room.acquire(timeout=PATIENCE)
            self._client.publish(topic, payload, qos, properties=properties)
        for _ in range(WINDOW):
            assert self._room.acquire(timeout=PATIENCE), "the broker has not confirmed everything"
        self._room.release(WINDOW)

    def retain(self, topic: str, payload: bytes) -> None:
        sent = self._client.publish(topic, payload, 1, retain=True)
        sent.wait_for_publish(PATIENCE)
        assert sent.is_published()

    def _on_message(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        headers = {"mqtt.topic": message.topic, "mqtt.qos": str(message.qos)}
        if message.properties is not None:
            headers |= headers_of(message.properties)
        self.retained.append(message.retain)
        self.received.append(Envelope(bytes(message.payload), headers))


def properties_of(headers: Mapping[str, str]) -> Properties:
    """Return headers as MQTT 5 properties, by the library alone."""
    properties = Properties(PacketTypes.PUBLISH)
    for name, value in headers.items():
        match name:
            case "correlation-id":
                properties.CorrelationData = value.encode()
            case "reply-to":
                properties.ResponseTopic = value
            case "content-type":
                properties.ContentType = value
            case "mqtt.message-expiry-interval":
                properties.MessageExpiryInterval = int(value)
            case _:
                properties.UserProperty = (name, value)
    return properties


def headers_of(properties: Properties) -> dict[str, str]:
    """Return MQTT 5 properties as headers, by the library alone."""
    headers = dict(getattr(properties, "UserProperty", []))
    if hasattr(properties, "CorrelationData"):
        headers["correlation-id"] = properties.CorrelationData.decode()
    for header, name in (
        ("reply-to", "ResponseTopic"),
        ("content-type", "ContentType"),
        ("mqtt.message-expiry-interval", "MessageExpiryInterval"),
    ):
        if hasattr(properties, name):
            headers[header] = str(getattr(properties, name))
    return headers

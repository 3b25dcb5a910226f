"""Clients for load and checker that reconnect to their broker, selected by the broker's address."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.support.clients.amqp import AmqpClient
from tests.support.clients.kafka import KafkaClient
from tests.support.clients.mqtt import BrokerClient, MqttClient


class _Address(NamedTuple):
    bootstrap: str


def join(uri: str, ask: str, answers: str) -> BrokerClient:
    """Return a client at `tcp://` (MQTT), `amqp://` or `kafka://`. Raises ValueError for another scheme."""
    parts = urlsplit(uri)
    if parts.scheme == "tcp":
        return MqttClient(str(parts.hostname), parts.port or 1883, ask=ask, answers=answers, keeps_session=True)
    if parts.scheme == "amqp":
        return AmqpClient(uri, ask=ask, answers=answers)
    if parts.scheme == "kafka":
        return KafkaClient(_Address(parts.netloc), ask=ask, answers=answers)
    raise ValueError(f"scheme {parts.scheme!r}, expected tcp, amqp or kafka")


def publish(client: BrokerClient, document: dict[str, Any], message_id: str | None) -> None:
    """Send without waiting; over AMQP with this message ID, or without one for None."""
    if isinstance(client, AmqpClient):
        client.send(document, wait=False, message_id=message_id)
    else:
        client.send(document, wait=False)

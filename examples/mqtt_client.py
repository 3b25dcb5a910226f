"""A client on MQTT 3.1.1 or 5: the library paho."""

from __future__ import annotations

import secrets
import threading
from contextlib import suppress
from typing import Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from examples.broker_client import TIMEOUT, BrokerClient, MessagePrinter, NoResponse, print_nothing
from examples.brokers import Broker


class MqttClient(BrokerClient):
    """Publishes to the topic `publish_to` and subscribes to the topic `receive_from`.

    In MQTT 5 the response topic is the reply address. With `has_reply_header`, messages have the header `reply-to`
    instead: MQTT 3.1.1 has no other field for a reply address.
    """

    def __init__(
        self,
        name: str,
        broker: Broker,
        *,
        publish_to: str,
        receive_from: str,
        is_5: bool = False,
        has_reply_header: bool = False,
        printer: MessagePrinter = print_nothing,
    ) -> None:
        super().__init__(name, printer)
        self.transport = "MQTT 5" if is_5 else "MQTT"
        self._publish_to, self._receive_from, self._is_5 = publish_to, receive_from, is_5
        self.reply_to = receive_from if has_reply_header else None
        self._is_subscribed = threading.Event()
        protocol = MQTTProtocolVersion.MQTTv5 if is_5 else MQTTProtocolVersion.MQTTv311
        self._client = Client(CallbackAPIVersion.VERSION2, f"{name}-{secrets.token_hex(3)}", protocol=protocol)
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = lambda *_: self._is_subscribed.set()
        self._client.on_message = self._on_message
        self._client.connect(broker.host, broker.port)
        self._client.loop_start()
        if not self._is_subscribed.wait(TIMEOUT):
            self.close()
            raise NoResponse(f"{name}: the broker did not confirm the subscription to {receive_from}")

    def _on_connect(self, *_: object) -> None:
        self._client.subscribe(self._receive_from, 1)

    def _on_message(self, _client: Client, _userdata: Any, message: MQTTMessage) -> None:
        self._on_payload(bytes(message.payload))

    def _publish(self, payload: bytes, correlation_id: str) -> None:
        properties = None
        if self._is_5:
            properties = Properties(PacketTypes.PUBLISH)
            properties.ResponseTopic = self._receive_from
            properties.CorrelationData = correlation_id.encode()
        self._client.publish(self._publish_to, payload, 1, properties=properties)

    def close(self) -> None:
        self._client.disconnect()
        # The thread ends after the DISCONNECT; paho raises this error if it ends while paho looks for it.
        with suppress(AttributeError):
            self._client.loop_stop()
        # The client's thread may end before it has closed its socket.
        if (socket := self._client.socket()) is not None:
            socket.close()

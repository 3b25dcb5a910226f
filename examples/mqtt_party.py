"""A party on MQTT, 3.1.1 or 5, with the client of the paho library."""

from __future__ import annotations

import secrets
import threading
from typing import Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from examples.brokers import Broker
from examples.party import PATIENCE, NoAnswer, Party, Show, quiet


class MqttParty(Party):
    """Publishes to the topic `speaks` and listens at the topic `listens`.

    MQTT 5 has the response topic for the place of the answers. With 3.1.1, who is answered at no fixed place names it in the
    message: `names_place`.
    """

    def __init__(
        self,
        name: str,
        broker: Broker,
        *,
        speaks: str,
        listens: str,
        is_5: bool = False,
        names_place: bool = False,
        show: Show = quiet,
    ) -> None:
        super().__init__(name, show)
        self.transport = "MQTT 5" if is_5 else "MQTT"
        self.speaks, self.listens, self._is_5 = speaks, listens, is_5
        self.answers_in_message = listens if names_place else None
        self._listening = threading.Event()
        protocol = MQTTProtocolVersion.MQTTv5 if is_5 else MQTTProtocolVersion.MQTTv311
        self._client = Client(CallbackAPIVersion.VERSION2, f"{name}-{secrets.token_hex(3)}", protocol=protocol)
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = lambda *_: self._listening.set()
        self._client.on_message = self._on_message
        self._client.connect(broker.host, broker.port)
        self._client.loop_start()
        if not self._listening.wait(PATIENCE):
            self.close()
            raise NoAnswer(f"{name}: the broker did not confirm the subscription to {listens}")

    def _on_connect(self, *_: object) -> None:
        self._client.subscribe(self.listens, 1)

    def _on_message(self, _client: Client, _userdata: Any, message: MQTTMessage) -> None:
        self._heard(bytes(message.payload))

    def _send(self, payload: bytes, correlation_id: str) -> None:
        properties = None
        if self._is_5:
            properties = Properties(PacketTypes.PUBLISH)
            properties.ResponseTopic = self.listens
            properties.CorrelationData = correlation_id.encode()
        self._client.publish(self.speaks, payload, 1, properties=properties)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
        # The client's thread may end before it has closed its socket.
        if (link := self._client.socket()) is not None:
            link.close()

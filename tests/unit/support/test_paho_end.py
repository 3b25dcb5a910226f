"""Clients of MQTT end whenever the thread of their library ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from examples.mqtt_client import MqttClient
from examples.rsio_links import MqttLink
from examples.streamr_client import Client as StreamrClient
from tests.support.clients.paho_end import end_client


class EndingClient(Client):
    """A client whose thread ends after the library has looked for it once."""

    looks = 0

    @property
    def _thread(self) -> Any:
        self.looks += 1
        return object() if self.looks == 1 else None

    @_thread.setter
    def _thread(self, _thread: object) -> None:
        self.looks = 0


ENDS: dict[str, Callable[[Any], object]] = {
    "tests": end_client,
    "examples": lambda client: MqttClient.close(Mock(_client=client)),
    "streamr": lambda client: StreamrClient.close(Mock(_mqtt=client)),
    "rsio": lambda client: asyncio.run(MqttLink.close(Mock(_mqtt=client))),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_client_ends_although_its_thread_ends_while_the_library_looks_for_it(end: Callable[[Any], object]) -> None:
    client = EndingClient(CallbackAPIVersion.VERSION2)
    with pytest.raises(AttributeError):
        client.loop_stop()
    client._thread = None
    end(client)
    assert client.looks > 1

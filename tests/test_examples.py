"""The examples find a broker on any machine, and their connections lead to it."""

from __future__ import annotations

from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from examples import brokers
from tests.helpers import wait_until_sync


def answer_of(broker: brokers.Broker, version: MQTTProtocolVersion) -> str:
    """What the broker says to a connecting client."""
    answers: list[str] = []
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=version, reconnect_on_failure=False)
    client.on_connect = lambda _client, _data, _flags, reason, _properties: answers.append(str(reason))
    client.connect(broker.host, broker.port)
    client.loop_start()
    wait_until_sync(lambda: answers)
    client.disconnect()
    client.loop_stop()
    return answers[0]


@pytest.fixture
def without_docker(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(brokers, "_compose_answers", lambda: False)
    return monkeypatch


@pytest.mark.broker("mosquitto")
def test_the_installed_program_speaks_both_versions(tmp_path: Path) -> None:
    with brokers.mqtt_broker(tmp_path) as broker:
        assert answer_of(broker, MQTTProtocolVersion.MQTTv311) == "Success"
        assert answer_of(broker, MQTTProtocolVersion.MQTTv5) == "Success"
        assert broker.speaks_mqtt_5


@pytest.mark.broker("embedded")
def test_without_a_program_the_embedded_broker_speaks_mqtt_3_1_1(
    tmp_path: Path, without_docker: pytest.MonkeyPatch
) -> None:
    without_docker.setattr(brokers, "SEARCHED", str(tmp_path))
    with brokers.mqtt_broker(tmp_path) as broker:
        assert answer_of(broker, MQTTProtocolVersion.MQTTv311) == "Success"
        assert not broker.speaks_mqtt_5


@pytest.mark.broker("mosquitto")
def test_a_port_that_is_taken_is_left_to_its_owner(tmp_path: Path) -> None:
    with brokers.mqtt_broker(tmp_path / "one") as one, brokers.mqtt_broker(tmp_path / "two", one.port) as two:
        assert two.port != one.port


def test_the_example_connections_lead_to_the_broker_that_was_found(tmp_path: Path) -> None:
    found = brokers.connections_at(brokers.Broker("127.0.0.1", 4711, "a test", speaks_mqtt_5=True), tmp_path / "all")
    assert {file.name for file in found.iterdir()} == {"devices.yaml", "back-end.json", "gateway.yaml"}
    assert all("tcp://127.0.0.1:4711" in file.read_text(encoding="utf-8") for file in found.iterdir())


def test_connections_that_the_broker_cannot_carry_are_left_out(tmp_path: Path) -> None:
    found = brokers.connections_at(brokers.Broker("127.0.0.1", 4711, "a test", speaks_mqtt_5=False), tmp_path / "some")
    assert [file.name for file in found.iterdir()] == ["devices.yaml"]

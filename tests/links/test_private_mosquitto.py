"""The private Mosquitto works as documented, so that tests of loss test only the service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.brokers import BrokerFailed, BrokerMissing, is_listening
from tests.support.brokers import mosquitto as module
from tests.support.brokers.mosquitto import Certificates, Mosquitto
from tests.support.clients.paho_end import end_client
from tests.support.wait import wait_until_sync

pytestmark = pytest.mark.broker("mosquitto")


@contextmanager
def client(
    broker: Mosquitto, name: str = "", *, login: tuple[str, str] | None = None, ca: Path | None = None
) -> Iterator[tuple[paho.Client, list[bytes]]]:
    """Yield a connected client and its received messages; with a name, its session persists."""
    received: list[bytes] = []
    made = paho.Client(CallbackAPIVersion.VERSION2, client_id=name, clean_session=not name)
    made.on_message = lambda _client, _data, message: received.append(bytes(message.payload))
    if login:
        made.username_pw_set(*login)
    if ca:
        made.tls_set(ca_certs=str(ca))
    made.connect(broker.host, broker.tls_port if ca else broker.port)
    made.loop_start()
    try:
        yield made, received
    finally:
        end_client(made)


def test_a_message_goes_round(mosquitto: Mosquitto) -> None:
    with client(mosquitto) as (one, received):
        one.subscribe("round/trip", qos=1)
        wait_until_sync(lambda: one.publish("round/trip", b"hello", qos=1) and received)
    assert received[0] == b"hello"


def test_a_stopped_broker_keeps_messages_of_a_session() -> None:
    with Mosquitto.start() as broker:
        with client(broker, "keeper") as (one, _):
            subscribed: list[int] = []
            one.on_subscribe = lambda *_: subscribed.append(1)
            wait_until_sync(lambda: one.is_connected())
            one.subscribe("kept/#", qos=1)
            wait_until_sync(lambda: subscribed)
        with client(broker) as (other, _):
            other.publish("kept/one", b"kept", qos=1).wait_for_publish(10)
        broker.stop()
        assert not is_listening(broker.host, broker.port)
        broker.start_again()
        with client(broker, "keeper") as (_, received):
            wait_until_sync(lambda: received)
        assert received == [b"kept"]


def test_a_killed_broker_starts_again_at_the_same_port() -> None:
    with Mosquitto.start(persistence=False) as broker:
        port = broker.port
        broker.kill()
        assert "stopped" in repr(broker)
        broker.start_again()
        assert (broker.port, is_listening(broker.host, port)) == (port, True)


def test_only_users_with_the_right_password_come_in() -> None:
    with Mosquitto.start(users={"ada": "right"}) as broker:
        with client(broker, login=("ada", "right")) as (one, _):
            wait_until_sync(one.is_connected)
        reasons: list[str] = []
        stranger = paho.Client(CallbackAPIVersion.VERSION2, reconnect_on_failure=False)
        stranger.username_pw_set("ada", "wrong")
        stranger.on_connect = lambda _client, _data, _flags, reason, _properties: reasons.append(str(reason))
        stranger.connect(broker.host, broker.port)
        stranger.loop_start()
        wait_until_sync(lambda: reasons)
        end_client(stranger)
    assert reasons == ["Not authorized"]


def test_tls_is_served_beside_plain_mqtt(tmp_path: Path) -> None:
    certificates = Certificates.make(tmp_path)
    with Mosquitto.start(tls=certificates) as broker:
        assert broker.uri(tls=True) == f"ssl://{broker.host}:{broker.tls_port}"
        with client(broker, ca=certificates.ca) as (one, _):
            wait_until_sync(one.is_connected)


def test_a_configuration_that_the_broker_refuses_is_shown_with_its_message() -> None:
    with pytest.raises(BrokerFailed, match="no_such_option"):
        Mosquitto.start(config_lines=["no_such_option 1"])


def test_a_missing_program_names_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "docker_answers", lambda: False)
    monkeypatch.setattr(module, "SEARCHED", "/nowhere")
    with pytest.raises(BrokerMissing, match="make install"):
        Mosquitto.start()

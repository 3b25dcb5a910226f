"""TLS below 1.2 is refused with every broker, and a connection's own authorities are the only trusted ones."""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from socket import create_connection, create_server
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from connectivity.connections.model import Connection
from connectivity.errors import Detail, NotConnected
from connectivity.transports import load_connection_type
from connectivity.transports.dialer import tls_context
from connectivity.transports.kafka.client_config import common_settings
from connectivity.transports.kafka.options import Options
from tests.support.brokers.mosquitto import Certificates
from tests.support.wait import PATIENCE

SCHEMES = {"mqtt": "ssl", "mqtt-5": "ssl", "amqp-091": "amqps", "kafka": "ssl"}
LAX = "ALL:@SECLEVEL=0"


def document(kind: str, port: int, ca: str | None) -> Connection:
    """A connection to this machine."""
    options = {"bootstrapServers": f"localhost:{port}"} if kind == "kafka" else {}
    source = {"addresses": ["in"], "qos": 1, "authorizationContext": ["a"]}
    made: dict[str, Any] = {"id": "old", "connectionType": kind, "connectionStatus": "open", "ca": ca}
    made |= {"uri": f"{SCHEMES[kind]}://u:p@localhost:{port}", "specificConfig": options, "sources": [source]}
    return Connection.model_validate(made)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("old"))


@pytest.fixture
def old(certificates: Certificates) -> Iterator[tuple[int, list[str]]]:
    """A server of TLS 1.0 and 1.1: its port, and the versions that clients agreed to."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers(LAX)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    context.load_cert_chain(certificates.certificate, certificates.key)
    agreed: list[str] = []
    with create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        stop = threading.Event()

        def run() -> None:
            while True:
                made, _ = server.accept()
                with made:
                    if stop.is_set():
                        return
                    made.settimeout(PATIENCE)
                    with contextlib.suppress(OSError), context.wrap_socket(made, server_side=True) as wrapped:
                        agreed.append(str(wrapped.version()))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield port, agreed
        stop.set()
        with contextlib.suppress(OSError):
            create_connection(("127.0.0.1", port)).close()
        thread.join(PATIENCE)


def ca_of(certificates: Certificates) -> str:
    return certificates.ca.read_text(encoding="ascii")


@pytest.mark.parametrize("kind", SCHEMES)
async def test_a_broker_with_tls_1_1_alone_is_not_talked_to(
    kind: str, old: tuple[int, list[str]], certificates: Certificates
) -> None:
    port, agreed = old
    connect = load_connection_type(kind).connect
    with pytest.raises(NotConnected) as raised:
        await connect(document(kind, port, ca_of(certificates)), 0)
    assert raised.value.detail is Detail.REFUSED_BY_BROKER
    assert raised.value.text.endswith("TLS: tlsv1 alert protocol version, expected TLS 1.2 or later")
    assert agreed == []


def test_kafkas_library_does_not_talk_to_it_either(old: tuple[int, list[str]], certificates: Certificates) -> None:
    """The service's own greeting fails first, and must not be the only protection."""
    port, agreed = old
    connection = document("kafka", port, ca_of(certificates))
    settings = common_settings(connection, Options.model_validate(connection.own_options))
    errors: list[KafkaError] = []
    producer = Producer({**settings, "error_cb": errors.append})
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and not any("protocol version" in error.str() for error in errors):
        producer.poll(0.1)
    assert any("alert protocol version" in error.str() for error in errors)
    assert agreed == []


def test_the_server_of_these_tests_is_one_that_a_lax_client_agrees_with(
    old: tuple[int, list[str]], certificates: Certificates
) -> None:
    port, _ = old
    context = tls_context(document("mqtt", port, ca_of(certificates)))
    context.set_ciphers(LAX)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
    with (
        create_connection(("127.0.0.1", port)) as made,
        context.wrap_socket(made, server_hostname="localhost") as wrapped,
    ):
        assert wrapped.version() == "TLSv1.1"


def test_the_authorities_of_a_connection_are_trusted_in_place_of_those_of_the_system(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator who names one authority does not trust all public ones."""
    monkeypatch.setenv("SSL_CERT_FILE", str(Certificates.make(tmp_path).ca))
    ca = f"# Főtanúsítvány\n{ca_of(certificates)}"
    system, own = tls_context(document("mqtt", 8883, None)), tls_context(document("mqtt", 8883, ca))
    trusted = [[found["serialNumber"] for found in context.get_ca_certs()] for context in (system, own)]
    assert len(trusted[1]) == 1
    assert trusted[1][0] not in trusted[0]
    assert trusted[0]


def test_kafkas_library_gets_the_authorities_of_a_connection_or_those_of_the_system(certificates: Certificates) -> None:
    ca = ca_of(certificates)
    system, own = (
        common_settings(connection, Options.model_validate(connection.own_options))
        for connection in (document("kafka", 9093, None), document("kafka", 9093, ca))
    )
    assert ("ssl.ca.pem" in system, "ssl.ca.location" in own) == (False, False)
    assert own["ssl.ca.pem"].strip() == ca.strip()

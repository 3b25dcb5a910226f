"""The status of unusable connections to RabbitMQ and Kafka, and their repair without a restart.

MQTT has its table in `test_connections.py`. Here one service has a connection for every kind of failure. Details begin with
the name of the fault and contain the broker's own message, if any.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from uuid import uuid4

import pytest
from confluent_kafka.admin import AclOperation, ResourceType  # type: ignore[attr-defined] # not in its list of names

from tests.support.brokers import free_port
from tests.support.brokers.kafka import Kafka
from tests.support.brokers.mosquitto import Certificates, Mosquitto
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.clients.amqp import AmqpClient
from tests.support.service_process import ServiceProcess
from tests.support.wait import wait_until_sync

pytestmark = [pytest.mark.broker(name) for name in ("mosquitto", "rabbitmq", "kafka")]

PAUSES = {"min": "0.2s", "max": "1s"}
RARELY = {"min": "5s", "max": "20s"}
"""Long pauses, because so many failing connections would keep a machine busy."""
OWNER = "acme:owner"


class TlsListener:
    """A listener that presents a certificate, and disconnects a client that accepts it."""

    def __init__(self, certificates: Certificates) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificates.certificate, certificates.key)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.is_open = True
        self._thread = threading.Thread(target=self._serve, name="tls listener", daemon=True)

    def _serve(self) -> None:
        while True:
            made, _ = self._listening.accept()
            with made:
                if not self.is_open:
                    return
                made.settimeout(5)
                try:
                    self._context.wrap_socket(made, server_side=True).close()
                except OSError:
                    continue

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_open = False
        socket.create_connection(("127.0.0.1", self.port)).close()
        self._thread.join(10)
        self._listening.close()


class Row(NamedTuple):
    """The changes of a working connection, its status, the beginning of the details, and a text in them."""

    changes: dict[str, Any]
    status: str
    details: str
    words: str = ""


GOOD = ("open", "connected")


class UntrustedListeners(NamedTuple):
    """Listeners with certificates that no client should accept."""

    expired: TlsListener
    misnamed: TlsListener
    expired_ca: str
    misnamed_ca: str


def amqp_rows(broker: RabbitMQ, listeners: UntrustedListeners) -> dict[str, Row]:
    assert broker.certificates is not None
    ca = broker.certificates.ca.read_text()
    plain, place = f"{broker.host}:{broker.port}", f"127.0.0.1:{free_port()}"
    tls = broker.uri(tls=True, host="localhost")
    return {
        "good": Row({}, *GOOD),
        "good over TLS": Row({"uri": tls, "ca": ca}, *GOOD),
        "any certificate": Row({"uri": tls, "validateCertificates": False}, *GOOD),
        "nobody there": Row({"uri": f"amqp://a:b@{place}"}, "misconfigured", "connection refused: "),
        "unknown host": Row({"uri": "amqp://a:b@no-such-host.invalid:5672"}, "misconfigured", "unknown host: "),
        "wrong password": Row(
            {"uri": f"amqp://service:wrong-secret@{plain}"}, "misconfigured", "bad credentials: ACCESS_REFUSED"
        ),
        "unknown user": Row({"uri": f"amqp://nobody:x@{plain}"}, "misconfigured", "bad credentials: ACCESS_REFUSED"),
        "unknown virtual host": Row(
            {"uri": broker.uri(vhost="nowhere")}, "misconfigured", "missing address: NOT_ALLOWED", "nowhere"
        ),
        "forbidden virtual host": Row(
            {"uri": broker.uri("stranger", vhost="fleet")}, "misconfigured", "not authorized: NOT_ALLOWED", "fleet"
        ),
        "no right to read": Row(
            {"uri": broker.uri("stranger")}, "misconfigured", "not authorized: queue", "ACCESS_REFUSED"
        ),
        "missing queue": Row(
            {"sources": [{"addresses": ["gone"], "authorizationContext": [OWNER]}]},
            "misconfigured", "missing address: NOT_FOUND - no queue 'gone'",
        ),
        "unknown authority": Row({"uri": tls}, "misconfigured", "certificate: "),
        "another host's certificate": Row(
            {"uri": f"amqps://a:b@localhost:{listeners.misnamed.port}", "ca": listeners.misnamed_ca},
            "misconfigured", "certificate: ", "localhost",
        ),
        "expired certificate": Row(
            {"uri": f"amqps://a:b@localhost:{listeners.expired.port}", "ca": listeners.expired_ca},
            "misconfigured", "certificate: ", "expired",
        ),
        "TLS where there is none": Row({"uri": f"amqps://service:right@{plain}"}, "failed", "refused by broker: TLS: "),
        "no TLS where there is": Row(
            {"uri": f"amqp://service:right@localhost:{broker.tls_port}"}, "failed", "refused by broker: "
        ),
    }  # fmt: skip


def kafka_rows(broker: Kafka, listeners: UntrustedListeners, topic: str) -> dict[str, Row]:
    ca, certificates = broker.certificates.ca.read_text(), broker.certificates
    host = broker.host
    own = {
        "type": "client-cert",
        "cert": certificates.client_certificate.read_text(),
        "key": certificates.client_key_pkcs8(),
    }
    forbidden = {what: f"{topic}.{what}" for what in ("all", "read")}
    broker.create(*forbidden.values())
    broker.deny("ada", ResourceType.TOPIC, forbidden["all"], AclOperation.ALL)
    broker.deny("ada", ResourceType.TOPIC, forbidden["read"], AclOperation.READ)
    broker.deny("ada", ResourceType.GROUP, f"{topic}.group", AclOperation.READ)

    def source(name: str) -> list[dict[str, Any]]:
        return [{"addresses": [name], "qos": 1, "authorizationContext": [OWNER]}]

    def by(mechanism: str, **more: str) -> dict[str, str]:
        return {"saslMechanism": mechanism, **more}

    wrong, refused = broker.uri("ada", "wrong-secret"), "bad credentials: "
    return {
        "good": Row({}, *GOOD),
        "good with a login": Row({"uri": broker.uri("ada")}, *GOOD),
        "good over TLS": Row({"uri": broker.uri(tls=True), "ca": ca}, *GOOD),
        "good with a certificate": Row(
            {"uri": f"ssl://{host}:{broker.tls_own_port}", "ca": ca, "credentials": own}, *GOOD
        ),
        "nobody there": Row({"uri": f"tcp://127.0.0.1:{free_port()}"}, "misconfigured", "connection refused: "),
        "unknown host": Row({"uri": "tcp://no-such-host.invalid:9092"}, "misconfigured", "unknown host: "),
        "wrong password": Row({"uri": wrong}, "misconfigured", refused, "Invalid username or password"),
        "wrong password, SCRAM-SHA-256": Row(
            {"uri": wrong, "specificConfig": by("SCRAM-SHA-256")}, "misconfigured", refused, "invalid credentials"
        ),
        "wrong password, SCRAM-SHA-512": Row(
            {"uri": wrong, "specificConfig": by("SCRAM-SHA-512")}, "misconfigured", refused, "invalid credentials"
        ),
        "unknown user": Row(
            {"uri": f"tcp://nobody:x@{host}:{broker.login_port}"}, "misconfigured", refused, "Invalid username"
        ),
        "no login where one is wanted": Row(
            {"uri": f"tcp://{host}:{broker.login_port}"}, "misconfigured", refused, "requires a login"
        ),
        "a login where none is taken": Row(
            {"uri": f"tcp://ada:secret@{host}:{broker.port}"}, "misconfigured", refused, "accepts no login"
        ),
        "missing topic": Row({"sources": source("gone")}, "misconfigured", "missing address: gone: Broker: Unknown"),
        "no right to the topic": Row(
            {"uri": broker.uri("ada"), "sources": source(forbidden["all"])},
            "misconfigured", "not authorized: ", "Broker: Topic authorization failed",
        ),
        "no right to read": Row(
            {"uri": broker.uri("ada"), "sources": source(forbidden["read"])},
            "misconfigured", "not authorized: ", "Broker: Topic authorization failed",
        ),
        "no right to the group": Row(
            {"uri": broker.uri("ada"), "specificConfig": {"groupId": f"{topic}.group"}},
            "misconfigured", "not authorized: ", "Broker: Group authorization failed",
        ),
        "unknown authority": Row({"uri": broker.uri(tls=True)}, "misconfigured", "certificate: ", "issuer"),
        "another host's certificate": Row(
            {"uri": f"ssl://localhost:{listeners.misnamed.port}", "ca": listeners.misnamed_ca},
            "misconfigured", "certificate: ", "localhost",
        ),
        "expired certificate": Row(
            {"uri": f"ssl://localhost:{listeners.expired.port}", "ca": listeners.expired_ca},
            "misconfigured", "certificate: ", "expired",
        ),
        "no certificate of our own": Row(
            {"uri": f"ssl://{host}:{broker.tls_own_port}", "ca": ca}, "misconfigured", "certificate: ", "certificate"
        ),
        "TLS where there is none": Row({"uri": f"ssl://{host}:{broker.port}"}, "failed", "refused by broker: ", "TLS"),
        "no TLS where there is": Row({"uri": f"tcp://{host}:{broker.tls_port}"}, "failed", "refused by broker: ", "TLS"),
    }  # fmt: skip


def documents(kind: str, uri: str, address: str, rows: dict[str, Row]) -> Iterator[dict[str, Any]]:
    for number, row in enumerate(rows.values()):
        document = {
            "id": f"{address}-{kind}-{number}",
            "connectionType": kind,
            "connectionStatus": "open",
            "uri": uri,
            "sources": [{"addresses": [address], "authorizationContext": [OWNER]}],
            **row.changes,
        }
        if kind == "kafka":
            server = document["uri"].rpartition("@")[2].rpartition("/")[2]
            document["specificConfig"] = {"bootstrapServers": server, **document.get("specificConfig", {})}
        yield document


class BrokenConnections(NamedTuple):
    """A service with all these connections."""

    service: ServiceProcess
    address: str
    rows: dict[str, dict[str, Row]]


@pytest.fixture(scope="module")
def shown(rabbitmq: RabbitMQ, kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokenConnections]:
    expired = Certificates.make(tmp_path_factory.mktemp("expired"), "localhost", until=datetime(2020, 1, 1, tzinfo=UTC))
    misnamed = Certificates.make(tmp_path_factory.mktemp("misnamed"), "elsewhere.test")
    address = f"s{uuid4().hex[:12]}"
    with ExitStack() as stack:
        listeners = UntrustedListeners(
            stack.enter_context(TlsListener(expired)),
            stack.enter_context(TlsListener(misnamed)),
            expired.ca.read_text(),
            misnamed.ca.read_text(),
        )
        stack.enter_context(AmqpClient(rabbitmq.uri(), ask=address, answers=f"{address}.answers"))
        kafka.create(address)
        rows = {"amqp-091": amqp_rows(rabbitmq, listeners), "kafka": kafka_rows(kafka, listeners, address)}
        all_documents = [
            *documents("amqp-091", rabbitmq.uri(), address, rows["amqp-091"]),
            *documents("kafka", kafka.uri(), address, rows["kafka"]),
        ]
        folder = tmp_path_factory.mktemp("statuses")
        with ServiceProcess.start(folder, all_documents, reconnect=RARELY) as service:
            yield BrokenConnections(service, address, rows)


@pytest.mark.parametrize("kind", ["amqp-091", "kafka"])
def test_each_fault_has_its_status_its_name_and_the_message_of_the_broker(shown: BrokenConnections, kind: str) -> None:
    rows = shown.rows[kind]
    ids = {name: f"{shown.address}-{kind}-{number}" for number, name in enumerate(rows)}

    def wrong() -> dict[str, object]:
        found = {name: shown.service.status(ids[name]) for name in rows}
        return {
            name: found[name]
            for name, row in rows.items()
            if found[name]["status"] != row.status
            or not found[name]["details"].startswith(row.details)
            or row.words not in found[name]["details"]
        }

    try:
        wait_until_sync(lambda: not wrong())
    except AssertionError:
        assert wrong() == {}
    for name, row in rows.items():
        assert shown.service.metric("connectivity_connection_up", connection=ids[name]) == (row.status == "open")


def test_the_service_is_ready_and_reports_no_secret(shown: BrokenConnections) -> None:
    status, body = shown.service.get("/health/ready")
    assert status == 200
    text = body.decode() + shown.service.log_file.read_text(encoding="utf-8")
    assert "wrong-secret" not in text
    assert "PRIVATE KEY" not in text


# --- repaired -----------------------------------------------------------------------------------------------------------


def is_connected(service: ServiceProcess, connection_id: str) -> bool:
    return service.status(connection_id) == {"status": "open", "details": "connected"}


def test_a_repaired_password_is_used_without_a_restart(rabbitmq: RabbitMQ, kafka: Kafka, tmp_path: Path) -> None:
    """The documents refer to a file with the password. They do not change, and the service keeps running."""
    address = f"m{uuid4().hex[:12]}"
    kafka.create(address)
    with (
        Mosquitto.start(users={"service": "right"}) as mosquitto,
        AmqpClient(rabbitmq.uri(), ask=address, answers=f"{address}.answers"),
    ):
        places = {
            "mqtt": f"tcp://service:${{file:password}}@{mosquitto.host}:{mosquitto.port}",
            "mqtt-5": f"tcp://service:${{file:password}}@{mosquitto.host}:{mosquitto.port}",
            "amqp-091": f"amqp://service:${{file:password}}@{rabbitmq.host}:{rabbitmq.port}",
            "kafka": f"tcp://ada:${{file:password-of-ada}}@{kafka.host}:{kafka.login_port}",
        }
        made = [next(documents(kind, uri, address, {"": Row({}, *GOOD)})) for kind, uri in places.items()]
        for document in made:
            document["sources"][0]["qos"] = 1
        folder = tmp_path / "connections"
        folder.mkdir()
        for name in ("password", "password-of-ada"):
            (folder / name).write_text("not yet\n", encoding="utf-8")
        with ServiceProcess.start(tmp_path, made, reconnect=PAUSES) as service:
            for document in made:
                status = service.status(document["id"])
                assert (status["status"], status["details"].partition(": ")[0]) == ("misconfigured", "bad credentials")
            (folder / "password").write_text("right\n", encoding="utf-8")
            (folder / "password-of-ada").write_text("secret\n", encoding="utf-8")
            for document in made:
                wait_until_sync(partial(is_connected, service, document["id"]))
            assert "not yet" not in json.dumps(service.records())

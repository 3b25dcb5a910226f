"""Each failure to connect to a broker has its own name and contains the message of broker or system."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from connectivity.connections.model import Connection
from connectivity.errors import ClientCertificateRequired, ConnectionRefused, Detail, LinkError, NotConnected
from connectivity.security.egress import EgressRules, enforce
from connectivity.transports import load_connection_type
from connectivity.transports.base import OutboundMessage
from connectivity.transports.mqtt import async_client
from connectivity.transports.mqtt.connector import connect
from connectivity.transports.mqtt.mqtt5 import Mqtt5
from connectivity.transports.mqtt.mqtt311 import Mqtt311
from mappings.model.envelope import Envelope
from tests.contract.link import DeliveryCollector, Publishing, lost
from tests.support.brokers import free_port
from tests.support.brokers.mosquitto import Certificates, Mosquitto
from tests.support.wait import wait_until

DIALECTS = {"mqtt": Mqtt311(), "mqtt-5": Mqtt5()}
CONNECT_WITHIN = 0.5

CONNACK_FINE = {"mqtt": b"\x20\x02\x00\x00", "mqtt-5": b"\x20\x03\x00\x00\x00"}


@pytest.fixture(params=["mqtt", "mqtt-5"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def document(kind: str, uri: str, **members: Any) -> Connection:
    return Connection.model_validate(
        {
            "id": "lab",
            "connectionType": kind,
            "connectionStatus": "open",
            "uri": uri,
            "sources": [{"addresses": ["lab/in"], "qos": 1, "authorizationContext": ["lab:all"]}],
            **members,
        }
    )


async def refusal(connection: Connection, patience: float = 5.0) -> LinkError:
    """Return the error of a failed attempt to connect."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(async_client, "PATIENCE", patience)
        with pytest.raises(LinkError) as caught:
            await connect(DIALECTS[connection.connection_type], connection)
    return caught.value


async def works(connection: Connection) -> bool:
    made = load_connection_type(connection.connection_type).connect
    link = await made(connection)
    await link.close()
    return True


class Script(asyncio.Protocol):
    """A server that responds to each received packet with the next of its responses."""

    def __init__(self, answers: tuple[bytes, ...], transports: list[asyncio.Transport], *, ending: bool) -> None:
        self._answers, self._transports, self._ending = list(answers), transports, ending

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._transports.append(transport)

    def connection_lost(self, _: Exception | None) -> None:
        self._transports.remove(self._transport)

    def data_received(self, _: bytes) -> None:
        if self._answers:
            self._transport.write(self._answers.pop(0))
            if self._ending and not self._answers:
                self._transport.close()


@asynccontextmanager
async def scripted(*answers: bytes, ending: bool = False) -> AsyncIterator[str]:
    """A server that keeps to a script and then is silent, or hangs up; yields its address."""
    transports: list[asyncio.Transport] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Script(answers, transports, ending=ending), "127.0.0.1", 0)
    async with server:
        yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for _ in range(3):  # an accepted connection gets its protocol
            await asyncio.sleep(0)
        for transport in transports:
            transport.abort()
        await wait_until(lambda: not transports)


# ── reaching it ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_unknown_host(kind: str) -> None:
    error = await refusal(document(kind, "tcp://no-such-host.invalid:1883"))
    assert (type(error), error.detail) == (NotConnected, Detail.UNKNOWN_HOST)
    assert error.text


async def test_a_port_without_a_listener_refuses_the_connection(kind: str) -> None:
    port = free_port()
    error = await refusal(document(kind, f"tcp://127.0.0.1:{port}"))
    assert type(error) is NotConnected
    assert str(error) == f"connection refused: 127.0.0.1:{port}: Connection refused"


async def test_a_name_that_leads_to_a_forbidden_address(kind: str) -> None:
    """A name server must not bring in an address that a document must not contain."""
    with enforce(EgressRules(blocked=["127.0.0.0/8"])):
        async with scripted(CONNACK_FINE[kind]) as uri:
            error = await refusal(document(kind, uri))
    assert (type(error), error.detail) == (ConnectionRefused, Detail.NOT_AUTHORIZED)
    assert "127.0.0.1: found a host that matches 127.0.0.0/8 in hosts.blocked, expected" in error.text


async def test_a_silent_server(kind: str) -> None:
    async with scripted(b"") as uri:
        error = await refusal(document(kind, uri), CONNECT_WITHIN)
    assert (type(error), str(error)) == (NotConnected, "timeout: the broker did not answer the login within 0.5 s")


async def test_a_server_that_does_not_answer_a_tls_handshake(kind: str) -> None:
    async with scripted(b"") as uri:
        error = await refusal(document(kind, uri.replace("tcp:", "ssl:")), CONNECT_WITHIN)
    assert (type(error), error.detail) == (NotConnected, Detail.TIMEOUT)


async def test_a_server_that_does_not_answer_a_subscription(kind: str) -> None:
    async with scripted(CONNACK_FINE[kind], b"") as uri:
        error = await refusal(document(kind, uri), CONNECT_WITHIN)
    assert str(error) == "timeout: the broker did not answer a subscription within 0.5 s"


async def test_a_server_that_hangs_up_before_it_answers(kind: str) -> None:
    async with scripted(b"", ending=True) as uri:
        error = await refusal(document(kind, uri))
    assert type(error) is NotConnected
    assert str(error) == "refused by broker: the broker closed the connection without an answer to the login"


async def test_a_server_that_hangs_up_after_its_greeting(kind: str) -> None:
    async with scripted(CONNACK_FINE[kind], b"", ending=True) as uri:
        error = await refusal(document(kind, uri))
    assert type(error) is NotConnected
    assert str(error) == "connecting: the broker closed the link"


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x20\xff\xff\xff\xff\x01", b"\x20\x00", b"\x00"]
)
async def test_a_server_of_another_protocol(kind: str, answer: bytes) -> None:
    async with scripted(answer, ending=True) as uri:
        error = await refusal(document(kind, uri))
    assert isinstance(error, NotConnected)


async def test_a_cancelled_attempt_leaves_no_socket_behind(kind: str) -> None:
    """Neither in the middle of the greeting nor while a thread still connects."""
    async with scripted(b"") as uri:
        for pause in (0.0, 0.05):
            attempt = asyncio.create_task(connect(DIALECTS[kind], document(kind, uri)))
            await asyncio.sleep(pause)
            attempt.cancel()
            with pytest.raises(asyncio.CancelledError):
                await attempt
        await wait_until(lambda: not own_sockets(int(uri.rpartition(":")[2])))


def own_sockets(port: int) -> list[object]:
    """The client sockets of this process that lead to a port."""
    import psutil

    return [
        connection
        for connection in psutil.Process().net_connections("tcp")
        if connection.raddr and connection.raddr.port == port and connection.status == psutil.CONN_ESTABLISHED
    ]


# ── error messages ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("code", "expected", "detail"),
    [
        (1, ConnectionRefused, Detail.REFUSED_BY_BROKER),
        (2, ConnectionRefused, Detail.REFUSED_BY_BROKER),
        (3, NotConnected, Detail.REFUSED_BY_BROKER),
        (4, ConnectionRefused, Detail.BAD_CREDENTIALS),
        (5, ConnectionRefused, Detail.BAD_CREDENTIALS),
    ],
)
async def test_refusals_of_mqtt_3_1_1(code: int, expected: type[LinkError], detail: Detail) -> None:
    async with scripted(bytes((0x20, 2, 0, code))) as uri:
        error = await refusal(document("mqtt", uri))
    assert (type(error), error.detail) == (expected, detail)
    assert error.text


@pytest.mark.parametrize(
    ("code", "expected", "text"),
    [
        (0x84, ConnectionRefused, "refused by broker: Unsupported protocol version"),
        (0x85, ConnectionRefused, "refused by broker: Client identifier not valid"),
        (0x86, ConnectionRefused, "bad credentials: Bad user name or password"),
        (0x87, ConnectionRefused, "bad credentials: Not authorized"),
        (0x88, NotConnected, "refused by broker: Server unavailable"),
        (0x89, NotConnected, "refused by broker: Server busy"),
        (0x8A, ConnectionRefused, "not authorized: Banned"),
        (0x97, NotConnected, "refused by broker: Quota exceeded"),
    ],
)
async def test_refusals_of_mqtt_5(code: int, expected: type[LinkError], text: str) -> None:
    async with scripted(bytes((0x20, 3, 0, code, 0))) as uri:
        error = await refusal(document("mqtt-5", uri))
    assert (type(error), str(error)) == (expected, text)


async def test_the_brokers_reason_is_reported() -> None:
    reason = b"\x1f\x00\x07no room"
    async with scripted(b"\x20" + bytes((3 + len(reason), 0, 0x97, len(reason))) + reason) as uri:
        error = await refusal(document("mqtt-5", uri))
    assert str(error) == "refused by broker: Quota exceeded: no room"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0x80, "not authorized: lab/in: Unspecified error"),
        (0x87, "not authorized: lab/in: Not authorized"),
        (0x8F, "missing address: lab/in: Topic filter invalid"),
        (0x97, "refused by broker: lab/in: Quota exceeded"),
    ],
)
async def test_a_refused_subscription_names_the_address(code: int, text: str) -> None:
    async with scripted(CONNACK_FINE["mqtt-5"], bytes((0x90, 4, 0, 1, 0, code))) as uri:
        error = await refusal(document("mqtt-5", uri))
    assert (type(error), str(error)) == (ConnectionRefused, text)


async def test_a_goodbye_of_the_broker_is_reported() -> None:
    answers = (CONNACK_FINE["mqtt-5"], b"\x90\x04\x00\x01\x00\x01", b"\xe0\x02\x8b\x00")
    async with scripted(*answers) as uri:
        link = await connect(DIALECTS["mqtt-5"], document("mqtt-5", uri))
        link.publish(OutboundMessage("out", Envelope(b"")), print)
        assert str(await lost(link)) == "refused by broker: Server shutting down"


async def test_a_message_that_mqtt_5_refuses_is_a_failure() -> None:
    """By PUBACK with QoS 1, by PUBREC with QoS 2."""

    suback = b"\x90\x04\x00\x01\x00\x01"
    async with scripted(CONNACK_FINE["mqtt-5"], suback, b"\x40\x03\x00\x02\x87\x50\x03\x00\x03\x90") as uri:
        link = await connect(DIALECTS["mqtt-5"], document("mqtt-5", uri))
        publishing = Publishing(link)
        publishing.give(OutboundMessage("out", Envelope(b"1"), qos=1), OutboundMessage("out", Envelope(b"2"), qos=2))
        one, two = await publishing.all_done()
        refused = "not authorized: the broker refused the message: Not authorized"
        assert (str(one), one.fault.status) == (refused, 503)  # type: ignore[union-attr]
        assert (str(two), two.fault.status) == ("the broker refused the message: Topic name invalid", 400)  # type: ignore[union-attr]
        await link.close()


# ── login and TLS, at a real broker ───────────────────────────────────────────────────────────────────────────────────────

LOGIN = {"ada": "s3cr:et@"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def guarded(certificates: Certificates) -> Iterator[Mosquitto]:
    """A broker that requires a login and TLS."""
    with Mosquitto.start(users=LOGIN, tls=certificates) as broker:
        yield broker


@pytest.mark.broker("mosquitto")
async def test_the_right_login(kind: str, guarded: Mosquitto) -> None:
    assert await works(document(kind, f"tcp://ada:s3cr%3Aet%40@{guarded.host}:{guarded.port}"))


@pytest.mark.broker("mosquitto")
@pytest.mark.parametrize("login", ["", "ada:wrong@", "eve:s3cr%3Aet%40@"])
async def test_a_wrong_login(kind: str, guarded: Mosquitto, login: str) -> None:
    error = await refusal(document(kind, f"tcp://{login}{guarded.host}:{guarded.port}"))
    assert (type(error), str(error)) == (ConnectionRefused, "bad credentials: Not authorized")


def secure(broker: Mosquitto, host: str = "localhost") -> str:
    return f"ssl://ada:s3cr%3Aet%40@{host}:{broker.tls_port}"


@pytest.mark.broker("mosquitto")
async def test_tls_with_the_given_authority(kind: str, guarded: Mosquitto, certificates: Certificates) -> None:
    assert await works(document(kind, secure(guarded), ca=certificates.ca.read_text()))


@pytest.mark.broker("mosquitto")
@pytest.mark.parametrize("is_given", [True, False])
async def test_tls_with_an_unknown_authority(kind: str, guarded: Mosquitto, *, is_given: bool) -> None:
    ca = trustme.CA().cert_pem.bytes().decode() if is_given else None
    error = await refusal(document(kind, secure(guarded), ca=ca))
    assert (type(error), error.detail) == (ConnectionRefused, Detail.CERTIFICATE)
    assert "certificate" in error.text


@pytest.mark.broker("mosquitto")
async def test_tls_with_another_host_name(kind: str, certificates: Certificates, tmp_path: Path) -> None:
    """A `ca` adds trust and leaves the host-name check on."""
    elsewhere = Certificates.make(tmp_path, "elsewhere.test")
    with Mosquitto.start(tls=elsewhere) as broker:
        error = await refusal(document(kind, f"ssl://localhost:{broker.tls_port}", ca=elsewhere.ca.read_text()))
    assert (type(error), error.detail) == (ConnectionRefused, Detail.CERTIFICATE)
    assert "localhost" in error.text
    assert certificates.ca.read_text() not in str(error)


@pytest.mark.broker("mosquitto")
async def test_tls_without_any_check(kind: str, guarded: Mosquitto) -> None:
    assert await works(document(kind, secure(guarded), validateCertificates=False))


@pytest.mark.broker("mosquitto")
async def test_tls_with_a_client_certificate(kind: str, certificates: Certificates) -> None:
    own = {
        "type": "client-cert",
        "cert": certificates.client_certificate.read_text(),
        "key": certificates.client_key.read_text(),
    }
    with Mosquitto.start(tls=certificates, config_lines=("require_certificate true",)) as broker:
        uri, ca = f"ssl://localhost:{broker.tls_port}", certificates.ca.read_text()
        assert await works(document(kind, uri, ca=ca, credentials=own))
        error = await refusal(document(kind, uri, ca=ca))
    assert isinstance(error, ClientCertificateRequired)
    assert error.detail is Detail.CERTIFICATE


@pytest.mark.broker("mosquitto")
async def test_a_client_certificate_that_is_invalid(kind: str, guarded: Mosquitto) -> None:
    own = {"type": "client-cert", "cert": "no certificate", "key": "no key"}
    error = await refusal(document(kind, secure(guarded), credentials=own))
    assert (type(error), error.detail) == (ConnectionRefused, Detail.CERTIFICATE)
    assert "no key" not in str(error)


@pytest.mark.broker("mosquitto")
async def test_much_goes_through_tls_in_both_directions(
    kind: str, guarded: Mosquitto, certificates: Certificates
) -> None:
    """Bytes that TLS has read and not yet passed on are not lost."""

    connection = document(kind, secure(guarded), ca=certificates.ca.read_text())
    link = await connect(DIALECTS[kind], connection)
    payloads = [bytes(40_000) + str(number).encode() for number in range(200)]
    taker, publishing = DeliveryCollector(link), Publishing(link)
    publishing.give(*(OutboundMessage("lab/in", Envelope(payload)) for payload in payloads))
    assert await taker.payloads(200) == payloads
    assert await publishing.all_done() == [None] * 200
    await link.close()


async def test_plain_text_at_a_tls_port_is_no_certificate_problem(kind: str) -> None:
    async with scripted(b"not what TLS looks like") as uri:
        error = await refusal(document(kind, uri.replace("tcp:", "ssl:")))
    assert (type(error), error.detail) == (NotConnected, Detail.REFUSED_BY_BROKER)


@pytest.mark.broker("mosquitto")
async def test_sockets_are_closed_with_their_links(kind: str, mosquitto: Mosquitto) -> None:
    made = load_connection_type(kind).connect
    link = await made(document(kind, f"tcp://{mosquitto.host}:{mosquitto.port}"))
    sock = link._channels[0].client.socket()  # type: ignore[attr-defined]
    assert isinstance(sock, socket.socket)
    await link.close()
    assert sock.fileno() == -1

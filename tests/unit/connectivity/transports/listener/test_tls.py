"""TLS at a listener: floods of records, certificates that cannot be read, alerts, and the end."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtensionOID, NameOID

from connectivity.connections.model import Connection
from connectivity.transports import tls_layer
from connectivity.transports.listener.socket import common_name
from connectivity.transports.tcp.connection_type import listen
from connectivity.transports.tcp.link import TcpLink, TcpPeer
from connectivity.transports.tls_layer import MOST_RECORDS
from tests.support.brokers import free_port
from tests.support.in_process.websocket_listener import own, trusting
from tests.support.turns import Turns
from tests.support.wait import PATIENCE, wait_until

FLOOD = 3000
"""Records of one byte."""


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@asynccontextmanager
async def listening(authority: trustme.CA, **more: Any) -> AsyncIterator[tuple[TcpLink, int]]:
    port = free_port()
    document = {
        "id": "lab",
        "connectionType": "tcp",
        "connectionStatus": "open",
        "uri": f"ssl://127.0.0.1:{port}",
        "credentials": own(authority.issue_cert("localhost")),
        "sources": [{"addresses": ["in"], "authorizationContext": ["acme:line"]}],
        **more,
    }
    link = await listen(Connection.model_validate(document))
    try:
        yield link, port
    finally:
        await link.close()


class Client:
    """A client whose records are sent as the test wants."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        context: ssl.SSLContext,
        session: ssl.SSLSession | None = None,
    ) -> None:
        self.reader, self.writer = reader, writer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost", session=session)

    @classmethod
    async def connected(cls, port: int, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> Client:
        made = cls(*await asyncio.open_connection("127.0.0.1", port), context, session)
        await made.repeated(made.tls.do_handshake)
        return made

    async def repeated(self, step: Callable[[], Any]) -> Any:
        """Return the result of a step, which may need bytes of the listener. Raises ssl.SSLError."""
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                self.flush()
                data = await asyncio.wait_for(self.reader.read(1 << 16), PATIENCE)
                self._incoming.write(data) if data else self._incoming.write_eof()
            finally:
                self.flush()

    def flush(self) -> None:
        self.writer.write(self._outgoing.read())

    async def receive_ticket(self) -> None:
        """Receive a ticket for resuming the session."""
        while self.tls.session is None or not self.tls.session.has_ticket:
            self._incoming.write(await asyncio.wait_for(self.reader.read(1 << 16), PATIENCE))
            with pytest.raises(ssl.SSLWantReadError):
                self.tls.read(1)

    async def read(self) -> bytes:
        return bytes(await self.repeated(lambda: self.tls.read(1 << 16)))


async def records_take_turns(authority: trustme.CA, monkeypatch: pytest.MonkeyPatch) -> None:
    turns, arrived = Turns(), dict[int, int]()

    def data_received(_peer: TcpPeer, data: bytes) -> None:
        arrived[turns.count] = arrived.get(turns.count, 0) + len(data)

    monkeypatch.setattr(TcpPeer, "data_received", data_received)
    async with listening(authority) as (_, port):
        client = await Client.connected(port, trusting(authority))
        for _ in range(FLOOD):
            client.tls.write(b"x")
        client.flush()
        await wait_until(lambda: sum(arrived.values()) == FLOOD)
        client.writer.close()
    assert max(arrived.values()) <= MOST_RECORDS


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_very_many_tls_records_leave_turns_to_other_tasks(
    run: Callable[[Coroutine[Any, Any, None]], None], authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(records_take_turns(authority, monkeypatch))


@pytest.mark.parametrize("has_close_notify", [True, False])
async def test_a_client_that_leaves_is_read_to_the_end(
    has_close_notify: bool, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived = bytearray()
    monkeypatch.setattr(TcpPeer, "data_received", lambda _peer, data: arrived.extend(data))
    async with listening(authority) as (link, port):
        client = await Client.connected(port, trusting(authority))
        for _ in range(FLOOD):
            client.tls.write(b"x")
        if has_close_notify:
            with pytest.raises(ssl.SSLWantReadError):
                client.tls.unwrap()
        client.flush()
        client.writer.write_eof()
        await wait_until(lambda: not link._sockets)
        assert len(arrived) == FLOOD
        client.writer.close()


async def test_an_error_in_a_later_turn_closes_the_connection(
    authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    parts: list[bytes] = []

    def data_received(_peer: TcpPeer, data: bytes) -> None:
        parts.append(data)
        if len(parts) > 1:
            raise RuntimeError("a defect")

    monkeypatch.setattr(TcpPeer, "data_received", data_received)
    async with listening(authority) as (link, port):
        client = await Client.connected(port, trusting(authority))
        for _ in range(FLOOD):
            client.tls.write(b"x")
        client.flush()
        await wait_until(lambda: len(parts) > 1 and not link._sockets)
        client.writer.close()
    assert len(parts) == 2
    assert [str(each["exception"]) for each in errors] == ["a defect"]


async def test_no_data_follows_a_close_between_two_turns(
    authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, closed, late = asyncio.get_running_loop(), list[TcpPeer](), list[bytes]()

    def data_received(peer: TcpPeer, data: bytes) -> None:
        if closed:
            late.append(data)
        else:
            loop.call_soon(close, peer)

    def close(peer: TcpPeer) -> None:
        closed.append(peer)
        assert peer._transport is not None
        peer._transport.close()

    monkeypatch.setattr(TcpPeer, "data_received", data_received)
    async with listening(authority) as (link, port):
        client = await Client.connected(port, trusting(authority))
        for _ in range(FLOOD):
            client.tls.write(b"x")
        client.flush()
        await wait_until(lambda: bool(closed) and not link._sockets)
        client.writer.close()
    assert late == []


async def test_a_client_gets_the_reason_for_which_its_certificate_is_refused(authority: trustme.CA) -> None:
    trusted = trustme.CA().cert_pem.bytes().decode()
    shown = authority.issue_cert("device-9.test", common_name="device-9")
    async with listening(authority, ca=trusted) as (link, port):
        client = await Client.connected(port, trusting(authority, shown))
        with pytest.raises(ssl.SSLError, match="ALERT_UNKNOWN_CA"):
            await client.read()
        client.writer.close()
        await wait_until(lambda: not link._sockets)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_session_can_be_resumed_until_the_certificate_of_the_client_expires(
    authority: trustme.CA, monkeypatch: pytest.MonkeyPatch, version: ssl.TLSVersion
) -> None:
    names: list[str | None] = []
    made = TcpPeer.connection_made

    def connection_made(peer: TcpPeer, transport: asyncio.BaseTransport) -> None:
        names.append(common_name(transport.get_extra_info("peercert")))
        made(peer, transport)

    monkeypatch.setattr(TcpPeer, "connection_made", connection_made)
    expiry = datetime.now(UTC) + timedelta(days=1)
    context = trusting(authority, authority.issue_cert("device-9.test", common_name="device-9", not_after=expiry))
    context.maximum_version = version
    async with listening(authority, ca=authority.cert_pem.bytes().decode()) as (link, port):
        client = await Client.connected(port, context)
        if version is ssl.TLSVersion.TLSv1_3:
            await client.receive_ticket()
        again = await Client.connected(port, context, client.tls.session)
        await wait_until(lambda: len(names) == 2)
        assert again.tls.session_reused
        monkeypatch.setattr(tls_layer, "time", SimpleNamespace(time=lambda: expiry.timestamp() + 1))
        late = await Client.connected(port, context, client.tls.session)
        # It depends on the version of OpenSSL whether the end of a connection without an alert is an error.
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            assert await late.read() == b""
        for each in (client, again, late):
            each.writer.close()
        await wait_until(lambda: not link._sockets)
    assert names == ["device-9", "device-9"]


async def test_a_certificate_that_cannot_be_read_is_refused_without_an_internal_error(
    authority: trustme.CA, tmp_path: Path
) -> None:
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    context = trusting(authority)
    context.load_cert_chain(with_unreadable_name(authority, tmp_path / "client.pem"))
    async with listening(authority, ca=authority.cert_pem.bytes().decode()) as (link, port):
        client = await Client.connected(port, context)
        assert await asyncio.wait_for(client.reader.read(), PATIENCE) is not None
        client.writer.close()
        await wait_until(lambda: not link._sockets)
    assert errors == []


def with_unreadable_name(authority: trustme.CA, file: Path) -> Path:
    """Write a certificate with its key; its alternative name is a URI of bytes that are no UTF-8."""
    issuer = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
    issuer_key = serialization.load_pem_private_key(authority.private_key_pem.bytes(), None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, bytes.fromhex("3004 8602 fffe"))
    certificate = (
        x509.CertificateBuilder(
            issuer.subject,
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "device-9")]),
            key.public_key(),
            x509.random_serial_number(),
            now - timedelta(days=1),
            now + timedelta(days=1),
        )
        .add_extension(name, critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    file.write_bytes(
        certificate.public_bytes(pem)
        + key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return file

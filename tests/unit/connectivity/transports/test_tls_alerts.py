"""The reason why a server ends TLS is read although a write has failed before."""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
import uvloop

from connectivity.transports.tls_layer import TlsSocket, TlsTransport
from tests.support.brokers.mosquitto import Certificates
from tests.support.wait import PATIENCE

UNKNOWN = "TLSV1_ALERT_UNKNOWN_CA"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("alerts"))


@pytest.fixture
def refused(certificates: Certificates) -> Iterator[Callable[[], socket.socket]]:
    """Connect to a server that refuses the certificate of each client, and resets its connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)
    context.verify_mode = ssl.CERT_REQUIRED
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            accepted, _ = listening.accept()
            with context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                with pytest.raises(ssl.SSLError):
                    client.do_handshake()

        serving = threading.Thread(target=serve)
        serving.start()
        yield lambda: socket.create_connection(listening.getsockname())
        serving.join()


@pytest.fixture
def context(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(certificates.ca))
    context.load_cert_chain(certificates.client_certificate, certificates.client_key)
    return context


def wait_for_reset(descriptor: int) -> None:
    """Wait until alert and reset have arrived."""
    poller = select.poll()
    poller.register(descriptor, 0)
    assert poller.poll(PATIENCE * 1000), "the server has not reset the connection"


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_transport_reports_the_alert_that_came_before_a_failed_write(
    run: Callable[[Coroutine[Any, Any, None]], None], refused: Callable[[], socket.socket], context: ssl.SSLContext
) -> None:
    class Client(asyncio.Protocol):
        def __init__(self) -> None:
            self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

        def connection_lost(self, error: Exception | None) -> None:
            self.lost.set_result(error)

    async def main() -> None:
        client = Client()
        transport = TlsTransport(client, context, "127.0.0.1")
        connected = refused()
        connected.setblocking(False)
        await asyncio.get_running_loop().create_connection(lambda: transport, sock=connected)
        await transport.establish()
        wait_for_reset(connected.fileno())
        transport.write(b"AMQP")
        error = await asyncio.wait_for(client.lost, PATIENCE)
        assert isinstance(error, ssl.SSLError)
        assert error.reason == UNKNOWN

    run(main())


def test_a_watched_socket_reports_the_alert_that_came_before_a_failed_write(
    refused: Callable[[], socket.socket], context: ssl.SSLContext
) -> None:
    with refused() as connected:
        watched = TlsSocket(connected, context, "127.0.0.1")
        watched.do_handshake(PATIENCE)
        wait_for_reset(connected.fileno())
        with pytest.raises(ssl.SSLError) as failure:
            watched.send(b"CONNECT")
    assert failure.value.reason == UNKNOWN

"""A peer that asks for TLS records and does not read them: the output that waits for it is bounded."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest

from connectivity.transports.tls_layer import MOST_ANSWERS, MOST_RECORDS, TlsSocket, TlsTransport
from tests.support.brokers.mosquitto import Certificates
from tests.support.hostile_tls import HostileTlsServer
from tests.support.wait import PATIENCE

TURNS = MOST_ANSWERS // MOST_RECORDS // 20
"""Turns in which the answers are more than may wait: each has more than 20 bytes."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("answers"))


@pytest.fixture
def server(certificates: Certificates, tmp_path: Path) -> HostileTlsServer:
    return HostileTlsServer(certificates, tmp_path)


@pytest.fixture
def context(certificates: Certificates) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificates.ca))


class UnreadSocket(asyncio.Transport):
    """The transport of a socket whose peer reads with `take` only."""

    def __init__(self) -> None:
        super().__init__()
        self.unread = bytearray()
        self.is_aborted = False

    def take(self) -> bytes:
        taken, self.unread = bytes(self.unread), bytearray()
        return taken

    def write(self, data: Any) -> None:
        self.unread += data

    def get_write_buffer_size(self) -> int:
        return len(self.unread)

    def is_closing(self) -> bool:
        return self.is_aborted

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def abort(self) -> None:
        self.is_aborted = True


class Client(asyncio.Protocol):
    """The protocol over TLS; `error` is why it has ended."""

    error: Exception | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc


def established(server: HostileTlsServer, context: ssl.SSLContext) -> tuple[UnreadSocket, TlsTransport, Client]:
    below, above = UnreadSocket(), Client()
    tls = TlsTransport(above, context, "localhost")
    tls.connection_made(below)
    while not server.is_established:
        tls.data_received(server.answer(below.take()))
    return below, tls, above


async def test_a_connection_ends_when_its_peer_does_not_read_the_answers_that_it_asks_for(
    server: HostileTlsServer, context: ssl.SSLContext
) -> None:
    below, tls, above = established(server, context)
    for _ in range(TURNS):
        if not below.is_aborted:
            tls.data_received(server.key_changes(MOST_RECORDS))
    assert below.is_aborted
    assert len(below.unread) <= MOST_ANSWERS
    tls.connection_lost(None)
    assert str(above.error) == "the peer does not read the answers to its changes of TLS keys"


async def test_a_peer_that_reads_its_answers_can_change_keys_for_ever(
    server: HostileTlsServer, context: ssl.SSLContext
) -> None:
    below, tls, _ = established(server, context)
    tls.write(b"x" * MOST_ANSWERS * 2)
    received = 0
    for _ in range(TURNS):
        tls.data_received(server.key_changes(MOST_RECORDS))
        received += len(below.take())
    assert not below.is_aborted
    assert received > MOST_ANSWERS * 3


def test_a_watched_socket_fails_when_its_peer_does_not_read_the_answers_that_it_asks_for(
    server: HostileTlsServer, context: ssl.SSLContext
) -> None:
    own, peer = socket.socketpair()

    def handshake() -> None:
        while not server.is_established:
            peer.sendall(server.answer(peer.recv(1 << 16)))

    with own, peer:
        thread = threading.Thread(target=handshake, daemon=True)
        thread.start()
        tls = TlsSocket(own, context, "localhost")
        tls.do_handshake(PATIENCE)
        thread.join(PATIENCE)
        own.setblocking(False)

        def receive_key_changes() -> None:
            for _ in range(TURNS):
                peer.sendall(server.key_changes(MOST_RECORDS))
                with pytest.raises(ssl.SSLWantReadError):
                    tls.recv(1 << 16)

        with pytest.raises(ConnectionAbortedError, match="does not read the answers"):
            receive_key_changes()

"""Probes a Kafka broker with a socket of its own to find why it cannot be used.

librdkafka reports the same fault in several texts, most of them "disconnected". So before it starts, and after an
unexplained loss, a socket takes the same steps: name, port, TLS, ApiVersions (answered before any login), and
SaslHandshake, which shows whether a login is possible or required, and its mechanisms. Faults of passwords, permissions,
topics and groups are left to the library.

Kafka protocol guide: requests are length, API key, version, correlation ID and client ID; responses length, correlation
ID and body. ApiVersions is key 18, SaslHandshake key 17.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Sequence
from struct import Struct, error
from typing import NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from connectivity.connections.model import Connection
from connectivity.errors import ClientCertificateRequired, ConnectionRefused, Detail, LinkError, NotConnected
from connectivity.transports.dialer import dial_error, handshake_error, reach, receive_until, run_in_thread, tls_context

API_VERSIONS, SASL_HANDSHAKE = 18, 17
API_VERSIONS_VERSION = 0
HANDSHAKE_VERSION = 1
UNSUPPORTED_MECHANISM, ILLEGAL_STATE = 33, 34
MAX_RESPONSE = 65_536
"""The maximum length of an answer in bytes; a peer that announces more does not speak Kafka."""

TLS_ALERT = b"\x15\x03"
"""The beginning of a TLS alert record."""

CLOSED = "the broker closed the connection without a response"

_HEAD = Struct(">hhih")
_SIZE, _SHORT, _LENGTH = Struct(">i"), Struct(">h"), Struct(">H")

RANKS = (Detail.CERTIFICATE, Detail.NOT_AUTHORIZED, Detail.BAD_CREDENTIALS, Detail.REFUSED_BY_BROKER)
"""Details by how specific they are for the connection, the most specific one first."""


class _ConnectionClosed(Exception):
    """The broker closed the connection instead of answering."""


class LoginOffer(NamedTuple):
    """Whether a broker offers a login; `mechanisms` is empty if none is possible."""

    code: int
    mechanisms: tuple[str, ...]


async def handshake(
    connection: Connection, broker_addresses: Sequence[tuple[str, int]], mechanism: str, patience: float
) -> None:
    """Return as soon as one of these brokers answers. Raises LinkError with the most specific reason.

    `mechanism` is the SASL mechanism of the connection, if it logs in.
    """
    asked = [asyncio.ensure_future(_probe_one(connection, place, mechanism, patience)) for place in broker_addresses]
    errors: list[LinkError] = []
    try:
        for answer in asyncio.as_completed(asked):
            try:
                await answer
            except LinkError as reason:
                errors.append(reason)
            else:
                return
    finally:
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    if errors:
        raise min(errors, key=_rank)


def _rank(reason: LinkError) -> int:
    return RANKS.index(reason.detail) if reason.detail in RANKS else len(RANKS)


async def _probe_one(connection: Connection, place: tuple[str, int], mechanism: str, patience: float) -> None:
    host, port = place
    try:
        async with asyncio.timeout(patience):
            await run_in_thread(
                "kafka greeting", lambda: _exchange_requests(connection, host, port, mechanism, patience)
            )
    except TimeoutError:
        raise NotConnected(Detail.TIMEOUT, f"{host}:{port}: the broker did not answer within {patience:g} s") from None
    except Exception as caught:
        reason = dial_error(caught)
        raise type(reason)(reason.detail, f"{host}:{port}: {reason.text}") from caught


def _exchange_requests(connection: Connection, host: str, port: int, mechanism: str, patience: float) -> None:
    """Exchange the probe's requests; blocks. Raises LinkError, OSError."""
    uri = connection.broker_uri
    context = tls_context(connection) if uri.is_secure else None
    end = time.monotonic() + patience
    with contextlib.ExitStack() as until_done:
        sock = until_done.enter_context(reach(host, port, patience))
        if context is not None:
            try:
                sock = until_done.enter_context(context.wrap_socket(sock, server_hostname=host))
            except OSError as caught:
                raise handshake_error(caught) from caught
        try:
            _send_request(sock, API_VERSIONS, API_VERSIONS_VERSION, b"", end)
        except _ConnectionClosed as caught:
            raise _closed_error(connection) from caught
        encoded_mechanism = mechanism.encode()
        try:
            response = _send_request(
                sock, SASL_HANDSHAKE, HANDSHAKE_VERSION, _SHORT.pack(len(encoded_mechanism)) + encoded_mechanism, end
            )
        except _ConnectionClosed:
            return  # it speaks Kafka, but not this request: the library will find out
    _check_login(read_login(response), mechanism, has_login=uri.username is not None and uri.password is not None)


def _check_login(login: LoginOffer, mechanism: str, *, has_login: bool) -> None:
    """Raise ConnectionRefused if the connection's login cannot succeed."""
    offered = ", ".join(login.mechanisms)
    if has_login and login.code == UNSUPPORTED_MECHANISM:
        raise ConnectionRefused(Detail.BAD_CREDENTIALS, f"the broker accepts logins with {offered}, not {mechanism}")
    if has_login and login.code == ILLEGAL_STATE:
        raise ConnectionRefused(Detail.BAD_CREDENTIALS, "the broker accepts no login at this port")
    if not has_login and login.mechanisms:
        raise ConnectionRefused(Detail.BAD_CREDENTIALS, f"the broker requires a login at this port, with {offered}")


def _closed_error(connection: Connection) -> LinkError:
    """Return the usual reason for a broker that closes the connection without an answer."""
    if not connection.broker_uri.is_secure:
        return NotConnected(Detail.REFUSED_BY_BROKER, f"{CLOSED}; this port may require TLS")
    if connection.credentials is None:
        # With TLS 1.3 the client's handshake ends before the broker checks for a certificate; its alert is easily lost.
        words = "the broker closed the connection after the handshake; this port may require a client certificate"
        return ClientCertificateRequired(Detail.CERTIFICATE, words)
    return NotConnected(Detail.REFUSED_BY_BROKER, CLOSED)


def _send_request(sock: socket.socket, key: int, version: int, body: bytes, end: float) -> bytes:
    """Send a request and return the body of its answer. Raises LinkError, _ConnectionClosed, OSError.

    `end`: the monotonic time until which the answer must be complete.
    """
    try:
        sock.sendall(request(key, version, body))
        head = _receive_exactly(sock, _SIZE.size, end)
        [size] = _SIZE.unpack(head)
        if not _SIZE.size <= size <= MAX_RESPONSE:
            raise NotConnected(Detail.REFUSED_BY_BROKER, _describe_response(head + sock.recv(36)))
        return _receive_exactly(sock, size, end)[_SIZE.size :]
    except (ssl.SSLEOFError, ConnectionError) as caught:
        raise _ConnectionClosed from caught


def _describe_response(response: bytes) -> str:
    if response.startswith(TLS_ALERT):
        return "a response in TLS: this port requires a secure connection"
    return f"the response is not Kafka: {response[:40].decode('ascii', errors='backslashreplace')!r}"


def _receive_exactly(sock: socket.socket, size: int, end: float) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        if not (part := receive_until(end, sock, size - len(parts))):
            raise _ConnectionClosed
        parts += part
    return bytes(parts)


def request(key: int, version: int, body: bytes) -> bytes:
    """Return a request without a client ID, ready to send."""
    return _SIZE.pack(_HEAD.size + len(body)) + _HEAD.pack(key, version, 0, -1) + body


def read_login(body: bytes) -> LoginOffer:
    """Return the login offer in the answer to a SaslHandshake; an unreadable answer offers none."""
    try:
        [code], [count] = _SHORT.unpack_from(body), _SIZE.unpack_from(body, _SHORT.size)
        at, mechanisms = _SHORT.size + _SIZE.size, []
        for _ in range(count):
            # Read without its sign, a negative length is one behind the end.
            [size] = _LENGTH.unpack_from(body, at)
            at += _LENGTH.size
            mechanisms.append(body[at : at + size].decode("ascii", errors="replace"))
            at += size
    except error:
        return LoginOffer(0, ())
    return LoginOffer(code, tuple(mechanisms))


def list_brokers(admin: AdminClient, patience: float) -> list[tuple[str, int]]:
    """Return host and port of every broker; blocks for up to `patience` seconds.

    Raises KafkaException if no broker answers in time, or if the one that answers knows of none.
    """
    try:
        found = admin.list_topics(timeout=patience)
    except KafkaException as failure:
        # The frames of its traceback would keep the client for as long as the error is shown.
        raise failure.with_traceback(None) from None
    # The library's types do not declare the type of a host.
    return [(str(broker.host), broker.port) for broker in found.brokers.values()]

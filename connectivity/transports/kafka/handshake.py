"""What a Kafka broker says to a greeting of our own: why it cannot be talked to, in words that are always the same.

The client library reports one and the same fault in several words, by what happens to be noticed first, and most of them
come down to "disconnected". So before it is set to work, and again when a link is lost for no reason that it knows, one
socket of ours goes the same way: name, port, TLS, the broker's answer to ApiVersions (which every broker gives, before any
login), and to SaslHandshake, which tells whether one may or has to log in, and by which mechanisms. What is then left to the
library are passwords, rights, topics and groups, and these it names.

Kafka protocol guide: requests are length, api key, version, correlation id and client id; responses length, correlation
id and body. ApiVersions is key 18, SaslHandshake key 17.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Sequence
from struct import Struct, error
from typing import NamedTuple

from confluent_kafka.admin import AdminClient

from connectivity.connections.model import Connection
from connectivity.errors import CertificateWanted, ConnectionRefused, Detail, LinkError, NotConnected
from connectivity.transports.dialer import dial_error, handshake_error, reach, run_in_thread, tls_context

API_VERSIONS, SASL_HANDSHAKE = 18, 17
TELLING_VERSION = 0
HANDSHAKE_VERSION = 1
UNSUPPORTED_MECHANISM, ILLEGAL_STATE = 33, 34
LONGEST_ANSWER = 65_536
"""Bytes. Whatever says that it sends more than this in answer to a greeting does not speak Kafka."""

TLS_ALERT = b"\x15\x03"
"""How a record begins with which TLS says that it does not understand."""

_HEAD = Struct(">hhih")
_SIZE, _SHORT = Struct(">i"), Struct(">h")

RANKS = (Detail.CERTIFICATE, Detail.NOT_AUTHORIZED, Detail.BAD_CREDENTIALS, Detail.REFUSED_BY_BROKER)
"""Which of several brokers' reasons tells most: the one that says something about the connection itself."""


class _HungUp(Exception):
    """The broker closed the link instead of answering."""


class LoginOffer(NamedTuple):
    """What a broker says about logging in; `mechanisms` is empty where none is possible."""

    code: int
    mechanisms: tuple[str, ...]


async def handshake(connection: Connection, places: Sequence[tuple[str, int]], mechanism: str, patience: float) -> None:
    """Return as soon as one of these brokers answers. Raises LinkError: the most telling reason, if there are several.

    `mechanism` is how the connection logs in, if it does.
    """
    asked = [asyncio.ensure_future(_greet_one(connection, place, mechanism, patience)) for place in places]
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


async def _greet_one(connection: Connection, place: tuple[str, int], mechanism: str, patience: float) -> None:
    host, port = place
    try:
        async with asyncio.timeout(patience):
            await run_in_thread(
                "kafka greeting", lambda: _talk(connection, host, port, mechanism, patience), lambda _nothing: None
            )
    except TimeoutError:
        raise NotConnected(Detail.TIMEOUT, f"{host}:{port}: no answer within {patience:g} s") from None
    except Exception as caught:
        reason = dial_error(caught)
        raise type(reason)(reason.detail, f"{host}:{port}: {reason.words}") from caught


def _talk(connection: Connection, host: str, port: int, mechanism: str, patience: float) -> None:
    """The conversation; it blocks. Raises LinkError, OSError."""
    uri = connection.broker_uri
    context = tls_context(connection) if uri.is_secure else None
    with contextlib.ExitStack() as until_done:
        made = until_done.enter_context(reach(host, port, patience))
        if context is not None:
            try:
                made = until_done.enter_context(context.wrap_socket(made, server_hostname=host))
            except OSError as caught:
                raise handshake_error(caught) from caught
        try:
            _ask(made, API_VERSIONS, TELLING_VERSION, b"")
        except _HungUp as caught:
            raise _hung_up(connection) from caught
        wish = mechanism.encode()
        try:
            said = _ask(made, SASL_HANDSHAKE, HANDSHAKE_VERSION, _SHORT.pack(len(wish)) + wish)
        except _HungUp:
            return  # it talks Kafka, and not about this: the library will see
    _judge(read_login(said), mechanism, has_login=uri.username is not None and uri.password is not None)


def _judge(login: LoginOffer, mechanism: str, *, has_login: bool) -> None:
    """Raises ConnectionRefused where logging in as the connection wants to cannot succeed."""
    offered = ", ".join(login.mechanisms)
    if has_login and login.code == UNSUPPORTED_MECHANISM:
        raise ConnectionRefused(Detail.BAD_CREDENTIALS, f"the broker takes logins by {offered}, not by {mechanism}")
    if has_login and login.code == ILLEGAL_STATE:
        raise ConnectionRefused(Detail.BAD_CREDENTIALS, "the broker takes no login at this port")
    if not has_login and login.mechanisms:
        raise ConnectionRefused(Detail.BAD_CREDENTIALS, f"the broker wants a login at this port, by {offered}")


def _hung_up(connection: Connection) -> LinkError:
    """Why a broker hangs up upon a greeting. It never says so, and this is what it means as a rule."""
    if not connection.broker_uri.is_secure:
        return NotConnected(Detail.REFUSED_BY_BROKER, "it hung up upon a greeting; this port may want TLS")
    if connection.credentials is None:
        # With TLS 1.3 the handshake is over for us before the broker looks for a certificate; its word gets lost easily.
        words = "it hung up after the handshake; this port may want a client certificate"
        return CertificateWanted(Detail.CERTIFICATE, words)
    return NotConnected(Detail.REFUSED_BY_BROKER, "it hung up upon a greeting")


def _ask(made: socket.socket, key: int, version: int, body: bytes) -> bytes:
    """Send a request and read the body of its answer. Raises LinkError, _HungUp, OSError."""
    try:
        made.sendall(request(key, version, body))
        head = _exactly(made, _SIZE.size)
        [size] = _SIZE.unpack(head)
        if not _SIZE.size <= size <= LONGEST_ANSWER:
            raise NotConnected(Detail.REFUSED_BY_BROKER, _strange(head + made.recv(36)))
        return _exactly(made, size)[_SIZE.size :]
    except (ssl.SSLEOFError, ConnectionError) as caught:
        raise _HungUp from caught


def _strange(said: bytes) -> str:
    if said.startswith(TLS_ALERT):
        return "an answer in TLS: this port wants a secure connection"
    return f"an answer that is not Kafka: {said[:40].decode('ascii', errors='backslashreplace')!r}"


def _exactly(made: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        if not (part := made.recv(size - len(parts))):
            raise _HungUp
        parts += part
    return bytes(parts)


def request(key: int, version: int, body: bytes) -> bytes:
    """A request without a client id, ready to send."""
    return _SIZE.pack(_HEAD.size + len(body)) + _HEAD.pack(key, version, 0, -1) + body


def read_login(body: bytes) -> LoginOffer:
    """The answer to a SaslHandshake; what cannot be read says nothing about logging in."""
    try:
        [code], [count] = _SHORT.unpack_from(body), _SIZE.unpack_from(body, _SHORT.size)
        at, mechanisms = _SHORT.size + _SIZE.size, []
        for _ in range(count):
            [size] = _SHORT.unpack_from(body, at)
            at += _SHORT.size
            mechanisms.append(body[at : at + size].decode("ascii", errors="replace"))
            at += size
    except error:
        return LoginOffer(0, ())
    return LoginOffer(code, tuple(mechanisms))


def list_brokers(admin: AdminClient, patience: float) -> list[tuple[str, int]]:
    """Host and port of every broker; blocks for up to `patience` seconds.

    Raises KafkaException where no broker answers in time, or where the one that does knows of none.
    """
    # The library's types leave open what a host is.
    return [(str(broker.host), broker.port) for broker in admin.list_topics(timeout=patience).brokers.values()]

"""Opens the port of a listener with TLS, and checks both for a connection test.

The `uri` is the address to listen at: `0.0.0.0` and `[::]` are all addresses of the machine. With TLS the listener
presents the certificate of `credentials`; with a `ca` peers may present certificates, and must if there is no other way
to authenticate.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TypeVar

import structlog

from connectivity.connections import schema_patterns as patterns
from connectivity.connections.model import Connection
from connectivity.connections.templates import has_expression
from connectivity.errors import ConnectionRefused, Detail, LinkError, NotConnected, Problem
from connectivity.security.tls import certificate_data, expiry_of, load_client_certificate
from connectivity.security.uri import SECURE_SCHEMES
from connectivity.transports.base import RESOLVED_PER_MESSAGE, AddressCheck, ProbeReport
from connectivity.transports.listener.acceptor import bind
from connectivity.transports.listener.link import ListenerLink

log = structlog.get_logger(__name__)

_DETAILS = {errno.EACCES: Detail.NOT_AUTHORIZED, errno.EPERM: Detail.NOT_AUTHORIZED}

AnyLink = TypeVar("AnyLink", bound=ListenerLink)  # type: ignore[type-arg]


async def serve(connection: Connection, link: AnyLink, context: ssl.SSLContext | None) -> AnyLink:
    """Start a server for the link, which is closed on failure. Raises NotConnected, ConnectionRefused."""
    uri = connection.broker_uri
    try:
        listening = await bind(uri.host, uri.port)
    except (OSError, UnicodeError) as error:
        await link.close()
        raise listen_error(error, uri.host, uri.port) from error
    except BaseException:
        await link.close()
        raise
    link.listen(listening, context)
    return link


def tls_context(connection: Connection, *, is_certificate_needed: bool) -> ssl.SSLContext | None:
    """Return the TLS context, None without TLS. Raises ConnectionRefused for an unusable certificate.

    `is_certificate_needed`: whether a connection with a `ca` requires client certificates.
    """
    if not connection.broker_uri.is_secure:
        return None
    own = connection.credentials
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if own is None or not own.cert or own.key is None:
            raise ValueError("no certificate for the listener, expected credentials with cert and key")
        load_client_certificate(context, own.cert, own.key.get_secret_value())
        _warn_if_expired(connection.id, own.cert)
        if connection.ca is not None:
            context.load_verify_locations(cadata=certificate_data(connection.ca))
            context.verify_mode = ssl.CERT_REQUIRED if is_certificate_needed else ssl.CERT_OPTIONAL
    except (ssl.SSLError, ValueError) as error:
        raise ConnectionRefused(
            Detail.CERTIFICATE, f"the connection's ca or credentials are invalid: {error}"
        ) from error
    return context


def _warn_if_expired(connection_id: str, certificate: str) -> None:
    """Log an expired certificate: clients refuse it, but the listener works."""
    # OpenSSL reads some certificates that the other library refuses.
    with contextlib.suppress(ValueError):
        if (expiry := expiry_of(certificate)) <= datetime.now(UTC):
            log.warning("certificate has expired", connection=connection_id, expired=expiry.isoformat())


def listen_error(error: OSError | UnicodeError, host: str, port: int) -> LinkError:
    """Return the error for a port that cannot be listened at, with the system's error text."""
    if isinstance(error, UnicodeError):
        # A name with an empty part or a very long one is not looked up.
        return NotConnected(Detail.UNKNOWN_HOST, f"{host}: {error}")
    words = f"cannot listen at {host}:{port}: {os.strerror(error.errno) if error.errno else error}".lower()
    if isinstance(error, socket.gaierror):
        return NotConnected(Detail.UNKNOWN_HOST, f"{host}: {error.strerror}")
    if error.errno in _DETAILS:
        return ConnectionRefused(_DETAILS[error.errno], words)
    return NotConnected(Detail.REFUSED, words)


async def probe_port(connection: Connection) -> ProbeReport:
    """Check whether the service can listen at the port, without accepting peers.

    A port in use is a note. Raises NotConnected, ConnectionRefused.
    """
    uri = connection.broker_uri
    note = ""
    try:
        # Bound without listening, so that no peer can connect.
        server = await asyncio.get_running_loop().create_server(
            asyncio.Protocol, uri.host, uri.port, start_serving=False
        )
    except (OSError, UnicodeError) as error:
        if isinstance(error, UnicodeError) or error.errno != errno.EADDRINUSE:
            raise listen_error(error, uri.host, uri.port) from error
        note = f"port {uri.port} is already in use, possibly by this connection itself"
    else:
        server.close()
    return ProbeReport(
        [_unchecked_addresses(source.addresses) for source in connection.sources],
        _unchecked_addresses(source.reply_target.address for source in connection.sources),
        _unchecked_addresses(target.address for target in connection.targets),
        note,
    )


def _unchecked_addresses(addresses: Iterable[str]) -> Sequence[AddressCheck]:
    return [
        AddressCheck(address, note=RESOLVED_PER_MESSAGE, is_known=False)
        if has_expression(address)
        else AddressCheck(address)
        for address in addresses
    ]


def check_listener(connection: Connection) -> Iterator[Problem]:
    """Yield the problems of any listener's document: certificate and number of clients."""
    yield from _check_certificate(connection)
    if connection.client_count != 1:
        yield Problem("clientCount", str(connection.client_count), "1, because a listener has one client")


def _check_certificate(connection: Connection) -> Iterator[Problem]:
    uri = connection.broker_uri
    if uri.is_secure and connection.credentials is None:
        expected = f"the certificate that the listener presents, since the uri is {uri.scheme}"
        yield Problem("credentials", "nothing", expected)


_SECURE = patterns.scheme(sorted(SECURE_SCHEMES))
_IS_SECURE = {"properties": {"uri": {"pattern": _SECURE}}, "required": ["uri"]}
_IS_PLAIN = {"properties": {"uri": {"not": {"pattern": rf"{_SECURE}|{patterns.REFERENCE}"}}}, "required": ["uri"]}
_PRESENT = {"not": {"type": "null"}}

LISTENER_SCHEMA = {
    "properties": {
        "uri": {"pattern": f"{patterns.REFERENCE}|://(?:[^/@:]*@)?[^/@]*/?$"},
        "clientCount": {"enum": [None, 1]},
        "sources": {
            "items": {"properties": {"addresses": {"items": {"pattern": f"^{patterns.WITHOUT_PLACEHOLDERS}"}}}}
        },
    },
    "allOf": [
        {
            "if": _IS_SECURE,
            "then": {
                "properties": {
                    "credentials": {"properties": {"cert": _PRESENT, "key": _PRESENT}, "required": ["cert", "key"]}
                    | _PRESENT
                },
                "required": ["credentials"],
            },
        },
        {"if": _IS_PLAIN, "then": {"properties": {"credentials": {"type": "null"}}}},
    ],
}
"""The requirements of all listeners as JSON Schema."""

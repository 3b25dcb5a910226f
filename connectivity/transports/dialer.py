"""Connects to a broker's host: name resolution, sockets, TLS, and the errors for each failure.

Name resolution, sockets and certificates block, so each call runs in a thread of its own: a few dead name servers would
block all threads of the event loop's pool. A caller can be canceled at any time; the thread then cleans up.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from time import monotonic
from typing import TypeVar

from connectivity.connections.model import Connection
from connectivity.errors import ClientCertificateRequired, ConnectionRefused, Detail, LinkError, NotConnected
from connectivity.security.egress import refusal
from connectivity.security.tls import certificate_data, load_client_certificate

_OLD_VERSIONS = frozenset({"TLSV1_ALERT_PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL"})
_CERTIFICATE_ALERTS = ("CERTIFICATE", "UNKNOWN_CA")
_CERTIFICATE_REQUIRED = "CERTIFICATE_REQUIRED"
"""The alert of TLS 1.3. A server with TLS 1.2 only reports that the handshake has failed."""

T = TypeVar("T")


class ForbiddenAddress(OSError):
    """The host name resolves to an address that connections must not reach."""


async def run_in_thread(name: str, work: Callable[[], T], undo: Callable[[T | None], None] = lambda _: None) -> T:
    """Run `work` in a thread of its own and raise what it raises.

    The event loop's pool is not used because a few dead name servers would occupy all of its threads. If the caller is
    canceled, `undo` is called with the result of `work` (None if it failed).
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def ended(made: T | None, error: Exception | None) -> None:
        if future.done():
            undo(made)
        elif error is None:
            future.set_result(made)  # type: ignore[arg-type]
        else:
            future.set_exception(error)

    def run() -> None:
        made, error = None, None
        try:
            made = work()
        except Exception as caught:  # raised where it is waited for
            error = caught
        try:
            loop.call_soon_threadsafe(ended, made, error)
        except RuntimeError:  # the loop is closed
            undo(made)

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        return await future
    except asyncio.CancelledError:
        # The result may have arrived before the caller could continue.
        if future.done() and not future.cancelled():
            undo(None if future.exception() is not None else future.result())
        raise


def resolve_allowed(host: str, port: int) -> list[str]:
    """Return the addresses that a host name resolves to; blocks.

    Raises ForbiddenAddress if connections must not reach one of them; OSError or UnicodeError for an invalid host name.
    """
    found = [str(place[4][0]) for place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    for address in dict.fromkeys(found):
        _check_allowed(host, address)
    return list(dict.fromkeys(found))


def reach(host: str, port: int, patience: float | None) -> socket.socket:
    """Return a socket connected to the host; blocks.

    `patience`: the seconds for all addresses together, after the name is resolved; None for no limit. Only allowed
    addresses are tried, and the connected address is checked again. Raises ForbiddenAddress, OSError, UnicodeError.
    """
    failure: OSError | None = None
    addresses = resolve_allowed(host, port)
    end = None if patience is None else monotonic() + patience
    for address in addresses:
        left = None if end is None else end - monotonic()
        if left is not None and left <= 0:
            break
        try:
            made = socket.create_connection((address, port), timeout=left)
        except OSError as error:
            failure = error
            if error.errno is not None:
                where = f"[{address}]" if ":" in address else address
                failure = OSError(error.errno, f"{where}:{port}: {error.strerror}")
        else:
            check_connected_address(made, host)
            return made
    raise failure or OSError("no address")


def receive_until(end: float, sock: socket.socket, size: int) -> bytes:
    """Receive at most `size` bytes; blocks. Raises OSError, TimeoutError after the monotonic time `end`.

    The timeout of a socket alone begins again with each byte.
    """
    if (left := end - monotonic()) <= 0:
        raise TimeoutError
    sock.settimeout(left)
    return sock.recv(size)


def check_connected_address(made: socket.socket, host: str) -> None:
    """Check the address that a socket is connected to, and set TCP_NODELAY.

    Closes the socket and raises ForbiddenAddress for an address that connections must not reach, OSError for a closed
    connection.
    """
    try:
        _check_allowed(host, str(made.getpeername()[0]))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        with contextlib.suppress(OSError):
            made.close()
        raise


def _check_allowed(host: str, address: str) -> None:
    if (why := refusal(host, address)) is not None:
        raise ForbiddenAddress(
            f"{host} resolves to {address}: found {why}" if host != address else f"{host}: found {why}"
        )


def tls_context(connection: Connection) -> ssl.SSLContext:
    """Return the TLS context for a connection. Raises ConnectionRefused for an unusable certificate.

    A `ca` is trusted in place of the system's authorities; only `validateCertificates: false` turns checks off.
    """
    try:
        context = ssl.create_default_context(cadata=certificate_data(connection.ca) if connection.ca else None)
        # Overrides the system's TLS settings.
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if not connection.validate_certificates:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if (own := connection.credentials) is not None and own.cert:
            load_client_certificate(context, own.cert, own.key.get_secret_value() if own.key else "")
    except (ssl.SSLError, ValueError) as error:
        raise ConnectionRefused(
            Detail.CERTIFICATE, f"the connection's ca or credentials are invalid: {error}"
        ) from error
    return context


def dial_error(error: Exception) -> LinkError:
    """Return the error for a failure to reach the broker, with the system's error text."""
    if isinstance(error, LinkError):
        return error
    if isinstance(error, ForbiddenAddress):
        return ConnectionRefused(Detail.NOT_AUTHORIZED, str(error))
    if isinstance(error, socket.gaierror | UnicodeError):
        return NotConnected(Detail.UNKNOWN_HOST, _error_text(error))
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConnectionRefused(Detail.CERTIFICATE, error.verify_message or _error_text(error))
    if isinstance(error, ssl.SSLError):
        return tls_error(error)
    if isinstance(error, TimeoutError):
        return NotConnected(Detail.TIMEOUT, "the broker's host did not answer in time")
    return NotConnected(Detail.REFUSED, _error_text(error))


def handshake_error(error: OSError) -> LinkError:
    """Return the error for a failure during the TLS handshake with the broker.

    A port without TLS closes the connection, which the system reports in several ways.
    """
    if isinstance(error, ssl.SSLError | TimeoutError):
        return dial_error(error)
    return NotConnected(
        Detail.REFUSED_BY_BROKER, f"TLS: the connection was closed ({_error_text(error)}); this port may not use TLS"
    )


def tls_error(error: ssl.SSLError) -> LinkError:
    reason = error.reason or ""
    if _CERTIFICATE_REQUIRED in reason:
        return ClientCertificateRequired(Detail.CERTIFICATE, "the broker requires a client certificate")
    if any(word in reason for word in _CERTIFICATE_ALERTS):
        return ConnectionRefused(Detail.CERTIFICATE, reason.replace("_", " ").lower())
    expected = ", expected TLS 1.2 or later" if reason in _OLD_VERSIONS else ""
    return NotConnected(
        Detail.REFUSED_BY_BROKER, f"TLS: {reason.replace('_', ' ').lower() or _error_text(error)}{expected}"
    )


def lost_error(error: Exception) -> LinkError:
    """Return the error that ended an established link."""
    if isinstance(error, ssl.SSLError):
        return tls_error(error)
    return NotConnected(Detail.CONNECTING, f"the link was lost: {_error_text(error)}")


def _error_text(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__

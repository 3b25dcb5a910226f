"""Reaching a broker: the socket that a thread opens, TLS, and what each failure is called.

Names, sockets and TLS handshakes block, so a thread of its own does them (the loop's pool would let a few dead name servers
stop everybody). Whoever waits for it may leave at any time; then the thread cleans up when it is done.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from connectivity.errors import ConnectionRefused, Detail, LinkError, NotConnected, PublishFailed
from connectivity.model import Connection
from connectivity.mqtt.client import RefusedAddress
from connectivity.tls import load_client_certificate

BUSY = frozenset({136, 137, 151, 159})
"""CONNACK reasons that pass: server unavailable, server busy, quota exceeded, connection rate exceeded."""

CONNECT_DETAILS = {
    134: Detail.BAD_CREDENTIALS,
    135: Detail.BAD_CREDENTIALS,
    140: Detail.BAD_CREDENTIALS,
    138: Detail.NOT_AUTHORIZED,
}
"""CONNACK reasons with a name of their own. Brokers say "not authorized" for a wrong password too."""

SUBSCRIBE_DETAILS = {128: Detail.NOT_AUTHORIZED, 135: Detail.NOT_AUTHORIZED, 143: Detail.MISSING_ADDRESS}
"""SUBACK reasons. MQTT 3.1.1 knows only 128, and the usual cause is an access list."""

MESSAGE_STATUSES = {144: 400, 153: 400}
"""PUBACK reasons for which sending the same again is in vain: the topic name or the payload is not valid."""

_CERTIFICATE_ALERTS = ("CERTIFICATE", "UNKNOWN_CA")


async def in_thread(work: Callable[[], None], undo: Callable[[], None]) -> None:
    """Run `work` in a thread of its own and raise what it raises. If nobody waits for it any more, `undo` follows it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def ended(error: Exception | None) -> None:
        if future.done():
            undo()
        elif error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def run() -> None:
        error: Exception | None = None
        try:
            work()
        except Exception as caught:  # raised where it is waited for
            error = caught
        try:
            loop.call_soon_threadsafe(ended, error)
        except RuntimeError:  # the loop is closed
            undo()

    threading.Thread(target=run, name="mqtt connect", daemon=True).start()
    await future


def tls_context(connection: Connection) -> ssl.SSLContext:
    """What to trust and what to show. A `ca` adds to the system's; only `validateCertificates: false` turns checks off.

    Raises ConnectionRefused for a client certificate that cannot be used.
    """
    context = ssl.create_default_context()
    if not connection.validate_certificates:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        if connection.ca:
            context.load_verify_locations(cadata=connection.ca)
        if (own := connection.credentials) is not None and own.cert:
            load_client_certificate(context, own.cert, own.key.get_secret_value() if own.key else "")
    except (ssl.SSLError, ValueError) as error:
        raise ConnectionRefused(Detail.CERTIFICATE, f"the connection's own: {error}") from error
    return context


def dial_error(error: Exception) -> LinkError:
    """What went wrong on the way to the broker, in the system's words."""
    if isinstance(error, LinkError):
        return error
    if isinstance(error, RefusedAddress):
        return ConnectionRefused(Detail.NOT_AUTHORIZED, str(error))
    if isinstance(error, socket.gaierror | UnicodeError):
        return NotConnected(Detail.UNKNOWN_HOST, _words(error))
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConnectionRefused(Detail.CERTIFICATE, error.verify_message or _words(error))
    if isinstance(error, ssl.SSLError):
        return tls_error(error)
    if isinstance(error, TimeoutError):
        return NotConnected(Detail.TIMEOUT, "no answer from the broker's host")
    return NotConnected(Detail.REFUSED, _words(error))


def tls_error(error: ssl.SSLError) -> LinkError:
    reason = error.reason or ""
    if any(word in reason for word in _CERTIFICATE_ALERTS):
        return ConnectionRefused(Detail.CERTIFICATE, reason.replace("_", " ").lower())
    return NotConnected(Detail.REFUSED_BY_BROKER, f"TLS: {reason.replace('_', ' ').lower() or _words(error)}")


def lost_error(error: Exception) -> LinkError:
    """What ended a link that was there."""
    if isinstance(error, ssl.SSLError):
        return tls_error(error)
    return NotConnected(Detail.CONNECTING, f"the link broke: {_words(error)}")


def connack_error(reason: ReasonCode, properties: Properties | None) -> LinkError:
    """Why the broker does not let us in."""
    words = reason_words(reason, properties)
    if reason.value in BUSY:
        return NotConnected(Detail.REFUSED_BY_BROKER, words)
    return ConnectionRefused(CONNECT_DETAILS.get(reason.value, Detail.REFUSED_BY_BROKER), words)


def suback_error(address: str, reason: ReasonCode, properties: Properties | None) -> LinkError:
    """Why the broker does not give us a source's address."""
    detail = SUBSCRIBE_DETAILS.get(reason.value, Detail.REFUSED_BY_BROKER)
    return ConnectionRefused(detail, f"{address}: {reason_words(reason, properties)}")


def refused_message(code: int) -> PublishFailed:
    """Why the broker did not take a message."""
    words = ReasonCode(PacketTypes.PUBACK, identifier=code).getName() if code in ReasonCode.names else f"reason {code}"
    return PublishFailed(f"the broker refused the message: {words}", status=MESSAGE_STATUSES.get(code, 503))


def reason_words(reason: ReasonCode, properties: Properties | None) -> str:
    """The broker's own words: the name of the reason, and the text that MQTT 5 may carry with it."""
    said = getattr(properties, "ReasonString", None)
    return f"{reason.getName()}: {said}" if said else str(reason.getName())


def _words(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__

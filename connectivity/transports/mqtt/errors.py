"""Errors for an MQTT broker's reason codes of CONNACK, SUBACK and PUBACK.

Errors of connecting to the host are in `connectivity.transports.dialer`.
"""

from __future__ import annotations

from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from connectivity.errors import ConnectionRefused, Detail, LinkError, MessageRefused, NotConnected

BUSY = frozenset({136, 137, 151, 159})
"""Temporary CONNACK reasons: unavailable, busy, quota exceeded, connection rate exceeded."""

CONNECT_DETAILS = {
    134: Detail.BAD_CREDENTIALS,
    135: Detail.BAD_CREDENTIALS,
    140: Detail.BAD_CREDENTIALS,
    138: Detail.NOT_AUTHORIZED,
}
"""CONNACK reasons with a detail of their own.

Brokers also report "not authorized" for a wrong password.
"""

NOT_AUTHORIZED = 135
"""The PUBACK reason for an address that the connection may not publish to."""

SUBSCRIBE_DETAILS = {128: Detail.NOT_AUTHORIZED, 135: Detail.NOT_AUTHORIZED, 143: Detail.MISSING_ADDRESS}
"""SUBACK reasons.

MQTT 3.1.1 has only 128, usually caused by an access control list.
"""

MESSAGE_STATUSES = {144: 400, 149: 413, 153: 400}
"""PUBACK reasons for which a retry is useless: invalid topic name, packet too large, invalid payload."""


def connack_error(reason: ReasonCode, properties: Properties | None) -> LinkError:
    """Return the error for a CONNACK that refuses the login."""
    words = reason_text(reason, properties)
    if reason.value in BUSY:
        return NotConnected(Detail.REFUSED_BY_BROKER, words)
    return ConnectionRefused(CONNECT_DETAILS.get(reason.value, Detail.REFUSED_BY_BROKER), words)


def suback_error(address: str, reason: ReasonCode, properties: Properties | None) -> LinkError:
    """Return the error for a SUBACK that refuses a source's address."""
    detail = SUBSCRIBE_DETAILS.get(reason.value, Detail.REFUSED_BY_BROKER)
    return ConnectionRefused(detail, f"{address}: {reason_text(reason, properties)}")


def refused_message(code: int) -> MessageRefused:
    """Return the error for a message that the broker refused."""
    # Some brokers send codes that belong to other packets.
    words = f"the broker refused the message: {next(iter(ReasonCode.names.get(code, ())), f'reason {code}')}"
    if code == NOT_AUTHORIZED:
        words = f"{Detail.NOT_AUTHORIZED.value}: {words}"
    return MessageRefused(words, status=MESSAGE_STATUSES.get(code, 503))


def reason_text(reason: ReasonCode, properties: Properties | None) -> str:
    """Return the broker's text: the name of the reason, and the reason string of MQTT 5."""
    said = getattr(properties, "ReasonString", None)
    return f"{reason.getName()}: {said}" if said else str(reason.getName())

"""What an MQTT broker's refusals are called: of the greeting, of a subscription, of a message.

Reaching the broker at all is `connectivity.transports.dialer`.
"""

from __future__ import annotations

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from connectivity.errors import ConnectionRefused, Detail, LinkError, NotConnected, PublishFailed

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

"""Errors for an AMQP broker's reply codes."""

from __future__ import annotations

from connectivity.errors import ConnectionRefused, Detail, LinkError, MessageRefused, NotConnected
from connectivity.transports.amqp.frames import Reason
from connectivity.transports.base import ReaderStatus

FORCED, ACCESS_REFUSED, NOT_FOUND, LOCKED, PRECONDITION_FAILED, NOT_ALLOWED = 320, 403, 404, 405, 406, 530

CHANNEL_DETAILS = {
    ACCESS_REFUSED: Detail.NOT_AUTHORIZED,
    NOT_FOUND: Detail.MISSING_ADDRESS,
    LOCKED: Detail.NOT_AUTHORIZED,
}
"""The details of refusals to consume or publish, by reply code."""

READER_STATUSES = {ACCESS_REFUSED: ReaderStatus.REFUSED, NOT_FOUND: ReaderStatus.UNDELIVERED}
"""The status of readers for refusals to publish, by reply code."""

TEMPORARY_CODES = frozenset({FORCED, 506, 541})
"""Temporary reply codes of a closed link, such as those of an operator or a shutdown."""


def login_error(reason: Reason) -> LinkError:
    """Return the error for a link that the broker closed during login."""
    if reason.code == ACCESS_REFUSED:
        return ConnectionRefused(Detail.BAD_CREDENTIALS, reason.text)
    if reason.code == NOT_ALLOWED and "not found" in reason.text:
        return ConnectionRefused(Detail.MISSING_ADDRESS, reason.text)
    if reason.code == NOT_ALLOWED and "refused" in reason.text:
        return ConnectionRefused(Detail.NOT_AUTHORIZED, reason.text)
    if reason.code in TEMPORARY_CODES or reason.code == NOT_ALLOWED:
        return NotConnected(Detail.REFUSED_BY_BROKER, reason.text)
    return ConnectionRefused(Detail.REFUSED_BY_BROKER, reason.text)


def address_error(what: str, name: str, reason: Reason) -> LinkError:
    """Return the error for a queue or exchange (`what`) that is missing or that we may not use."""
    detail = CHANNEL_DETAILS.get(reason.code, Detail.REFUSED_BY_BROKER)
    return ConnectionRefused(detail, f"{what} {name!r}: {reason.text}")


def refusal_error(reason: Reason) -> MessageRefused:
    """Return the error for a message that made the broker close the channel, or a missing exchange."""
    detail = CHANNEL_DETAILS.get(reason.code, Detail.REFUSED_BY_BROKER)
    is_too_large = reason.code == PRECONDITION_FAILED and "message size" in reason.text
    return MessageRefused(f"{detail.value}: {reason.text}", status=413 if is_too_large else 503)


def unroutable_error(reason: Reason, exchange: str, key: str) -> MessageRefused:
    """Return the error for a message that the broker returned as unroutable."""
    place = f"the exchange {exchange!r} routes to no queue for the routing key {key!r}"
    if not exchange:
        place = f"queue {key!r} does not exist"
    return MessageRefused(f"{Detail.MISSING_ADDRESS.value}: {place}: {reason.text}")

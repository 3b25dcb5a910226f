"""Records and envelopes.

A record's headers become the envelope's, as UTF-8; of several with one name the last one counts, one without a value is left
out, and a name that is no UTF-8 takes all of them with it. `kafka.topic`, `kafka.timestamp` (milliseconds) and `kafka.key`
stand for the record itself, and a record without `correlation-id` gets a new one. A record without a value (a tombstone) has
an empty payload.

A record may say how long it is good for: `creation-time` (milliseconds since 1970) and `ttl` (milliseconds). Texts that are
no numbers say nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import methodcaller
from typing import cast

import structlog
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from mappings.envelope import Envelope
from mappings.ids import new_correlation_id

log = structlog.get_logger(__name__)

TOPIC, TIMESTAMP, KEY = "kafka.topic", "kafka.timestamp", "kafka.key"
CORRELATION_ID, CREATED, TTL = "correlation-id", "creation-time", "ttl"
SENDER = "ditto-connection-id"
"""Header of every published record: the id of the connection that it came through."""

Header = tuple[str, str | bytes | None]

_read_headers = methodcaller("headers")
"""Never `message.headers()`: the library returns half of a list beside its exception, and the interpreter's fast way of
calling a method that it has called often does not look for one. Whoever touches such a list ends the process."""


def received(message: Message, topic: str) -> Envelope:
    """The envelope of a record."""
    headers: dict[str, str] = {}
    for name, value in _headers_of(message):
        if value is not None:
            headers[name] = value.decode(errors="replace")
    if CORRELATION_ID not in headers:
        headers[CORRELATION_ID] = new_correlation_id()
    headers[TOPIC] = topic
    kind, timestamp = message.timestamp()
    if kind != TIMESTAMP_NOT_AVAILABLE:
        headers[TIMESTAMP] = str(timestamp)
    if (key := message.key()) is not None:
        headers[KEY] = key.decode(errors="replace")
    return Envelope(message.value() or b"", headers)


def _headers_of(message: Message) -> list[tuple[str, bytes | None]]:
    """The record's own headers. None where the name of one is no UTF-8: the library cannot hand over any of them then."""
    try:
        return cast("list[tuple[str, bytes | None]]", _read_headers(message) or [])
    except (SystemError, UnicodeDecodeError):
        log.warning(
            "the headers of a record cannot be read: a name that is not UTF-8",
            address=message.topic(),
            partition=message.partition(),
            offset=message.offset(),
        )
        return []


def is_expired(envelope: Envelope, now: float) -> bool:
    """Whether the record's time is over at `now` (seconds since 1970)."""
    created, ttl = envelope.headers.get(CREATED), envelope.headers.get(TTL)
    if created is None or ttl is None:
        return False
    try:
        return int(now * 1000) - int(created) >= int(ttl)
    except ValueError:
        return False


def record_headers(headers: Mapping[str, str], sender: Sequence[Header]) -> list[Header]:
    """The headers of a record to publish, `sender` last."""
    return [*((name, value.encode(errors="replace")) for name, value in headers.items()), *sender]

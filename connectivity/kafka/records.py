"""Records and envelopes.

A record's headers become the envelope's, as UTF-8; of several with one name the last one counts, one without a value is left
out. `kafka.topic`, `kafka.timestamp` (milliseconds) and `kafka.key` stand for the record itself, and a record without
`correlation-id` gets a new one. A record without a value (a tombstone) has an empty payload.

A record may say how long it is good for: `creation-time` (milliseconds since 1970) and `ttl` (milliseconds). Texts that are
no numbers say nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from mappings.envelope import Envelope
from mappings.ids import new_correlation_id

TOPIC, TIMESTAMP, KEY = "kafka.topic", "kafka.timestamp", "kafka.key"
CORRELATION_ID, CREATED, TTL = "correlation-id", "creation-time", "ttl"
SENDER = "ditto-connection-id"
"""Header of every published record: the id of the connection that it came through."""

Header = tuple[str, str | bytes | None]


def received(message: Message, topic: str) -> Envelope:
    """The envelope of a record."""
    headers: dict[str, str] = {}
    found = cast("list[tuple[str, bytes | None]]", message.headers() or [])
    for name, value in found:
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


def is_expired(envelope: Envelope, now: float) -> bool:
    """Whether the record's time is over at `now` (seconds since 1970)."""
    created, ttl = envelope.headers.get(CREATED), envelope.headers.get(TTL)
    if created is None or ttl is None:
        return False
    try:
        return now * 1000 - int(created) >= int(ttl)
    except ValueError:
        return False


def record_headers(envelope: Envelope, sender: Sequence[Header]) -> list[Header]:
    """The headers of a record to publish, `sender` last."""
    headers: list[Header] = [(name, value.encode(errors="replace")) for name, value in envelope.headers.items()]
    headers += sender
    return headers

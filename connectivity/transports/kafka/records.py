"""Records and envelopes.

A record's headers become the envelope's, as UTF-8; of several with one name the last one counts, one without a value is left
out, and a name that is no UTF-8 takes all of them with it. `kafka.topic`, `kafka.timestamp` (milliseconds) and `kafka.key`
stand for the record itself, and a record without `correlation-id` gets a new one. A record without a value (a tombstone) has
an empty payload.

A record may say how long it is good for: `creation-time` (milliseconds since 1970) and `ttl` (milliseconds). Texts that are
no numbers say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import methodcaller
from typing import NamedTuple, cast

import structlog
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from connectivity.errors import PublishFailed
from mappings.ids import new_correlation_id
from mappings.model.envelope import Envelope

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


TOPIC_NAME = re.compile(r"(?!\.\.?$)[a-zA-Z0-9._-]{1,249}")
TOPIC_EXPECTED = "a topic of 1 to 249 letters, digits and . _ -, which is not . or .."
ANY_PARTITION = -1
HIGHEST_PARTITION = 2**31 - 1
CACHED_ADDRESSES = 4096


class RecordAddress(NamedTuple):
    """Where a record goes: at most one of key and partition is there."""

    topic: str
    key: str | None = None
    partition: str | None = None


class ClientAddress(NamedTuple):
    """An address as the client library takes it; `partition` -1 leaves the choice to the key, or to chance."""

    topic: str
    key: bytes | None
    partition: int


def split_address(address: str) -> RecordAddress:
    """`topic`, `topic/key`, `topic#partition` → their parts, of which each may be empty."""
    topic, slash, key = address.partition("/")
    if slash:
        return RecordAddress(topic, key=key)
    topic, mark, partition = address.partition("#")
    return RecordAddress(topic, partition=partition if mark else None)


@lru_cache(maxsize=CACHED_ADDRESSES)
def place_of(address: str) -> ClientAddress:
    """Where to publish to for an address whose placeholders are resolved. A key that came out empty is none.

    Raises PublishFailed for a name that no topic has and for a partition that is no whole number.
    """
    topic, key, partition = split_address(address)
    if not TOPIC_NAME.fullmatch(topic):
        raise PublishFailed(f"the topic {topic[:300]!r}, expected {TOPIC_EXPECTED}", status=400)
    if partition is None:
        return ClientAddress(topic, key.encode(errors="replace") if key else None, ANY_PARTITION)
    if not re.fullmatch(r"[0-9]{1,10}", partition) or int(partition) > HIGHEST_PARTITION:
        raise PublishFailed(f"the partition {partition[:50]!r}, expected a whole number", status=400)
    return ClientAddress(topic, None, int(partition))

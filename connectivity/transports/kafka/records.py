"""Converts between Kafka records and envelopes.

A record's headers become the envelope's, as UTF-8; the last of several with one name applies, one without a value is
left out, and a name that is not UTF-8 makes all unreadable. `kafka.topic`, `kafka.timestamp` (ms) and `kafka.key`
describe the record, whose own headers cannot set them, and a missing `correlation-id` is generated. A tombstone has an
empty payload.

`creation-time` (ms since 1970) and `ttl` (ms) define when a record expires; texts that are not numbers are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from operator import methodcaller
from typing import NamedTuple, TypeAlias, cast

import structlog
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from connectivity.errors import PublishFailed
from mappings.ids import new_correlation_id
from mappings.model.envelope import Envelope
from mappings.text_cache import cached_if_short

log = structlog.get_logger(__name__)


TOPIC, TIMESTAMP, KEY = "kafka.topic", "kafka.timestamp", "kafka.key"
_OWN_HEADERS = frozenset({TOPIC, TIMESTAMP, KEY})
CORRELATION_ID, CREATED, TTL = "correlation-id", "creation-time", "ttl"
SENDER = "ditto-connection-id"
"""Header of every published record: the ID of the connection that published it."""

Header = tuple[str, str | bytes | None]

_MILLISECONDS = re.compile(r"-?[0-9]{1,4000}")

_read_headers = methodcaller("headers")
"""Reads headers without the direct call `message.headers()`, which can crash the process.

The library returns half of a list together with its exception, and the interpreter's fast path for frequent method calls
does not check for one. Using such a list ends the process.
"""


class UnreadableRecord:
    """A record of a batch that is too large to decompress: of a `Message`, it has only the offset."""

    __slots__ = ("_offset",)

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset


Record: TypeAlias = Message | UnreadableRecord


def envelope_of(message: Record, topic: str) -> Envelope:
    """Return the envelope of a record."""
    if isinstance(message, UnreadableRecord):
        return Envelope(b"", {CORRELATION_ID: new_correlation_id(), TOPIC: topic}, has_own_id=False)
    headers: dict[str, str] = {}
    has_own_id = False
    for name, value in _headers_of(message):
        if value is not None and (lower := name.lower()) not in _OWN_HEADERS:
            headers[name] = value.decode(errors="replace")
            has_own_id = has_own_id or lower == CORRELATION_ID
    if not has_own_id:
        headers[CORRELATION_ID] = new_correlation_id()
    headers[TOPIC] = topic
    kind, timestamp = message.timestamp()
    if kind != TIMESTAMP_NOT_AVAILABLE:
        headers[TIMESTAMP] = str(timestamp)
    if (key := message.key()) is not None:
        headers[KEY] = key.decode(errors="replace")
    return Envelope(message.value() or b"", headers, has_own_id)


def size_of(record: Record) -> int:
    """Return the bytes of a record's value, key and headers."""
    if isinstance(record, UnreadableRecord):
        return 0
    headers = sum([len(name) + len(value or b"") for name, value in _headers_of(record)])
    return len(record) + len(record.key() or b"") + headers


def _headers_of(message: Message) -> list[tuple[str, bytes | None]]:
    """Return the record's headers; an empty list if a name is not UTF-8, which makes all unreadable."""
    try:
        return cast("list[tuple[str, bytes | None]]", _read_headers(message) or [])
    except (SystemError, UnicodeDecodeError):
        # The next reading would return the half that the library has kept.
        message.set_headers([])
        log.warning(
            "record headers ignored, a name is not UTF-8",
            address=message.topic(),
            partition=message.partition(),
            offset=message.offset(),
        )
        return []


def is_expired(envelope: Envelope, now: float) -> bool:
    """Decide whether the record has expired at `now` (seconds since 1970)."""
    if (created := envelope.header(CREATED)) is None or (ttl := envelope.header(TTL)) is None:
        return False
    is_readable = _MILLISECONDS.fullmatch(created) and _MILLISECONDS.fullmatch(ttl)
    return is_readable is not None and int(now * 1000) - int(created) >= int(ttl)


def record_headers(headers: Mapping[str, str], sender: Sequence[Header]) -> list[Header]:
    """Return the headers of a record to publish, `sender` last."""
    return [*((name, value.encode(errors="replace")) for name, value in headers.items()), *sender]


TOPIC_NAME = re.compile(r"(?!\.\.?$)[a-zA-Z0-9._-]{1,249}")
TOPIC_EXPECTED = "a topic of 1 to 249 letters, digits and . _ -, which is not . or .."
ANY_PARTITION = -1
HIGHEST_PARTITION = 2**31 - 1
CACHED_ADDRESSES = 4096


class RecordAddress(NamedTuple):
    """The parts of an address to publish to: at most one of key and partition is set."""

    topic: str
    key: str | None = None
    partition: str | None = None


class ClientAddress(NamedTuple):
    """An address for the client library; `partition` -1 leaves the choice to the key, or is random."""

    topic: str
    key: bytes | None
    partition: int


def split_address(address: str) -> RecordAddress:
    """Split `topic`, `topic/key` or `topic#partition` into its parts, which may be empty."""
    topic, slash, key = address.partition("/")
    if slash:
        return RecordAddress(topic, key=key)
    topic, mark, partition = address.partition("#")
    return RecordAddress(topic, partition=partition if mark else None)


def read_partition(text: str) -> int | None:
    """Return the number of a partition; None for any other text."""
    number = int(text) if re.fullmatch(r"[0-9]{1,20}", text) else -1
    return number if 0 <= number <= HIGHEST_PARTITION else None


@cached_if_short(CACHED_ADDRESSES)
def parse_client_address(address: str) -> ClientAddress:
    """Return where to publish to for a resolved address; an empty key becomes None.

    Raises PublishFailed for an invalid topic name or partition.
    """
    topic, key, partition = split_address(address)
    if not TOPIC_NAME.fullmatch(topic):
        raise PublishFailed(f"topic: found {topic[:300]!r}, expected {TOPIC_EXPECTED}", status=400)
    if partition is None:
        return ClientAddress(topic, key.encode(errors="replace") if key else None, ANY_PARTITION)
    if (number := read_partition(partition)) is None:
        raise PublishFailed(
            f"partition: found {partition[:50]!r}, expected a whole number up to {HIGHEST_PARTITION}", status=400
        )
    return ClientAddress(topic, None, number)

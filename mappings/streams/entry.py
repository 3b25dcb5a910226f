"""Entries of a stream's partition, selections of them, and their encoding as an array of nine items.

    [28, streamId, partition, timestamp, ttl, offset, previousOffset, 27, content]

The content is JSON in a JSON string, kept as that string's bytes: subscribers receive what the publisher wrote, undecoded.
Version 29 has three more items for signatures, which are always empty. An entry's offset is the revision of its event. The
content of a twin's entry is the item of a history in the Ditto protocol.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import msgspec
from msgspec.structs import astuple

from mappings.ditto.messages import CONTENT_TYPES, json_bytes, not_expressible
from mappings.errors import DecodeError, Fault
from mappings.ids import EntityType
from mappings.model.metadata import without_changes
from mappings.model.signals import Event
from mappings.model.topic_path import entity_topic
from mappings.streams.stream_id import LONGEST_STREAM_ID, parse_partition_name, partition_id, stream_id_of
from mappings.texts import shorten
from mappings.timestamps import milliseconds

JSON_CONTENT = 27
"""The content type of JSON, and the only one."""

VERSIONS = (28, 29)
"""The supported versions of the array."""

UNSIGNED = b",0,null,null]"
"""The extra items of version 29: no signature type, no address, no signature."""

_encode = msgspec.json.Encoder().encode
_quoted = lru_cache(maxsize=1024)(_encode)


@dataclass(frozen=True, slots=True)
class All:
    """Every stored entry."""


@dataclass(frozen=True, slots=True)
class Last:
    """The newest `count` entries, oldest of them first."""

    count: int


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets from `start` to `end`, both inclusive; an `end` of None is the newest."""

    start: int
    end: int | None = None


@dataclass(frozen=True, slots=True)
class FromTime:
    """Entries from the first one published at `instant` (milliseconds) or later, by offset."""

    instant: int


EntrySelection: TypeAlias = All | Last | OffsetRange | FromTime


class StreamEntry(msgspec.Struct, frozen=True):
    """One entry of a partition.

    `timestamp` in milliseconds since 1970, `ttl` in seconds (0: kept), `previous` the offset of the entry before it in the
    same partition or None, `content` a JSON string as bytes.
    """

    stream: str
    partition: int
    timestamp: int
    ttl: int
    offset: int
    previous: int | None
    content: bytes


encode_content = _encode
"""Encodes a published text as an entry holds it. Raises ValueError for a lone surrogate."""


def encode_entry(entry: StreamEntry, version: int = 28) -> bytes:
    """Return the array of an entry. `version` is one of VERSIONS."""
    stream, partition, timestamp, ttl, offset, previous, content = astuple(entry)
    return b"[%d,%b,%d,%d,%d,%d,%b,%d,%b%b" % (
        version,
        _quoted(stream),
        partition,
        timestamp,
        ttl,
        offset,
        b"null" if previous is None else b"%d" % previous,
        JSON_CONTENT,
        content,
        b"]" if version == 28 else UNSIGNED,
    )


PUBLISHED = "published"
"""The action of all events of configured streams."""

_PATH = "/"
_NO_HEADERS = b"{}"


class _Headers(msgspec.Struct):
    ts: int | None = None


_headers = msgspec.json.Decoder(_Headers).decode
_partition = lru_cache(maxsize=1024)(parse_partition_name)


def published_event(
    stream: str, partition: int, revision: int, now: str, content: str, timestamp: int | None = None
) -> Event:
    """Return the event of a published entry.

    `now` (`2030-01-15T07:30:00.250000Z`) is the service's time, or the timestamp of the event before it if that is later;
    `timestamp` the publisher's, in milliseconds since 1970, None if there is none.
    """
    headers = _NO_HEADERS if timestamp is None else b'{"ts":%d}' % timestamp
    return Event(partition_id(stream, partition), revision, now, PUBLISHED, _PATH, encode_content(content), headers)


def entry_of(event: Event, *, previous: int | None, ttl: int = 0) -> StreamEntry:
    """Return the entry of an event, with these `previous` and `ttl`.

    Raises DecodeError for a corrupt event of a stream, EncodeError for an action that no event of a twin has.
    """
    if event.entity.type is not EntityType.STREAM:
        return _twin_entry(event, previous, ttl)
    partition = _partition(event.entity.name)
    if partition is None:
        raise _refused(f"found the name {_quote(event.entity.name)}, expected a stream and a partition")
    if event.value is None:
        raise _refused("found no content")
    return StreamEntry(*partition, published_at(event), ttl, event.revision, previous, event.value)


def _twin_entry(event: Event, previous: int | None, ttl: int) -> StreamEntry:
    return StreamEntry(
        stream_id_of(event.entity),
        0,
        milliseconds(event.timestamp),
        ttl,
        event.revision,
        previous,
        encode_content(_item(event).decode()),
    )


def _item(event: Event) -> bytes:
    if event.action not in CONTENT_TYPES:
        raise not_expressible(f"an event with the action '{event.action}'")
    content_type = CONTENT_TYPES[event.action]
    declared = b'"content-type":%b,' % json_bytes(content_type) if content_type is not None else b""
    topic = str(entity_topic(event.entity, event.entity.type.group, "events", event.action))
    has_value = content_type is not None and event.value is not None
    return b'{"topic":%b,"headers":{%b"historical-headers":%b},"path":%b%b,"revision":%d,"timestamp":%b}' % (
        json_bytes(topic),
        declared,
        without_changes(event.headers),
        json_bytes(event.path),
        b',"value":%b' % event.value if has_value and event.value is not None else b"",
        event.revision,
        json_bytes(event.timestamp),
    )


def published_at(event: Event) -> int:
    """Return the time of an entry, in milliseconds since 1970: its publisher's, or the service's.

    Raises DecodeError.
    """
    try:
        instant = None if event.headers == _NO_HEADERS else _headers(event.headers).ts
        return milliseconds(event.timestamp) if instant is None else instant
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _refused(f"found the invalid headers {_quote(event.headers.decode(errors='replace'))}") from None
    except ValueError:
        raise _refused(f"found the invalid timestamp {_quote(event.timestamp)}") from None


def _refused(found: str) -> DecodeError:
    return DecodeError(Fault(400, "streams:entry.invalid", f"Not an entry of a stream: {found}"))


def _quote(text: str) -> str:
    return shorten(text, LONGEST_STREAM_ID)


def time_to_live(timestamp: int, retention: float, now: int) -> int:
    """Return the whole seconds until an entry's retention ends.

    `timestamp` and `now` in milliseconds, `retention` in seconds. 0 means unlimited, so an entry that ends within its last
    second still has 1.
    """
    return max(1, int((timestamp - now) / 1000 + retention))

"""One message of a stream: nine items in an array (Streamr protocol, message array).

    [28, streamId, partition, timestamp, ttl, offset, previousOffset, 27, content]

The content is JSON in a JSON string, kept as that string's bytes: subscribers receive what the publisher wrote, undecoded.
Version 29 has three more items for signatures, which are always empty.

`predecessor` and `time_to_live` are computed when a message is sent: it must not name a predecessor that a resend would not
send, since older clients of the protocol request it again and again without pause.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import astuple

from mappings.errors import Fault
from mappings.streamr.errors import FrameRefused, UnknownVersion, shown

JSON_CONTENT = 27
"""The content type of JSON, and the only one."""

VERSIONS = (28, 29)
"""The versions of messages that are spoken here."""

UNSIGNED = b",0,null,null]"
"""The extra items of version 29: no signature type, no address, no signature."""

_ELSEWHERE = {
    27: "which is binary",
    30: "which has no offsets",
    31: "which has no offsets",
    32: "which has no offsets",
}
"""Versions that exist, and why they are not spoken here."""

_encode = msgspec.json.Encoder().encode
_quoted = lru_cache(maxsize=1024)(_encode)


class StreamMessage(msgspec.Struct, frozen=True):
    """One message of one partition.

    `timestamp` in milliseconds since 1970, `ttl` in seconds (0: kept), `previous` the offset of the message before it in the
    same partition or None, `content` a JSON string as bytes.
    """

    stream: str
    partition: int
    timestamp: int
    ttl: int
    offset: int
    previous: int | None
    content: bytes


def content_of(text: str) -> bytes:
    """A published text as a message keeps it. Raises ValueError for half a character."""
    return _encode(text)


def text_of(content: bytes) -> str:
    """The text that was published."""
    return msgspec.json.decode(content, type=str)


def write_message(message: StreamMessage, version: int = 28) -> bytes:
    """Return the array of a message, encoded once for all subscribers. `version` is one of VERSIONS."""
    _, partition, timestamp, ttl, offset, previous, content = astuple(message)
    return b"[%d,%b,%d,%d,%d,%d,%b,%d,%b%b" % (
        version,
        _quoted(message.stream),
        partition,
        timestamp,
        ttl,
        offset,
        b"null" if previous is None else b"%d" % previous,
        JSON_CONTENT,
        content,
        b"]" if version == 28 else UNSIGNED,
    )


def read_message(items: Any) -> StreamMessage:
    """The message of a parsed array; signatures of version 29 are passed over.

    Raises UnknownVersion for one that is not spoken here, FrameRefused for anything else.
    """
    if not isinstance(items, list) or not items:
        raise _refused(f"found {shown(items)}, expected an array")
    version = items[0]
    if isinstance(version, bool) or version not in VERSIONS:
        why = _ELSEWHERE.get(version) if isinstance(version, int) else None
        found = f"{shown(version)}, {why}" if why else shown(version)
        raise UnknownVersion(
            Fault(400, "streamr:version.unsupported", f"Unknown message version: found {found}, expected 28 or 29")
        )
    wanted = 9 if version == 28 else 12
    if len(items) != wanted:
        raise _refused(f"found {len(items)} items, version {version} has {wanted}")
    _, stream, partition, timestamp, ttl, offset, previous, content_type, content = items[:9]
    if not isinstance(stream, str):
        raise _refused(f"the stream id is {shown(stream)}, expected a string")
    numbers = {"partition": partition, "timestamp": timestamp, "ttl": ttl, "offset": offset}
    if previous is not None:
        numbers["previous offset"] = previous
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int):
            raise _refused(f"the {name} is {shown(number)}, expected an integer")
    if content_type != JSON_CONTENT:
        raise _refused(f"the content type is {shown(content_type)}, expected {JSON_CONTENT}")
    if not isinstance(content, str):
        raise _refused("the content is not a string")
    return StreamMessage(stream, partition, timestamp, ttl, offset, previous, content_of(content))


def _refused(why: str) -> FrameRefused:
    return FrameRefused(Fault(400, "streamr:message.invalid", f"Not a stream message: {why}"))


# --- at the moment of sending -------------------------------------------------------------------------------------------


def predecessor(previous: int | None, oldest: int | None) -> int | None:
    """Return the predecessor that a message may name.

    `oldest` is the smallest offset that a resend can still send.
    """
    return previous if previous is not None and oldest is not None and previous >= oldest else None


def time_to_live(timestamp: int, retention: float | None, now: int) -> int:
    """Return the whole seconds until a message's retention ends.

    `timestamp` and `now` in milliseconds, `retention` in seconds or None. 0 means unlimited, so a message that ends within
    its last second still has 1.
    """
    return 0 if retention is None else max(1, int((timestamp - now) / 1000 + retention))

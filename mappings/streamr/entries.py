"""A stream's messages as the store keeps them: one event for each, of the entity that its partition is (Streamr, names).

    revision    the offset
    timestamp   when the service took the message, and no earlier than the one before it: what a history is in order of, and
                what retention goes by
    value       the content: a JSON string, to the letter what was published
    headers     `{"ts":1700000000123}` where the publisher named a time, in milliseconds; else `{}`

What only the moment of reading can tell, the predecessor that a resend still brings and the time that is left, is handed in.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from mappings.errors import Fault
from mappings.signals import Event
from mappings.streamr.faults import FrameRefused, shown
from mappings.streamr.instants import milliseconds
from mappings.streamr.messages import StreamMessage, content_of
from mappings.streamr.names import partition_of, read_partition_name
from mappings.streamr.requests import Publish

PUBLISHED = "published"
"""The action of all events of streams."""

_PATH = "/"
_NO_HEADERS = b"{}"


class _Headers(msgspec.Struct):
    ts: int | None = None


_headers = msgspec.json.Decoder(_Headers).decode
_place = lru_cache(maxsize=1024)(read_partition_name)


def event_of(request: Publish, partition: int, revision: int, now: str) -> Event:
    """The event that a published message becomes. `now` (`2030-01-15T07:30:00.250000Z`) is that of the service, or the
    timestamp of the event before it if that is later."""
    headers = _NO_HEADERS if request.timestamp is None else b'{"ts":%d}' % request.timestamp
    entity = partition_of(request.stream, partition)
    return Event(entity, revision, now, PUBLISHED, _PATH, content_of(request.content), headers)


def message_of(event: Event, *, previous: int | None, ttl: int = 0) -> StreamMessage:
    """The message that an event of a stream is; `previous` and `ttl` as a message has them. Raises FrameRefused."""
    place = _place(event.entity.name)
    if place is None:
        raise _refused(f"the name is {shown(event.entity.name)}, expected a stream and a partition")
    if event.value is None:
        raise _refused("there is no content")
    return StreamMessage(*place, published_at(event), ttl, event.revision, previous, event.value)


def published_at(event: Event) -> int:
    """The time of a message, in milliseconds since 1970: its publisher's, or the service's. Raises FrameRefused."""
    try:
        instant = None if event.headers == _NO_HEADERS else _headers(event.headers).ts
        return milliseconds(event.timestamp) if instant is None else instant
    except msgspec.DecodeError:
        raise _refused(f"the headers are {shown(event.headers.decode(errors='replace'))}") from None
    except ValueError:
        raise _refused(f"the timestamp is {shown(event.timestamp)}") from None


def _refused(why: str) -> FrameRefused:
    return FrameRefused(Fault(400, "streamr:message.invalid", f"Not a message of a stream: {why}"))

"""A stream's messages as the store keeps them: one entry for each, under the name of its partition (Streamr, names).

The offset is the entry's revision, the content its value: a JSON string, to the letter what was published. What only the
moment of reading can tell, the predecessor that a resend still brings and the time that is left, is handed in.
"""

from __future__ import annotations

from typing import NamedTuple

from mappings.errors import Fault
from mappings.streamr.faults import FrameRefused, shown
from mappings.streamr.instants import milliseconds, timestamp
from mappings.streamr.messages import StreamMessage, content_of
from mappings.streamr.names import partition_name, read_partition_name
from mappings.streamr.requests import Publish


class Entry(NamedTuple):
    """What is appended: the name of the partition, the time (`2030-01-15T07:30:00.250000Z`), the value as JSON."""

    name: str
    timestamp: str
    value: bytes


def entry_of(request: Publish, partition: int, now: int) -> Entry:
    """The entry of a published message; `now`, in milliseconds since 1970, counts where the publisher names no time."""
    instant = now if request.timestamp is None else request.timestamp
    return Entry(partition_name(request.stream, partition), timestamp(instant), content_of(request.content))


def message_of(entry: Entry, offset: int, *, previous: int | None, ttl: int = 0) -> StreamMessage:
    """The message that an entry is. Raises FrameRefused where the name is no partition's or the time is none."""
    place = read_partition_name(entry.name)
    if place is None:
        raise _refused(f"the name is {shown(entry.name)}, expected a stream and a partition")
    try:
        instant = milliseconds(entry.timestamp)
    except ValueError:
        raise _refused(f"the timestamp is {shown(entry.timestamp)}") from None
    return StreamMessage(*place, instant, ttl, offset, previous, entry.value)


def _refused(why: str) -> FrameRefused:
    return FrameRefused(Fault(400, "streamr:message.invalid", f"Not an entry of a stream: {why}"))

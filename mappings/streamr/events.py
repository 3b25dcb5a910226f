"""Things and policies as streams: events as messages, and commands to publish (Streamr, names).

An event's offset is its revision. The content is the item of a history in the Ditto protocol: `topic`, `headers` (only
`content-type` and `historical-headers`), `path`, `value`, `revision` and `timestamp`. `message_of` encodes it, `event_of`
decodes it. A message published to a twin is a command of the Ditto protocol on that twin; the passed reader decodes it, and
`command_of` checks the result; subscribers receive the resulting event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from mappings.ditto.document import NOT_JSON, is_sound
from mappings.ditto.messages import CONTENT_TYPES, cannot_say, json_bytes
from mappings.errors import DecodeError, Fault
from mappings.ids import EntityId
from mappings.model.envelope import Envelope
from mappings.model.metadata import without_changes
from mappings.model.signals import Command, Event, Inbound
from mappings.model.topic_path import entity_topic, parse_topic
from mappings.streamr import errors
from mappings.streamr.errors import ErrorSubject, FrameRefused, RequestRefused, shown
from mappings.streamr.messages import StreamMessage, content_of, text_of
from mappings.streamr.requests import Publish
from mappings.streamr.streams import PolicyStream, ThingStream, partition_of, place_of, read_partition_name, stream_of
from mappings.streamr.timestamps import milliseconds

# --- events -------------------------------------------------------------------------------------------------------------


def twin_message_of(event: Event, *, previous: int | None, ttl: int = 0) -> StreamMessage:
    """An event as a message of its twin's stream; `previous` and `ttl` as a message has them.

    Raises EncodeError for an action that no event has.
    """
    return StreamMessage(
        stream_of(event.entity),
        0,
        milliseconds(event.timestamp),
        ttl,
        event.revision,
        previous,
        content_of(_item(event).decode()),
    )


def _item(event: Event) -> bytes:
    if event.action not in CONTENT_TYPES:
        raise cannot_say(f"an event with the action '{event.action}'")
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


class _ItemHeaders(msgspec.Struct):
    stored: msgspec.Raw = msgspec.field(name="historical-headers", default=msgspec.Raw(b"{}"))


class _Item(msgspec.Struct):
    topic: str
    path: str
    revision: int
    timestamp: str
    headers: _ItemHeaders = msgspec.field(default_factory=_ItemHeaders)
    value: msgspec.Raw = msgspec.Raw()


_read_item = msgspec.json.Decoder(_Item).decode


def twin_event_of(message: StreamMessage) -> Event:
    """Return the event in a message of a twin's stream. Raises FrameRefused for other content."""
    text = text_of(message.content)
    place = place_of(message.stream)
    try:
        item = _read_item(text)
        topic = parse_topic(item.topic)
    except (*NOT_JSON, DecodeError):
        raise _no_event(message.stream) from None
    actions = [action for action in CONTENT_TYPES if topic.criterion == "events" and topic.action == action]
    is_about = isinstance(place, ThingStream | PolicyStream) and topic == entity_topic(
        place.entity, place.entity.type.group, "events", topic.action or ""
    )
    if not (actions and is_about and isinstance(place, ThingStream | PolicyStream) and is_sound(text.encode())):
        raise _no_event(message.stream)
    value = bytes(item.value) if item.value else None
    return Event(place.entity, item.revision, item.timestamp, actions[0], item.path, value, bytes(item.headers.stored))


def _no_event(stream: str) -> FrameRefused:
    return FrameRefused(Fault(400, "streamr:message.invalid", f"Not an event of {errors.shown(stream)}"))


# --- commands -----------------------------------------------------------------------------------------------------------

Read = Callable[[Envelope], Sequence[Inbound]]
"""The reader of the Ditto protocol. Raises DecodeError."""


def command_of(request: Publish, entity: EntityId, read: Read, headers: dict[str, str] | None = None) -> Command:
    """The command that is published to a twin.

    Raises RequestRefused for anything else, and for one on another twin.

    `headers` are those of the message that brought the request.
    """
    try:
        signals: Sequence[Any] = read(Envelope(request.content.encode(), headers or {}))
    except DecodeError as error:
        raise _no_command(request, error.fault.message) from error
    if len(signals) != 1 or not isinstance(signals[0], Command):
        raise _no_command(request, "Expected a command on the twin channel.")
    if signals[0].entity != entity:
        raise _no_command(request, "Expected a command on this entity.")
    return signals[0]


def _no_command(request: Publish, why: str) -> RequestRefused:
    return RequestRefused(errors.message_not_ditto(request.stream, why), ErrorSubject(request.stream))


PUBLISHED = "published"
"""The action of all events of streams."""

_PATH = "/"
_NO_HEADERS = b"{}"


class _Headers(msgspec.Struct):
    ts: int | None = None


_headers = msgspec.json.Decoder(_Headers).decode
_place = lru_cache(maxsize=1024)(read_partition_name)


def event_of(request: Publish, partition: int, revision: int, now: str) -> Event:
    """Return the event of a published message.

    `now` (`2030-01-15T07:30:00.250000Z`) is the service's time, or the timestamp of the event before it if that is later.
    """
    headers = _NO_HEADERS if request.timestamp is None else b'{"ts":%d}' % request.timestamp
    entity = partition_of(request.stream, partition)
    return Event(entity, revision, now, PUBLISHED, _PATH, content_of(request.content), headers)


def message_of(event: Event, *, previous: int | None, ttl: int = 0) -> StreamMessage:
    """The message that an event of a stream is; `previous` and `ttl` as a message has them.

    Raises FrameRefused.
    """
    place = _place(event.entity.name)
    if place is None:
        raise _refused(f"the name is {shown(event.entity.name)}, expected a stream and a partition")
    if event.value is None:
        raise _refused("there is no content")
    return StreamMessage(*place, published_at(event), ttl, event.revision, previous, event.value)


def published_at(event: Event) -> int:
    """The time of a message, in milliseconds since 1970: its publisher's, or the service's.

    Raises FrameRefused.
    """
    try:
        instant = None if event.headers == _NO_HEADERS else _headers(event.headers).ts
        return milliseconds(event.timestamp) if instant is None else instant
    except msgspec.DecodeError:
        raise _refused(f"the headers are {shown(event.headers.decode(errors='replace'))}") from None
    except ValueError:
        raise _refused(f"the timestamp is {shown(event.timestamp)}") from None


def _refused(why: str) -> FrameRefused:
    return FrameRefused(Fault(400, "streamr:message.invalid", f"Not a message of a stream: {why}"))

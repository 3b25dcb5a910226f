"""Things and policies as streams: their events are messages, and commands on them can be published (Streamr, names).

An event's offset is its revision, so the message before it has the revision before it. The content is the item of a history
in the Ditto protocol, which is to say: `topic`, `headers`, `path`, `value`, `revision` and `timestamp`, the headers being
`content-type` and `historical-headers` alone. `message_of` writes it, `event_of` reads it back.

What is published to a twin is a command of the Ditto protocol on that very twin. It is read by the reader of that protocol,
which is handed in, and `command_of` judges what it makes of it; subscribers see the event that comes of it, not the command.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from mappings.ditto.document import NOT_JSON, is_sound
from mappings.ditto.items import CONTENT_TYPES
from mappings.ditto.wire import cannot_say, json_bytes
from mappings.envelope import Envelope
from mappings.errors import DecodeError, Fault
from mappings.ids import EntityId
from mappings.metadata import without_changes
from mappings.signals import Command, Event, Inbound
from mappings.streamr import faults
from mappings.streamr.faults import About, FrameRefused, RequestRefused
from mappings.streamr.instants import milliseconds
from mappings.streamr.messages import StreamMessage, content_of, text_of
from mappings.streamr.names import Policy, Thing, place_of, stream_of
from mappings.streamr.requests import Publish
from mappings.topic import entity_topic, parse_topic

# --- events -------------------------------------------------------------------------------------------------------------


def message_of(event: Event, *, previous: int | None, ttl: int = 0) -> StreamMessage:
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


class _Headers(msgspec.Struct):
    stored: msgspec.Raw = msgspec.field(name="historical-headers", default=msgspec.Raw(b"{}"))


class _Item(msgspec.Struct):
    topic: str
    path: str
    revision: int
    timestamp: str
    headers: _Headers = msgspec.field(default_factory=_Headers)
    value: msgspec.Raw = msgspec.Raw()


_read_item = msgspec.json.Decoder(_Item).decode


def event_of(message: StreamMessage) -> Event:
    """The event that a message of a twin's stream tells of. Raises FrameRefused for any other content."""
    text = text_of(message.content)
    place = place_of(message.stream)
    try:
        item = _read_item(text)
        topic = parse_topic(item.topic)
    except (*NOT_JSON, DecodeError):
        raise _no_event(message.stream) from None
    actions = [action for action in CONTENT_TYPES if topic.criterion == "events" and topic.action == action]
    is_about = isinstance(place, Thing | Policy) and topic == entity_topic(
        place.entity, place.entity.type.group, "events", topic.action or ""
    )
    if not (actions and is_about and isinstance(place, Thing | Policy) and is_sound(text.encode())):
        raise _no_event(message.stream)
    value = bytes(item.value) if item.value else None
    return Event(place.entity, item.revision, item.timestamp, actions[0], item.path, value, bytes(item.headers.stored))


def _no_event(stream: str) -> FrameRefused:
    return FrameRefused(Fault(400, "streamr:message.invalid", f"Not an event of {faults.shown(stream)}"))


# --- commands -----------------------------------------------------------------------------------------------------------

Read = Callable[[Envelope], Sequence[Inbound]]
"""The reader of the Ditto protocol. Raises DecodeError."""


def command_of(request: Publish, entity: EntityId, read: Read, headers: dict[str, str] | None = None) -> Command:
    """The command that is published to a twin. Raises RequestRefused for anything else, and for one on another twin.

    `headers` are those of the message that brought the request.
    """
    try:
        signals: Sequence[Any] = read(Envelope(request.content.encode(), headers or {}))
    except DecodeError as error:
        raise _no_command(request, error.fault.message) from error
    if len(signals) != 1 or not isinstance(signals[0], Command):
        raise _no_command(request, "Expected is a command on the twin channel.")
    if signals[0].entity != entity:
        raise _no_command(request, "Expected is a command on this very entity.")
    return signals[0]


def _no_command(request: Publish, why: str) -> RequestRefused:
    return RequestRefused(faults.message_not_ditto(request.stream, why), About(request.stream))

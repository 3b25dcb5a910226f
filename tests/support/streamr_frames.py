"""The client side of the Streamr protocol for tests: decodes frames, messages, and events of twins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from mappings.ditto.document import NOT_JSON, is_storable
from mappings.ditto.messages import CONTENT_TYPES
from mappings.errors import DecodeError, Fault
from mappings.model.signals import Event
from mappings.model.topic_path import entity_topic, parse_topic
from mappings.streamr.errors import ErrorSubject, Sub, UnknownVersion, quote
from mappings.streamr.frames import (
    ABOUT_RESEND,
    ABOUT_STREAM,
    CONTROL_LAYER,
    Broadcast,
    Error,
    FrameType,
    StreamrFrame,
    Unicast,
)
from mappings.streams.entry import JSON_CONTENT, VERSIONS, StreamEntry, encode_content
from mappings.streams.stream_id import PolicyStream, ThingStream, parse_stream_id

_decode = msgspec.json.Decoder().decode

_NOT_SUPPORTED = {
    27: "which is binary",
    30: "which has no offsets",
    31: "which has no offsets",
    32: "which has no offsets",
}
"""Unsupported versions of messages, and why."""


def decode_content(content: bytes) -> str:
    """Return the published text."""
    return msgspec.json.decode(content, type=str)


class FrameRefused(DecodeError):
    """The bytes are not a valid frame of the protocol."""


def read_frame(payload: bytes) -> StreamrFrame:
    """Return the frame in these bytes. Raises FrameRefused or UnknownVersion."""
    try:
        items = _decode(payload)
    except NOT_JSON:
        raise _refused("it is not JSON") from None
    if not isinstance(items, list) or len(items) != 4 or not is_storable(payload):
        raise _refused("expected an array of four items")
    layer, number, sub, content = items
    if isinstance(layer, bool) or layer != CONTROL_LAYER:
        fault = Fault(400, "streamr:version.unsupported", f"Unknown control layer: found {quote(layer)}, expected 0")
        raise UnknownVersion(fault)
    if isinstance(number, bool) or not isinstance(number, int) or number not in _READERS:
        raise _refused(f"the type is {quote(number)}, expected 0 to 7")
    return _READERS[FrameType(number)](FrameType(number), sub, content)


def _broadcast(_type: FrameType, _sub: Any, content: Any) -> StreamrFrame:
    return Broadcast(read_message(content))


def _unicast(_type: FrameType, sub: Any, content: Any) -> StreamrFrame:
    return Unicast(_client_id(sub), read_message(content))


def _about_stream(type: FrameType, _sub: Any, content: Any) -> StreamrFrame:
    """Return a frame about a stream; an older service puts an error in a response to `subscribe`."""
    if isinstance(content, dict) and content.get("error"):
        return _error(FrameType.ERROR, None, content)
    return ABOUT_STREAM[type](*_place(content))


def _about_resend(type: FrameType, _sub: Any, content: Any) -> StreamrFrame:
    stream, partition = _place(content)
    return ABOUT_RESEND[type](stream, partition, _client_id(content.get("sub")))


def _error(_type: FrameType, _sub: Any, content: Any) -> StreamrFrame:
    if isinstance(content, str):
        try:
            inner = _decode(content)
        except NOT_JSON:
            inner = None
        if not isinstance(inner, dict) or "error" not in inner:
            return Error(content)
        content = inner
    if not isinstance(content, dict):
        raise _refused(f"the error is {quote(content)}, expected a text or an object")
    text = content.get("error")
    about = ErrorSubject(_of(content, "stream", str), _of(content, "partition", int), _sub_of(content))
    text = text if isinstance(text, str) else ""
    return Error(
        text, _of(content, "status", int), _of(content, "code", str), about, _of(content, "correlationId", str)
    )


_READERS: dict[FrameType, Callable[[FrameType, Any, Any], StreamrFrame]] = {
    FrameType.BROADCAST: _broadcast,
    FrameType.UNICAST: _unicast,
    FrameType.SUBSCRIBED: _about_stream,
    FrameType.UNSUBSCRIBED: _about_stream,
    FrameType.RESENDING: _about_resend,
    FrameType.RESENT: _about_resend,
    FrameType.NO_RESEND: _about_resend,
    FrameType.ERROR: _error,
}


def _place(content: Any) -> tuple[str, int]:
    if isinstance(content, dict):
        stream, partition = _of(content, "stream", str), _of(content, "partition", int)
        if stream is not None and partition is not None:
            return stream, partition
    raise _refused("expected an object with stream and partition")


def _client_id(value: Any) -> Sub:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _refused(f"the sub is {quote(value)}, expected a string or a number")
    return value


def _sub_of(content: Mapping[str, Any]) -> Sub | None:
    value = content.get("sub")
    return value if isinstance(value, str | int | float) and not isinstance(value, bool) else None


def _of(content: Mapping[str, Any], name: str, kind: type) -> Any:
    value = content.get(name)
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


def _refused(why: str) -> FrameRefused:
    return FrameRefused(Fault(400, "streamr:frame.invalid", f"Not a frame: {why}"))


def read_message(items: Any) -> StreamEntry:
    """Return the message in a parsed array. Signatures of version 29 are ignored.

    Raises UnknownVersion for an unsupported version, and FrameRefused for any other problem.
    """
    if not isinstance(items, list) or not items:
        raise _bad_message(f"found {quote(items)}, expected an array")
    version = items[0]
    if isinstance(version, bool) or version not in VERSIONS:
        why = _NOT_SUPPORTED.get(version) if isinstance(version, int) else None
        found = f"{quote(version)}, {why}" if why else quote(version)
        raise UnknownVersion(
            Fault(400, "streamr:version.unsupported", f"Unknown message version: found {found}, expected 28 or 29")
        )
    wanted = 9 if version == 28 else 12
    if len(items) != wanted:
        raise _bad_message(f"found {len(items)} items, version {version} has {wanted}")
    _, stream, partition, timestamp, ttl, offset, previous, content_type, content = items[:9]
    if not isinstance(stream, str):
        raise _bad_message(f"the stream id is {quote(stream)}, expected a string")
    numbers = {"partition": partition, "timestamp": timestamp, "ttl": ttl, "offset": offset}
    if previous is not None:
        numbers["previous offset"] = previous
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int):
            raise _bad_message(f"the {name} is {quote(number)}, expected an integer")
    if content_type != JSON_CONTENT:
        raise _bad_message(f"the content type is {quote(content_type)}, expected {JSON_CONTENT}")
    if not isinstance(content, str):
        raise _bad_message("the content is no string")
    return StreamEntry(stream, partition, timestamp, ttl, offset, previous, encode_content(content))


def _bad_message(why: str) -> FrameRefused:
    return FrameRefused(Fault(400, "streamr:message.invalid", f"Not a stream message: {why}"))


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


def twin_event_of(message: StreamEntry) -> Event:
    """Return the event in a message of a twin's stream. Raises FrameRefused for other content."""
    text = decode_content(message.content)
    stream = parse_stream_id(message.stream)
    try:
        item = _read_item(text)
        topic = parse_topic(item.topic)
    except (*NOT_JSON, DecodeError):
        raise _no_event(message.stream) from None
    actions = [action for action in CONTENT_TYPES if topic.criterion == "events" and topic.action == action]
    is_about = isinstance(stream, ThingStream | PolicyStream) and topic == entity_topic(
        stream.entity, stream.entity.type.group, "events", topic.action or ""
    )
    if not (actions and is_about and isinstance(stream, ThingStream | PolicyStream) and is_storable(text.encode())):
        raise _no_event(message.stream)
    value = bytes(item.value) if item.value else None
    return Event(stream.entity, item.revision, item.timestamp, actions[0], item.path, value, bytes(item.headers.stored))


def _no_event(stream: str) -> FrameRefused:
    return FrameRefused(Fault(400, "streamr:message.invalid", f"Not an event of {quote(stream)}"))

"""Requests of clients: one JSON object each, distinguished by its `type` (Streamr protocol, requests).

`read_request` checks the type of each member. Unknown members are ignored; null is the same as a missing member. Existence
of the stream, its partitions and permissions are checked later. Only the first error is reported, in this order, with the
readable parts of stream, partition and `sub`. A key that is not text is treated as unknown; an empty key is no key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from mappings.ditto.document import NOT_JSON, is_storable
from mappings.errors import Fault
from mappings.ids import EntityId
from mappings.json_values import parse_json
from mappings.streamr import errors
from mappings.streamr.errors import ErrorSubject, RequestRejected, Sub
from mappings.streams.entry import All, EntrySelection, FromTime, Last, OffsetRange
from mappings.streams.stream_id import LAST_PARTITION, LONGEST_STREAM_ID, PolicyStream, ThingStream, parse_stream_id
from mappings.timestamps import EARLIEST, LATEST, milliseconds

MAX_OFFSET = (1 << 53) - 1
"""Offsets stay whole numbers in every client."""

MAX_SUB_LENGTH = 255
"""The longest id of a resend, in bytes of UTF-8: it is repeated in every frame of the resend."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The most bytes of parts of a request, and the most messages of `resend_last`."""

    request: int = 1 << 20
    content: int = 1 << 20
    resend_last: int = 100_000


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish a message to a stream.

    `content` is the text as the client wrote it; `timestamp` in milliseconds, None for the service's own; `key` picks the
    partition, None for any.
    """

    stream: str
    content: str
    timestamp: int | None = None
    key: str | None = None
    auth_key: str | None = None


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """Send everything that is appended from now on."""

    stream: str
    partition: int = 0
    auth_key: str | None = None


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """End a subscription. A `partition` of None: the client named none."""

    stream: str
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class Resend:
    """Send stored messages, under the client's own ID."""

    stream: str
    partition: int
    sub: Sub
    selection: EntrySelection
    auth_key: str | None = None


@dataclass(frozen=True, slots=True)
class Disconnect:
    """The session's client is gone, or soon will be."""


StreamrRequest: TypeAlias = Publish | SubscribeRequest | Unsubscribe | Resend | Disconnect


def twin_of(request: StreamrRequest) -> EntityId | None:
    """Return the thing or policy of a request; None for the operator's own streams."""
    place = None if isinstance(request, Disconnect) else parse_stream_id(request.stream)
    return place.entity if isinstance(place, ThingStream | PolicyStream) else None


_is_json = msgspec.json.Decoder(msgspec.Raw).decode

Members: TypeAlias = Mapping[str, Any]


def read_request(
    payload: bytes, limits: RequestLimits = RequestLimits(), *, accept_non_json: bool = False
) -> StreamrRequest:
    """The request in this message. Raises RequestRejected, and nothing else.

    `accept_non_json` lets published contents be any text that is not empty.
    """
    if len(payload) > limits.request:
        raise RequestRejected(errors.too_large())
    members = _object(payload)
    version = members.get("version")
    if version is not None and (isinstance(version, bool) or version != 0):
        raise RequestRejected(errors.unknown_version(version))
    match members.get("type"):
        case "publish":
            return _publish(members, limits, accept_non_json)
        case "subscribe":
            return _subscribe(members)
        case "unsubscribe":
            return _unsubscribe(members)
        case "resend":
            return _resend(members, limits)
        case "disconnect":
            return Disconnect()
        case type:
            raise RequestRejected(errors.unknown_type(type))


def _object(payload: bytes) -> Members:
    try:
        document = parse_json(payload)
    except NOT_JSON:
        raise RequestRejected(errors.not_an_object()) from None
    if not isinstance(document, dict) or not is_storable(payload):
        raise RequestRejected(errors.not_an_object())
    return document


def _integer(value: Any) -> int | None:
    """A whole number, however it is written: JSON knows one kind of number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not float(value).is_integer():
        return None
    return int(value)


class NoInstant(Exception):
    """A value that is no time of a publisher."""


def _publish(members: Members, limits: RequestLimits, accept_non_json: bool) -> Publish:
    stream = members.get("stream")
    if not isinstance(stream, str) or not stream:
        raise RequestRejected(errors.publish_without_stream())
    if not _is_valid_stream(stream):
        raise RequestRejected(errors.stream_not_found(stream))
    about = ErrorSubject(stream)
    # A twin's events have the service's time, and one partition.
    is_twin = isinstance(parse_stream_id(stream), ThingStream | PolicyStream)
    instant = None if is_twin else _instant(members.get("ts"), about)
    content = _content(members.get("msg"), limits, accept_non_json and not is_twin, about)
    key = None if is_twin else members.get("pkey")
    if key in ("", 0):
        # False too: clients of the protocol choose no partition with it.
        key = None
    if key is not None and not isinstance(key, str):
        raise RequestRejected(errors.key_not_a_string(), about)
    auth_key = _auth_key(members, errors.publish_unauthenticated(stream), about)
    return Publish(stream, content, instant, key, auth_key)


def _instant(value: Any, about: ErrorSubject) -> int | None:
    try:
        return read_instant(value)
    except NoInstant:
        raise RequestRejected(errors.invalid_timestamp(value), about) from None


def _content(value: Any, limits: RequestLimits, is_any_text: bool, about: ErrorSubject) -> str:
    if not isinstance(value, str):
        raise RequestRejected(errors.message_not_a_string(), about)
    if not value:
        raise RequestRejected(errors.message_empty(), about)
    if _size(value) > limits.content:
        raise RequestRejected(errors.too_large(), about)
    if not is_any_text:
        try:
            _is_json(value)
        except NOT_JSON:
            raise RequestRejected(errors.message_not_json(), about) from None
    return value


def _subscribe(members: Members) -> SubscribeRequest:
    stream, partition = _stream(members), _partition(members) or 0
    refusal, about = errors.not_authorized(stream, partition), _about(stream, partition)
    return SubscribeRequest(stream, partition, _auth_key(members, refusal, about))


def _unsubscribe(members: Members) -> Unsubscribe:
    stream, partition = _stream(members), _partition(members)
    if not _is_valid_stream(stream):
        raise RequestRejected(errors.not_subscribed(stream, partition or 0), _about(stream, partition or 0))
    return Unsubscribe(stream, partition)


def _resend(members: Members, limits: RequestLimits) -> Resend:
    readable = _readable_sub(members.get("sub"))
    stream, partition = _stream(members, readable), _partition(members, readable) or 0
    sub = _sub(members.get("sub"), _about(stream, partition))
    refusal, about = errors.resend_forbidden(stream, partition), _about(stream, partition, sub)
    selection = _selection(members, limits, about)
    return Resend(stream, partition, sub, selection, _auth_key(members, refusal, about))


def _size(text: str) -> int:
    """Bytes in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def _stream(members: Members, sub: Sub | None = None) -> str:
    """Return the stream; an error repeats the `sub` of a resend."""
    stream = members.get("stream")
    if not isinstance(stream, str) or not stream:
        raise RequestRejected(errors.without_stream(), ErrorSubject(sub=sub))
    return stream


def _partition(members: Members, sub: Sub | None = None) -> int | None:
    """Return the partition; None if none is named. An error repeats the `sub` of a resend."""
    value = members.get("partition")
    if value is None or value is False or value == "":
        return None
    partition = _integer(value)
    if partition is None or not 0 <= partition <= LAST_PARTITION:
        stream = _stream(members)
        raise RequestRejected(errors.invalid_partition(stream, value), _about(stream, sub=sub))
    return partition


def _is_valid_stream(stream: str) -> bool:
    """Whether this is a valid stream ID."""
    return _size(stream) <= LONGEST_STREAM_ID


def _about(stream: str, partition: int | None = None, sub: Sub | None = None) -> ErrorSubject:
    """Return the subject of an error: no invalid stream ID."""
    return ErrorSubject(stream if _is_valid_stream(stream) else None, partition, sub)


def _auth_key(members: Members, refusal: Fault, about: ErrorSubject) -> str | None:
    """Return the key of a request on a stream; `refusal` for an invalid key or stream."""
    key = None if members.get("authKey") == "" else members.get("authKey")
    if about.stream is None or (key is not None and not isinstance(key, str)):
        raise RequestRejected(refusal, about)
    return key


def _sub(value: Any, about: ErrorSubject) -> Sub:
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
        raise RequestRejected(errors.resend_without_sub(), about)
    if isinstance(value, str) and _size(value) > MAX_SUB_LENGTH:
        raise RequestRejected(errors.limit_exceeded(f"a subscription id has at most {MAX_SUB_LENGTH} bytes"), about)
    return value


def _readable_sub(value: Any) -> Sub | None:
    """Return the `sub` of a resend if it is valid, for errors in the rest of its request."""
    try:
        return _sub(value, ErrorSubject())
    except RequestRejected:
        return None


_SELECTING = ("resend_all", "resend_from", "resend_to", "resend_last", "resend_from_time")


def _selection(members: Members, limits: RequestLimits, about: ErrorSubject) -> EntrySelection:
    """Return the selection of messages: the first option applies, in the order of the protocol."""
    if members.get("resend_all") is True:
        return All()
    selection: EntrySelection | None = None
    if (value := members.get("resend_from")) is not None:
        selection = _range(value, members.get("resend_to"))
    elif (value := members.get("resend_last")) is not None:
        count = _integer(value)
        selection = Last(min(count, limits.resend_last)) if count is not None and count >= 0 else None
    elif (value := members.get("resend_from_time")) is not None:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        selection = FromTime(min(max(math.ceil(value), EARLIEST), LATEST + 1)) if is_number else None
    if selection is None:
        options = {name: members[name] for name in _SELECTING if name in members}
        raise RequestRejected(errors.unknown_resend_options(options), about)
    return selection


def _range(start: Any, end: Any) -> OffsetRange | None:
    """Return an offset range; offsets out of bounds are replaced by the nearest one."""
    first, last = _integer(start), _integer(end)
    if first is None or (end is not None and last is None):
        return None
    return OffsetRange(max(0, min(first, MAX_OFFSET + 1)), None if last is None else max(-1, min(last, MAX_OFFSET)))


_NUMBER = re.compile(r"\s*(?P<whole>[+-]?[0-9]{1,16})(?:\.[0-9]*)?\s*", re.ASCII)
_LONGEST_DATE = 64


def read_instant(value: object) -> int | None:
    """Return milliseconds since 1970; None if there is no time. Raises NoInstant.

    The fraction of a number is cut off; a text is read as a number, else as a date in ISO 8601, in UTC without offset. Zero,
    the empty text, null and false mean no time: the service's own is used, as clients of the protocol expect.
    """
    if value is None or value is False or value == "":
        return None
    if isinstance(value, str):
        return _known(_of_text(value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NoInstant
    return _known(int(value)) if value else None


def _of_text(text: str) -> int:
    if (number := _NUMBER.fullmatch(text)) is not None:
        return int(number["whole"])
    if len(text) > _LONGEST_DATE:
        raise NoInstant
    try:
        return milliseconds(text.strip())
    except ValueError:
        raise NoInstant from None


def _known(instant: int) -> int:
    if not EARLIEST <= instant <= LATEST:
        raise NoInstant
    return instant

"""The eight kinds of server frames: `[0, type, subId, payload]` (Streamr protocol, frame types).

`write_frame` encodes and `read_frame` decodes them. Broadcasts and unicasts of resends contain a message; the others name
stream and partition, those of a resend its `sub` too. Frames for many peers are encoded once: the bytes depend only on the
frame and the peer's `FrameStyle`.

An error has one of three payloads, because clients of the protocol disagree: an object, a bare text, or the object as a
text. All three are decoded, and the two of older services.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, TypeAlias
from urllib.parse import parse_qs

import msgspec

from mappings.ditto.document import NOT_JSON, is_sound
from mappings.errors import Fault
from mappings.model.envelope import Envelope
from mappings.streamr import errors
from mappings.streamr.errors import NOTHING, ErrorSubject, FrameRefused, Sub, UnknownVersion, shown
from mappings.streamr.messages import VERSIONS, StreamMessage, read_message, write_message

CONTENT_TYPE = "application/json"
CONTROL_LAYER = 0

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class FrameType(IntEnum):
    """The type of a frame; the number is in the frame."""

    BROADCAST = 0
    UNICAST = 1
    SUBSCRIBED = 2
    UNSUBSCRIBED = 3
    RESENDING = 4
    RESENT = 5
    NO_RESEND = 6
    ERROR = 7


class ErrorPayload(str, Enum):
    """The form of an error's payload."""

    OBJECT = "object"
    STRING = "string"
    JSON_STRING = "json-string"


@dataclass(frozen=True, slots=True)
class FrameStyle:
    """A peer's form of frames. `filler` replaces a missing `sub`: the empty text, or None for null."""

    version: int = 28
    filler: str | None = ""
    errors: ErrorPayload = ErrorPayload.OBJECT


PLAIN = FrameStyle()


@dataclass(frozen=True, slots=True)
class Broadcast:
    """A message that was appended just now."""

    message: StreamMessage


@dataclass(frozen=True, slots=True)
class Unicast:
    """A message that a resend brings."""

    sub: Sub
    message: StreamMessage


@dataclass(frozen=True, slots=True)
class Subscribed:
    stream: str
    partition: int


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    stream: str
    partition: int


@dataclass(frozen=True, slots=True)
class Resending:
    """A resend has found its first message."""

    stream: str
    partition: int
    sub: Sub


@dataclass(frozen=True, slots=True)
class Resent:
    """A resend that found something has ended."""

    stream: str
    partition: int
    sub: Sub


@dataclass(frozen=True, slots=True)
class NoResend:
    """A resend has found nothing."""

    stream: str
    partition: int
    sub: Sub


@dataclass(frozen=True, slots=True)
class Error:
    """An error. `code` and `status` are those of its fault; None if the sender gave none."""

    text: str
    status: int | None = None
    code: str | None = None
    about: ErrorSubject = NOTHING
    correlation_id: str | None = None


Frame: TypeAlias = Broadcast | Unicast | Subscribed | Unsubscribed | Resending | Resent | NoResend | Error

_ABOUT_STREAM: dict[FrameType, type[Subscribed] | type[Unsubscribed]] = {
    FrameType.SUBSCRIBED: Subscribed,
    FrameType.UNSUBSCRIBED: Unsubscribed,
}
_ABOUT_RESEND: dict[FrameType, type[Resending] | type[Resent] | type[NoResend]] = {
    FrameType.RESENDING: Resending,
    FrameType.RESENT: Resent,
    FrameType.NO_RESEND: NoResend,
}
_TYPES: dict[type, FrameType] = {
    Broadcast: FrameType.BROADCAST,
    Unicast: FrameType.UNICAST,
    Error: FrameType.ERROR,
    **{kind: number for number, kind in (*_ABOUT_STREAM.items(), *_ABOUT_RESEND.items())},
}


def error_of(fault: Fault, about: ErrorSubject = NOTHING, correlation_id: str | None = None) -> Error:
    """The frame that says this fault."""
    return Error(fault.message, fault.status, fault.error, about, correlation_id)


TOO_LARGE = "connectivity:message.toolarge"
"""The service's code for unreadable payloads; this protocol has texts of its own for them."""


def frame_of(fault: Fault, correlation_id: str | None = None) -> Error:
    """Return the frame of an error; members of the fault are its subject."""
    said = errors.too_large() if fault.error == TOO_LARGE else fault
    about = ErrorSubject(**{name: fault.extra[name] for name in ErrorSubject._fields if name in fault.extra})
    return error_of(said, about, correlation_id)


# --- writing ------------------------------------------------------------------------------------------------------------


def write_frame(frame: Frame, style: FrameStyle = PLAIN) -> bytes:
    """Return the bytes of a frame in a peer's style."""
    if isinstance(frame, Unicast):
        # The most frequent case first.
        return unicast(frame.sub, write_message(frame.message, style.version))
    match frame:
        case Broadcast(message):
            return broadcast(write_message(message, style.version), style)
        case Error():
            payload: Any = _error_payload(frame, style.errors)
        case Subscribed(stream, partition) | Unsubscribed(stream, partition):
            payload = {"stream": stream, "partition": partition}
        case Resending(stream, partition, sub) | Resent(stream, partition, sub) | NoResend(stream, partition, sub):
            payload = {"stream": stream, "partition": partition, "sub": sub}
    return _encode([CONTROL_LAYER, _TYPES[type(frame)], style.filler, payload])


def broadcast(message: bytes, style: FrameStyle = PLAIN) -> bytes:
    """Return the frame around an encoded message, for all peers with this style."""
    return b"[0,0,%b,%b]" % (_encode(style.filler), message)


def unicast(sub: Sub, message: bytes) -> bytes:
    """The same for one resend."""
    return b"[0,1,%b,%b]" % (_encode(sub), message)


def _error_payload(frame: Error, shape: ErrorPayload) -> Any:
    if shape is ErrorPayload.STRING:
        return frame.text
    if shape is ErrorPayload.JSON_STRING:
        return _encode({"error": frame.text}).decode()
    members = {
        "error": frame.text,
        "status": frame.status,
        "code": frame.code,
        **frame.about._asdict(),
        "correlationId": frame.correlation_id,
    }
    return {name: value for name, value in members.items() if value is not None}


def envelope(
    payload: bytes, type: FrameType, *, session: str | None = None, correlation_id: str | None = None
) -> Envelope:
    """Return a frame as a message of a broker.

    The headers are optional in the protocol; a broadcast answers no request.
    """
    headers: dict[str, str] = {"content-type": CONTENT_TYPE, "streamr-type": str(int(type))}
    if session is not None:
        headers["streamr-session"] = session
    if correlation_id is not None and type is not FrameType.BROADCAST:
        headers["correlation-id"] = correlation_id
    return Envelope(payload, headers)


def type_of(frame: Frame) -> FrameType:
    return _TYPES[type(frame)]


# --- reading ------------------------------------------------------------------------------------------------------------


def read_frame(payload: bytes) -> Frame:
    """The frame in these bytes. Raises FrameRefused or UnknownVersion."""
    try:
        items = _decode(payload)
    except NOT_JSON:
        raise _refused("it is not JSON") from None
    if not isinstance(items, list) or len(items) != 4 or not is_sound(payload):
        raise _refused("expected an array of four items")
    layer, number, sub, said = items
    if isinstance(layer, bool) or layer != CONTROL_LAYER:
        fault = Fault(400, "streamr:version.unsupported", f"Unknown control layer: found {shown(layer)}, expected 0")
        raise UnknownVersion(fault)
    if isinstance(number, bool) or not isinstance(number, int) or number not in _READERS:
        raise _refused(f"the type is {shown(number)}, expected 0 to 7")
    return _READERS[FrameType(number)](FrameType(number), sub, said)


def _broadcast(_type: FrameType, _sub: Any, said: Any) -> Frame:
    return Broadcast(read_message(said))


def _unicast(_type: FrameType, sub: Any, said: Any) -> Frame:
    return Unicast(_client_id(sub), read_message(said))


def _about_stream(type: FrameType, _sub: Any, said: Any) -> Frame:
    """An older service says in an answer to `subscribe` that it failed."""
    if isinstance(said, dict) and said.get("error"):
        return _error(FrameType.ERROR, None, said)
    return _ABOUT_STREAM[type](*_place(said))


def _about_resend(type: FrameType, _sub: Any, said: Any) -> Frame:
    stream, partition = _place(said)
    return _ABOUT_RESEND[type](stream, partition, _client_id(said.get("sub")))


def _error(_type: FrameType, _sub: Any, said: Any) -> Frame:
    if isinstance(said, str):
        try:
            inner = _decode(said)
        except NOT_JSON:
            inner = None
        if not isinstance(inner, dict) or "error" not in inner:
            return Error(said)
        said = inner
    if not isinstance(said, dict):
        raise _refused(f"the error is {shown(said)}, expected a text or an object")
    text = said.get("error")
    about = ErrorSubject(_of(said, "stream", str), _of(said, "partition", int), _sub_of(said))
    text = text if isinstance(text, str) else ""
    return Error(text, _of(said, "status", int), _of(said, "code", str), about, _of(said, "correlationId", str))


_READERS: dict[FrameType, Callable[[FrameType, Any, Any], Frame]] = {
    FrameType.BROADCAST: _broadcast,
    FrameType.UNICAST: _unicast,
    FrameType.SUBSCRIBED: _about_stream,
    FrameType.UNSUBSCRIBED: _about_stream,
    FrameType.RESENDING: _about_resend,
    FrameType.RESENT: _about_resend,
    FrameType.NO_RESEND: _about_resend,
    FrameType.ERROR: _error,
}


def _place(said: Any) -> tuple[str, int]:
    if isinstance(said, dict):
        stream, partition = _of(said, "stream", str), _of(said, "partition", int)
        if stream is not None and partition is not None:
            return stream, partition
    raise _refused("expected an object with stream and partition")


def _client_id(value: Any) -> Sub:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _refused(f"the sub is {shown(value)}, expected a string or a number")
    return value


def _sub_of(said: Mapping[str, Any]) -> Sub | None:
    value = said.get("sub")
    return value if isinstance(value, str | int | float) and not isinstance(value, bool) else None


def _of(said: Mapping[str, Any], name: str, kind: type) -> Any:
    value = said.get(name)
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


def _refused(why: str) -> FrameRefused:
    return FrameRefused(Fault(400, "streamr:frame.invalid", f"Not a frame: {why}"))


CONTROL = "controlLayerVersion"
MESSAGE = "messageLayerVersion"
HEADER = "streamr-version"
"""The header of a peer's requests that says which version of messages it has asked for."""

_DIGITS = 4
_MOST_MEMBERS = 100


def message_version(query: str) -> int:
    """The version of the messages that this peer is sent.

    Raises UnknownVersion for a pair that is not spoken.
    """
    try:
        members: Mapping[str, Sequence[str]] = parse_qs(query, max_num_fields=_MOST_MEMBERS)
    except ValueError:
        raise _unknown("too many query parameters") from None
    if CONTROL not in members or MESSAGE not in members:
        return VERSIONS[0]
    control, message = members[CONTROL][-1], members[MESSAGE][-1]
    if _number(control) != CONTROL_LAYER or (version := _number(message)) not in VERSIONS:
        raise _unknown(f"{shown(control)} and {shown(message)}")
    return version


def version_in(headers: Mapping[str, str]) -> int | None:
    """Return the version of messages that the headers of a request ask for; None for unsupported ones."""
    version = _number(headers.get(HEADER, ""))
    return version if version in VERSIONS else None


def _number(text: str) -> int | None:
    return int(text) if len(text) <= _DIGITS and text.isascii() and text.isdecimal() else None


def _unknown(found: str) -> UnknownVersion:
    message = f"Unknown versions of control layer and messages: found {found}, expected 0 and 28, or 0 and 29"
    return UnknownVersion(Fault(400, "streamr:version.unsupported", message))

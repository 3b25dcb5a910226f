"""The eight kinds of server frames: `[0, type, subId, payload]` (Streamr protocol, frame types).

`write_frame` encodes them. Broadcasts and unicasts of resends contain a message; the others name stream and partition,
those of a resend its `sub` too. Frames for many peers are encoded once: the bytes depend only on the frame and the peer's
`FrameStyle`. An error has one of three payloads, because clients of the protocol disagree: an object, a bare text, or the
object as a text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, TypeAlias

import msgspec

from mappings.errors import Fault
from mappings.model.envelope import Envelope
from mappings.streamr import errors
from mappings.streamr.errors import NOTHING, ErrorSubject, Sub, UnknownVersion, quote
from mappings.streams.entry import VERSIONS, StreamEntry, encode_entry

CONTENT_TYPE = "application/json"
CONTROL_LAYER = 0

_encode = msgspec.json.Encoder().encode


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

    message: StreamEntry


@dataclass(frozen=True, slots=True)
class Unicast:
    """A message that a resend brings."""

    sub: Sub
    message: StreamEntry


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


StreamrFrame: TypeAlias = Broadcast | Unicast | Subscribed | Unsubscribed | Resending | Resent | NoResend | Error

ABOUT_STREAM: dict[FrameType, type[Subscribed] | type[Unsubscribed]] = {
    FrameType.SUBSCRIBED: Subscribed,
    FrameType.UNSUBSCRIBED: Unsubscribed,
}
ABOUT_RESEND: dict[FrameType, type[Resending] | type[Resent] | type[NoResend]] = {
    FrameType.RESENDING: Resending,
    FrameType.RESENT: Resent,
    FrameType.NO_RESEND: NoResend,
}
_TYPES: dict[type, FrameType] = {
    Broadcast: FrameType.BROADCAST,
    Unicast: FrameType.UNICAST,
    Error: FrameType.ERROR,
    **{kind: number for number, kind in (*ABOUT_STREAM.items(), *ABOUT_RESEND.items())},
}


def error_of(fault: Fault, about: ErrorSubject = NOTHING, correlation_id: str | None = None) -> Error:
    """The frame that says this fault."""
    return Error(fault.message, fault.status, fault.error, about, correlation_id)


TOO_LARGE = "connectivity:message.toolarge"
"""The service's code for unreadable payloads; this protocol has texts of its own for them."""


def fault_frame(fault: Fault, correlation_id: str | None = None) -> Error:
    """Return the frame of an error; members of the fault are its subject."""
    content = errors.too_large() if fault.error == TOO_LARGE else fault
    about = ErrorSubject(**{name: fault.extra[name] for name in ErrorSubject._fields if name in fault.extra})
    return error_of(content, about, correlation_id)


def write_frame(frame: StreamrFrame, style: FrameStyle = PLAIN) -> bytes:
    """Return the bytes of a frame in a peer's style."""
    if isinstance(frame, Unicast):
        # The most frequent case first.
        return unicast(frame.sub, encode_entry(frame.message, style.version))
    match frame:
        case Broadcast(message):
            return broadcast(encode_entry(message, style.version), style)
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


def type_of(frame: StreamrFrame) -> FrameType:
    return _TYPES[type(frame)]


CONTROL = "controlLayerVersion"
MESSAGE = "messageLayerVersion"
HEADER = "streamr-version"
"""The header of a peer's requests that says which version of messages it has asked for."""

_DIGITS = 4


def message_version(query: Mapping[str, str]) -> int | None:
    """Return the version of messages that a client requests with the parameters of its opening request.

    None unless it names both versions. Raises UnknownVersion for an unsupported pair.
    """
    if CONTROL not in query or MESSAGE not in query:
        return None
    if _number(query[CONTROL]) != CONTROL_LAYER or (version := _number(query[MESSAGE])) not in VERSIONS:
        raise _unknown(f"{quote(query[CONTROL])} and {quote(query[MESSAGE])}")
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

"""Arguments and results of mapping scripts (Ditto connections, payload mapping, JavaScript).

The incoming script gets the parts of a message and returns messages of the Ditto protocol, which the Ditto codec decodes.
The outgoing script gets a message of the Ditto codec, and returns messages for the broker. A script may return nothing, one
or several; an unreadable one fails the whole message. A direction without a script uses the Ditto codec alone. Pure: the
script host runs the scripts, and its results are not trusted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from mappings.errors import DecodeError, EncodeError, Fault, mapping_failed
from mappings.model.envelope import Envelope, from_utf8, parse_content_type
from mappings.options import FAILED, InvalidMapperOption, OptionProblem

INCOMING, OUTGOING = "incomingScript", "outgoingScript"
"""The options that hold scripts."""

MAX_SCRIPT = 50_000
"""Bytes of one script."""

MAX_MESSAGES = 10
"""The most messages of one message."""

_BROKER_PREFIXES = ("mqtt.", "kafka.")
"""Prefixes of headers that instruct a broker: the reply-target's header mapping sets those."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Scripts:
    """The scripts of a definition; empty if a direction has none. `libraries`: `long`, `bytebuffer`."""

    incoming: str = ""
    outgoing: str = ""
    libraries: tuple[str, ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the sources to load, in order: both scripts share a scope, as in the reference."""
        return tuple(script for script in (self.incoming, self.outgoing) if script)


def script(value: object) -> str:
    """Read a script of an option; a blank one is none."""
    if not isinstance(value, str):
        raise InvalidMapperOption(OptionProblem((), value, "a string"))
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidMapperOption(OptionProblem((), value, "text without unpaired surrogates", FAILED)) from error
    if size > MAX_SCRIPT:
        raise InvalidMapperOption(
            OptionProblem((), value, f"at most {MAX_SCRIPT} bytes", FAILED, f"a script of {size} bytes")
        )
    return value if value.strip() else ""


class _Message(msgspec.Struct, rename="camel"):
    """The argument of an incoming script.

    `binary` is base64; `text` is decoded by the charset of the content type, with U+FFFD for invalid bytes.
    """

    headers: Mapping[str, str]
    text: str
    binary: bytes
    content_type: str | None


class _External(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """A result of an outgoing script, as the script host returns it."""

    headers: dict[str, str]
    content_type: str | None
    text: str | None
    binary: bytes | None


_encode = msgspec.json.Encoder().encode
_decode_raw = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_external = msgspec.json.Decoder(list[_External]).decode

_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


def incoming_argument(envelope: Envelope) -> str:
    """Return the argument of the incoming script as JSON."""
    payload = envelope.payload
    message = _Message(
        dict(envelope.headers), envelope.utf8().decode("utf-8", "replace"), payload, envelope.header("content-type")
    )
    return _encode(message).decode()


def incoming_envelopes(results: str, envelope: Envelope) -> Sequence[Envelope]:
    """Return the result of the incoming script for the Ditto codec. Raises DecodeError."""
    try:
        messages = _decode_raw(results)
    except _UNREADABLE:
        raise DecodeError(
            script_failed("the script's result cannot be decoded; a string may have an unpaired surrogate")
        ) from None
    if len(messages) > MAX_MESSAGES:
        raise DecodeError(_too_many(len(messages)))
    return [Envelope(bytes(message), envelope.headers) for message in messages]


def outgoing_argument(envelope: Envelope) -> str:
    """Return the argument of the outgoing script: a message of the Ditto codec."""
    return envelope.payload.decode()


def outgoing_envelopes(results: str) -> Sequence[Envelope]:
    """Return the messages that the outgoing script has made. Raises EncodeError."""
    try:
        messages = _decode_external(results)
    except _UNREADABLE:
        raise EncodeError(
            script_failed("the script's result cannot be decoded; a string may have an unpaired surrogate")
        ) from None
    if len(messages) > MAX_MESSAGES:
        raise EncodeError(_too_many(len(messages)))
    return [_envelope(message) for message in messages]


def _envelope(message: _External) -> Envelope:
    headers = {name: text for name, text in message.headers.items() if not name.lower().startswith(_BROKER_PREFIXES)}
    if message.content_type is not None:
        headers = {name: text for name, text in headers.items() if name.lower() != "content-type"}
        headers["content-type"] = message.content_type
    for name, text in headers.items():
        if not name or _CONTROL.search(name) or _CONTROL.search(text):
            raise EncodeError(script_failed(f"the header {name[:40]!r} has no name or contains control characters"))
    envelope = Envelope(message.binary if message.binary is not None else (message.text or "").encode(), headers)
    if message.binary is not None or (content_type := envelope.header("content-type")) is None:
        return envelope
    return Envelope(from_utf8(envelope.payload, parse_content_type(content_type)), headers)


def script_failed(reason: str) -> Fault:
    """The fault of a message that its script did not map."""
    return mapping_failed(f"The message could not be mapped: {reason}.", "Check the message, or the mapping script.")


def _too_many(count: int) -> Fault:
    return script_failed(f"the script produced {count} messages, more than the limit of {MAX_MESSAGES}")

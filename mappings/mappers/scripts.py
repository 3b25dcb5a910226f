"""Payload mapping by scripts: what a definition says, what a script is given, what may come back (Ditto connections,
payload mapping, JavaScript).

Incoming, a script gets the message in parts and returns messages of the Ditto protocol; the Ditto codec reads them, so
everything that it refuses is refused here too. Outgoing, it gets a message of the Ditto protocol, as the Ditto codec has
written it, and returns messages as a broker carries them. Nothing, one or several may be returned; one that cannot be read
fails the whole message. A direction without a script is mapped by the Ditto codec alone.

Pure: who runs the scripts, and where, is the caller's business. What comes back from there is not trusted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from mappings.errors import DecodeError, EncodeError, Fault, mapping_failed
from mappings.model.envelope import Envelope
from mappings.options import FAILED, OptionProblem, OptionRefused

INCOMING, OUTGOING = "incomingScript", "outgoingScript"
"""The options that hold scripts."""

MAX_SCRIPT = 50_000
"""Bytes of one script."""

MAX_MESSAGES = 10
"""What one message may become."""

_BROKERS_OWN = ("mqtt.", "kafka.")
"""How headers begin that tell a broker what to do with a message: the reply-target's header mapping decides on those."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Scripts:
    """The scripts of a definition; empty where a direction has none. `libraries`: `long`, `bytebuffer`."""

    incoming: str = ""
    outgoing: str = ""
    libraries: tuple[str, ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        """What is loaded, in order: both scripts share a scope, as in the reference."""
        return tuple(script for script in (self.incoming, self.outgoing) if script)


def script(value: object) -> str:
    """A script as an option holds it; a blank one is none."""
    if not isinstance(value, str):
        raise OptionRefused(OptionProblem((), value, "a string"))
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise OptionRefused(OptionProblem((), value, "text without halves of characters", FAILED)) from error
    if size > MAX_SCRIPT:
        raise OptionRefused(
            OptionProblem((), value, f"at most {MAX_SCRIPT} bytes", FAILED, f"a script of {size} bytes")
        )
    return value if value.strip() else ""


class _Message(msgspec.Struct, rename="camel"):
    """What an incoming script is given.

    `binary` is written as base64, `text` as UTF-8 says, U+FFFD where it is none.
    """

    headers: Mapping[str, str]
    text: str
    binary: bytes
    content_type: str | None


class _External(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """What an outgoing script returns, in the form that the script's surroundings bring it into."""

    headers: dict[str, str]
    content_type: str | None
    text: str | None
    binary: bytes | None


_encode = msgspec.json.Encoder().encode
_decode_raw = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_external = msgspec.json.Decoder(list[_External]).decode

_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


def incoming_argument(envelope: Envelope) -> str:
    """What the incoming script is called with, as JSON."""
    payload = envelope.payload
    message = _Message(
        dict(envelope.headers), payload.decode("utf-8", "replace"), payload, envelope.header("content-type")
    )
    return _encode(message).decode()


def incoming_envelopes(results: str, envelope: Envelope) -> Sequence[Envelope]:
    """What the incoming script made of `envelope`, for the Ditto codec to read. Raises DecodeError."""
    try:
        messages = _decode_raw(results)
    except _UNREADABLE:
        raise DecodeError(script_failed("the result cannot be read, such as text with half a character")) from None
    if len(messages) > MAX_MESSAGES:
        raise DecodeError(_too_many(len(messages)))
    return [Envelope(bytes(message), envelope.headers) for message in messages]


def outgoing_argument(envelope: Envelope) -> str:
    """What the outgoing script is called with: the message that the Ditto codec has written."""
    return envelope.payload.decode()


def outgoing_envelopes(results: str) -> Sequence[Envelope]:
    """What the outgoing script made of a message. Raises EncodeError."""
    try:
        messages = _decode_external(results)
    except _UNREADABLE:
        raise EncodeError(script_failed("the result cannot be read, such as text with half a character")) from None
    if len(messages) > MAX_MESSAGES:
        raise EncodeError(_too_many(len(messages)))
    return [_envelope(message) for message in messages]


def _envelope(message: _External) -> Envelope:
    headers = {name: text for name, text in message.headers.items() if not name.lower().startswith(_BROKERS_OWN)}
    if message.content_type is not None:
        headers = {name: text for name, text in headers.items() if name.lower() != "content-type"}
        headers["content-type"] = message.content_type
    for name, text in headers.items():
        if not name or _CONTROL.search(name) or _CONTROL.search(text):
            raise EncodeError(script_failed(f"the header {name[:40]!r} holds control characters"))
    payload = message.binary if message.binary is not None else (message.text or "").encode()
    return Envelope(payload, headers)


def script_failed(reason: str) -> Fault:
    """The fault of a message that its script did not map."""
    return mapping_failed(f"The message could not be mapped: {reason}.", "Check the message, or the mapping script.")


def _too_many(count: int) -> Fault:
    return script_failed(f"the script produced {count} messages, which exceeds the limit of {MAX_MESSAGES}")

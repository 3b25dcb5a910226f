"""RawMessage: live messages as bare payloads, for devices that do not use the Ditto protocol.

Transport headers give thing, direction and subject of the message. A payload of the Ditto protocol's content type is read by
its codec, and signals other than live messages are written by it. The value of a message is JSON text: JSON as it is, text
as a string, everything else in Base64, as the Ditto protocol has it.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mappings.ditto import errors
from mappings.ditto.document import NOT_JSON, is_storable
from mappings.ditto.live import validate_payload, validate_subject
from mappings.ditto.messages import MESSAGE, json_bytes
from mappings.errors import DecodeError, EncodeError, mapping_failed
from mappings.ids import EntityId, EntityType, parse_entity_id
from mappings.json_values import MAX_NESTING, nesting, parse_json
from mappings.mappers.base import HONO_NOTIFICATIONS, Answers, Codec, TemplateMapper, blocklist
from mappings.mappers.ditto import CODEC as DITTO
from mappings.model.envelope import ContentType, Envelope, from_utf8, parse_content_type, to_utf8
from mappings.model.headers import normalize
from mappings.model.json_pointer import format_pointer
from mappings.model.signals import Inbound, Message, MessageResponse, Outbound
from mappings.options import Option, templates, text
from mappings.placeholders.header_mapping import HeaderMapping
from mappings.placeholders.template import Scope
from mappings.placeholders.values import PlaceholderContext
from mappings.texts import shorten

CONTENT_TYPE = "content-type"
THING = "ditto-message-thing-id"
SUBJECT = "ditto-message-subject"
DIRECTION = "ditto-message-direction"
FEATURE = "ditto-message-feature-id"
STATUS = "status"

BINARY = "application/octet-stream"
"""The content type of a payload that has none."""

INCOMING = {
    DIRECTION: f"{{{{ header:{DIRECTION} | fn:default('TO') }}}}",
    **{name: f"{{{{ header:{name} }}}}" for name in (CONTENT_TYPE, THING, SUBJECT, FEATURE, STATUS)},
}
"""The default headers of a message's parts."""

_STATUS = re.compile(r"[1-5][0-9]{2}", re.ASCII)
_BOXES = {"to": "inbox", "from": "outbox"}


class RawMessageCodec(TemplateMapper):
    """Live messages as bare payloads, described by transport headers.

    A payload becomes the value of a message. The headers `ditto-message-thing-id` (the thing) and `ditto-message-subject`
    are required. With `ditto-message-feature-id` the message belongs to a feature, with `ditto-message-direction: FROM` it
    comes from the thing, and with `status` it is a response. The mapper keeps text and JSON, and encodes other content
    types in Base64. A payload without a content type gets `application/octet-stream`. The mapper writes messages and their
    responses in the same way, with these headers and `correlation-id`. The mapper `Ditto` reads payloads of the type
    `application/vnd.eclipse.ditto+json`, and writes signals other than live messages.
    """

    options = (
        Option(
            "outgoingContentType",
            text,
            "The content type of a message that has none.",
            "application/octet-stream",
            "text/plain; charset=UTF-8",
        ),
        Option(
            "incomingMessageHeaders",
            templates,
            "Headers of incoming messages: an object of names and templates. By default, `content-type`, `status` "
            "and the four `ditto-message-…` headers are read from the transport headers of the same names.",
            {SUBJECT: "{{ header:kind | fn:default('reading') }}", THING: "acme.depot:{{ header:device }}"},
        ),
        blocklist(*HONO_NOTIFICATIONS),
    )
    answers = Answers.READ
    reads_headers = frozenset(INCOMING)

    def use(self, options: Mapping[str, Any]) -> None:
        own: HeaderMapping | None = options.get("incomingMessageHeaders")
        written = {name.lower(): template for name, template in own.mapping.items()} if own else {}
        self._incoming = HeaderMapping({**INCOMING, **written}, Scope.MAPPER)
        self._fallback: str = options["outgoingContentType"]

    def decode_with(self, envelope: Envelope, session: Any, context: PlaceholderContext) -> Sequence[Inbound]:  # noqa: ARG002
        found = self._incoming.apply(context)
        # The type of a payload in Base64, by which the receiver decodes it.
        found[CONTENT_TYPE] = found.get(CONTENT_TYPE) or BINARY
        content_type = parse_content_type(found[CONTENT_TYPE])
        if content_type.media_type == MESSAGE:
            if not envelope.payload:
                raise DecodeError(errors.not_json(b""))
            return DITTO.decode(envelope, None)
        try:
            return (_message(found, envelope.payload, content_type),)
        except DecodeError as error:
            if error.entity is None:
                error.entity = parse_entity_id(EntityType.THING, found.get(THING, ""))
            error.channel = "live"
            raise

    def encode(self, signal: Outbound, session: Any) -> Sequence[Envelope]:  # noqa: ARG002
        if not isinstance(signal, Message | MessageResponse):
            return DITTO.encode(signal, None)
        written = str(signal.headers.get(CONTENT_TYPE) or self._fallback)
        content_type = parse_content_type(written)
        if content_type.media_type == MESSAGE:
            return DITTO.encode(signal, None)
        headers = {
            CONTENT_TYPE: written,
            THING: signal.entity.id,
            SUBJECT: signal.subject,
            DIRECTION: signal.direction.upper(),
        }
        match signal.path.split("/", 3):
            case ["", "features", feature, _]:
                headers[FEATURE] = feature.replace("~0", "~")
        if isinstance(signal, MessageResponse):
            headers[STATUS] = str(signal.status)
        if (correlation_id := signal.headers.get("correlation-id")) is not None:
            headers["correlation-id"] = str(correlation_id)
        return (Envelope(_bytes(signal.value, content_type), headers),)


def _message(found: Mapping[str, str], payload: bytes, content_type: ContentType) -> Message | MessageResponse:
    entity = _entity(found)
    subject = found.get(SUBJECT)
    if not subject:
        raise _missing(SUBJECT)
    validate_subject(subject)
    if "//" in f"/{subject}/":
        raise _invalid_header(SUBJECT, subject, "a subject without empty parts between slashes")
    direction = found.get(DIRECTION, "").lower()
    if direction not in _BOXES:
        raise _invalid_header(DIRECTION, direction, "TO or FROM")
    headers = normalize({name: value for name, value in found.items() if name not in _PARTS}, mapped=True)
    feature = found.get(FEATURE)
    if feature and "/" in feature:
        raise _invalid_header(FEATURE, feature, "the ID of a feature, without slashes")
    place = format_pointer(("features", feature)) if feature else ""
    path = f"{place}/{_BOXES[direction]}/messages/{subject}"
    value = validate_payload(_value(payload, content_type))
    if (status := found.get(STATUS)) is None:
        return Message(entity, direction, subject, path, value, headers)
    return MessageResponse(entity, direction, subject, path, _status(status), value, headers)


_PARTS = frozenset({THING, SUBJECT, DIRECTION, FEATURE, STATUS})
"""Headers that become parts of a message."""


def _entity(found: Mapping[str, str]) -> EntityId:
    id = found.get(THING)
    if not id:
        raise _missing(THING)
    entity = parse_entity_id(EntityType.THING, id)
    if entity is None:
        raise DecodeError(errors.invalid_id("things", id))
    return entity


def _status(text: str) -> int:
    if not _STATUS.fullmatch(text):
        raise _invalid_header(STATUS, text, "a status from 100 to 599")
    return int(text)


def _missing(name: str) -> DecodeError:
    return DecodeError(
        mapping_failed(
            f"A raw message needs the header '{name}', found none.",
            "Send this header with the payload, or set its template in 'incomingMessageHeaders'.",
        )
    )


def _invalid_header(name: str, found: str, expected: str) -> DecodeError:
    return DecodeError(mapping_failed(f"The header '{name}' is '{shorten(found)}', expected {expected}."))


def _value(payload: bytes, content_type: ContentType) -> bytes | None:
    """Return a payload as JSON text; None if it is empty."""
    if not payload:
        return None
    if content_type.is_json:
        return _json(to_utf8(payload, content_type))
    if not content_type.is_text:
        return json_bytes(base64.b64encode(payload).decode("ascii"))
    try:
        return json_bytes(payload.decode(content_type.charset))
    except (UnicodeError, LookupError, EncodeError) as error:
        message = f"The payload cannot be read as text in {content_type.charset}."
        raise DecodeError(mapping_failed(message)) from error


def _json(payload: bytes) -> bytes:
    try:
        value = msgspec.json.format(payload, indent=-1)
        parse_json(value)
    except NOT_JSON:
        raise DecodeError(errors.not_json(payload)) from None
    # A whole message has one level more than its value.
    if not is_storable(payload) or nesting(payload) > MAX_NESTING:
        raise DecodeError(errors.not_json(payload))
    return bytes(value)


def _bytes(value: bytes | None, content_type: ContentType) -> bytes:
    """Return the bare payload of a message with this JSON value."""
    if value is None:
        return b""
    if content_type.is_json:
        return from_utf8(value, content_type)
    parsed = parse_json(value)
    if not isinstance(parsed, str):
        return value
    if content_type.is_text:
        try:
            return parsed.encode(content_type.charset)
        except (UnicodeError, LookupError):
            return parsed.encode()
    try:
        return base64.b64decode(parsed, validate=True)
    except (binascii.Error, ValueError):
        return parsed.encode()


CODEC: Codec = RawMessageCodec()

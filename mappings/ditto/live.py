"""The live channel and acknowledgements (Ditto protocol, live channel).

The topic gives the kind of signal, and `status` distinguishes responses. A message's path has its direction, `inbox` (to the
thing) or `outbox` (from it), perhaps of a feature; its subject is in topic and path, which must agree, since permissions are
checked for the path. Acknowledgements of several labels come in one message and become several signals.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from mappings.ditto import errors
from mappings.ditto.document import DittoMessage as Document
from mappings.ditto.document import compact
from mappings.ditto.paths import RESOURCES
from mappings.errors import DecodeError, UnknownPath
from mappings.ids import MAX_ID_LENGTH, EntityId, is_label, utf16_length
from mappings.json_values import decode_value, encode_value
from mappings.model.headers import readable
from mappings.model.json_pointer import format_pointer, parse_pointer
from mappings.model.signals import (
    MAX_SIGNALS,
    Acknowledgement,
    Headers,
    Inbound,
    LiveCommand,
    LiveEvent,
    LiveResponse,
    Message,
    MessageResponse,
)
from mappings.model.topic_path import TopicPath, unknown_topic
from mappings.texts import shorten

MAX_MESSAGE_PAYLOAD = 256_000
"""The most bytes that the value of a message may have."""

_DIRECTIONS = {"inbox": "to", "outbox": "from"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_TWIN_ACTIONS = {"created": "create", "modified": "modify", "merged": "merge", "deleted": "delete"}
"""Event action → the action that its path must allow."""


def read_live(document: Document, topic: TopicPath, entity: EntityId, headers: Headers) -> Sequence[Inbound]:
    """The signal of a message on the live channel. Raises DecodeError."""
    if topic.criterion == "messages":
        return (_message(document, topic, entity, headers),)
    if topic.action is None or entity.name == "_":
        raise unknown_topic(document.topic)
    is_event = topic.criterion == "events"
    place = RESOURCES[entity.type](document.path)
    if (_TWIN_ACTIONS.get(topic.action) if is_event else topic.action) not in place.actions:
        raise unknown_topic(document.topic)
    value = compact(document.value) if document.value else None
    if is_event:
        return (LiveEvent(entity, topic.action, place.path, value, headers),)
    if (status := status_of(document.status)) is not None:
        return (LiveResponse(entity, topic.action, place.path, status, value, headers),)
    return (LiveCommand(entity, topic.action, place.path, value, headers, document.fields),)


def read_acknowledgements(
    document: Document, topic: TopicPath, entity: EntityId, headers: Headers
) -> Sequence[Acknowledgement]:
    """Return one or several acknowledgements. Raises DecodeError."""
    channel = topic.channel or "twin"
    if topic.subject is None:
        return [
            Acknowledgement(entity, *part, channel=channel)
            for part in _members(decode_value(bytes(document.value)) if document.value else None, headers)
        ]
    status = status_of(document.status)
    if status is None:
        raise DecodeError(errors.field_missing("status"))
    value = compact(document.value) if document.value else None
    return (Acknowledgement(entity, _validate_label(topic.subject), status, value, headers, channel),)


def status_of(value: Any) -> int | None:
    """Return the status of a response, in any spelling of its number; None for a value that is no status."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and 100 <= value <= 599 and value == int(value) else None


def validate_subject(subject: str) -> str:
    """The subject of a message, whatever it was written in. Raises DecodeError."""
    if not subject or _CONTROL.search(subject) is not None or utf16_length(subject) > MAX_ID_LENGTH:
        raise DecodeError(errors.invalid_subject(subject))
    return subject


def validate_payload(value: bytes | None) -> bytes | None:
    """The value of a message as JSON text, whatever it was written in. Raises DecodeError."""
    if value is not None and len(value) > MAX_MESSAGE_PAYLOAD:
        raise DecodeError(errors.too_large_payload(len(value), MAX_MESSAGE_PAYLOAD))
    return value


def _message(document: Document, topic: TopicPath, entity: EntityId, headers: Headers) -> Message | MessageResponse:
    subject = validate_subject(topic.subject or "")
    direction, path = _place(document.path, subject)
    value = validate_payload(compact(document.value) if document.value else None)
    status = status_of(document.status)
    if status is None:
        return Message(entity, direction, subject, path, value, headers)
    return MessageResponse(entity, direction, subject, path, status, value, headers)


def _place(path: str, subject: str) -> tuple[str, str]:
    """Return the direction in a message's path, and the path as it is written.

    Raises DecodeError: `json.pointer.invalid`, or UnknownPath.
    """
    parse_pointer(path)  # the subject is a part of the pointer too
    box, _, own = path.removeprefix("/").removesuffix("/").partition("/messages/")
    if own == subject:
        match parse_pointer(box):
            case (name,) if name in _DIRECTIONS:
                return _DIRECTIONS[name], f"/{name}/messages/{subject}"
            case ("features", feature, name) if name in _DIRECTIONS:
                return _DIRECTIONS[name], f"{format_pointer(('features', feature, name))}/messages/{subject}"
    raise UnknownPath(errors.unknown_path(path))


def _members(value: Any, headers: Headers) -> list[tuple[str, int, bytes | None, Headers]]:
    """Label, status, value and headers of each of several acknowledgements. Raises DecodeError."""
    if not isinstance(value, dict):
        raise DecodeError(errors.not_convertible(value, "an object"))
    found: list[tuple[str, int, bytes | None, Headers]] = []
    for label, members in value.items():
        for member in members if isinstance(members, list) else [members]:
            if not isinstance(member, dict):
                raise DecodeError(errors.not_convertible(member, "an object"))
            status, own = status_of(member.get("status")), member.get("headers")
            if status is None:
                raise DecodeError(errors.wrong_type(f"{shorten(label)}/status", member.get("status"), "Integer"))
            payload = encode_value(member["payload"]) if "payload" in member else None
            merged = headers
            # Further ones are not read with their own headers: the message is refused, and each copy may be large.
            if isinstance(own, dict) and len(found) < MAX_SIGNALS:
                merged = readable({**headers, **readable(own)})
            found.append((_validate_label(label), status, payload, merged))
    return found


def _validate_label(label: str) -> str:
    if not is_label(label):
        raise DecodeError(errors.invalid_label(label))
    return label

"""One message of the Ditto protocol: a JSON object with the required members.

`read_message` splits the members and keeps the value as bytes. It rejects what the JSON library accepts and later stages
cannot handle, in the whole payload: invalid UTF-8, nesting beyond `MAX_NESTING`, integers beyond 64 bits and numbers beyond
a double. Each of these checks has a cheap test that almost no message fails; only then it is done in full. `reject_nul` is a
check for commands only: a response may quote what a command must not contain. Of a repeated member the last one applies.
`mappings/mappers/ditto.py` interprets the members.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import msgspec

from mappings.ditto import errors
from mappings.errors import DecodeError, Fault
from mappings.ids import EntityId, parse_entity_id
from mappings.json_values import MAX_NESTING, finite_float, nesting, parse_json, without_strings
from mappings.model.topic_path import NONE, TopicPath, parse_topic, unknown_topic
from mappings.text_cache import cached_if_short

_OF_SEVERAL = frozenset({("things", "retrieve"), ("policies", "checkPermissions")})
"""The commands about several entities, which their value names."""


class EntityTopic(NamedTuple):
    """A topic path and its entity; None if it has none."""

    topic: TopicPath
    entity: EntityId | None


@cached_if_short(8192)
def read_topic(text: str) -> EntityTopic:
    """The topic and its entity.

    Raises UnknownTopic, or DecodeError with `things:id.invalid` or `policies:id.invalid`.
    """
    topic = parse_topic(text)
    if topic.group == "connections":
        raise unknown_topic(text)
    if topic.criterion == "search":
        return EntityTopic(topic, None)
    if topic.namespace == NONE and topic.name == NONE and (topic.group, topic.action) in _OF_SEVERAL:
        return EntityTopic(topic, EntityId(topic.entity_type, NONE, NONE))
    id = f"{topic.namespace}:{topic.name}"
    entity = parse_entity_id(topic.entity_type, id)
    if entity is None and topic.criterion != "errors":
        raise DecodeError(errors.invalid_id(topic.group, id), group=topic.group)
    return EntityTopic(topic, entity)


def add_topic(error: DecodeError, text: str) -> None:
    """Note the readable parts of a topic in the error of its message: they address the response."""
    try:
        topic, error.entity = read_topic(text)
    except DecodeError as unreadable:
        error.entity, error.group = unreadable.entity, unreadable.group
    else:
        error.group = topic.group
        error.channel = "live" if topic.channel == "live" else "twin"


_LONG = 1 << 63


class DittoMessage(msgspec.Struct):
    """The members of a message. `value` is empty if there is none."""

    topic: str
    path: str
    headers: dict[str, Any] | None = None
    value: msgspec.Raw = msgspec.Raw()
    fields: str | None = None
    status: Any = None


_decode = msgspec.json.Decoder(DittoMessage, float_hook=finite_float).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

NOT_JSON = (msgspec.MsgspecError, ValueError, RecursionError)
"""The exceptions of the JSON library for unreadable bytes; ValueError for half a surrogate pair."""


def read_message(payload: bytes) -> DittoMessage:
    """The members of the message. Raises DecodeError: `json.invalid` or `json.field.missing`.

    The error carries the headers as they were sent and, where there is one, the topic's entity.
    """
    try:
        message = _decode(payload)
    except NOT_JSON:
        raise _refusal(payload) from None
    if not is_storable(payload):
        raise _error(errors.not_storable(payload), message.topic, message.headers)
    return message


def reject_nul(message: DittoMessage) -> None:
    """Raise DecodeError (`json.invalid`, `json.key.invalid`) for U+0000 in the value or in headers."""
    fault = _nul_fault(parse_value(message.value)) or _nul_fault(message.headers)
    if fault is not None:
        raise DecodeError(fault)


def compact(value: msgspec.Raw) -> bytes:
    """The value's bytes without white space: numbers and strings keep their spelling."""
    return bytes(msgspec.json.format(value, indent=-1))


def parse_value(value: msgspec.Raw) -> Any:
    """Return the parsed value of a message; None if there is none."""
    return parse_json(value) if value else None


def parse_members(value: msgspec.Raw) -> dict[str, msgspec.Raw]:
    """Return the members of a value that is an object, each as it was written."""
    return _decode_members(value)


def _refusal(payload: bytes) -> DecodeError:
    """Return the error of a payload that is no message."""
    try:
        document = parse_json(payload)
    except NOT_JSON as error:
        return DecodeError(errors.malformed(payload, error))
    if not isinstance(document, dict):
        return DecodeError(errors.not_json(payload))
    fault = find_invalid_member(document) if is_storable(payload) else errors.not_storable(payload)
    return _error(fault or errors.not_json(payload), document.get("topic"), document.get("headers"))


def _error(fault: Fault, topic: Any, headers: Any) -> DecodeError:
    """Return an error with the readable parts of its message."""
    error = DecodeError(fault, headers=headers if isinstance(headers, dict) else None)
    if isinstance(topic, str):
        add_topic(error, topic)
    return error


def find_invalid_member(document: dict[str, Any]) -> Fault | None:
    """Which member of a parsed message is missing or of another type than it has to be."""
    for name in ("topic", "path"):
        if document.get(name) is None:
            return errors.field_missing(name)
    for name, type, called in (
        ("topic", str, "String"),
        ("headers", dict, "JsonObject"),
        ("path", str, "String"),
        ("fields", str, "String"),
    ):
        found = document.get(name)
        if found is not None and not isinstance(found, type):
            return errors.wrong_type(name, found, called)
    return None


_SHAPE = bytes.maketrans(b"123456789E[", b"000000000e{")
"""Every digit as 0, every exponent mark as e, every opening bracket as {."""

_MANY_DIGITS = b"0" * 19
_NUMBER = re.compile(rb"-?[0-9]++(?P<rest>[0-9.eE+\-]*+)")


def is_storable(payload: bytes) -> bool:
    """Whether valid JSON can be stored: UTF-8, `MAX_NESTING`, 64-bit integers, finite doubles."""
    if not payload.isascii():
        try:
            payload.decode()
        except UnicodeDecodeError:
            return False
    shape = payload.translate(_SHAPE, b"+")
    # `find`, because `in` first tries whether the bytes are a number, by an exception.
    is_numeric = shape.find(_MANY_DIGITS) >= 0 or shape.find(b"0e000") >= 0
    is_deep = shape.count(b"{") > MAX_NESTING
    if is_deep and nesting(payload) > MAX_NESTING + 1:
        return False
    return not is_numeric or all(map(_is_storable_number, _NUMBER.finditer(without_strings(payload))))


def _is_storable_number(number: re.Match[bytes]) -> bool:
    text = number[0]
    if number["rest"]:
        return abs(float(text)) != float("inf")
    return len(text) < 19 or (len(text) <= 20 and -_LONG <= int(text) < _LONG)


def _nul_fault(value: Any) -> Fault | None:
    """The first key or string with U+0000 in it, as a fault."""
    if isinstance(value, str):
        return errors.nul_in_text(value) if "\0" in value else None
    if isinstance(value, dict):
        for key in value:
            if "\0" in key:
                return errors.nul_in_key(key)
        value = list(value.values())
    if isinstance(value, list):
        return next((fault for member in value if (fault := _nul_fault(member)) is not None), None)
    return None


Value: TypeAlias = Mapping[str, Any]


def require_value(value: Any) -> Value:
    """The value of a command that cannot do without. Raises DecodeError."""
    if value is None:
        raise DecodeError(errors.field_missing("value"))
    return value if isinstance(value, dict) else as_object(value)


def as_object(value: Any) -> Value:
    """Raises DecodeError for anything but an object."""
    if not isinstance(value, dict):
        raise DecodeError(errors.not_convertible(value, "an object"))
    return value


def subscription_id(members: Value) -> str:
    """Return the subscription's ID. Raises DecodeError if it is missing."""
    key = members.get("subscriptionId")
    if key is None:
        raise DecodeError(errors.field_missing("subscriptionId"))
    if not isinstance(key, str):
        raise DecodeError(errors.wrong_type("subscriptionId", key, "String"))
    return key


def text(members: Value, name: str) -> str | None:
    """Raises DecodeError for a member that is no text."""
    value = members.get(name)
    if value is None or isinstance(value, str):
        return value
    raise DecodeError(errors.wrong_type(name, value, "String"))


def texts(members: Value, name: str) -> tuple[str, ...]:
    """Return a list of texts without duplicates; empty if there is none. Raises DecodeError."""
    value = members.get(name)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise DecodeError(errors.wrong_type(name, value, "JsonArray"))
    for each in value:
        if not isinstance(each, str):
            raise DecodeError(errors.not_convertible(each, "a string"))
    return tuple(dict.fromkeys(value))


def long(members: Value, name: str) -> int | None:
    """A whole number in any spelling: `2`, `2.0`, `1e2`. Raises DecodeError."""
    value = members.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DecodeError(errors.wrong_type(name, value, "Long"))
    if isinstance(value, float) and not value.is_integer():
        raise DecodeError(errors.not_convertible(value, "a long"))
    number = int(value)
    if not -_LONG <= number < _LONG:
        raise DecodeError(errors.not_convertible(value, "a long"))
    return number

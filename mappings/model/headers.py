"""Headers of signals: their names and types, and who may set them.

`FIELDS` is the table of the Ditto protocol's headers. Clients may send those that are *read*; those that are *written* go
back to clients; the others stay inside the service. Any other header is custom: text that travels unchanged from a command
to its response and its event. `normalize` checks received headers, `repeated_headers` selects headers to send. Ditto
protocol, headers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import msgspec

from mappings.errors import DecodeError, Fault
from mappings.ids import utf16_length
from mappings.json_values import parse_json
from mappings.texts import json_text, shorten

MAX_SIZE = 5 * 1024
"""The most that names and values of one signal's headers may measure together."""

_ORIGINATOR = "ditto-originator"


class _Invalid(Exception):
    """A value that is not of the header's type."""


_Convert: TypeAlias = Callable[[object, bool], object]
"""Value as sent, whether it was mapped (then everything is text) → value of the type. Raises _Invalid."""


class HeaderType(NamedTuple):
    """A type of header; `name` is its name in errors.

    `is_text`: a text that is not empty needs no conversion.
    """

    name: str
    convert: _Convert
    is_text: bool = False


def _boolean(value: object, _: bool) -> object:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return value == "true"
    raise _Invalid


_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")


def _integer(bits: int) -> _Convert:
    bound = 1 << (bits - 1)

    def convert(value: object, _: bool) -> object:
        number = value
        if (isinstance(value, float) and value.is_integer()) or (isinstance(value, str) and _WHOLE.fullmatch(value)):
            number = int(value)
        if isinstance(number, int) and not isinstance(number, bool) and -bound <= number < bound:
            return number
        raise _Invalid

    return convert


def _text(value: object, _: bool) -> object:
    return json_text(value)


def _non_empty_text(value: object, _: bool) -> object:
    if value == "":
        raise _Invalid
    return json_text(value)


def _one_of(*values: str) -> _Convert:
    def convert(value: object, _: bool) -> object:
        if value not in values:
            raise _Invalid
        return value

    return convert


def _parsed(value: str) -> object:
    try:
        return parse_json(value)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise _Invalid from None


def _labels(value: object, mapped: bool) -> object:
    """Return the texts of a JSON array; if headers are mapped from a broker's, also of a list with commas."""
    if isinstance(value, str):
        if mapped and not value.lstrip().startswith("["):
            return [label for part in value.split(",") if (label := part.strip())]
        value = _parsed(value)
    if isinstance(value, list) and all(isinstance(label, str) for label in value):
        return value
    raise _Invalid


def _array(value: object, _: bool) -> object:
    value = _parsed(value) if isinstance(value, str) else value
    if isinstance(value, list):
        return value
    raise _Invalid


def _object(value: object, _: bool) -> object:
    value = _parsed(value) if isinstance(value, str) else value
    if isinstance(value, Mapping):
        return value
    raise _Invalid


_TAG = r'(?:W/)?"[^"*]*"'
_ENTITY_TAGS = re.compile(rf"\s*(?:\*|{_TAG}(?:\s*,\s*{_TAG})*)\s*")


def _entity_tags(value: object, _: bool) -> object:
    if isinstance(value, str) and _ENTITY_TAGS.fullmatch(value):
        return value
    raise _Invalid


_TIMEOUT = re.compile(r"(?P<count>[0-9]{1,18})(?P<unit>ns|us|ms|s|m|h|d)?", re.ASCII)
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _timeout(value: object, _: bool) -> object:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**18:
        return value
    if isinstance(value, str) and _TIMEOUT.fullmatch(value):
        return value
    raise _Invalid


BOOLEAN = HeaderType("boolean", _boolean)
INT = HeaderType("int", _integer(32))
LONG = HeaderType("long", _integer(64))
TEXT = HeaderType("text", _text, is_text=True)
NON_EMPTY_TEXT = HeaderType("non-empty text", _non_empty_text, is_text=True)
LABELS = HeaderType("JSON array of labels", _labels)
ARRAY = HeaderType("JSON array", _array)
OBJECT = HeaderType("JSON object", _object)
ENTITY_TAGS = HeaderType("entity-tag", _entity_tags)
TIMEOUT = HeaderType("duration", _timeout)
TIME = HeaderType("time (ISO-8601 with seconds and an offset, such as 2030-01-15T07:30:00Z)", _text)
"""Parsed where it is used."""
CHANNEL = HeaderType("channel (twin or live)", _one_of("twin", "live"))
IF_EQUAL = HeaderType(
    "if-equal option (update, skip or skip-minimizing-merge)", _one_of("update", "skip", "skip-minimizing-merge")
)
STRATEGY = HeaderType("live channel timeout strategy (fail or use-twin)", _one_of("fail", "use-twin"))


class HeaderField(NamedTuple):
    """A header of the protocol: whether clients may send it, whether it is sent to them, and its type."""

    name: str
    is_read: bool
    is_written: bool
    kind: HeaderType


def _rows(is_read: bool, is_written: bool, **kinds: HeaderType) -> list[HeaderField]:
    return [HeaderField(name.replace("_", "-"), is_read, is_written, kind) for name, kind in kinds.items()]


FIELDS: dict[str, HeaderField] = {
    row.name: row
    for row in (
        *_rows(
            True,
            True,
            correlation_id=NON_EMPTY_TEXT,
            response_required=BOOLEAN,
            content_type=TEXT,
            version=INT,
            reply_to=TEXT,
            channel=CHANNEL,
            requested_acks=LABELS,
            timeout=TIMEOUT,
            location=TEXT,
            diverted_response_from_connection=TEXT,
            traceparent=TEXT,
            tracestate=TEXT,
        ),
        *_rows(
            True,
            False,
            if_match=ENTITY_TAGS,
            if_none_match=ENTITY_TAGS,
            if_equal=IF_EQUAL,
            condition=TEXT,
            live_channel_condition=TEXT,
            live_channel_timeout_strategy=STRATEGY,
            put_metadata=ARRAY,
            get_metadata=TEXT,
            delete_metadata=TEXT,
            merge_thing_patch_conditions=OBJECT,
            allow_policy_lockout=BOOLEAN,
            policy_view=TEXT,
            at_historical_revision=LONG,
            at_historical_timestamp=TIME,
            declared_acks=LABELS,
            divert_response_to_connection=TEXT,
            divert_expected_response_types=TEXT,
            accept=TEXT,
            authorization=TEXT,
        ),
        *_rows(
            False,
            True,
            ditto_metadata=OBJECT,
            historical_headers=OBJECT,
            etag=TEXT,
            entity_revision=LONG,
            ditto_originator=TEXT,
            ditto_connection_id=TEXT,
            ditto_weak_ack=BOOLEAN,
        ),
        *_rows(
            False,
            False,
            ditto_auth_context=TEXT,
            read_subjects=TEXT,
            ditto_read_subjects=TEXT,
            ditto_read_revoked_subjects=TEXT,
            ditto_origin=TEXT,
            ditto_reply_target=TEXT,
            ditto_expected_response_types=TEXT,
            ditto_inbound_payload_mapper=TEXT,
            ditto_entity_id=TEXT,
            ditto_sudo=TEXT,
            ditto_dry_run=TEXT,
            ditto_retrieve_deleted=TEXT,
            ditto_ackgregator_address=TEXT,
            ditto_partial_access_paths=TEXT,
        ),
    )
}
"""The headers of the protocol by their names. Those that are neither read nor written are internal."""

_INTERNAL_PREFIX = "ditto-pre-defined-extra-fields"

_NEVER_SENT = frozenset(row.name for row in FIELDS.values() if not row.is_written)
_NEVER_IN_SUBSCRIPTIONS = _NEVER_SENT | {"version"}


def normalize(headers: Mapping[str, object], *, mapped: bool = False) -> dict[str, object]:
    """Return the headers of a client, checked, with names of the table in lower case.

    Values have their types. Headers that a client may not send are dropped, and so is null. Custom headers keep their
    spelling and become text; of two that differ in case only, the later one applies. `mapped`: the values come from a
    broker's headers and so are text.

    Raises DecodeError with `header.invalid` or `timeout.invalid` (400, `invalidHeaderKey`), with the readable headers to
    address the response; with `headers.too.large` (431) for thousands of headers.
    """
    if len(headers) > MAX_SIZE:
        _require_number(headers, mapped=mapped)
    result: dict[str, object] = {}
    spellings: dict[str, str] = {}
    fault: Fault | None = None
    for name, value in headers.items():
        if value is None:
            continue
        row = FIELDS.get(name) or FIELDS.get(lowered := name.lower())
        if row is None:
            if not lowered.startswith(_INTERNAL_PREFIX):
                if (earlier := spellings.get(lowered, name)) != name:
                    del result[earlier]
                spellings[lowered] = name
                result[name] = value if isinstance(value, str) else json_text(value)
        elif row.is_read and row.kind.is_text and value and type(value) is str:
            # The most frequent case first.
            result[row.name] = value
        elif row.is_read:
            try:
                result[row.name] = row.kind.convert(value, mapped)
            except _Invalid:
                fault = fault or (invalid_timeout(value) if row.kind is TIMEOUT else invalid_header(row, value))
    if fault is not None:
        raise DecodeError(fault, headers=result)
    return result


def _require_number(headers: Mapping[str, object], *, mapped: bool) -> None:
    """Raise DecodeError for so many headers that their names alone are too large."""
    names = [name for name, value in headers.items() if value is not None]
    if len(names) > MAX_SIZE:
        raise _too_large(sum(map(len, names)), MAX_SIZE, readable(address_headers(headers), mapped=mapped))


def readable(headers: Mapping[str, object], *, mapped: bool = False) -> dict[str, object]:
    """Return the headers as `normalize` does, without invalid ones.

    For the response to a message that cannot be decoded.
    """
    try:
        return normalize(headers, mapped=mapped)
    except DecodeError as error:
        return dict(error.headers)


def invalid_header(field: HeaderField, value: object) -> Fault:
    """Return the error `header.invalid`: a header whose value does not have its type."""
    return Fault(
        400,
        "header.invalid",
        f"The value '{_show(value)}' of the header '{field.name}' is not a valid {field.kind.name}.",
        f"Verify that the value of the header '{field.name}' is a valid '{field.kind.name}' and try again.",
        {"invalidHeaderKey": field.name},
    )


def invalid_timeout(value: object) -> Fault:
    """`timeout.invalid`: a timeout that is malformed or negative."""
    return Fault(
        400,
        "timeout.invalid",
        f"The timeout '{_show(value)}' is not valid.",
        "Expected a duration of 0 or more: a number of seconds, or a number with a unit of ns, us, ms, s, m, h or d.",
        {"invalidHeaderKey": "timeout"},
    )


def _show(value: object) -> str:
    return shorten(json_text(value))


def require_size(headers: Mapping[str, object], limit: int = MAX_SIZE) -> None:
    """Raise DecodeError with `headers.too.large` (431) if names and values exceed `limit` together."""
    size = size_of(headers)
    if size > limit:
        raise _too_large(size, limit, address_headers(headers))


def size_of(headers: Mapping[str, object]) -> int:
    """Return the UTF-16 units of all names and values, without the originator, which the service adds."""
    size = 0
    for name, value in headers.items():
        if name == _ORIGINATOR:
            continue
        if type(value) is str and value.isascii() and name.isascii():
            size += len(name) + len(value)
        else:
            size += _length(name) + _length(value)
    return size


def _too_large(size: int, limit: int, headers: Mapping[str, object]) -> DecodeError:
    """Return the error `headers.too.large`; `headers` address the response."""
    message = f"The headers are too large: found {size} characters, expected at most {limit}."
    return DecodeError(Fault(431, "headers.too.large", message, "Send fewer or shorter headers."), headers=headers)


def address_headers(headers: Mapping[str, object]) -> dict[str, object]:
    """Return the headers that the response to too large headers repeats.

    Only those that address it, so that it stays small.
    """
    return {name: headers[name] for name in ("correlation-id", "reply-to", "ditto-originator") if name in headers}


def _length(value: object) -> int:
    if isinstance(value, bool):
        return 4 if value else 5
    text = value if isinstance(value, str) else json_text(value)
    return len(text) if text.isascii() else utf16_length(text)


def timeout_seconds(headers: Mapping[str, Any]) -> float | None:
    """Return the `timeout` of checked headers in seconds; None if there is none."""
    value = headers.get("timeout")
    if value is None:
        return None
    found = _TIMEOUT.fullmatch(str(value))
    return int(found["count"]) * _SECONDS[found["unit"] or "s"] if found is not None else None


def response_required(headers: Mapping[str, Any]) -> bool:
    """Whether a command requires a response: by its header, else unless its timeout is zero."""
    value = headers.get("response-required")
    if value is None:
        return "timeout" not in headers or timeout_seconds(headers) != 0
    return value not in (False, "false")


def repeated_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers of a command that its responses repeat: custom ones, and written ones."""
    return {name: value for name, value in headers.items() if name not in _NEVER_SENT}


def without_reply_address(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers of a signal as others than its sender may see them.

    A client that knows the reply address of another one, such as the ID of a listener's peer, can send responses there.
    """
    return {name: value for name, value in headers.items() if name != "reply-to"}


def subscription_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers of a command that the messages of its subscription repeat: no schema version."""
    return {name: value for name, value in headers.items() if name not in _NEVER_IN_SUBSCRIPTIONS}

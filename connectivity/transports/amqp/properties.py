"""Converts between the properties of AMQP messages and headers.

AMQP 0.9.1 §4.2.5 and §4.2.6, with RabbitMQ's field types. A table holds typed values, an envelope texts: numbers are
written in decimal, booleans as `true` and `false`, times in UTC (`2030-01-15T07:30:00Z`), byte arrays as UTF-8 or else
base64, nested tables and lists as JSON; void fields are left out. Published headers are long strings.

Publishers may send malformed properties, so reading never fails: it stops at the first unreadable field and keeps those
before it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from struct import Struct, error
from typing import Any

from connectivity.transports.amqp.options import DIRECT_REPLIES, MOST_BYTES

CONTENT_TYPE, CORRELATION, REPLY_TO, MESSAGE_ID = "content-type", "correlation-id", "reply-to", "message-id"

DEEPEST = 32
"""The maximum depth of nested tables and lists."""

CACHED_NAMES = 4096
LONG_TEXT = ord("S")

_CONTENT_TYPE, _CONTENT_ENCODING, _HEADERS, _DELIVERY_MODE = 0x8000, 0x4000, 0x2000, 0x1000
_PRIORITY, _CORRELATION, _REPLY_TO, _EXPIRATION, _MESSAGE_ID = 0x0800, 0x0400, 0x0200, 0x0100, 0x0080
_MORE_FLAGS = 0x0001

_PROPERTIES = {CONTENT_TYPE: _CONTENT_TYPE, CORRELATION: _CORRELATION, REPLY_TO: _REPLY_TO, MESSAGE_ID: _MESSAGE_ID}
"""The headers that are also properties of a published message, and their flags."""

_ROUTING_LISTS = frozenset({"CC", "BCC"})
"""Headers that RabbitMQ reads as lists of further routing keys.

It closes the channel if they are texts.
"""

_PERSISTENT = b"\x02"
_FLAGS, _LENGTH = Struct(">H"), Struct(">I")
_TIME = Struct(">q")
_DECIMAL = Struct(">Bi")

NUMBERS = {ord(kind): Struct(f">{code}") for kind, code in zip("tbBsUuIilLfd", "?bBhhHiIqQfd", strict=True)}
"""Field type → the struct of its number or boolean."""


class MalformedProperties(ValueError):
    """Properties that end early or hold a field of an unknown type."""


def read_properties(packed: bytes) -> dict[str, str]:
    """Return the headers in the properties of a content header. Never raises for malformed input."""
    headers: dict[str, str] = {}
    with suppress(MalformedProperties, IndexError, error):
        _read_properties(packed, headers)
    return headers


def _read_properties(packed: bytes, headers: dict[str, str]) -> None:
    flags = _FLAGS.unpack_from(packed)[0]
    at, more = 2, flags & _MORE_FLAGS
    while more:
        more = _FLAGS.unpack_from(packed, at)[0] & _MORE_FLAGS
        at += 2
    found: dict[str, str] = {}
    try:
        if flags & _CONTENT_TYPE:
            found[CONTENT_TYPE], at = _read_short(packed, at)
        if flags & _CONTENT_ENCODING:
            _, at = _read_short(packed, at)
        if flags & _HEADERS:
            at = _read_headers(packed, at, headers)
        if flags & _DELIVERY_MODE:
            at += 1
        if flags & _PRIORITY:
            at += 1
        if flags & _CORRELATION:
            found[CORRELATION], at = _read_short(packed, at)
        if flags & _REPLY_TO:
            found[REPLY_TO], at = _read_short(packed, at)
        if flags & _EXPIRATION:
            _, at = _read_short(packed, at)
        if flags & _MESSAGE_ID:
            found[MESSAGE_ID], at = _read_short(packed, at)
    finally:
        # Properties take precedence over table headers of the same name.
        headers.update(found)


def _read_headers(packed: bytes, at: int, headers: dict[str, str]) -> int:
    """Put the fields of the table into `headers`, even if it is malformed; return the next position."""
    end: int = at + 4 + _LENGTH.unpack_from(packed, at)[0]
    at += 4
    if end > len(packed):
        raise MalformedProperties("a table that extends beyond the properties")
    with suppress(MalformedProperties, IndexError, error):
        while at < end:
            name, at = _read_short(packed, at)
            if packed[at] == LONG_TEXT:  # by far the most frequent
                start = at + 5
                at = start + _LENGTH.unpack_from(packed, at + 1)[0]
                if at > end:
                    raise MalformedProperties("a text that extends beyond its table")
                headers[name] = _text_of(packed[start:at])
            else:
                value, at = _read_field(packed, at, end, 0)
                if value is not None:
                    headers[name] = _header_text(value)
    return end


def _read_short(packed: bytes, at: int) -> tuple[str, int]:
    start = at + 1
    end = start + packed[at]
    if end > len(packed):
        raise MalformedProperties("a short text that extends beyond the properties")
    return packed[start:end].decode(errors="replace"), end


def _read_field(packed: bytes, at: int, end: int, depth: int) -> tuple[Any, int]:
    """Return the value of the field at this position and the next position."""
    kind = packed[at]
    at += 1
    if (number := NUMBERS.get(kind)) is not None:
        value, at = number.unpack_from(packed, at)[0], at + number.size
    elif (reader := _FIELD_READERS.get(kind)) is not None:
        value, at = reader(packed, at, depth)
    else:
        raise MalformedProperties(f"a field of the type {chr(kind)!r}")
    if at > end:
        raise MalformedProperties("a field that extends beyond its table")
    return value, at


def _read_decimal(packed: bytes, at: int, _depth: int) -> tuple[Decimal, int]:
    scale, digits = _DECIMAL.unpack_from(packed, at)
    return Decimal(digits).scaleb(-scale), at + _DECIMAL.size


def _read_time(packed: bytes, at: int, _depth: int) -> tuple[str | int, int]:
    seconds = _TIME.unpack_from(packed, at)[0]
    try:
        text: str | int = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        text = seconds  # no year has that number
    return text, at + _TIME.size


def _read_void(_packed: bytes, at: int, _depth: int) -> tuple[None, int]:
    return None, at


def _read_bytes(packed: bytes, at: int, _depth: int) -> tuple[str, int]:
    start = at + 4
    end = start + _LENGTH.unpack_from(packed, at)[0]
    if end > len(packed):
        raise MalformedProperties("a text that extends beyond the properties")
    return _text_of(packed[start:end]), end


def _read_list(packed: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    at, end = _read_bounds(packed, at, depth)
    values = []
    while at < end:
        value, at = _read_field(packed, at, end, depth + 1)
        values.append(value)
    return values, end


def _read_table(packed: bytes, at: int, depth: int) -> tuple[dict[str, Any], int]:
    at, end = _read_bounds(packed, at, depth)
    values = {}
    while at < end:
        name, at = _read_short(packed, at)
        values[name], at = _read_field(packed, at, end, depth + 1)
    return values, end


def _read_bounds(packed: bytes, at: int, depth: int) -> tuple[int, int]:
    """Return where the content of a list or table begins and ends."""
    end = at + 4 + _LENGTH.unpack_from(packed, at)[0]
    if depth >= DEEPEST or end > len(packed):
        raise MalformedProperties("tables that are nested too deep, or extend beyond the properties")
    return at + 4, end


_FIELD_READERS: dict[int, Callable[[bytes, int, int], tuple[Any, int]]] = {
    ord("D"): _read_decimal,
    LONG_TEXT: _read_bytes,
    ord("x"): _read_bytes,
    ord("A"): _read_list,
    ord("F"): _read_table,
    ord("T"): _read_time,
    ord("V"): _read_void,
    0: _read_void,
}


def _text_of(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()


def _header_text(value: Any) -> str:
    """Return a field's value as a header's text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    return str(value)


def pack_properties(headers: Mapping[str, str]) -> bytes:
    """Pack the flags and properties of a persistent message with these headers.

    All headers but `CC` and `BCC` go into the table; four are also properties, unless they are too long for one. The name of
    direct replies is no property: RabbitMQ closes the channel of a publisher that reads none. Raises ValueError for headers
    that do not fit.
    """
    flags = _DELIVERY_MODE
    properties: dict[str, bytes] = {}
    table: list[bytes] = []
    for name, value in headers.items():
        if name in _ROUTING_LISTS:
            continue
        try:
            encoded = value.encode()
        except UnicodeEncodeError as fault:
            raise ValueError(f"header {name[:200]!r} has an unpaired surrogate at position {fault.start}") from fault
        is_property = len(encoded) <= MOST_BYTES and (name, value) != (REPLY_TO, DIRECT_REPLIES)
        if is_property and (flag := _PROPERTIES.get(name)) is not None:
            flags |= flag
            properties[name] = bytes((len(encoded),)) + encoded
        table += (_pack_name(name), _LENGTH.pack(len(encoded)), encoded)
    if not table:
        return _FLAGS.pack(flags) + _PERSISTENT
    fields = b"".join(table)
    return b"".join(
        (
            _FLAGS.pack(flags | _HEADERS),
            properties.get(CONTENT_TYPE, b""),
            _LENGTH.pack(len(fields)),
            fields,
            _PERSISTENT,
            *(properties.get(name, b"") for name in (CORRELATION, REPLY_TO, MESSAGE_ID)),
        )
    )


@lru_cache(maxsize=CACHED_NAMES)
def _pack_name(name: str) -> bytes:
    """Pack a field's name and the type mark of a long string."""
    try:
        encoded = name.encode()
    except UnicodeEncodeError as fault:
        raise ValueError(
            f"the header name {name[:200]!r} has an unpaired surrogate at position {fault.start}"
        ) from fault
    if not 0 < len(encoded) <= MOST_BYTES:
        raise ValueError(f"the header name {name[:200]!r} has {len(encoded)} bytes, expected 1 to {MOST_BYTES}")
    return bytes((len(encoded),)) + encoded + b"S"

"""JSON values whose numbers keep their text, such as `8.4E37`, `2e3` and `0.10`.

The values are those of clients: msgspec reads very large and very small numbers, such as `1e300`, a hundred times slower
than others, so `float` reads all of them.

msgspec writes each float in one notation. A number in another one is read as a `WrittenFloat`: a float that is written with
its text. `decode_value` encodes a value once to find out whether it has such numbers. States are read far more often than
written: `encode_state` marks those that have some by a space at the beginning, so that `decode_state` need not find out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Final

import msgspec


class WrittenFloat(float):
    """A float with its text in JSON."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, number: float, text: str) -> WrittenFloat:
        written = super().__new__(cls, number)
        written.text = text
        return written

    def __getnewargs__(self) -> tuple[Any, ...]:
        return float(self), self.text


NUMBER_TYPES: Final = frozenset({int, float, WrittenFloat})
"""The types of numbers in a JSON value."""

_MARK: Final = b" "
_MARKS: Final = (_MARK, _MARK.decode())


def _written(value: object) -> msgspec.Raw:
    """Return the JSON text of a value whose type msgspec does not know. Raises TypeError."""
    if isinstance(value, WrittenFloat):
        return msgspec.Raw(value.text.encode())
    raise TypeError(f"found {type(value).__name__}, expected a JSON value")


def _number(text: str) -> float:
    number = float(text)
    return number if _plain(number) == text.encode() else WrittenFloat(number, text)


encode_value: Final = msgspec.json.Encoder(enc_hook=_written).encode
"""Writes a JSON value. A `WrittenFloat` keeps its text."""

_LARGEST: Final = sys.float_info.max


def finite_float(text: str) -> float:
    """Read a number as a float: a `float_hook`. Raises ValueError beyond the range of doubles."""
    number = float(text)
    if not -_LARGEST <= number <= _LARGEST:
        raise ValueError("Number out of range")
    return number


def _reader(float_hook: Callable[[str], float]) -> Callable[[bytes | str], Any]:
    decode = msgspec.json.Decoder(float_hook=float_hook).decode

    def read(text: bytes | str) -> Any:
        try:
            return decode(text)
        except UnicodeDecodeError as error:
            # As for a number out of range: only the notation is JSON.
            raise msgspec.ValidationError(str(error)) from error

    return read


_plain: Final = msgspec.json.Encoder().encode
parse_json: Final = _reader(finite_float)
"""Read a JSON value whose numbers need not keep their text. Raises msgspec.DecodeError."""

_read_state: Final = _reader(float)
_read_exactly: Final = _reader(_number)


def decode_value(text: bytes | str) -> Any:
    """Read a JSON value of any origin. Raises msgspec.DecodeError."""
    value = parse_json(text)
    is_plain = _plain(value) == (text if isinstance(text, bytes) else text.encode())
    return value if is_plain else _read_exactly(text)


def encode_state(state: Any) -> bytes:
    """Write the state of an entity for `decode_state`."""
    try:
        return _plain(state)
    except TypeError:
        return _MARK + encode_value(state)


def decode_state(text: bytes | str) -> Any:
    """Read what `encode_state` has written. Raises msgspec.DecodeError."""
    return _read_exactly(text) if text[:1] in _MARKS else _read_state(text)


def without_mark(text: bytes) -> bytes:
    """Return the text of a state as clients get it."""
    return text.lstrip(_MARK)


MAX_NESTING: Final = 200
"""The deepest that a thing, a policy or the value of a message may be nested."""

_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"{[]}")
_STEPS: Final = bytes(1 if byte == ord("[") else 255 for byte in range(256))
"""An opening bracket as +1, a closing one as −1 of a signed byte."""

_SHALLOW: Final = 8
"""How many levels are counted by removing the innermost brackets: ten times as fast as one by one."""


def nesting(text: bytes) -> int:
    """Return the levels of nesting of valid JSON: 1 for an object or array without any inside."""
    brackets = without_strings(text).translate(_BRACKETS, _NO_BRACKETS)
    for level in range(_SHALLOW):
        if not brackets:
            return level
        brackets = brackets.replace(b"[]", b"")
    return _SHALLOW + max(accumulate(memoryview(brackets.translate(_STEPS)).cast("b")), default=0)


def without_strings(text: bytes) -> bytes:
    """Return valid JSON without its strings, keys included."""
    # Without the escapes that concern a quote, each quote begins or ends a string.
    return b"".join(text.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2])

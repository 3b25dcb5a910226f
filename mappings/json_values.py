"""JSON values whose numbers keep their text: `8.4E37`, `2e3` and `0.10` are written as they were read.

Python has one notation for each float. A number with another text is read as a `WrittenFloat`, which compares and calculates
as the float that it is. Text in Python's notation, as most text is, costs one comparison and has no such numbers.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec


class WrittenFloat(float):
    """A float with its text in JSON."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> WrittenFloat:
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (self.text,)


NUMBER_TYPES: Final = frozenset({int, float, WrittenFloat})
"""The types of numbers that `decode_value` returns."""


def json_default(value: object) -> Any:
    """Return what msgspec writes for a type that it does not know, as `enc_hook`. Raises TypeError."""
    if isinstance(value, WrittenFloat):
        return msgspec.Raw(value.text.encode())
    raise TypeError(f"found {type(value).__name__}, expected a JSON value")


def _number(text: str) -> float:
    number = float(text)
    return number if _plain(number) == text.encode() else WrittenFloat(text)


encode_value: Final = msgspec.json.Encoder(enc_hook=json_default).encode
"""Writes a JSON value. A `WrittenFloat` keeps its text."""

_plain: Final = msgspec.json.Encoder().encode
_read: Final = msgspec.json.Decoder().decode
_read_exactly: Final = msgspec.json.Decoder(float_hook=_number).decode


def decode_value(text: bytes | str) -> Any:
    """Read a JSON value. Raises msgspec.DecodeError."""
    value = _read(text)
    written = _plain(value)
    if written == (text if isinstance(text, bytes) else text.encode()):
        return value
    return _read_exactly(text)

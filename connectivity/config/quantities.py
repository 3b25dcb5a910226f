"""Readers of settings: durations, days, sizes, lists, and words that YAML converts.

A duration is a number with a unit (`500ms`, `10m`, `7d`; without one: seconds) or, where allowed, `forever`. Each reader
takes a YAML value or the text of an environment variable, and raises ValueError that says what was expected.
"""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from mappings.texts import lower_text

FOREVER = "forever"

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DURATION_FORM = r"\s*[0-9]{1,12}(?:\.[0-9]{1,6})?\s*(?:ms|[smhdw]|)\s*"
_DURATION = re.compile(r"\s*(?P<number>\d{1,12}(?:\.\d{1,6})?)\s*+(?P<unit>ms|[smhdw]|)\s*+", re.ASCII)


def read_memory(value: object) -> str:
    if not isinstance(value, str) or re.fullmatch(r"[1-9][0-9]{0,5}[kmg]", value) is None:
        raise ValueError(_EXPECTED_MEMORY)
    return value


_EXPECTED_MEMORY = "a size such as 1g or 1500m"

_EXPECTED_DURATION = f"a duration with one of the units {', '.join(_SECONDS)}, such as 10m"


def read_duration(value: object) -> object:
    if isinstance(value, timedelta):
        return value
    match = _DURATION.fullmatch(str(value)) if isinstance(value, str | int | float) else None
    if match is None or isinstance(value, bool):
        raise ValueError(_EXPECTED_DURATION)
    try:
        return timedelta(seconds=float(match["number"]) * _SECONDS[match["unit"] or "s"])
    except OverflowError:
        raise ValueError("a shorter duration") from None


def _above_zero(value: timedelta) -> timedelta:
    if not value:
        raise ValueError("a duration above 0")
    return value


def read_duration_or_forever(value: object) -> object:
    """Return a duration, or None for `forever`."""
    if value is None or (isinstance(value, str) and value.strip().lower() == FOREVER):
        return None
    try:
        return read_duration(value)
    except ValueError as error:
        raise ValueError(f"{error}, or {FOREVER}") from None


def read_days(value: object) -> object:
    """A number of days."""
    if value is None or isinstance(value, timedelta):
        return value
    try:
        found = timedelta(days=float(value) if isinstance(value, int | float | str) else -1)
    except (ValueError, OverflowError):
        found = timedelta(0)
    if _is_no_number(value) or found <= timedelta(0):
        raise ValueError(_EXPECTED_DAYS)
    return found


_EXPECTED_DAYS = "a number of days above 0, such as 30"
_DAYS_FORM = r"\s*\+?(?:0*[1-9][0-9]*\.?[0-9]*|0*\.0*[1-9][0-9]*)(?:[eE][+-]?[0-9]+)?\s*"
"""How `float` reads a number above 0 in a text."""


def _is_no_number(value: object) -> bool:
    """Whether a value is true, false or a text beyond ASCII or with `_`: Python reads some as numbers."""
    return isinstance(value, bool) or (isinstance(value, str) and (not value.isascii() or "_" in value))


def _number(expected: str) -> BeforeValidator:
    """Return a validator that refuses what only looks like a number to the library."""

    def check(value: object) -> object:
        if _is_no_number(value):
            raise ValueError(expected)
        return value

    return BeforeValidator(check)


def _read_size(value: object) -> object:
    """Refuse texts of which the library would only read the beginning: of 1,048,576 a single byte."""
    if isinstance(value, bool) or (isinstance(value, str) and _SIZE.fullmatch(value) is None):
        raise ValueError("a size such as 512KiB or 1MiB")
    return value


_SIZE_FORM = r"\s*(?:[0-9]*\.)?[0-9]+(?:\s*[a-zA-Z]+)?\s*"
"""In this form, no text can be divided in two ways: a long one is matched in linear time."""
_SIZE = re.compile(_SIZE_FORM, re.ASCII)


def read_list(value: object) -> object:
    """Names separated by commas, as a variable holds them."""
    return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


def read_json_or_text(text: str) -> object:
    """Return the value of a variable that can hold an object."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _without_null(value: Path) -> Path:
    if "\0" in str(value):
        raise ValueError("a path without null characters")
    return value


def read_off_as_text(value: object) -> object:
    """YAML reads a bare `off` as false."""
    return "off" if value is False else lower_text(value)


def duration_text(value: timedelta | None) -> str:
    """Return a duration in the largest unit that makes it a whole number."""
    if value is None:
        return FOREVER
    if not value:
        return "0s"
    milliseconds = value // timedelta(milliseconds=1)
    units = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))
    number, unit = next(((milliseconds // size, unit) for unit, size in units if milliseconds % size == 0), (0, "ms"))
    return f"{number or milliseconds}{unit}"


AnyPath = Annotated[Path, AfterValidator(_without_null)]
"""A path that the system can look up, whether something is there or not."""

Number = Annotated[float, Field(ge=0)]
DurationForm = Annotated[str, Field(pattern=rf"^{_DURATION_FORM}$")] | Number
"""How a duration is written; a number is seconds."""

Listed = BeforeValidator(read_list, json_schema_input_type=list[str] | str)
"""The reader of names, written as a list or separated by commas."""

DurationOrForeverForm = (
    Annotated[str, Field(pattern=rf"^(?:{_DURATION_FORM}|\s*[fF][oO][rR][eE][vV][eE][rR]\s*)$")] | Number | None
)
Duration = Annotated[timedelta, BeforeValidator(read_duration, json_schema_input_type=DurationForm)]
PositiveDuration = Annotated[Duration, AfterValidator(_above_zero)]
DurationOrForever = Annotated[
    timedelta | None, BeforeValidator(read_duration_or_forever, json_schema_input_type=DurationOrForeverForm)
]
"""A duration; None is forever."""

DaysForm = Annotated[float, Field(gt=0)] | Annotated[str, Field(pattern=f"^{_DAYS_FORM}$")] | None
SizeForm = Annotated[str, Field(pattern=f"^{_SIZE_FORM}$")] | Annotated[int, Field(ge=0)]
MemoryForm = Annotated[str, Field(pattern="^[1-9][0-9]{0,5}[kmg]$")]

WHOLE = _number("a whole number")
"""For a number. This comes after the limits, which the JSON schema would lose otherwise."""

SIZE = BeforeValidator(_read_size, json_schema_input_type=SizeForm)
"""For a number of bytes."""

Positive = Annotated[int, Field(ge=1), WHOLE]
Ratio = Annotated[float, Field(ge=0, le=1), _number("a number")]

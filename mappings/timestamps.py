"""Timestamps as text, and as numbers since 1970."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import msgspec

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
EARLIEST = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
LATEST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
"""The range of a calendar with years of four digits, in milliseconds since 1970."""

_INSTANT = re.compile(
    r"(?P<time>[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.(?P<fraction>[0-9]{1,9}))?"
    r"(?:Z|(?P<sign>[+-])(?P<hours>[0-9]{2}):(?P<minutes>[0-5][0-9])(?::(?P<seconds>[0-5][0-9]))?)",
    re.ASCII | re.IGNORECASE,
)
_LARGEST_OFFSET = timedelta(hours=18)


def utc_text(instant: datetime, precision: str = "microseconds") -> str:
    """ISO 8601 in UTC, `2030-01-15T07:30:00.250000Z`.

    The instant has a time zone; `precision` is a `timespec`.
    """
    if instant.microsecond and precision == "microseconds":
        # A tenth of the time of `isoformat`; it leaves the digits out where all are zero.
        return str(msgspec.to_builtins(instant.astimezone(UTC)))
    return f"{instant.astimezone(UTC).isoformat(timespec=precision)[:-6]}Z"


def milliseconds(timestamp: str) -> int:
    """Return milliseconds since 1970 of an ISO 8601 text, in UTC without offset. Raises ValueError."""
    date = datetime.fromisoformat(timestamp)
    return ((date if date.tzinfo is not None else date.replace(tzinfo=UTC)) - _EPOCH) // _MILLISECOND


def utc_text_of(instant: int) -> str:
    """Return `utc_text` of milliseconds since 1970. Raises OverflowError outside of EARLIEST to LATEST."""
    return utc_text(_EPOCH + timedelta(milliseconds=instant))


def shorten_timestamp(timestamp: str) -> str:
    """Return a time in UTC as responses show it: without groups of three zeros at its end."""
    whole, _, fraction = timestamp.removesuffix("Z").partition(".")
    while fraction.endswith("000"):
        fraction = fraction[:-3]
    return f"{whole}.{fraction}Z" if fraction else f"{whole}Z"


def parse_instant(text: str) -> int | None:
    """Return nanoseconds since 1970 of an instant in the Ditto protocol; None for another text.

    It is ISO 8601 with seconds and offset, and up to nine decimal places: `2024-05-01T10:00:00.5+02:00`. A date alone, or a
    time without seconds or offset, is invalid.
    """
    found = _INSTANT.fullmatch(text)
    if found is None:
        return None
    offset = timedelta(
        hours=int(found["hours"] or 0), minutes=int(found["minutes"] or 0), seconds=int(found["seconds"] or 0)
    )
    if offset > _LARGEST_OFFSET:
        return None
    try:
        local = datetime.fromisoformat(found["time"].upper()).replace(tzinfo=UTC)
    except ValueError:
        return None
    elapsed = local - _EPOCH + (offset if found["sign"] == "-" else -offset)
    return (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000_000 + int((found["fraction"] or "0").ljust(9, "0"))

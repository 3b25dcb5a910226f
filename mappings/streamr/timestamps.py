"""The times of publishers: milliseconds as a number or text, or a date (Streamr, publish).

The fraction of a number is cut off; a text is read as a number, else as a date in ISO 8601, in UTC without offset. Zero, the
empty text, null and false mean no time: the service's own is used, as clients of the protocol expect.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from mappings.texts import utc_text

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
EARLIEST = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
LATEST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
"""The range of a calendar with years of four digits, in milliseconds since 1970."""

_NUMBER = re.compile(r"\s*(?P<whole>[+-]?[0-9]{1,16})(?:\.[0-9]*)?\s*", re.ASCII)
_LONGEST_DATE = 64


class NoInstant(Exception):
    """A value that is no time of a publisher."""


def read_instant(value: object) -> int | None:
    """Return milliseconds since 1970; None if there is no time. Raises NoInstant."""
    if value is None or value is False or value == "":
        return None
    if isinstance(value, str):
        return _known(_of_text(value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NoInstant
    return _known(int(value)) if value else None


def _of_text(text: str) -> int:
    if (number := _NUMBER.fullmatch(text)) is not None:
        return int(number["whole"])
    if len(text) > _LONGEST_DATE:
        raise NoInstant
    try:
        date = datetime.fromisoformat(text.strip())
    except ValueError:
        raise NoInstant from None
    return ((date if date.tzinfo is not None else date.replace(tzinfo=UTC)) - _EPOCH) // _MILLISECOND


def _known(instant: int) -> int:
    if not EARLIEST <= instant <= LATEST:
        raise NoInstant
    return instant


def milliseconds(timestamp: str) -> int:
    """An event's timestamp (`2030-01-15T07:30:00.250000Z`) in milliseconds since 1970. Raises ValueError."""
    return (datetime.fromisoformat(timestamp) - _EPOCH) // _MILLISECOND


def timestamp(instant: int) -> str:
    """Milliseconds since 1970 as an event's timestamp. Raises OverflowError outside of EARLIEST to LATEST."""
    return utc_text(_EPOCH + timedelta(milliseconds=instant))

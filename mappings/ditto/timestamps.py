"""Instants in the Ditto protocol: ISO 8601 with seconds and offset, up to nine decimal places.

`2024-05-01T10:00:00.5+02:00` is valid; a date alone, or a time without seconds or offset, is not.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_INSTANT = re.compile(
    r"(?P<time>[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.(?P<fraction>[0-9]{1,9}))?"
    r"(?:Z|(?P<sign>[+-])(?P<hours>[0-9]{2}):(?P<minutes>[0-5][0-9])(?::(?P<seconds>[0-5][0-9]))?)",
    re.ASCII | re.IGNORECASE,
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LARGEST_OFFSET = timedelta(hours=18)


def parse_instant(text: str) -> int | None:
    """Return nanoseconds since 1970; None if the text is no instant."""
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

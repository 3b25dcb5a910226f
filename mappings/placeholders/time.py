"""The `time:` placeholder: now, shifted and cut off.

`now` or `now_epoch_millis`, then an offset (`-2h`) and a unit to cut off at (`[h]`), each optional: `time:now-1d[d]` is
the beginning of yesterday. Milliseconds to weeks are lengths of time and are cut off in UTC, weeks on Mondays. Months and
years follow the calendar of the machine's time zone.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from mappings.timestamps import utc_text

UNITS = ("ms", "s", "m", "h", "d", "w", "mo", "y")

NAMES = ("now", "now_epoch_millis")

_UNIT = "|".join(sorted(UNITS, key=len, reverse=True))
_NAME = re.compile(
    rf"(?P<name>now_epoch_millis|now)(?:(?P<sign>[+-])(?P<count>[0-9]{{1,12}})(?P<unit>{_UNIT}))?(?:\[(?P<cut>{_UNIT})\])?"
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MONDAY = datetime(1970, 1, 5, tzinfo=UTC)

_LENGTHS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}

_MONTHS = {"mo": 1, "y": 12}


def parse_time(text: str) -> Callable[[datetime], str] | None:
    """Return a writer of the time in the form of `text`; None if `text` is no name of this placeholder.

    The writer raises OverflowError or ValueError for a time beyond the calendar.
    """
    found = _NAME.fullmatch(text)
    if found is None:
        return None
    write = instant_text if found["name"] == "now" else _epoch_millis
    count = int(f"{found['sign']}{found['count']}") if found["count"] else 0
    unit, cut = found["unit"], found["cut"]

    def read(now: datetime) -> str:
        if count:
            now = _shift(now, count, unit)
        if cut:
            now = _cut_off(now, cut)
        return write(now)

    return read


def instant_text(instant: datetime) -> str:
    """ISO-8601 in UTC, with as many digits of the second as are needed, in groups of three."""
    if not instant.microsecond:
        precision = "seconds"
    elif instant.microsecond % 1000:
        precision = "microseconds"
    else:
        precision = "milliseconds"
    return utc_text(instant, precision)


def _epoch_millis(instant: datetime) -> str:
    return str((instant - _EPOCH) // _LENGTHS["ms"])


def _shift(instant: datetime, count: int, unit: str) -> datetime:
    if (length := _LENGTHS.get(unit)) is not None:
        return instant + count * length
    local = instant.astimezone()
    months = local.year * 12 + local.month - 1 + count * _MONTHS[unit]
    year, month = divmod(months, 12)
    if not 1 <= year <= 9999:
        raise OverflowError(f"year {year}")
    day = min(local.day, calendar.monthrange(year, month + 1)[1])
    return _local(local.replace(year=year, month=month + 1, day=day))


def _cut_off(instant: datetime, unit: str) -> datetime:
    if (length := _LENGTHS.get(unit)) is not None:
        start = _FIRST_MONDAY if unit == "w" else _EPOCH
        return instant - (instant - start) % length
    local = instant.astimezone().replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return _local(local if unit == "mo" else local.replace(month=1))


def _local(wall_clock: datetime) -> datetime:
    """Return the local time by the machine's clock, with the offset of that time."""
    return wall_clock.replace(tzinfo=None).astimezone(UTC)

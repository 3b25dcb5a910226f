"""Instants as events write them: UTC text with microseconds, such as `2030-01-15T07:30:00.250000Z`.

Such texts sort as the instants do. The one place that says how they are spelled, in Python and in Spark.
"""

from __future__ import annotations

from datetime import UTC, datetime

SPARK_FORMAT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"
"""The same for Spark's `date_format`, in a session whose time zone is UTC."""


def as_text(instant: datetime) -> str:
    """An instant that knows its time zone."""
    return f"{instant.astimezone(UTC).isoformat(timespec='microseconds')[:-6]}Z"


def now_text() -> str:
    """What the clock says."""
    return as_text(datetime.now(UTC))

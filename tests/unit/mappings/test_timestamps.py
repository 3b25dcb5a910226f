"""Instants in ISO-8601."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given, settings
from hypothesis import strategies as st

from mappings.timestamps import parse_instant, utc_text
from tests.support.dice import examples
from tests.support.table import each_row


@each_row(
    ("text", "nanoseconds"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2024-05-01T10:00:00+02:00", 1_714_550_400_000_000_000),
        ("2024-05-01T08:00:00.000000001Z", 1_714_550_400_000_000_001),
        ("2024-05-01T08:00:00.5Z", 1_714_550_400_500_000_000),
        ("2024-05-01t08:00:00z", 1_714_550_400_000_000_000),
        ("1969-12-31T23:59:59Z", -1_000_000_000),
        ("0001-01-01T00:00:00+18:00", -62_135_661_600_000_000_000),
        ("2024-02-29T00:00:00-00:30:15", 1_709_166_615_000_000_000),
    ],
)
def test_an_instant_is_nanoseconds_since_1970(text: str, nanoseconds: int) -> None:
    assert parse_instant(text) == nanoseconds


@each_row(
    "text",
    [
        "",
        "2024-05-01",
        "2024-05-01T10:00Z",
        "2024-05-01T10:00:00",
        "2024-05-01 10:00:00Z",
        "2024-05-01T10:00:00.Z",
        "2024-05-01T10:00:00.1234567890Z",
        "2024-05-01T10:00:00+2:00",
        "2024-05-01T10:00:00+18:01",
        "2024-05-01T10:00:00+02:60",
        "2024-02-30T10:00:00Z",
        "2024-05-01T24:00:00Z",
        "2024-05-01T10:00:60Z",
        "0000-01-01T00:00:00Z",
        "２０２４-05-01T10:00:00Z",
        "2024-05-01T10:00:00Z\n",
        "now",
    ],
)
def test_parsing_an_invalid_timestamp_returns_no_instant(text: str) -> None:
    assert parse_instant(text) is None


@settings(max_examples=examples(80), deadline=None)
@given(
    st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31)),
    st.integers(-18 * 60, 18 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)
def test_a_timestamp_from_datetime_isoformat_is_parsed_exactly(moment: datetime, zone: timezone) -> None:
    elapsed = moment.replace(tzinfo=zone) - datetime(1970, 1, 1, tzinfo=UTC)
    assert parse_instant(moment.replace(tzinfo=zone).isoformat()) == elapsed // timedelta(microseconds=1) * 1000


@each_row(
    ("instant", "text"),
    [
        (datetime(2030, 1, 15, 7, 30, 0, 250_000, UTC), "2030-01-15T07:30:00.250000Z"),
        (datetime(2030, 1, 15, 7, 30, tzinfo=UTC), "2030-01-15T07:30:00.000000Z"),
        (datetime(2030, 1, 15, 7, 30, 0, 1, timezone(timedelta(hours=2))), "2030-01-15T05:30:00.000001Z"),
        (datetime(1, 1, 1, 0, 0, 0, 1, UTC), "0001-01-01T00:00:00.000001Z"),
    ],
)
def test_a_time_is_written_in_utc_with_six_digits(instant: datetime, text: str) -> None:
    assert utc_text(instant) == text
    assert utc_text(instant, "seconds") == f"{text[:19]}Z"

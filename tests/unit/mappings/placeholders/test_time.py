"""The `time:` placeholder, by a clock that does not move."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappings.placeholders.time import UNITS, instant_text, parse_time
from tests.support.dice import examples
from tests.support.table import each_row

NOW = datetime(2030, 3, 31, 7, 31, 42, 250_125, UTC)


@pytest.fixture(params=["UTC"])
def machine_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The time zone of the machine, for as long as a test runs."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def read(text: str, now: datetime = NOW) -> str:
    write = parse_time(text)
    assert write is not None
    return write(now)


@pytest.mark.usefixtures("machine_zone")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", "2030-03-31T07:31:42.250125Z"),
        ("now_epoch_millis", "1901172702250"),
        ("now-250ms", "2030-03-31T07:31:42.000125Z"),
        ("now+18s", "2030-03-31T07:32:00.250125Z"),
        ("now-10m", "2030-03-31T07:21:42.250125Z"),
        ("now-2h", "2030-03-31T05:31:42.250125Z"),
        ("now+1d", "2030-04-01T07:31:42.250125Z"),
        ("now-1w", "2030-03-24T07:31:42.250125Z"),
        ("now-1mo", "2030-02-28T07:31:42.250125Z"),
        ("now+11mo", "2031-02-28T07:31:42.250125Z"),
        ("now-2y", "2028-03-31T07:31:42.250125Z"),
        ("now[ms]", "2030-03-31T07:31:42.250Z"),
        ("now[s]", "2030-03-31T07:31:42Z"),
        ("now[m]", "2030-03-31T07:31:00Z"),
        ("now[h]", "2030-03-31T07:00:00Z"),
        ("now[d]", "2030-03-31T00:00:00Z"),
        ("now[w]", "2030-03-25T00:00:00Z"),
        ("now[mo]", "2030-03-01T00:00:00Z"),
        ("now[y]", "2030-01-01T00:00:00Z"),
        ("now-2h[h]", "2030-03-31T05:00:00Z"),
        ("now_epoch_millis-1s[s]", "1901172701000"),
    ],
)
def test_a_name_contains_a_time(text: str, expected: str) -> None:
    assert read(text) == expected


@pytest.mark.parametrize("machine_zone", ["Europe/Berlin"], indirect=True)
@pytest.mark.usefixtures("machine_zone")
def test_months_and_years_start_where_the_machine_is() -> None:
    assert read("now[mo]") == "2030-02-28T23:00:00Z"
    assert read("now[y]") == "2029-12-31T23:00:00Z"


@pytest.mark.parametrize("machine_zone", ["Europe/Berlin"], indirect=True)
@pytest.mark.usefixtures("machine_zone")
def test_a_month_further_the_clock_on_the_wall_shows_the_same() -> None:
    """From winter time to summer time: 08:00 stays 08:00."""
    assert read("now+2mo", datetime(2030, 2, 10, 7, 0, tzinfo=UTC)) == "2030-04-10T06:00:00Z"


@each_row(
    "text",
    ["", "Now", "now-", "now-1", "now-h", "now-1x", "now 1h", "now[q]", "now[h", "now-1h-1h", "now-1.5h", "then"],
)
def test_an_invalid_time_name_is_not_parsed(text: str) -> None:
    assert parse_time(text) is None


@pytest.mark.parametrize("text", ["now-9000y", "now+99999999d", "now+999999999999mo", "now-999999999999w"])
def test_times_beyond_the_calendar_are_refused(text: str) -> None:
    with pytest.raises((OverflowError, ValueError)):
        read(text)


def test_an_instant_is_written_in_utc_with_the_digits_it_needs() -> None:
    assert (
        instant_text(datetime(2030, 1, 2, 5, 0, 0, 120_000, timezone(timedelta(hours=2)))) == "2030-01-02T03:00:00.120Z"
    )
    assert instant_text(datetime(7, 1, 2, tzinfo=UTC)) == "0007-01-02T00:00:00Z"


@settings(max_examples=examples(60))
@given(
    st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),
    st.sampled_from(UNITS),
    st.integers(-50, 50),
)
def test_cutting_off_never_goes_ahead_and_twice_is_once(now: datetime, unit: str, count: int) -> None:
    cut = datetime.fromisoformat(read(f"now[{unit}]", now))
    assert cut <= now
    assert read(f"now[{unit}]", cut) == instant_text(cut)
    shifted = datetime.fromisoformat(read(f"now{count:+d}{unit}", now))
    assert (shifted > now) == (count > 0)

"""Times of publishers and of events."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappings.streamr.requests import NoInstant, read_instant
from mappings.timestamps import EARLIEST, LATEST, milliseconds, utc_text_of
from tests.support.acceptance import accepted, accepts
from tests.support.dice import examples
from tests.support.table import each_row


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(EARLIEST, LATEST))
def test_a_time_is_read_from_number_text_and_date(instant: int) -> None:
    assert milliseconds(utc_text_of(instant)) == instant
    assert read_instant(utc_text_of(instant)) == instant
    assert read_instant(instant) == (instant or None)
    assert read_instant(str(instant)) == instant


def test_a_timestamp_has_six_digits() -> None:
    assert utc_text_of(1_700_000_000_120) == "2023-11-14T22:13:20.120000Z"
    assert milliseconds("2023-11-14T22:13:20.120999Z") == 1_700_000_000_120


@each_row("value", [True, [], {}, "soon", " ", "1e3", "NaN", EARLIEST - 1, LATEST + 1, 1e300, "9" * 5000])
def test_an_invalid_time_is_refused(value: object) -> None:
    with pytest.raises(NoInstant):
        read_instant(value)


@accepts(at_least=1)
@settings(max_examples=examples(500), deadline=None)
@given(
    st.datetimes().map(lambda moment: f"{moment.isoformat()}Z")
    | st.text(max_size=40)
    | st.from_regex(r"[0-9]{4}-[0-9T:.+Z\-]{0,30}", fullmatch=True)
)
def test_any_text_gives_a_time_in_range_or_is_refused(text: str) -> None:
    try:
        found = read_instant(text)
    except NoInstant:
        return
    accepted()
    assert found is None or EARLIEST <= found <= LATEST

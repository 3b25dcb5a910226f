"""Instants as events write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from mappings.timestamps import utc_text
from spark_store.records import now_text


def test_an_instant_is_utc_with_all_its_microseconds() -> None:
    assert utc_text(datetime(2030, 1, 15, 7, 30, 0, 250_000, UTC)) == "2030-01-15T07:30:00.250000Z"
    assert utc_text(datetime(2030, 1, 15, tzinfo=timezone(timedelta(hours=2)))) == "2030-01-14T22:00:00.000000Z"
    assert utc_text(datetime.fromisoformat("0001-01-01T00:00:00Z")) == "0001-01-01T00:00:00.000000Z"
    assert datetime.now(UTC) - datetime.fromisoformat(now_text()) < timedelta(minutes=1)

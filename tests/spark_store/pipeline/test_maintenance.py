"""When upkeep is due, and which events are past their time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from spark_store.pipeline.maintenance import Done, Due, Retention, Upkeep, due

NOW = datetime(2030, 1, 15, 12, tzinfo=UTC)
FRESH = Done(NOW, NOW, NOW, 0)
LONG_AGO = NOW - timedelta(days=1)
DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("done", "expected"),
    [
        (FRESH, Due(optimize=False, vacuum=False, forget=False)),
        (FRESH._replace(batches=64), Due(optimize=True, vacuum=False, forget=False)),
        (FRESH._replace(batches=63), Due(optimize=False, vacuum=False, forget=False)),
        (FRESH._replace(batches=1, optimized=LONG_AGO), Due(optimize=True, vacuum=False, forget=False)),
        # Nothing was written: there is nothing to compact, however long ago the last time was.
        (FRESH._replace(optimized=LONG_AGO), Due(optimize=False, vacuum=False, forget=False)),
        (FRESH._replace(vacuumed=LONG_AGO, forgotten=LONG_AGO), Due(optimize=False, vacuum=True, forget=True)),
    ],
)
def test_upkeep_is_due_by_number_and_by_time(done: Done, expected: Due) -> None:
    assert due(done, NOW, Upkeep(retention=Retention(DAY))) == expected


def test_nothing_is_forgotten_where_everything_is_kept() -> None:
    assert not due(FRESH._replace(forgotten=LONG_AGO), NOW, Upkeep()).forget
    assert not due(FRESH._replace(forgotten=LONG_AGO), NOW, Upkeep(retention=Retention(None, {"a": None}))).forget


def test_a_namespace_of_its_own_is_outside_the_default() -> None:
    rule = Retention(DAY, {"acme": None, "o'site": 2 * DAY}).expired(NOW)
    assert rule == (
        r"(ts < timestamp'2030-01-14T12:00:00+00:00' AND namespace <> 'acme' AND namespace <> 'o\'site')"
        r" OR (namespace = 'acme' AND false)"
        r" OR (namespace = 'o\'site' AND ts < timestamp'2030-01-13T12:00:00+00:00')"
    )

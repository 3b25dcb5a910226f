"""When upkeep is due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from spark_store.pipeline.maintenance import Done, Due, Upkeep, due
from spark_store.pipeline.retention import Retention, Rule

NOW = datetime(2030, 1, 15, 12, tzinfo=UTC)
FRESH = Done(NOW, NOW, NOW, 0, 0)
LONG_AGO = NOW - timedelta(days=1)
DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("done", "expected"),
    [
        (FRESH, Due(optimize=False, vacuum=False, forget=False)),
        (FRESH._replace(batches=64), Due(optimize=True, vacuum=False, forget=False)),
        (FRESH._replace(batches=63), Due(optimize=False, vacuum=False, forget=False)),
        (FRESH._replace(batches=1, files=256), Due(optimize=True, vacuum=False, forget=False)),
        (FRESH._replace(batches=1, files=255), Due(optimize=False, vacuum=False, forget=False)),
        (FRESH._replace(batches=1, optimized=LONG_AGO), Due(optimize=True, vacuum=False, forget=False)),
        # Nothing was written: there is nothing to compact, however long ago the last time was.
        (FRESH._replace(optimized=LONG_AGO), Due(optimize=False, vacuum=False, forget=False)),
        (FRESH._replace(vacuumed=LONG_AGO, forgotten=LONG_AGO), Due(optimize=False, vacuum=True, forget=True)),
    ],
)
def test_upkeep_is_due_by_number_and_by_time(done: Done, expected: Due) -> None:
    assert due(done, NOW, Upkeep(retention=Retention(Rule(DAY)))) == expected


def test_nothing_is_forgotten_where_everything_is_kept() -> None:
    assert not due(FRESH._replace(forgotten=LONG_AGO), NOW, Upkeep()).forget
    assert not due(
        FRESH._replace(forgotten=LONG_AGO), NOW, Upkeep(retention=Retention(namespaces={"a": Rule()}))
    ).forget

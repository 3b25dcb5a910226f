"""Which full snapshots are deleted, without Spark."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from spark_store.lake.tables import EVENTS, FULL_SNAPSHOTS, Lake
from spark_store.pipeline import snapshots
from spark_store.pipeline.tables import LakeWriter


class Spark:
    """A fake Spark that records its calls."""

    def __init__(self) -> None:
        self.requests: list[str] = []

    def sql(self, statement: str) -> Spark:
        self.requests.append(statement)
        return self

    def collect(self) -> None:
        pass


def filled(folder: Path, events: list[datetime], kept: dict[int, datetime]) -> tuple[LakeWriter, Spark]:
    """A lake with events of these times, and full snapshots whose newest changes are from these times."""
    place, spark, instants = Lake(folder), Spark(), pa.timestamp("us", "UTC")
    for some in (events[::2], events[1::2]):
        write_deltalake(place.path(EVENTS), pa.table({"ts": pa.array(some, instants)}), mode="append")
    table = pa.table({"as_of": pa.array(kept, pa.int64()), "modified": pa.array(kept.values(), instants)})
    write_deltalake(place.path(FULL_SNAPSHOTS), table, partition_by=["as_of"])
    return LakeWriter(cast(Any, spark), place), spark


NEWEST = datetime(2030, 3, 31, 12, 30, tzinfo=UTC)


def ago(**age: float) -> datetime:
    return NEWEST - timedelta(**age)


@pytest.mark.parametrize("kept", [{}, {9: ago(days=9)}, {5: ago(days=9), 9: ago(days=1), 10: NEWEST}])
def test_spark_is_asked_nothing_where_every_full_snapshot_stays(kept: dict[int, datetime], tmp_path: Path) -> None:
    target, spark = filled(tmp_path, [ago(days=3), NEWEST], kept)
    assert (snapshots.thin(target), spark.requests) == (0, [])


def test_full_snapshots_from_before_the_oldest_event_go_except_their_newest(tmp_path: Path) -> None:
    kept = {2: ago(days=9), 6: ago(days=8), 9: ago(days=4), 12: ago(days=2), 20: NEWEST}
    target, spark = filled(tmp_path, [ago(days=3), NEWEST], kept)
    assert snapshots.thin(target) == 2
    assert [it.partition(" WHERE ")[2] for it in spark.requests] == ["as_of IN (2, 6)"]


def test_full_snapshots_become_rarer_with_their_age() -> None:
    every = {number: NEWEST - timedelta(minutes=10 * (10_000 - number)) for number in range(1, 10_001)}
    deleted = set(snapshots.too_many(every, None))
    kept = [at for number, at in every.items() if number not in deleted]
    assert [at for at in kept if at >= ago(hours=1)] == [ago(minutes=minutes) for minutes in range(60, -1, -10)]
    for since, until, distance, number in (
        (ago(days=1), ago(hours=1), timedelta(hours=1), 23),
        (ago(days=30), ago(days=1), timedelta(days=1), 29),
        (ago(days=70), ago(days=30), timedelta(days=30), 1),
    ):
        found = [at for at in kept if since <= at < until]
        assert number <= len(found) <= number + 1
        assert all(later - earlier <= distance for earlier, later in itertools.pairwise(found))
    assert len(kept) < 70


def test_a_full_snapshot_that_was_kept_stays_at_the_next_age_or_the_one_before_it_does() -> None:
    """At any frequency of checks: no removal leaves a longer gap than its age allows."""
    there: dict[int, datetime] = {}
    for number in range(1, 3_000):
        there[number] = NEWEST + timedelta(minutes=20 * number)
        for gone in snapshots.too_many(there, None):
            del there[gone]
    times = list(there.values())
    gaps = [(times[-1] - earlier, later - earlier) for earlier, later in itertools.pairwise(times)]
    assert all(gap <= timedelta(hours=2) for age, gap in gaps if age <= timedelta(days=1))
    assert all(gap <= timedelta(days=2) for age, gap in gaps if age <= timedelta(days=30))
    assert len(times) < 65


def test_full_snapshots_that_are_alone_or_unknown_stay() -> None:
    assert snapshots.too_many({}, NEWEST) == []
    assert snapshots.too_many({7: NEWEST}, NEWEST) == []
    unknown = datetime.max.replace(tzinfo=UTC)
    assert snapshots.too_many({7: unknown, 9: unknown}, NEWEST) == []

"""Which moments go again, told without Spark."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from spark_store.lake import reader
from spark_store.lake.tables import EVENTS, FULL_SNAPSHOTS, Lake
from spark_store.pipeline import snapshots
from spark_store.pipeline.tables import LakeWriter


@pytest.mark.parametrize(
    ("rows", "events", "expected"),
    [
        ({}, [], []),
        ({7: 6}, [0], []),
        ({10: 5, 20: 5, 30: 5}, [10, 10, 10], []),
        # Retention by age: the oldest events are gone, of the others all are there.
        ({10: 5, 20: 5, 30: 5, 40: 5}, [0, 3, 10, 10], [10, 20]),
        # A namespace that is kept for ever has its events at the beginning.
        ({10: 5, 20: 5, 30: 5, 40: 5}, [10, 1, 0, 2], [20, 30]),
        # What is left before one that goes counts for the next one.
        ({10: 5, 20: 5, 30: 5, 40: 5}, [6, 6, 6, 6], [10, 30]),
        # The newest one is the beginning of every question about now.
        ({10: 5, 20: 5}, [0, 0], [10]),
    ],
)
def test_a_moment_stays_where_it_spares_twice_as_many_events_as_it_has_rows(
    rows: dict[int, int], events: list[int], expected: list[int]
) -> None:
    assert snapshots.spare(rows, events) == expected
    stay = {moment: number for moment, number in rows.items() if moment not in expected}
    assert 2 * sum([*stay.values()][:-1]) <= sum(events), "otherwise it would be looked for again, and for nothing"


class Spark:
    """Takes down what it is asked."""

    def __init__(self) -> None:
        self.requests: list[str] = []

    def sql(self, statement: str) -> Spark:
        self.requests.append(statement)
        return self

    def collect(self) -> None:
        pass


def filled(folder: Path, events: list[int], kept: dict[int, int]) -> tuple[LakeWriter, Spark]:
    """A lake with events of these numbers, and moments of so many rows."""
    place, spark = Lake(folder), Spark()
    for some in (events[::2], events[1::2]):
        write_deltalake(place.path(EVENTS), pa.table({"seq": pa.array(some, pa.int64())}), mode="append")
    numbers = [moment for moment, rows in kept.items() for _ in range(rows)]
    for some in (numbers[:1], numbers[1:]):
        entities = pa.array([f"a:{it}" for it in range(len(some))], pa.string())
        table = pa.table({"as_of": pa.array(some, pa.int64()), "entity": entities})
        write_deltalake(place.path(FULL_SNAPSHOTS), table, mode="append", partition_by=["as_of"])
    return LakeWriter(cast(Any, spark), place, 1), spark


def test_the_log_reports_the_moments_and_the_numbers_of_events_how_many_are_between_them(tmp_path: Path) -> None:
    target, _ = filled(tmp_path, [3, 9, 4, 5, 12], {4: 2, 9: 3, 11: 1})
    assert reader.full_snapshots(target.lake) == {4: 2, 9: 3, 11: 1}
    assert reader.events_up_to(target.lake, [4, 9, 11]) == [2, 2, 0]


@pytest.mark.parametrize("kept", [{}, {9: 100}, {5: 5, 9: 100}])
def test_spark_is_asked_nothing_where_every_moment_stays(kept: dict[int, int], tmp_path: Path) -> None:
    target, spark = filled(tmp_path, list(range(10)), kept)
    assert (snapshots.thin(target), spark.requests) == (0, [])


def test_moments_that_spare_too_little_go_as_partitions(tmp_path: Path) -> None:
    target, spark = filled(tmp_path, [7, 8], {2: 5, 6: 5, 9: 5})
    assert snapshots.thin(target) == 2
    assert [it.partition(" WHERE ")[2] for it in spark.requests] == ["as_of IN (2, 6)"]


NEWEST = datetime(2030, 3, 31, 12, 30, tzinfo=UTC)


def ago(**age: float) -> datetime:
    return NEWEST - timedelta(**age)


def test_full_snapshots_become_rarer_with_their_age() -> None:
    every = {number: NEWEST - timedelta(minutes=10 * (10_000 - number)) for number in range(1, 10_001)}
    deleted = set(snapshots.too_close(every))
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
    """However often it is looked: nothing goes that leaves a longer gap than its age allows."""
    there: dict[int, datetime] = {}
    for number in range(1, 3_000):
        there[number] = NEWEST + timedelta(minutes=20 * number)
        for gone in snapshots.too_close(there):
            del there[gone]
    times = list(there.values())
    gaps = [(times[-1] - earlier, later - earlier) for earlier, later in itertools.pairwise(times)]
    assert all(gap <= timedelta(hours=2) for age, gap in gaps if age <= timedelta(days=1))
    assert all(gap <= timedelta(days=2) for age, gap in gaps if age <= timedelta(days=30))
    assert len(times) < 65


def test_full_snapshots_that_are_alone_or_unknown_stay() -> None:
    assert snapshots.too_close({}) == []
    assert snapshots.too_close({7: NEWEST}) == []
    unknown = datetime.max.replace(tzinfo=UTC)
    assert snapshots.too_close({7: unknown, 9: unknown}) == []

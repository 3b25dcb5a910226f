"""Compares lake and journal, row for row, as far as the watermark says that they should be the same.

May run beside a pipeline and a service: the tables are read at one version, and the journal after them, so whatever is
on its way is told apart from what is missing. What was erased is not missed, and reported where it is still there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from spark_store.erasure import Erasure
from spark_store.follower import Follower
from spark_store.pipeline.jobs import Target
from spark_store.pipeline.retention import Retention
from spark_store.pipeline.transforms import event_rows, latest_rows
from spark_store.tables import EVENTS, LATEST, SNAPSHOTS, Table
from spark_store.watermark import read_watermark

_SHOWN = 5
_KEY = ["entity_type", "entity"]


@dataclass(frozen=True, slots=True)
class Difference:
    """Rows that are not as they should be: what is wrong with them, how many there are, the first few of them."""

    what: str
    rows: int
    examples: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.rows} {self.what}: {', '.join(self.examples)}{' …' if self.rows > len(self.examples) else ''}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which events were compared (none if first > last), and what differs."""

    first: int
    last: int
    differences: tuple[Difference, ...]


class Bounds(NamedTuple):
    """Which events are compared: from `first` to `last`, without those past their time or erased."""

    first: int
    last: int
    retention: Retention
    now: datetime
    erasures: Sequence[Erasure]


def verify(target: Target, retention: Retention | None = None, now: datetime | None = None) -> Verdict:
    """Compare everything that the journal still has, below the watermark and not past its time. Raises StoreError.

    `now`: when that is judged; default: the clock.
    """
    erasures = _erasures(target)
    while True:
        verdict = _verify(target, erasures, retention or Retention(), now or datetime.now(UTC))
        known, erasures = erasures, _erasures(target)
        # One that began meanwhile may be all the difference.
        if not verdict.differences or len(erasures) == len(known):
            return verdict


def _erasures(target: Target) -> list[Erasure]:
    with Follower.open(target.lake.journal) as follower:
        return follower.erasures()


def _verify(target: Target, erasures: Sequence[Erasure], retention: Retention, now: datetime) -> Verdict:
    watermark = read_watermark(target.lake.watermark)
    last, erased = watermark.seq, watermark.erased
    events, latest, snapshots = (_pinned(target, table) for table in (EVENTS, LATEST, SNAPSHOTS))
    with Follower.open(target.lake.journal) as follower:
        oldest = follower.oldest()
    first = last + 1 if oldest is None else oldest
    # What the lake says it has done must be gone; what it has not done yet is no difference.
    done = [erasure for erasure in erasures if erasure.id <= erased]
    left = [
        _difference(f"rows of erased entities are in {name}", _erased(rows, done))
        for name, rows in (("events", events), ("latest", latest), ("snapshots", snapshots))
        if done
    ]
    events, latest, snapshots = (_without(table, erasures) for table in (events, latest, snapshots))
    found = [
        *_compare_events(target, events, latest, Bounds(first, last, retention, now, erasures)),
        *_compare_latest(target, events.where(sql.col("seq") <= last), latest),
        *_compare_snapshots(latest, snapshots),
        *left,
    ]
    return Verdict(first, last, tuple(difference for difference in found if difference.rows))


def _pinned(target: Target, table: Table) -> DataFrame:
    """The table as it is now, however often it is looked at."""
    version = target.spark.sql(f"DESCRIBE HISTORY {target.name(table)} LIMIT 1").collect()[0]["version"]
    return target.spark.read.format("delta").option("versionAsOf", version).load(target.lake.path(table))


def _erased(rows: DataFrame, erasures: Sequence[Erasure]) -> DataFrame:
    """The rows that these erasures mean."""
    meant = rows.sparkSession.createDataFrame(
        [(it.entity_type, it.entity, it.seq) for it in erasures], "entity_type STRING, entity STRING, erased BIGINT"
    )
    return rows.join(meant.groupBy(*_KEY).agg(sql.max("erased").alias("erased")), _KEY).where("seq <= erased")


def _without(rows: DataFrame, erasures: Sequence[Erasure]) -> DataFrame:
    """The other ones."""
    if not erasures:
        return rows
    meant = _erased(rows, erasures).select(*_KEY, "revision")
    return rows.join(meant, [*_KEY, "revision"], "left_anti").select(*rows.columns)


def _compare_events(target: Target, events: DataFrame, latest: DataFrame, bounds: Bounds) -> list[Difference]:
    first, last, retention, now, erasures = bounds
    columns = EVENTS.column_names
    entries = _without(event_rows(target.journal("journal_entries", first, last)), erasures)
    journal = retention.kept_rows(entries, latest, now).select(*columns)
    lake = retention.kept_rows(events.where(sql.col("seq").between(first, last)), latest, now).select(*columns)
    twice = events.groupBy(*_KEY, "revision").count().where("count > 1")
    return [
        _difference("events of the journal are missing or different in the lake", journal.exceptAll(lake)),
        _difference("events of the lake are not so in the journal", lake.exceptAll(journal)),
        _difference("events are in the lake more than once", twice),
    ]


def _compare_latest(target: Target, events: DataFrame, latest: DataFrame) -> list[Difference]:
    """A row may be newer than the events below the watermark, never older; and it is the journal's where both are at
    the same revision."""
    journal = latest_rows(target.journal("journal_states", 1, 0))
    newest = events.groupBy(*_KEY).agg(sql.max("revision").alias("known"))
    kept = latest.select(*_KEY, sql.col("revision").alias("kept"))
    behind = (
        newest.join(kept, _KEY, "left").where("kept IS NULL OR kept < known").withColumnRenamed("known", "revision")
    )
    current = journal.select(*_KEY, sql.col("revision").alias("current"))
    ahead = latest.join(current, _KEY, "left").where("current IS NULL OR current < revision")
    comparable = latest.join(current, _KEY).where("current = revision").select(*LATEST.column_names)
    return [
        _difference("rows of latest are missing or older than the entity's events", behind),
        _difference("rows of latest are unknown to the journal", ahead),
        _difference("rows of latest differ from the journal", comparable.exceptAll(journal)),
        _difference(
            "rows of latest are there more than once",
            latest.groupBy(*_KEY).agg(sql.max("revision").alias("revision"), sql.count("*").alias("n")).where("n > 1"),
        ),
    ]


def _compare_snapshots(latest: DataFrame, snapshots: DataFrame) -> list[Difference]:
    """A snapshot was once a row of `latest`: it is that row where both are at one revision, and never a newer one."""
    at = latest.select(*_KEY, sql.col("revision").alias("current"))
    beyond = snapshots.join(at, _KEY, "left").where("current IS NULL OR current < revision")
    comparable = snapshots.join(at, _KEY).where("current = revision").select(*SNAPSHOTS.column_names)
    twice = snapshots.groupBy(*_KEY, "revision").count().where("count > 1")
    return [
        _difference("snapshots are newer than the rows of latest", beyond),
        _difference("snapshots differ from the rows of latest", comparable.subtract(latest)),
        _difference("snapshots are there more than once", twice),
    ]


def _difference(what: str, rows: DataFrame) -> Difference:
    number = rows.count()
    shown = rows.select("entity", "revision").orderBy("entity", "revision").head(_SHOWN) if number else []
    return Difference(what, number, tuple(f"{row['entity']} at revision {row['revision']}" for row in shown))

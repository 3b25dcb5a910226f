"""Snapshots of entities: earlier rows of `latest`, to replay later events from the nearest one.

An entity gets one when its row is a number of revisions above its newest snapshot. Streams have no states: only retention
leaves snapshots, which mark where their messages begin. Existing rows decide what is appended, and nothing else writes the
lake, so a snapshot exists once, also after a kill.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from mappings.ids import EntityType
from spark_store.lake import reader
from spark_store.lake.tables import APP, FULL_SNAPSHOTS, LATEST, SNAPSHOTS
from spark_store.pipeline.tables import LakeWriter, append_once

EVERY_REVISIONS = 100
"""About how many events are replayed onto a snapshot at most: as few as a page of a history has."""

KEY = ["entity_type", "entity"]


def is_stream() -> Column:
    """Whether a row of any table belongs to a stream."""
    return sql.col("entity_type") == EntityType.STREAM.value


def take(target: LakeWriter, every: int = EVERY_REVISIONS) -> int:
    """Append the snapshots that are due; return how many.

    Those are the rows of `latest` that are `every` revisions or more above their newest snapshot.
    """
    newest = target.read(SNAPSHOTS).groupBy(*KEY).agg(sql.max("revision").alias("newest"))
    is_far = sql.col("revision") - sql.coalesce(sql.col("newest"), sql.lit(0)) >= every
    grown = target.read(LATEST).where((sql.col("revision") >= every) & ~is_stream())
    return append(target, grown.join(newest, KEY, "left").where(is_far).select(*SNAPSHOTS.column_names))


def append(target: LakeWriter, rows: DataFrame) -> int:
    """Append rows of snapshots; return how many."""
    kept = rows.persist()
    try:
        number = kept.count()
        if number:
            kept.coalesce(1).write.format("delta").mode("append").save(target.lake.path(SNAPSHOTS))
    finally:
        kept.unpersist()
    return number


def take_full_snapshot(target: LakeWriter, seq: int) -> int:
    """Take the full snapshot as of event `seq`, unless it is there. Return its number of things."""
    things = target.read(LATEST).where(sql.col("entity_type") == EntityType.THING.value)
    rows = things.withColumn("as_of", sql.lit(seq).cast("long")).select(*FULL_SNAPSHOTS.column_names)
    before = reader.rows(target.lake, FULL_SNAPSHOTS)
    append_once(target, FULL_SNAPSHOTS, rows, APP, seq)
    return reader.rows(target.lake, FULL_SNAPSHOTS) - before


def thin(target: LakeWriter) -> int:
    """Delete the full snapshots that are too close for their age, or too old; return how many."""
    times = reader.event_times(target.lake)
    numbers = too_many(reader.full_snapshot_times(target.lake), None if times is None else times.oldest)
    if numbers:
        # Whole partitions: no file is read or written for that.
        target.spark.sql(
            f"DELETE FROM {target.name(FULL_SNAPSHOTS)} WHERE as_of IN ({', '.join(map(str, numbers))})"
        ).collect()
    return len(numbers)


_HOUR, _DAY, _MONTH = timedelta(hours=1), timedelta(days=1), timedelta(days=30)
_DISTANCES = ((_HOUR, timedelta(0)), (_DAY, _HOUR), (_MONTH, _DAY), (timedelta.max, _MONTH))
"""Up to which age a full snapshot is kept if it is how far from the one before."""


def too_many(times: Mapping[int, datetime], oldest: datetime | None) -> list[int]:
    """Return which full snapshots may be deleted; `times` has all of them, in order.

    Those from before the `oldest` event save nothing, except the newest of them. Of others are kept all of the last hour
    before the newest, then one an hour for a day, one a day for a month, and one a month. The first of each hour, day and
    month stays, so that one that was kept once is kept at its next age too.
    """
    found = [number for number, at in times.items() if oldest is not None and at < oldest][:-1]
    newest = max(times.values(), default=datetime.max)
    kept: datetime | None = None
    for number, at in [it for it in times.items() if it[0] not in found]:
        distance = next(distance for age, distance in _DISTANCES if newest - at <= age)
        if distance and kept is not None and _bucket(at, distance) == _bucket(kept, distance):
            found.append(number)
        else:
            kept = at
    return found


def _bucket(at: datetime, distance: timedelta) -> int:
    return (at - datetime.min.replace(tzinfo=UTC)) // distance

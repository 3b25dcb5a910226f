"""Retention: deletes old events from the lake.

A rule keeps young events, or an entity's newest revisions; with both, each keeps. So the beginning of a history is deleted,
up to a boundary. Ages are computed from the trusted time (`spark_store.lake.clock`), at most the newest event's. Numbers
are in the order of writing: an event after a young one is young, whatever its time.

The remaining events must be replayable, so first a snapshot at the boundary is kept, folded from deleted events if
necessary; older snapshots are deleted. A stream gets one that marks where its messages begin. Full snapshots that save
nothing are deleted. The journal is not affected. Every step may be repeated; snapshots come first, so an interrupted run is
repeated by the next one.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from spark_store.lake import durability, reader
from spark_store.lake.tables import EVENTS, FULL_SNAPSHOTS, LATEST, SNAPSHOTS
from spark_store.pipeline import snapshots
from spark_store.pipeline.folding import folded_states, with_ground
from spark_store.pipeline.retention_rules import RetentionRules, time_before
from spark_store.pipeline.snapshots import KEY
from spark_store.pipeline.tables import LakeWriter, delete_rows
from spark_store.records import SPARK_FORMAT
from spark_store.sql import literal


def preview(target: LakeWriter, retention: RetentionRules, now: datetime) -> list[dict[str, Any]]:
    """Return what `delete_expired` would delete now, by namespace: times are text."""
    boundaries = _boundaries(target, retention, now)
    found = boundaries.groupBy("namespace").agg(
        sql.sum("events").alias("events"),
        sql.count("*").alias("entities"),
        sql.date_format(sql.min("oldest"), SPARK_FORMAT).alias("oldest"),
        sql.date_format(sql.max("latest"), SPARK_FORMAT).alias("newest"),
    )
    return [row.asDict() for row in found.orderBy("namespace").collect()]


def trusted_time(newest: datetime | None, now: datetime) -> datetime:
    """Return the time from which ages are computed: the clock, but at most the newest event's time.

    So a lake without new events keeps its events.
    """
    return now if newest is None else min(now, newest)


def delete_expired(target: LakeWriter, retention: RetentionRules, now: datetime) -> int:
    """Delete events that are past their time; how many. Their files go with a later `vacuum`."""
    boundaries = _boundaries(target, retention, now).persist()
    try:
        deleted, last = boundaries.agg(sql.sum("events"), sql.max("last")).collect()[0]
        # Tables without such rows are left alone: a deletion that deletes nothing would still be a version of them.
        if deleted:
            snapshots.append(target, _missing_snapshots(target, boundaries))
            # After a power cut, events must not be gone without their snapshots.
            durability.sync(target.lake)
            delete_rows(target, SNAPSHOTS, boundaries, "kept.revision < gone.boundary")
            if reader.size(target.lake, FULL_SNAPSHOTS).files:
                delete_rows(target, FULL_SNAPSHOTS, boundaries, "kept.revision < gone.boundary")
            # Numbers grow with revisions: files of later events need not be opened.
            delete_rows(target, EVENTS, boundaries, f"kept.revision <= gone.boundary AND kept.seq <= {last}")
    finally:
        boundaries.unpersist()
    snapshots.thin(target)
    return int(deleted or 0)


def _boundaries(target: LakeWriter, retention: RetentionRules, now: datetime) -> DataFrame:
    """Return one row per entity that loses events: last deleted revision, number, first time."""
    times = reader.event_times(target.lake)
    since = trusted_time(times and times.newest, now)
    firsts = {age: first_young(target, time_before(since, age), now) for age in retention.ages}
    newest = target.read(LATEST).select(*KEY, sql.col("revision").alias("newest"))
    events = target.read(EVENTS).join(newest, KEY, "left")
    expired = events.where(retention.expired_condition(since, firsts)).drop("newest")
    return expired.groupBy(*KEY, "namespace").agg(
        sql.max("revision").alias("boundary"),
        sql.max("seq").alias("last"),
        sql.count("*").alias("events"),
        sql.min("ts").alias("oldest"),
        sql.max("ts").alias("latest"),
    )


def first_young(target: LakeWriter, since: datetime, now: datetime) -> int | None:
    """Return the least number of the events since a time; None for none.

    Only up to the clock: a future time proves nothing.
    """
    young = target.read(EVENTS).where(f"ts >= {literal(since)} AND ts <= {literal(now)}")
    (first,) = young.agg(sql.min("seq")).collect()[0]
    return None if first is None else int(first)


def _missing_snapshots(target: LakeWriter, boundaries: DataFrame) -> DataFrame:
    """Return a snapshot for each boundary without one: the row of `latest`, or folded from deleted events."""
    taken, latest = target.read(SNAPSHOTS), target.read(LATEST)
    wanted = boundaries.select(*KEY, "boundary", "oldest")
    missing = wanted.join(taken.select(*KEY, sql.col("revision").alias("boundary")), [*KEY, "boundary"], "left_anti")
    at_boundary = latest.join(missing, KEY).where("revision = boundary").select(*SNAPSHOTS.column_names)
    within = missing.join(at_boundary.select(*KEY), KEY, "left_anti")
    bases = taken.join(within.select(*KEY, "boundary"), KEY).where("revision <= boundary")
    streams = _of_streams(target.read(EVENTS), within.where(snapshots.is_stream()), bases)
    within, bases = (rows.where(~snapshots.is_stream()) for rows in (within, bases))
    newest = bases.groupBy(*KEY).agg(sql.max("revision").alias("revision"))
    bases = bases.join(newest, [*KEY, "revision"]).select(*SNAPSHOTS.column_names)
    above = newest.withColumnRenamed("revision", "base")
    events = (
        target.read(EVENTS)
        .join(within, KEY)
        .join(above, KEY, "left")
        .where("revision <= boundary AND revision > coalesce(base, 0)")
    )
    folded = with_ground(folded_states(events, bases)).select(*SNAPSHOTS.column_names)
    return at_boundary.unionByName(folded).unionByName(streams)


def _of_streams(events: DataFrame, within: DataFrame, bases: DataFrame) -> DataFrame:
    """Return rows of `snapshots` for streams, with the message at each boundary and the oldest known time."""
    begun = bases.groupBy(*KEY).agg(sql.min("created").alias("begun"))
    last = events.join(within, KEY).where("revision = boundary").join(begun, KEY, "left")
    made = {
        "policy_id": sql.lit(None).cast("string"),
        "created": sql.coalesce("begun", "oldest"),
        "modified": sql.col("ts"),
        "deleted": sql.lit(False),
        "state": sql.lit("{}"),
    }
    return last.withColumns(made).select(*SNAPSHOTS.column_names)

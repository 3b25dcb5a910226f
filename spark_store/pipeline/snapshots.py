"""Snapshots: rows of `latest` that are kept, so that a state of the past is replayed from the nearest one.

An entity gets one whenever its row in `latest` has come so many revisions above its newest snapshot. Streams have no states
to be replayed; of them retention alone leaves snapshots, which say where their messages begin. What is appended is chosen by
what is there, and nobody else writes the lake meanwhile: so a snapshot is there once, whatever was killed between.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from mappings.ids import EntityType
from spark_store.pipeline.jobs import Target
from spark_store.tables import LATEST, SNAPSHOTS

EVERY_REVISIONS = 100
"""How many events are replayed upon a snapshot at most, or about so many: as few as a page of a history holds."""

KEY = ["entity_type", "entity"]


def due_rows(latest: DataFrame, snapshots: DataFrame, every: int) -> DataFrame:
    """The rows of `latest` that are to be kept: `every` revisions or more above the entity's newest snapshot."""
    newest = snapshots.groupBy(*KEY).agg(sql.max("revision").alias("newest"))
    is_far = sql.col("revision") - sql.coalesce(sql.col("newest"), sql.lit(0)) >= every
    grown = latest.where((sql.col("revision") >= every) & ~is_stream())
    return grown.join(newest, KEY, "left").where(is_far).select(*SNAPSHOTS.column_names)


def is_stream() -> Column:
    """Whether a row of any table belongs to a stream."""
    return sql.col("entity_type") == EntityType.STREAM.value


def take(target: Target, every: int = EVERY_REVISIONS) -> int:
    """Append the snapshots that are due; how many."""
    rows = due_rows(target.read(LATEST), target.read(SNAPSHOTS), every)
    return append(target, rows)


def append(target: Target, rows: DataFrame) -> int:
    """Append rows of snapshots; how many. Nothing is written where there is none."""
    kept = rows.persist()
    try:
        number = kept.count()
        if number:
            kept.coalesce(1).write.format("delta").mode("append").save(target.lake.path(SNAPSHOTS))
    finally:
        kept.unpersist()
    return number

"""Rebuilds `latest` from `events`, in one commit: readers find old or new rows.

An entity without all of its events is folded from a known state: a row of `snapshots`, or of the former `latest`; without
any, the journal's state is used afterwards. Erased rows are ignored.
"""

from __future__ import annotations

import msgspec
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from spark_store.errors import LakeUnfit
from spark_store.history.replay import FoldBase
from spark_store.journal import erasure
from spark_store.lake import durability, reader
from spark_store.lake.tables import EVENTS, LATEST, SNAPSHOTS
from spark_store.pipeline import tables
from spark_store.pipeline.folding import folded_states, with_ground
from spark_store.pipeline.snapshots import KEY
from spark_store.pipeline.tables import LakeWriter

PARTITION_ROWS = 500_000
"""About how many events are sorted and folded at once; their states become one file."""


class FoldReport(msgspec.Struct, frozen=True):
    """The rows of `latest` by source, and how many changed.

    Folded from events alone, from a known state, or without any (the journal's is used); rows changed, added, removed.
    """

    folded: int
    known: int
    lost: int
    changed: int
    added: int
    removed: int


def rebuild_latest(target: LakeWriter) -> FoldReport:
    """Rebuild `latest` on the locked lake. Raises StoreError."""
    place = target.lake
    if not place.has(EVENTS):
        raise LakeUnfit(f"{place.path(EVENTS)}: expected a table to rebuild from, found none; restore it from a backup")
    tables.prepare(target)
    spared = erasure.spared_condition(reader.pending_erasures(place))
    known = target.read(LATEST).unionByName(target.read(SNAPSHOTS).select(*LATEST.column_names))
    partitions = 2 + reader.rows(place, EVENTS) // PARTITION_ROWS
    states = folded_states(target.read(EVENTS).where(spared), known.where(spared), partitions)
    states.persist(StorageLevel.DISK_ONLY)
    try:
        report = _compare(target, states)
        with_ground(states).write.format("delta").mode("overwrite").save(place.path(LATEST))
    finally:
        states.unpersist()
    if report.lost:
        tables.merge_latest(target, 1, 0)
    durability.sync(place)
    return report


def _compare(target: LakeWriter, states: DataFrame) -> FoldReport:
    grounds = {row["ground"]: int(row["count"]) for row in states.groupBy("ground").count().collect()}
    columns = [name for name in LATEST.column_names if name not in KEY]
    new = with_ground(states).select(*KEY, sql.xxhash64(*columns).alias("new"))
    old = target.read(LATEST).select(*KEY, sql.xxhash64(*columns).alias("old"))
    changes = {"changed": sql.expr("new != old"), "added": sql.col("old").isNull(), "removed": sql.col("new").isNull()}
    counts = [sql.count_if(is_one).alias(name) for name, is_one in changes.items()]
    (counted,) = new.join(old, KEY, "full_outer").agg(*counts).collect()
    return FoldReport(
        *(grounds.get(it.value, 0) for it in (FoldBase.EVENTS, FoldBase.KNOWN, FoldBase.NOTHING)), *counted
    )

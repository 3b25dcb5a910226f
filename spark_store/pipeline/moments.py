"""Moments: all things as they are now, kept so that a search of the past folds only what came after the nearest one.

A moment is the number S of an event, with the rows of `latest` as they are when every event up to S is in them. No row
lacks any of these events; some may have later ones, since `latest` may be some moments ahead (`spark_store.pipeline.jobs`).
So a moment serves a question about the time T if the newest of its rows is from before T: then each row is a state that its
thing had before T, and what is missing are events above S. Rows of deleted things belong to it for that reason.

A moment spares such a question events to be folded, and nothing else: what it has is in `snapshots` and `events` too. So
one before which retention has left few of them goes whole. Otherwise things that are idle would have a row in more and more
moments: now there are at most half as many rows as events in the lake, beside those of the newest moment.

Keeping one is an append with the number S, which Delta takes once. What a killed pipeline has begun is done again, at the
same moment or a later one; nobody else writes the lake meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.sql import functions as sql

from mappings.ids import EntityType
from spark_store import lake
from spark_store.pipeline import crashes
from spark_store.pipeline.crashes import Point
from spark_store.pipeline.jobs import Target, append_once
from spark_store.tables import APP, EVENTS, LATEST, MOMENTS


def keep(target: Target, seq: int) -> int:
    """Keep the moment `seq`, which both tables have reached, unless that was done; how many things it has."""
    if lake.last_transaction(target.lake, MOMENTS, APP) >= seq:
        return 0
    things = target.read(LATEST).where(sql.col("entity_type") == EntityType.THING.value)
    rows = things.withColumn("moment", sql.lit(seq).cast("long")).select(*MOMENTS.column_names)
    before = lake.rows(target.lake, MOMENTS)
    with crashes.during(Point.DURING_MOMENT, target.spark, Path(target.lake.path(MOMENTS))):
        append_once(target, MOMENTS, rows, APP, seq)
    return lake.rows(target.lake, MOMENTS) - before


def thin(target: Target) -> int:
    """Delete the moments that spare too little by now; how many. Without Spark, and unchanged, unless there are any."""
    rows = lake.moments(target.lake)
    if 2 * sum([*rows.values()][:-1]) <= lake.rows(target.lake, EVENTS):
        return 0
    spared = spare(rows, lake.events_up_to(target.lake, list(rows)))
    if spared:
        # Whole partitions: no file is read or written for that.
        target.spark.sql(
            f"DELETE FROM {target.name(MOMENTS)} WHERE moment IN ({', '.join(map(str, spared))})"
        ).collect()
    return len(spared)


def spare(rows: Mapping[int, int], events: Sequence[int]) -> list[int]:
    """Which moments, in order and with their `rows`, may go, where `events` are left up to each since the one before.

    One that stays has at most half as many rows as there are events since the one that stays before it. The newest stays.
    """
    found, since = [], 0
    for moment, happened in list(zip(rows, events, strict=True))[:-1]:
        since += happened
        if since < 2 * rows[moment]:
            found.append(moment)
        else:
            since = 0
    return found

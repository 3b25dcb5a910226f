"""Moments: all things as they are now, kept so that a search of the past folds only what came after the nearest one.

A moment is the number S of an event, with the rows of `latest` as they are when every event up to S is in them. No row
lacks any of these events; some may have later ones, since `latest` may be some moments ahead (`spark_store.pipeline.jobs`).
So a moment serves a question about the time T if the newest of its rows is from before T: then each row is a state that its
thing had before T, and what is missing are events above S. Rows of deleted things belong to it for that reason.

Keeping one is an append with the number S, which Delta takes once. What a killed pipeline has begun is done again, at the
same moment or a later one; nobody else writes the lake meanwhile.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import functions as sql

from mappings.ids import EntityType
from spark_store import lake
from spark_store.pipeline import crashes
from spark_store.pipeline.crashes import Point
from spark_store.pipeline.jobs import Target
from spark_store.tables import APP, LATEST, MOMENTS


def keep(target: Target, seq: int) -> int:
    """Keep the moment `seq`, which both tables have reached, unless that was done; how many things it has."""
    if lake.last_transaction(target.lake, MOMENTS, APP) >= seq:
        return 0
    things = target.read(LATEST).where(sql.col("entity_type") == EntityType.THING.value)
    rows = things.withColumn("moment", sql.lit(seq).cast("long")).select(*MOMENTS.column_names)
    before = lake.rows(target.lake, MOMENTS)
    with crashes.during(Point.DURING_MOMENT, target.spark, Path(target.lake.path(MOMENTS))):
        rows.writeTo(target.name(MOMENTS)).option("txnAppId", APP).option("txnVersion", str(seq)).append()
    return lake.rows(target.lake, MOMENTS) - before

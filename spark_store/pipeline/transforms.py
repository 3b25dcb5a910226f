"""Rows of the journal → rows of the tables. DataFrame in, DataFrame out: nothing is read here, nothing written."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from spark_store.tables import EVENTS, LATEST


def event_rows(entries: DataFrame) -> DataFrame:
    """Entries of the journal as rows of `events`, in the order in which an entity's history is read."""
    rows = entries.select(
        "entity_type",
        "entity",
        _namespace(sql.col("entity")).alias("namespace"),
        "revision",
        sql.col("timestamp").alias("ts"),
        "action",
        "path",
        "value",
        "headers",
        "seq",
    )
    return rows.sortWithinPartitions("entity", "revision").select(*EVENTS.column_names)


def latest_rows(states: DataFrame) -> DataFrame:
    """States of entities as rows of `latest`."""
    is_deleted = sql.col("state").isNull()
    return states.select(
        "entity_type",
        "entity",
        _namespace(sql.col("entity")).alias("namespace"),
        sql.col("policy").alias("policy_id"),
        "revision",
        "seq",
        # Those that a rebuild has folded are texts; what is no time is an error, not a null.
        sql.col("created").cast("timestamp").alias("created"),
        sql.col("modified").cast("timestamp").alias("modified"),
        is_deleted.alias("deleted"),
        "state",
    ).select(*LATEST.column_names)


def _namespace(entity: Column) -> Column:
    """What stands before the first colon."""
    return sql.when(entity.contains(":"), sql.substring_index(entity, ":", 1)).otherwise(sql.lit(""))

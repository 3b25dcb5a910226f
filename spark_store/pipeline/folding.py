"""Folds events into states in Spark's Python workers, which hold one entity at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from mappings.model.signals import Event
from spark_store.history.replay import FoldBase, StateFold, state_text
from spark_store.journal.reader import EntityState
from spark_store.lake.tables import LATEST
from spark_store.maintenance.rebuild import as_snapshot
from spark_store.pipeline.snapshots import is_stream
from spark_store.pipeline.tables import latest_rows
from spark_store.records import SPARK_FORMAT, entity_of

_FOLDED = (
    "entity_type STRING, entity STRING, policy STRING, revision BIGINT, created STRING, modified STRING, state STRING, "
    "seq BIGINT, ground STRING"
)
_KNOWN = "known"
_BATCH_ROWS = 1000
_BATCH_BYTES = 8 << 20
_ORDER = ("entity_type", "entity", "revision", "rank", "seq")
_ITEM = (*_ORDER, "at", "action", "path", "text", "headers", "policy", "created")
_ARROW = pa.schema(
    [
        (name, pa.int64() if type == "BIGINT" else pa.string())
        for name, type in (field.split() for field in _FOLDED.split(", "))
    ]
)


def folded_states(events: DataFrame, known: DataFrame, partitions: int = 2) -> DataFrame:
    """Return the newest state of each entity as a row of `latest`, and its source as `ground`.

    `events` are rows of that table, `known` rows of `latest` or `snapshots`: states after the event of their revision.
    """
    key = ("entity_type", "entity")
    # A worker gets this much at once, however long the values are.
    events.sparkSession.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(_BATCH_BYTES))
    items = _event_items(events).unionByName(_known_items(known)).select(*_ITEM)
    folded = items.repartition(partitions, *key).sortWithinPartitions(*_ORDER).mapInArrow(_fold_batches, _FOLDED)
    return latest_rows(folded, "ground")


def _event_items(events: DataFrame) -> DataFrame:
    """Return rows of `events` for folding. Messages of streams change no state."""
    nothing = sql.lit(None).cast("string")
    text = sql.when(is_stream(), nothing).otherwise(sql.col("value")).alias("text")
    return events.select(
        "entity_type", "entity", "revision", sql.lit(0).alias("rank"), "seq", _text("ts", "at"), "action", "path",
        text, "headers", nothing.alias("policy"), nothing.alias("created"),
    )  # fmt: skip


def _known_items(rows: DataFrame) -> DataFrame:
    return rows.select(
        "entity_type", "entity", "revision", sql.lit(1).alias("rank"), "seq",
        _text("modified", "at"), sql.lit(_KNOWN).alias("action"), sql.lit("/").alias("path"),
        sql.col("state").alias("text"), sql.lit("{}").alias("headers"), sql.col("policy_id").alias("policy"),
        _text("created", "created"),
    )  # fmt: skip


def _text(column: str, name: str) -> Any:
    return sql.date_format(column, SPARK_FORMAT).alias(name)


def _fold_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fold one partition: rows in order, one state for each entity. Runs in Spark's Python workers."""
    rows: list[tuple[Any, ...]] = []
    size = 0
    items = (item for batch in batches for item in zip(*(it.to_pylist() for it in batch.columns), strict=True))
    for row in fold_rows(items):
        rows.append(row)
        size += len(row[6] or "")
        if len(rows) >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield _batch(rows)
            rows, size = [], 0
    if rows:
        yield _batch(rows)


def fold_rows(items: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Return the folded states of events and known states, which are in order."""
    current: tuple[str, str] | None = None
    folding, last, newest = StateFold(), 0, 0
    for item in items:
        if item[:2] != current:
            if current is not None:
                yield _row(current, folding, last or newest)
            current, folding, last, newest = item[:2], StateFold(), 0, 0
        type, id, revision, _, seq, at, action, path, text, headers, policy, created = item
        newest = max(newest, seq)
        if action == _KNOWN:
            folding.known(as_snapshot(EntityState(type, id, policy, revision, seq, created, at, _bytes(text))))
        else:
            folding.event(Event(entity_of(type, id), revision, at, action, path, _bytes(text), headers.encode()))
        if folding.snapshot is None:
            last = 0
        elif folding.snapshot.revision == revision:
            # An event that the state does not contain must not make it look newer.
            last = max(last, seq)
    if current is not None:
        yield _row(current, folding, last or newest)


def _row(key: tuple[str, str], folding: StateFold, seq: int) -> tuple[Any, ...]:
    made = folding.snapshot
    if made is None:
        return (*key, None, folding.newest, None, None, None, seq, FoldBase.NOTHING.value)
    text = state_text(made)
    return (
        *key, made.policy, made.revision, made.created, made.modified, None if text is None else text.decode(), seq,
        folding.ground.value,
    )  # fmt: skip


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), _ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=_ARROW)


def with_ground(states: DataFrame) -> DataFrame:
    """Return the rows of entities that have a state, without its source."""
    return states.where(sql.col("ground") != FoldBase.NOTHING.value).select(*LATEST.column_names)

"""Folds events into states in Spark's Python workers, which hold one entity at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema

from mappings.model.signals import Event
from spark_store.errors import damaged_table
from spark_store.history.replay import FoldBase, StateFold, state_text
from spark_store.journal.reader import EntityState
from spark_store.lake.arrow_rows import STATES, arrow
from spark_store.lake.tables import LATEST
from spark_store.maintenance.rebuild import as_snapshot
from spark_store.pipeline.snapshots import KEY, is_stream
from spark_store.pipeline.tables import latest_rows
from spark_store.records import SPARK_FORMAT, entity_of

_KNOWN = "known"
_BATCH_BYTES = 8 << 20
_ORDER = (*KEY, "revision", "rank", "seq")
_ITEM = (*_ORDER, "at", "action", "path", "text", "headers", "policy", "created")
_FOLDED = pa.schema([pa.field("ground", pa.string()), *STATES])


def folded_states(events: DataFrame, known: DataFrame, partitions: int = 2) -> DataFrame:
    """Return the newest state of each entity as a row of `latest`, and its source as `ground`.

    `events` are rows of that table, `known` rows of `latest` or `snapshots`: states after the event of their revision.
    """
    # A worker gets this much at once, however long the values are.
    events.sparkSession.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(_BATCH_BYTES))
    items = _event_items(events).unionByName(_known_items(known), allowMissingColumns=True).select(*_ITEM)
    ordered = items.repartition(partitions, *KEY).sortWithinPartitions(*_ORDER)
    return latest_rows(ordered.mapInArrow(_fold_batches, from_arrow_schema(_FOLDED)), "ground")


def _event_items(events: DataFrame) -> DataFrame:
    """Return rows of `events` for folding. Messages of streams change no state."""
    text = sql.when(~is_stream(), sql.col("value")).alias("text")
    rank = sql.lit(0).alias("rank")
    return events.select(*KEY, "revision", rank, "seq", _text("ts", "at"), "action", "path", text, "headers")


def _known_items(rows: DataFrame) -> DataFrame:
    return rows.select(
        *KEY, "revision", sql.lit(1).alias("rank"), "seq", _text("modified", "at"), sql.lit(_KNOWN).alias("action"),
        sql.col("state").alias("text"), sql.col("policy_id").alias("policy"), _text("created", "created"),
    )  # fmt: skip


def _text(column: str, name: str) -> Any:
    return sql.date_format(column, SPARK_FORMAT).alias(name)


def _fold_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fold one partition: rows in order, one state for each entity. Runs in Spark's Python workers."""
    items = (item for batch in batches for item in zip(*(it.to_pylist() for it in batch.columns), strict=True))
    where = "lake, rows of events, latest or snapshots"
    return arrow(fold_rows(items), _FOLDED, lambda problem: damaged_table(f"{where}, {problem}"))


def fold_rows(items: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Return the folded states of events and known states, which are in order, each after its source.

    Raises LakeUnfit for an event with invalid JSON, StoreUnavailable for a known state with invalid JSON.
    """
    for (type, id), rows in itertools.groupby(items, itemgetter(0, 1)):
        folding, entity = StateFold(), entity_of(type, id)
        for _, _, revision, _, seq, at, action, path, text, headers, policy, created in rows:
            if action == _KNOWN:
                folding.known(as_snapshot(EntityState(type, id, policy, revision, seq, created, at, _bytes(text))), seq)
            else:
                try:
                    folding.event(Event(entity, revision, at, action, path, _bytes(text), headers.encode()), seq)
                except msgspec.DecodeError as error:
                    where = f"lake, table events, {type} {id} at revision {revision}"
                    raise damaged_table(f"{where}: expected JSON, found: {error}") from error
        made = folding.snapshot
        if made is None:
            yield (FoldBase.NOTHING.value, type, id, None, folding.newest, folding.seq, None, None, None)
        else:
            times = (made.created, made.modified)
            yield (folding.ground.value, type, id, made.policy, made.revision, folding.seq, *times, state_text(made))


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def with_ground(states: DataFrame) -> DataFrame:
    """Return the rows of entities that have a state, without its source."""
    return states.where(sql.col("ground") != FoldBase.NOTHING.value).select(*LATEST.column_names)

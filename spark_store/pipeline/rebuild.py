"""Rebuilds `latest` from `events`: folded in parts, replaced in one commit.

Spark's Python workers fold each part of the entities and append it to a table beside the lake (`pipeline/rebuild`), whose
finished parts are listed in a file. Readers find old or new rows. An interrupted rebuild continues with the next part; if
`events` has changed, it begins again. An entity without all of its events is folded from a known state: a row of
`snapshots`, or of the former `latest`; without any, the journal's state is used afterwards. Erased rows are ignored. Memory
is bounded: one entity is held at a time.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from mappings.model.signals import Event
from spark_store.errors import LakeUnfit, translate_system_error
from spark_store.files import write_atomically
from spark_store.history.replay import FOLDABLE, FoldBase, StateFold, state_text
from spark_store.journal import erasure
from spark_store.journal.reader import EntityState
from spark_store.lake import durability, reader
from spark_store.lake import rows as lake_rows
from spark_store.lake.rows import EntityRange
from spark_store.lake.tables import EVENTS, LATEST, SNAPSHOTS, Lake
from spark_store.maintenance.rebuild import as_snapshot
from spark_store.pipeline import tables
from spark_store.pipeline.snapshots import is_stream
from spark_store.pipeline.tables import LakeWriter, latest_rows
from spark_store.records import SPARK_FORMAT, entity_of

ROWS = 500_000
"""About how many events are one part."""

APP = "rebuild"
"""The transaction names in Delta's log."""

FOLDED_SCHEMA = (
    "entity_type STRING, entity STRING, policy STRING, revision BIGINT, created STRING, modified STRING, state STRING, "
    "seq BIGINT, ground STRING"
)
_KNOWN = "known"
_BATCH_ROWS = 1000
_BATCH_BYTES = 8 << 20
_ORDER = ("entity_type", "entity", "revision", "rank", "seq")
_ITEM = (*_ORDER, "at", "action", "path", "text", "headers", "policy", "created")

Say = Callable[..., None]


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


class RebuildProgress(msgspec.Struct):
    """The version of `events` that is folded, its parts, and how many of them are done.

    `run` numbers the rebuild.
    """

    run: int
    version: int
    parts: list[EntityRange]
    done: int = 0
    rebuilt: FoldReport | None = None


def rebuild_latest(target: LakeWriter, say: Say, rows: int = ROWS) -> FoldReport:
    """Rebuild `latest` on the locked lake. Raises StoreError; then another call continues."""
    place = target.lake
    if not place.has(EVENTS):
        raise LakeUnfit(f"{place.path(EVENTS)}: expected a table to rebuild from, found none; restore it from a backup")
    tables.prepare(target)
    # A worker gets this much at once, however long the values are.
    target.spark.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(_BATCH_BYTES))
    progress = _progress(place, rows)
    while progress.done < len(progress.parts):
        _fold(target, progress)
        progress.done += 1
        _remember(place, progress)
        say("part rebuilt", part=progress.done, parts=len(progress.parts))
    if progress.rebuilt is None:
        progress.rebuilt = _compared(target)
        _remember(place, progress)
    _replace(target, progress.run)
    if progress.rebuilt.lost:
        tables.merge_latest(target, 1, 0)
    durability.sync(place)
    discard(place)
    return progress.rebuilt


def _progress(place: Lake, rows: int) -> RebuildProgress:
    """Return the progress of an interrupted rebuild, if `events` is the same; else a new one."""
    version = lake_rows.version(place, EVENTS)
    try:
        found = msgspec.json.decode(_file(place).read_bytes(), type=RebuildProgress)
        if found.version == version:
            return found
    except (FileNotFoundError, msgspec.MsgspecError):
        pass
    discard(place)
    place.rebuild.mkdir(parents=True)
    # A number that is not above the last one would not be taken; no clock is sure to give such a one.
    run = reader.last_transaction(place, LATEST, APP) + 1
    begun = RebuildProgress(run, version, lake_rows.parts(place, rows))
    _remember(place, begun)
    return begun


def discard(place: Lake) -> None:
    """Delete the results of an interrupted rebuild; the next one begins again. Raises StoreUnavailable."""
    try:
        # First the list of finished parts, which a rebuild would continue.
        _file(place).unlink(missing_ok=True)
        if place.rebuild.is_dir():
            shutil.rmtree(place.rebuild)
    except OSError as error:
        raise translate_system_error(place.rebuild, error) from error


def _file(place: Lake) -> Path:
    return place.rebuild / "progress.json"


def _staging(place: Lake) -> str:
    return str((place.rebuild / "latest").absolute())


def _remember(place: Lake, progress: RebuildProgress) -> None:
    # Finished parts must exist after a power cut.
    durability.sync(place)
    try:
        write_atomically(_file(place), msgspec.json.encode(progress))
    except OSError as error:
        raise translate_system_error(_file(place), error) from error


def _fold(target: LakeWriter, progress: RebuildProgress) -> None:
    """Fold one part into the table beside the lake; a finished part is not repeated."""
    condition = (
        f"{progress.parts[progress.done].condition()} AND {erasure.spared_condition(reader.pending(target.lake))}"
    )
    events = target.spark.read.format("delta").option("versionAsOf", progress.version).load(target.lake.path(EVENTS))
    items = event_items(events.where(condition))
    for known in _known_states(target):
        items = items.unionByName(known_items(known.where(condition)))
    (
        fold(items)
        .write.format("delta")
        .mode("append")
        .option("txnAppId", APP)
        .option("txnVersion", progress.done + 1)
        .save(_staging(target.lake))
    )


def _known_states(target: LakeWriter) -> Iterator[DataFrame]:
    """Return the tables with known states, with the columns of `latest`."""
    yield target.read(LATEST)
    if target.lake.has(SNAPSHOTS):
        yield target.read(SNAPSHOTS)


def event_items(events: DataFrame) -> DataFrame:
    """Return rows of `events` for folding. Messages of streams change no state."""
    nothing = sql.lit(None).cast("string")
    text = sql.when(is_stream(), nothing).otherwise(sql.col("value")).alias("text")
    return events.select(
        "entity_type", "entity", "revision", sql.lit(0).alias("rank"), "seq", _text("ts", "at"), "action", "path",
        text, "headers", nothing.alias("policy"), nothing.alias("created"),
    )  # fmt: skip


def known_items(rows: DataFrame) -> DataFrame:
    """Return rows of `latest` or `snapshots` as known states, after the event of their revision."""
    return rows.select(
        "entity_type", "entity", "revision", sql.lit(1).alias("rank"), "seq",
        _text("modified", "at"), sql.lit(_KNOWN).alias("action"), sql.lit("/").alias("path"),
        sql.col("state").alias("text"), sql.lit("{}").alias("headers"), sql.col("policy_id").alias("policy"),
        _text("created", "created"),
    )  # fmt: skip


def _text(column: str, name: str) -> Any:
    return sql.date_format(column, SPARK_FORMAT).alias(name)


def fold(items: DataFrame) -> DataFrame:
    """Return the newest state of each entity, and its source."""
    key = ("entity_type", "entity")
    return items.select(*_ITEM).repartition(*key).sortWithinPartitions(*_ORDER).mapInArrow(_fold_batches, FOLDED_SCHEMA)


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
    """Items as `event_items` and `known_items` make them, in order → rows of FOLDED_SCHEMA."""
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
        elif type in FOLDABLE:
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


_ARROW = pa.schema(
    [
        (name, pa.int64() if type == "BIGINT" else pa.string())
        for name, type in (field.split() for field in FOLDED_SCHEMA.split(", "))
    ]
)


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), _ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=_ARROW)


def _new_table(target: LakeWriter) -> DataFrame:
    return target.spark.read.format("delta").load(_staging(target.lake))


def _new_rows(target: LakeWriter) -> DataFrame:
    return latest_rows(_new_table(target).where(sql.col("ground") != FoldBase.NOTHING.value))


def _compared(target: LakeWriter) -> FoldReport:
    grounds = {row["ground"]: int(row["count"]) for row in _new_table(target).groupBy("ground").count().collect()}
    columns = [name for name in LATEST.column_names if name not in ("entity_type", "entity")]
    key = ["entity_type", "entity"]
    new = _new_rows(target).select(*key, sql.xxhash64(*columns).alias("new"), sql.lit(1).alias("is_new"))
    old = target.read(LATEST).select(*key, sql.xxhash64(*columns).alias("old"), sql.lit(1).alias("is_old"))
    counted = (
        new.join(old, key, "full_outer")
        .agg(
            sql.count_if(sql.col("new") != sql.col("old")).alias("changed"),
            sql.count_if(sql.col("is_old").isNull()).alias("added"),
            sql.count_if(sql.col("is_new").isNull()).alias("removed"),
        )
        .collect()[0]
    )
    return FoldReport(
        folded=grounds.get(FoldBase.EVENTS.value, 0),
        known=grounds.get(FoldBase.KNOWN.value, 0),
        lost=grounds.get(FoldBase.NOTHING.value, 0),
        changed=int(counted["changed"]),
        added=int(counted["added"]),
        removed=int(counted["removed"]),
    )


def _replace(target: LakeWriter, run: int) -> None:
    """Replace all rows in one commit. The same rebuild does it only once."""
    writer = _new_rows(target).write.format("delta").mode("overwrite")
    writer.option("txnAppId", APP).option("txnVersion", run).save(target.lake.path(LATEST))

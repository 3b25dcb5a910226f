"""The journal as Spark data frames: a range of its events, and the states of their entities.

A few rows are read in this process, since to plan and start tasks takes longer; more of them by Spark's Python workers, each
a part. States may be newer than `last`, never older. A part with fewer events than its numbers fails, and so do states of
trimmed events: something was deleted that the lake does not have.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from spark_store.errors import LakeUnfit, StoreUnavailable
from spark_store.journal.reader import JournalReader
from spark_store.lake.arrow_rows import EVENTS, STATES, arrow
from spark_store.pipeline import arrow_reader

PARTITION_ROWS = 10_000
"""The least events of a partition, if there are so many: each becomes a file."""

FEW_STATES, FEW_EVENTS = 20_000, 2_000
"""Up to how many rows are read in this process. Events have to be fetched and sorted."""

_FEW_BYTES = 8 << 20
Batches = Generator[pa.RecordBatch, None, None]


def read_events(spark: SparkSession, path: Path, first: int, last: int) -> DataFrame:
    """Return the events with these numbers, by entity and revision."""
    if (
        last - first < FEW_EVENTS
        and (few := few_rows(event_batches(path, first, last), EVENTS, FEW_EVENTS)) is not None
    ):
        return spark.createDataFrame(few)
    ranges = split_range(first, last, spark.sparkContext.defaultParallelism)
    return _read_parts(spark, partial(event_batches_alone, path.absolute()), ranges, EVENTS)


def read_states(spark: SparkSession, path: Path, first: int, last: int) -> DataFrame:
    """Return the states of the entities of these events. They may differ at the next reading."""
    if (few := few_rows(state_batches(path, first, last), STATES, FEW_STATES)) is not None:
        return spark.createDataFrame(few)
    parts = max(1, len(split_range(first, last, spark.sparkContext.defaultParallelism)))
    return _read_parts(
        spark, partial(state_batches, path.absolute(), first, last), [(part, parts) for part in range(parts)], STATES
    )


def few_rows(found: Batches, schema: pa.Schema, most: int) -> pa.Table | None:
    """Return all rows; None for more than `most`, or too many bytes."""
    rows = size = 0
    batches: list[pa.RecordBatch] = []
    with contextlib.closing(found):
        for batch in found:
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows > most or size > _FEW_BYTES:
                return None
            batches.append(batch)
    return pa.Table.from_batches(batches, schema)


def split_range(first: int, last: int, parallelism: int) -> list[tuple[int, int]]:
    """Cut `first` to `last` into at most `parallelism` ranges of similar length, none of them tiny."""
    rows = last - first + 1
    parts = max(1, min(parallelism, rows // PARTITION_ROWS))
    edges = [first + rows * part // parts for part in range(parts + 1)]
    return [(edges[part], edges[part + 1] - 1) for part in range(parts)] if rows > 0 else []


def _read_parts(
    spark: SparkSession, read: Callable[..., Batches], parts: Sequence[tuple[int, int]], schema: pa.Schema
) -> DataFrame:
    """Return the rows of `read` with the arguments of each part, which a worker reads."""
    numbers = spark.range(0, len(parts), 1, len(parts))
    return numbers.mapInArrow(partial(_read_in_worker, read, parts), from_arrow_schema(schema))


def _read_in_worker(
    read: Callable[..., Batches], parts: Sequence[tuple[int, int]], numbers: Iterable[pa.RecordBatch]
) -> Batches:
    # Rows of texts and numbers have no cycles, and to look for some takes as long as reading.
    gc.disable()
    try:
        for number in (it for batch in numbers for it in batch.column(0).to_pylist()):
            yield from read(*parts[number])
    finally:
        gc.enable()


def event_batches(path: Path, first: int, last: int) -> Batches:
    """Yield the events with these numbers. Raises LakeUnfit if some are missing, StoreUnavailable."""
    with JournalReader.open(path) as journal_reader:
        yield from _complete(arrow(journal_reader.entries_by_entity(first, last), EVENTS), path, first, last)


def event_batches_alone(path: Path, first: int, last: int) -> Batches:
    """Yield the same, faster, in a process that does not have the journal open."""
    # Checked first, for a better error.
    JournalReader.open(path).close()
    yield from _complete(arrow_reader.read_events(path, first, last, EVENTS), path, first, last)


def _complete(batches: Iterator[pa.RecordBatch], path: Path, first: int, last: int) -> Batches:
    found = 0
    for batch in batches:
        found += batch.num_rows
        yield batch
    # Holes are counted after reading: an erasure may have deleted events meanwhile.
    with JournalReader.open(path) as journal_reader:
        if found + journal_reader.holes(first, last) <= last - first:
            raise LakeUnfit(
                f"{path}: expected every event from {first} to {last}, found only {found} events; "
                "restore the journal from a backup, or move the folder `lake` away"
            )


def state_batches(path: Path, first: int, last: int, part: int = 0, parts: int = 1) -> Batches:
    """Yield the states of one of `parts`. Raises StoreUnavailable, also if the events were trimmed."""
    with JournalReader.open(path) as journal_reader:
        yield from arrow(journal_reader.states(first, last, part, parts), STATES)
        # Checked afterwards: events may have been trimmed meanwhile.
        oldest = journal_reader.oldest_known()
    if 1 < first < oldest:
        raise StoreUnavailable(
            f"{path}: events from number {first} on were trimmed, so the pipeline does not know which entities changed; "
            "the next start reads all states"
        )

"""The journal as two Spark data sources, read in partitions by Python workers as Arrow batches.

`journal_events` has the events numbered `first` to `last`; `journal_states` the present states of the entities with events
in that range, which may be newer, never older. Options: `path`, `first`, `last` and `parallelism` (partitions of a large
range). A partition with fewer events than its numbers fails, and so do states of trimmed events: something was deleted that
the lake does not have.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_store.errors import LakeUnfit, StoreUnavailable
from spark_store.journal.reader import EntityState, JournalEntry, JournalReader
from spark_store.pipeline.arrow_reader import EVENTS, LONG, short_events

EVENTS_SCHEMA = (
    "entity_type STRING, entity STRING, revision BIGINT, seq BIGINT, timestamp TIMESTAMP, action STRING, path STRING, "
    "value STRING, headers STRING"
)
STATES_SCHEMA = (
    "entity_type STRING, entity STRING, policy STRING, revision BIGINT, seq BIGINT, created TIMESTAMP, modified TIMESTAMP, "
    "state STRING"
)

PARTITION_ROWS = 10_000
"""The least rows of a partition, if there are so many: each becomes a file."""

_BATCH_ROWS = 10_000
_BATCH_BYTES = 8 << 20
_TEXT = {"value", "headers", "state"}
"""Columns that the journal keeps as bytes."""
_NUMBERS = {"revision", "seq"}

_INSTANTS = {"timestamp", "created", "modified"}

_STATES = pa.schema(
    {
        name: pa.int64() if name in _NUMBERS else pa.timestamp("us", "UTC") if name in _INSTANTS else pa.string()
        for name in EntityState._fields
    }
)

Row = TypeVar("Row", JournalEntry, EntityState)


class EventRange(InputPartition):
    """Events `first` to `last`, or their entities: part `part` of `parts`."""

    def __init__(self, first: int, last: int, part: int = 0, parts: int = 1) -> None:
        self.first, self.last, self.part, self.parts = first, last, part, parts


def split_range(first: int, last: int, parallelism: int) -> list[EventRange]:
    """Cut `first` to `last` into at most `parallelism` ranges of similar length, none of them tiny."""
    rows = last - first + 1
    parts = max(1, min(parallelism, rows // PARTITION_ROWS))
    edges = [first + rows * part // parts for part in range(parts + 1)]
    return [EventRange(edges[part], edges[part + 1] - 1) for part in range(parts)] if rows > 0 else []


class JournalEvents(DataSource):
    """The events of a journal."""

    @classmethod
    def name(cls) -> str:
        return "journal_events"

    def schema(self) -> str:
        return EVENTS_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        return _EventsReader(self.options)


class _RangeReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._path = Path(options["path"])
        self._first, self._last = int(options["first"]), int(options["last"])
        self._parallelism = int(options["parallelism"])


class _EventsReader(_RangeReader):
    def partitions(self) -> Sequence[EventRange]:
        return split_range(self._first, self._last, self._parallelism)

    def read(self, partition: EventRange) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        # Checked first, for a better error.
        JournalReader.open(self._path).close()
        found = 0
        for batch in short_events(self._path, partition.first, partition.last):
            found += batch.num_rows
            yield batch
        with JournalReader.open(self._path) as journal_reader:
            if found <= partition.last - partition.first:
                for batch in arrow(journal_reader.long_entries(partition.first, partition.last, LONG), JournalEntry):
                    found += batch.num_rows
                    yield batch
            _expect_all(journal_reader, partition, found)


def _few_event_batches(path: Path, wanted: EventRange) -> Generator[pa.RecordBatch, None, None]:
    """The same in a process that has the journal open, so without the other SQLite of `arrow_reader`."""
    found = 0
    with JournalReader.open(path) as journal_reader:
        for batch in arrow(journal_reader.entries_by_entity(wanted.first, wanted.last), JournalEntry):
            found += batch.num_rows
            yield batch
        _expect_all(journal_reader, wanted, found)


def _expect_all(journal_reader: JournalReader, wanted: EventRange, found: int) -> None:
    # Holes are counted after reading: an erasure may have deleted events meanwhile.
    if found + journal_reader.holes(wanted.first, wanted.last) <= wanted.last - wanted.first:
        raise LakeUnfit(
            f"{journal_reader.path}: expected every event from {wanted.first} to {wanted.last}, found only {found} events; "
            "restore the journal from a backup, or move the folder `lake` away"
        )


class JournalStates(DataSource):
    """The newest states of entities of a journal."""

    @classmethod
    def name(cls) -> str:
        return "journal_states"

    def schema(self) -> str:
        return STATES_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        return _StatesReader(self.options)


class _StatesReader(_RangeReader):
    def partitions(self) -> Sequence[EventRange]:
        parts = max(1, len(split_range(self._first, self._last, self._parallelism)))
        return [EventRange(self._first, self._last, part, parts) for part in range(parts)]

    def read(self, partition: EventRange) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        yield from _state_batches(self._path, partition)


def _state_batches(path: Path, wanted: EventRange) -> Generator[pa.RecordBatch, None, None]:
    first = wanted.first
    with JournalReader.open(path) as journal_reader:
        yield from arrow(journal_reader.states(first, wanted.last, wanted.part, wanted.parts), EntityState)
        # Checked afterwards: events may have been trimmed meanwhile.
        oldest = journal_reader.oldest_known() or journal_reader.newest() + 1
    if 1 < first < oldest:
        raise StoreUnavailable(
            f"{path}: events from number {first} on were trimmed, so the pipeline does not know which entities changed; "
            "the next start reads all states"
        )


SOURCES: Sequence[type[DataSource]] = (JournalEvents, JournalStates)


def events_of(path: Path, first: int, last: int, most: int) -> pa.Table | None:
    """Return the events of `journal_events`, read here; None for more than `most`, or too many bytes."""
    return None if last - first >= most else _few(_few_event_batches(path, EventRange(first, last)), EVENTS, most)


def states_of(path: Path, first: int, last: int, most: int) -> pa.Table | None:
    """Return the states of `journal_states`, read here; None for more than `most`, or too many bytes."""
    return _few(_state_batches(path, EventRange(first, last)), _STATES, most)


def _few(found: Generator[pa.RecordBatch, None, None], schema: pa.Schema, most: int) -> pa.Table | None:
    rows = size = 0
    batches: list[pa.RecordBatch] = []
    with contextlib.closing(found):
        for batch in found:
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows > most or size > _BATCH_BYTES:
                return None
            batches.append(batch)
    return pa.Table.from_batches(batches, schema)


def arrow(rows: Iterable[Row], shape: type[Row]) -> Iterator[pa.RecordBatch]:
    """Rows in Arrow batches, bounded in number and in bytes."""
    collected: list[Row] = []
    size = 0
    with _nothing_to_collect():
        for row in rows:
            collected.append(row)
            # The last two fields are the ones that can be long, or the last one is.
            size += len(row[-1] or b"") + len(row[-2] or b"")
            if len(collected) >= _BATCH_ROWS or size >= _BATCH_BYTES:
                yield _batch(collected, shape)
                collected, size = [], 0
        if collected:
            yield _batch(collected, shape)


@contextlib.contextmanager
def _nothing_to_collect() -> Iterator[None]:
    """Disable garbage collection: rows of texts and numbers have no cycles, and searching takes as long."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _batch(rows: Sequence[Row], shape: type[Row]) -> pa.RecordBatch:
    columns = dict(zip(shape._fields, zip(*rows, strict=True), strict=True))
    return pa.RecordBatch.from_arrays(
        [_column(name, values) for name, values in columns.items()], names=list(shape._fields)
    )


def _column(name: str, values: Sequence[Any]) -> pa.Array:
    if name in _TEXT:
        return pa.array(values, pa.binary()).cast(pa.string())
    if name in _INSTANTS:
        # An invalid time is an error, not a null.
        return pa.array(values, pa.string()).cast(pa.timestamp("us", "UTC"))
    return pa.array(values, pa.int64() if name in _NUMBERS else pa.string())

"""Rows of the journal, and of states folded from the lake, as Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from spark_store.errors import DAMAGED_JOURNAL, StoreError, StoreUnavailable
from spark_store.journal.reader import EntityState, JournalEntry

BATCH_ROWS, BATCH_BYTES = 10_000, 8 << 20

_JSON = {"value", "headers", "state"}
"""Columns that the journal keeps as bytes."""
_NUMBERS = {"revision", "seq"}
_TYPES = {
    **dict.fromkeys(_NUMBERS, pa.int64()),
    **dict.fromkeys(("timestamp", "created", "modified"), pa.timestamp("us", "UTC")),
}
EVENTS, STATES = (
    pa.schema({name: _TYPES.get(name, pa.string()) for name in shape._fields}) for shape in (JournalEntry, EntityState)
)


def _damaged_journal(problem: str) -> StoreUnavailable:
    return StoreUnavailable(f"journal.db, {problem}; {DAMAGED_JOURNAL}")


def arrow(
    rows: Iterable[tuple[Any, ...]], schema: pa.Schema, damaged: Callable[[str], StoreError] = _damaged_journal
) -> Iterator[pa.RecordBatch]:
    """Return rows in Arrow batches, bounded in number and in bytes.

    Raises what `damaged` makes of the problem of a damaged row; rows of other origin than the journal name theirs.
    """
    collected: list[tuple[Any, ...]] = []
    size = 0
    for row in rows:
        collected.append(row)
        # The last two fields are the ones that can be long, or the last one is.
        size += len(row[-1] or b"") + len(row[-2] or b"")
        if len(collected) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield _batch(collected, schema, damaged)
            collected, size = [], 0
    if collected:
        yield _batch(collected, schema, damaged)


def _batch(rows: Sequence[tuple[Any, ...]], schema: pa.Schema, damaged: Callable[[str], StoreError]) -> pa.RecordBatch:
    arrays = []
    for field, values in zip(schema, zip(*rows, strict=True), strict=True):
        try:
            arrays.append(_column(field, values))
        except pa.ArrowInvalid as error:
            raise damaged(f"column {field.name}: found: {error}") from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(field: pa.Field, values: Sequence[Any]) -> pa.Array:
    kept = pa.binary() if field.name in _JSON else pa.int64() if field.name in _NUMBERS else pa.string()
    # An invalid time is an error, not a null.
    return pa.array(values, kept).cast(field.type)

"""Rows of the journal as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from spark_store.errors import DAMAGED_JOURNAL, StoreUnavailable
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


def arrow(rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows in Arrow batches, bounded in number and in bytes. Raises StoreUnavailable for damaged ones."""
    collected: list[tuple[Any, ...]] = []
    size = 0
    for row in rows:
        collected.append(row)
        # The last two fields are the ones that can be long, or the last one is.
        size += len(row[-1] or b"") + len(row[-2] or b"")
        if len(collected) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield _batch(collected, schema)
            collected, size = [], 0
    if collected:
        yield _batch(collected, schema)


def _batch(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(schema, zip(*rows, strict=True), strict=True)
    return pa.RecordBatch.from_arrays([_column(field, values) for field, values in columns], schema=schema)


def _column(field: pa.Field, values: Sequence[Any]) -> pa.Array:
    kept = pa.binary() if field.name in _JSON else pa.int64() if field.name in _NUMBERS else pa.string()
    try:
        # An invalid time is an error, not a null.
        return pa.array(values, kept).cast(field.type)
    except pa.ArrowInvalid as error:
        raise StoreUnavailable(f"journal.db, column {field.name}: found: {error}; {DAMAGED_JOURNAL}") from error

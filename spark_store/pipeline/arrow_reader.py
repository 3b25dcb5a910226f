"""Reads the journal's events as Arrow batches, in C, which takes a quarter of the time.

The library (ADBC's driver) brings its own SQLite beside Python's. Two of them must not have a file open in one process at
the same time: closing it in one would release the other one's locks. So it is used in Spark's workers only, after a
`JournalReader` has checked the journal and its schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import adbc_driver_manager
import adbc_driver_sqlite
import pyarrow as pa
import pyarrow.compute as pc

from spark_store.errors import StoreUnavailable
from spark_store.journal.reader import ENTRIES_BY_ENTITY, JournalReader

LONG: Final = 16_384
"""Events with larger values or headers are read elsewhere: batches are bounded by rows only."""

BATCH_ROWS: Final = 4_000

EVENTS: Final = pa.schema(
    {
        **dict.fromkeys(("entity_type", "entity"), pa.string()),
        **dict.fromkeys(("revision", "seq"), pa.int64()),
        "timestamp": pa.timestamp("us", "UTC"),
        **dict.fromkeys(("action", "path", "value", "headers"), pa.string()),
    }
)
"""The columns of events for all readers."""

# Types are guessed from the first rows, so nothing may be null there; JSON is never empty.
_TYPED_ENTRIES = ENTRIES_BY_ENTITY.replace("entries.value", "coalesce(entries.value, x'')", 1)
_SHORT_ENTRIES = (
    f"{_TYPED_ENTRIES} AND coalesce(length(entries.value), 0) <= {LONG} AND length(entries.headers) <= {LONG}"
)
_ROWS = adbc_driver_sqlite.StatementOptions.BATCH_ROWS.value
_WAITING = "PRAGMA busy_timeout = 10000"
_FAULTS = (adbc_driver_manager.Error, pa.ArrowException, OSError)


def short_events(path: Path, first: int, last: int) -> Iterator[pa.RecordBatch]:
    """The events with these numbers, both inclusive, that are not `LONG`, by entity and revision.

    Raises StoreUnavailable.
    """
    try:
        # Not by the library's usual interface: to import that takes a second, in every process that Spark starts.
        with (
            adbc_driver_sqlite.connect(f"{path.absolute().as_uri()}?mode=rw") as database,
            adbc_driver_manager.AdbcConnection(database) as connection,
        ):
            with adbc_driver_manager.AdbcStatement(connection) as statement:
                statement.set_sql_query(_WAITING)
                _rows(statement).close()
            with adbc_driver_manager.AdbcStatement(connection) as statement:
                statement.set_options(**{_ROWS: str(BATCH_ROWS)})
                statement.set_sql_query(_SHORT_ENTRIES)
                statement.bind(pa.record_batch([[first], [last]], names=["first", "last"]))
                with _rows(statement) as rows:
                    for batch in rows:
                        if batch.num_rows:
                            yield _events(batch)
    except _FAULTS as error:
        _read_again(path, first, last)
        raise StoreUnavailable(f"{path}: {error}") from error


def _rows(statement: adbc_driver_manager.AdbcStatement) -> pa.RecordBatchReader:
    stream, _ = statement.execute_query()
    return pa.RecordBatchReader.from_stream(stream)


def _events(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [
        pc.if_else(pc.equal(pc.binary_length(column), 0), None, column) if field.name == "value" else column
        for column, field in zip(batch.columns, EVENTS, strict=True)
    ]
    return pa.RecordBatch.from_arrays(
        [column.cast(field.type) for column, field in zip(columns, EVENTS, strict=True)], schema=EVENTS
    )


def _read_again(path: Path, first: int, last: int) -> None:
    """Repeat the read with Python's SQLite, for its error. Raises StoreUnavailable."""
    with JournalReader.open(path) as journal_reader:
        for _ in journal_reader.entries_by_entity(first, last):
            pass

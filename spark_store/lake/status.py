"""The status of the lake: watermark, lag, size of tables, failures, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from spark_store.errors import StoreError
from spark_store.journal.reader import JournalReader
from spark_store.lake import reader
from spark_store.lake.check import check_reach
from spark_store.lake.tables import TABLES, Lake, Table
from spark_store.lake.watermark import Watermark, measure_lag, read_failure, read_watermark

T = TypeVar("T")


def read_status(place: Lake, now: datetime) -> dict[str, Any]:
    """Return the output of `connectivity pipeline status`.

    Raises StoreUnavailable, SchemaTooNew, which are about the journal. Unreadable parts of the lake are replaced by the
    reason, since the rest is needed then.
    """
    watermark, watermark_failure = _read(lambda: read_watermark(place.watermark))
    watermark = watermark or Watermark()
    with JournalReader.open(place.journal) as journal_reader:
        lag, newest = measure_lag(journal_reader, watermark.visible, now), journal_reader.newest()
        pending = len(journal_reader.erasures(watermark.erased))
        _, lake_failure = _read(lambda: check_reach(place, journal_reader))
    batch = watermark.batch
    return {
        **msgspec.to_builtins(watermark),
        "tables": {table.name: _size(place, table) for table in TABLES if place.has(table)},
        "watermark_failure": watermark_failure,
        "lake_failure": lake_failure,
        "newest": newest,
        "lag_events": lag.events,
        "lag_seconds": round(lag.seconds, 3),
        "batch_rows_per_second": round(batch.rows / batch.seconds) if batch is not None and batch.seconds else None,
        "erasures_pending": pending,
        "failure": msgspec.to_builtins(read_failure(place.failure)),
    }


def _size(place: Lake, table: Table) -> Any:
    size, failure = _read(lambda: reader.size(place, table))
    return {"error": failure} if size is None else msgspec.to_builtins(size)


def _read(read: Callable[[], T]) -> tuple[T | None, str | None]:
    """Return what was read, or the reason why it cannot be read."""
    try:
        return read(), None
    except StoreError as error:
        return None, str(error)

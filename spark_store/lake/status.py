"""The status of the lake: watermark, lag, size of tables, failures, without Spark."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from spark_store.errors import StoreError, StoreUnavailable
from spark_store.journal.reader import JournalReader
from spark_store.lake import reader
from spark_store.lake.check import check_reach
from spark_store.lake.tables import TABLES, Lake, Table
from spark_store.lake.watermark import Watermark, measure_lag, read_failure, read_watermark


def read_status(place: Lake, now: datetime) -> dict[str, Any]:
    """Return the output of `connectivity pipeline status`.

    Raises StoreUnavailable, SchemaTooNew, which are about the journal. Unreadable parts of the lake are replaced by the
    reason, since the rest is needed then.
    """
    watermark, reason = _watermark(place)
    with JournalReader.open(place.journal) as journal_reader:
        lag, newest = measure_lag(journal_reader, watermark.visible, now), journal_reader.newest()
        pending = len(journal_reader.erasures(watermark.erased))
        lacking = _lacking(place, journal_reader)
    shown: dict[str, Any] = msgspec.to_builtins(watermark)
    batch = watermark.batch
    rate = round(batch.rows / batch.seconds) if batch is not None and batch.seconds else None
    there = [table for table in TABLES if place.has(table)]
    shown["tables"] = {table.name: _size(place, table) for table in there}
    return {
        **shown,
        "watermark_failure": reason,
        "lake_failure": lacking,
        "newest": newest,
        "lag_events": lag.events,
        "lag_seconds": round(lag.seconds, 3),
        "batch_rows_per_second": rate,
        "erasures_pending": pending,
        "failure": msgspec.to_builtins(read_failure(place.failure)),
    }


def _watermark(place: Lake) -> tuple[Watermark, str | None]:
    """The watermark; one that cannot be read is 0, and the reason."""
    try:
        return read_watermark(place.watermark), None
    except StoreUnavailable as error:
        return Watermark(), str(error)


def _lacking(place: Lake, journal_reader: JournalReader) -> str | None:
    """Return why trimmed events are not in the lake, or cannot be found; None if they are."""
    try:
        check_reach(place, journal_reader)
    except StoreError as error:
        return str(error)
    return None


def _size(place: Lake, table: Table) -> dict[str, Any]:
    """Return the size of a table, or why it is unknown."""
    try:
        size: dict[str, Any] = msgspec.to_builtins(reader.size(place, table))
    except StoreError as error:
        return {"error": str(error)}
    return size

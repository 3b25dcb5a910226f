"""Checks that the lake is complete and undamaged, without Spark.

Every trimmed event must be in the lake; the log of each table must be complete from its last checkpoint or its beginning
(Spark may need a part that other readers do not); and each file of a table must exist with its size, and intact pages, each
of which has a checksum. It may run beside a pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from spark_store.errors import LakeUnfit, StoreUnavailable, damaged_table, translate_lake_error, translate_system_error
from spark_store.journal.reader import JournalReader
from spark_store.lake import reader
from spark_store.lake.durability import is_complete
from spark_store.lake.tables import APP, EVENTS, TABLES, Lake, Table

_BATCH_ROWS = 1_000

_READS = 2
"""How often the log is read: a pipeline may write a checkpoint and delete older parts meanwhile."""


def check_lake(place: Lake, journal_reader: JournalReader) -> None:
    """Check the lake.

    Raises LakeUnfit with the missing or damaged part and the remedy, and StoreUnavailable.
    """
    there = [table for table in TABLES if _is_begun(Path(place.path(table)))]
    for table in there:
        reader.check_log(place, table)
        _check_commits(Path(place.path(table)) / "_delta_log")
    check_reach(place, journal_reader)
    for table in there:
        for damage in _damaged_files(place, table):
            raise damaged_table(damage)


def expect_lake(place: Lake) -> None:
    """Expect a table of events if the journal was trimmed; otherwise a new lake is created.

    Raises StoreUnavailable if it is missing: a disk that is mounted later must not be hidden by new tables.
    """
    with JournalReader.open(place.journal) as journal_reader:
        start = journal_reader.oldest_known()
    if start > 1 and not place.has(EVENTS):
        raise StoreUnavailable(
            f"{place.folder}: found no lake, expected one with the events before {start}, which the journal has trimmed; "
            "mount the folder, or restore the folder `lake` from a backup"
        )


def check_reach(place: Lake, journal_reader: JournalReader) -> None:
    """Check that `events` has all trimmed events of the journal. Raises LakeUnfit, StoreUnavailable."""
    # Read first: the lake only grows, and the journal is trimmed to what is in it.
    if (start := journal_reader.oldest_known()) > 1:
        expect_no_gap(start, reader.last_transaction(place, EVENTS, APP) if place.has(EVENTS) else 0)


def expect_no_gap(start: int, last: int) -> None:
    """Expect no event to be missing between the lake's last and the journal's first. Raises LakeUnfit."""
    if start > last + 1:
        raise LakeUnfit(
            f"the journal begins at event {start}, but the lake ends at event {last}, so events between them are missing; "
            "restore the folder `lake` from a backup"
        )


def _is_begun(folder: Path) -> bool:
    """Whether a table has been created, even if its log is lost: the log's folder is created first."""
    return any((folder / "_delta_log").glob("*.json")) or any(folder.rglob("*.parquet"))


def _check_commits(log: Path) -> None:
    try:
        newest = max((int(it.stem) for it in log.glob("*.json") if it.stem.isdigit()), default=0)
        is_whole = any(is_complete(log, newest + 1) for _ in range(_READS))
    except OSError as error:
        raise translate_system_error(log, error) from error
    if not is_whole:
        raise damaged_table(
            f"{log}: expected every commit up to {newest} from a checkpoint or from 0 on, found some missing"
        )


def _damaged_files(place: Lake, table: Table) -> Iterator[str]:
    for name, size in reader.files(place, table).items():
        damage = _damage_of(Path(place.path(table)) / name, size)
        # A file that was removed meanwhile is no longer part of the table.
        if damage is not None and name in reader.files(place, table):
            yield damage


def _damage_of(file: Path, size: int) -> str | None:
    """Return the damage of a file. Raises StoreUnavailable if the system cannot read it."""
    try:
        if (found := file.stat().st_size) != size:
            return f"{file}: expected {size} bytes, found {found}"
        with pq.ParquetFile(file, page_checksum_verification=True) as opened:
            for _ in opened.iter_batches(_BATCH_ROWS):
                pass
    except FileNotFoundError:
        return f"{file}: this file of the table is missing"
    except (OSError, pa.ArrowException) as error:
        # Errors of pages have no error number.
        if isinstance(error, OSError) and error.errno is not None:
            raise translate_lake_error(file, error) from error
        return f"{file}: expected intact pages, found: {error}"
    return None

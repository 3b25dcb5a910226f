"""Reads the lake without Spark: facts in its logs, single rows, pending erasures.

Spark takes a second to read one line of a table's log; this takes milliseconds. Every function raises StoreUnavailable, and
LakeUnfit for a damaged table.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from spark_store.errors import StoreUnavailable, damaged_table, translate_lake_error, translate_system_error
from spark_store.files import size_of
from spark_store.journal.erasure import Erasure
from spark_store.journal.reader import JournalReader
from spark_store.lake.tables import APP, ERASURES, EVENTS, FULL_SNAPSHOTS, SNAPSHOTS, TABLES, Lake, Table
from spark_store.lake.watermark import TableSize, read_watermark

CHECKED = ds.ParquetFragmentScanOptions(pre_buffer=True, page_checksum_verification=True)
"""How data files are read: a page whose checksum does not match is an error."""

CUT = timedelta(milliseconds=1)
"""By how much the log cuts times."""

_TRIES = 20
"""How often versions of several tables are read until they are of the same time."""


def last_transaction(lake: Lake, table: Table, app: str) -> int:
    """Return the last transaction of `app` in a table; 0 for none."""
    with open_table(lake, table) as delta:
        return delta.transaction_version(app) or 0


def position(lake: Lake) -> tuple[int, int]:
    """Return the present version of `events`, and the number of its last event."""
    with open_table(lake, EVENTS) as delta:
        return delta.version(), delta.transaction_version(APP) or 0


def pending_erasures(lake: Lake) -> list[Erasure]:
    """The erasures that it, or one of its tables, has not carried out. Raises SchemaTooNew, too."""
    noted = [last_transaction(lake, table, ERASURES) for table in TABLES if lake.has(table)]
    done = min([read_watermark(lake.watermark).erased, *noted])
    with JournalReader.open(lake.journal) as journal_reader:
        return journal_reader.erasures(done)


class PastVersions(NamedTuple):
    """Versions of the tables that a search of the past reads, which were the newest ones at the same time.

    `seq`: the event that the full snapshot ends with; 0 for none.
    """

    events: int
    snapshots: int
    full_snapshots: int
    seq: int


def versions_before(lake: Lake, before: datetime) -> PastVersions:
    """Return the present versions, with the newest full snapshot from before an instant.

    Retention deletes from one table after the other: versions of different times can lack what it moves between them. No row
    is read.
    """
    for _ in range(_TRIES):
        events, snapshots = _version(lake, EVENTS), _version(lake, SNAPSHOTS)
        with open_table(lake, FULL_SNAPSHOTS) as delta:
            # Statistics of times are cut to milliseconds.
            found = [seq for seq, at in _newest_changes(delta).items() if at < before - CUT]
            past = PastVersions(events, snapshots, delta.version(), max(found, default=0))
        if (_version(lake, EVENTS), _version(lake, SNAPSHOTS)) == (events, snapshots):
            return past
    raise StoreUnavailable(f"{lake.folder}: the tables' versions changed each time they were read; retry")


def _version(lake: Lake, table: Table) -> int:
    with open_table(lake, table) as delta:
        return delta.version()


def full_snapshot_times(lake: Lake) -> dict[int, datetime]:
    """Return when the newest change in each full snapshot happened, in order."""
    with open_table(lake, FULL_SNAPSHOTS) as delta:
        return dict(sorted(_newest_changes(delta).items()))


def _newest_changes(delta: DeltaTable) -> dict[int, datetime]:
    newest: dict[int, datetime] = {}
    for seq, modified in file_facts(delta, "partition.as_of", "max.modified"):
        # Files without statistics are unknown.
        at = modified or datetime.max.replace(tzinfo=UTC)
        newest[seq] = max(at, newest.get(seq, at))
    return newest


def event(lake: Lake, seq: int) -> dict[str, Any] | None:
    """The row of `events` with this number, if it is there."""
    with open_table(lake, EVENTS) as delta:
        rows = (
            dataset_of(delta, lake.path(EVENTS))
            .to_table(filter=pc.field("seq") == seq, fragment_scan_options=CHECKED)
            .to_pylist()
        )
    return rows[0] if rows else None


class TimeRange(NamedTuple):
    """The times of the oldest and the newest event, in milliseconds."""

    oldest: datetime
    newest: datetime


def event_times(lake: Lake) -> TimeRange | None:
    """Return the times of `events`; None if no file says them."""
    with open_table(lake, EVENTS) as delta:
        found = [bounds for bounds in file_facts(delta, "min.ts", "max.ts") if None not in bounds]
    return TimeRange(min(oldest for oldest, _ in found), max(newest for _, newest in found)) if found else None


def created_at(lake: Lake, table: Table) -> datetime | None:
    """Return when a table was created; None if it does not say."""
    with open_table(lake, table) as delta:
        created = delta.metadata().created_time
    return None if created is None else datetime.fromtimestamp(created / 1000, UTC)


def size(lake: Lake, table: Table) -> TableSize:
    """Return the present size of a table."""
    with open_table(lake, table) as delta:
        sizes = [size for (size,) in file_facts(delta, "size_bytes")]
    return TableSize(len(sizes), sum(sizes))


def rows(lake: Lake, table: Table) -> int:
    """Return the present number of rows of a table."""
    with open_table(lake, table) as delta:
        return sum(number for (number,) in file_facts(delta, "num_records"))


def files(lake: Lake, table: Table) -> dict[str, int]:
    """The files that a table's newest version consists of, below its folder, and their sizes."""
    return files_of_version(lake, table)[1]


def files_of_version(lake: Lake, table: Table) -> tuple[int, dict[str, int]]:
    """Return a table's newest version and its files as `files` does."""
    with open_table(lake, table) as delta:
        return delta.version(), {unquote(path): size for path, size in file_facts(delta, "path", "size_bytes")}


def file_facts(delta: DeltaTable, *names: str) -> Iterator[tuple[Any, ...]]:
    """Yield what the log has about each file of a table; None where it does not have it."""
    actions = pa.table(delta.get_add_actions(flatten=True))
    unknown, known = [None] * actions.num_rows, set(actions.column_names)
    return zip(*(actions[name].to_pylist() if name in known else unknown for name in names), strict=True)


def check_log(lake: Lake, table: Table) -> None:
    """Check that no part of the table's log is empty, as after a power cut.

    Readers would treat it as a version without changes.
    """
    for file in (Path(lake.path(table)) / "_delta_log").glob("*.json"):
        try:
            # The writer deletes old parts after a checkpoint: such a one has no size.
            if size_of(file) == 0:
                raise damaged_table(f"{file}: found an empty file, expected what was committed")
        except OSError as error:
            raise translate_system_error(file, error) from error


@contextlib.contextmanager
def open_table(lake: Lake, table: Table, version: int | None = None) -> Iterator[DeltaTable]:
    """Open a table, at its newest version by default; errors become StoreUnavailable or LakeUnfit."""
    path = lake.path(table)
    with translate_errors(path):
        yield DeltaTable(path, version)


def dataset_of(delta: DeltaTable, path: str) -> ds.Dataset:
    """The rows of the table at `path`, read by a file system of Arrow's own.

    Arrow's threads call the default one, which is written in Python; where a process ends just then, it is aborted.
    """
    return delta.to_pyarrow_dataset(filesystem=SubTreeFileSystem(path, LocalFileSystem()))


@contextlib.contextmanager
def translate_errors(path: str) -> Iterator[None]:
    """Raise the libraries' errors about the table at `path` as StoreUnavailable or LakeUnfit."""
    try:
        yield
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise translate_lake_error(path, error) from error

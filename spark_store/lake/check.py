"""Is the lake whole by itself? What a comparison with the journal does not ask, or could not survive.

Everything that the journal has let go of has to be in the lake; the log of each table has to say all that happened, from its
last checkpoint or its beginning on (a reader may get along without a part that Spark then wants); and each file of a table
has to be there with its size. With `every_page` the files are read, too: Spark writes a checksum beside each page, so that
also what only the lake still has is known to be what was written. Without Spark, beside a pipeline or without one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from spark_store.errors import LakeUnfit, damaged, translate_lake_error, translate_system_error
from spark_store.journal.reader import JournalReader
from spark_store.lake import reader
from spark_store.lake.durability import is_complete
from spark_store.lake.tables import EVENTS, TABLES, Lake, Table

_BATCH_ROWS = 1_000

_LOOKS = 2
"""A pipeline may make a checkpoint and take away what is before it, after one has looked for checkpoints: the next look
finds it."""


def check_lake(place: Lake, follower: JournalReader, *, every_page: bool) -> None:
    """Raises LakeUnfit, naming what is missing or damaged and what to do about it, and StoreUnavailable."""
    there = [table for table in TABLES if _is_begun(Path(place.path(table)))]
    for table in there:
        reader.check_log(place, table)
        _check_commits(Path(place.path(table)) / "_delta_log")
    check_reach(place, follower)
    for table in there:
        for fault in _faults(place, table, every_page):
            raise damaged(fault)


def check_reach(place: Lake, follower: JournalReader) -> None:
    """See that `events` has what the journal has trimmed. Raises LakeUnfit, StoreUnavailable."""
    # In this order: the lake only grows, and the journal is trimmed to what is in it.
    newest, oldest = follower.newest(), follower.oldest_known()
    begin = newest + 1 if oldest is None else oldest
    if begin > 1:
        refuse_hole(begin, reader.position(place).seq if place.has(EVENTS) else 0)


def refuse_hole(begin: int, last: int) -> None:
    """Where the journal begins, and the last event that is in the lake.

    Raises LakeUnfit where some lie between them.
    """
    if begin > last + 1:
        raise LakeUnfit(
            f"expected the lake to hold every event before {begin}, where the journal begins, found none after "
            f"{last}; restore the folder `lake` from a backup"
        )


def _is_begun(folder: Path) -> bool:
    """Whether a table has been made, though its log may be lost.

    A pipeline makes the folder of the log first of all.
    """
    return any((folder / "_delta_log").glob("*.json")) or any(folder.rglob("*.parquet"))


def _check_commits(log: Path) -> None:
    try:
        newest = max((int(it.stem) for it in log.glob("*.json") if it.stem.isdigit()), default=0)
        is_whole = any(is_complete(log, newest + 1) for _ in range(_LOOKS))
    except OSError as error:
        raise translate_system_error(log, error) from error
    if not is_whole:
        raise damaged(f"{log}: expected every commit up to {newest} from a checkpoint or from 0 on, found some missing")


def _faults(place: Lake, table: Table, every_page: bool) -> Iterator[str]:
    for name, size in reader.files(place, table).items():
        fault = _fault(Path(place.path(table)) / name, size, every_page)
        # One that was removed meanwhile, and is no part of the table any more, nobody misses.
        if fault is not None and name in reader.files(place, table):
            yield fault


def _fault(file: Path, size: int, every_page: bool) -> str | None:
    """What is wrong with a file.

    Raises StoreUnavailable where the system does not let it be read: that is no damage.
    """
    try:
        if (found := file.stat().st_size) != size:
            return f"{file}: expected {size} bytes, found {found}"
        if every_page:
            with pq.ParquetFile(file, page_checksum_verification=True) as opened:
                for _ in opened.iter_batches(_BATCH_ROWS):
                    pass
    except FileNotFoundError:
        return f"{file}: expected a file of the table, found none"
    except (OSError, pa.ArrowException) as error:
        # What is wrong with a page has no number.
        if isinstance(error, OSError) and error.errno is not None:
            raise translate_lake_error(file, error) from error
        return f"{file}: expected the pages that were written, found: {error}"
    return None

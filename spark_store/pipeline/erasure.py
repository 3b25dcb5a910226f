"""Erases entities from the lake: rows from every table, bytes from the disk.

The journal is erased first (`spark_store.journal.erasure`), so nothing can arrive again. Rows up to the record's event
number are deleted; later ones stay. Then every file that no table needs is removed, whatever its age (Delta's VACUUM would
keep files that seem to be of the future), and states of an interrupted rebuild. Readers of older versions must open the
table again. At last Spark deletes shuffle files. All of it may be repeated. Each table's log gets the ID of the erasure, so
that a table restored from a backup is erased again. Nothing else writes the tables meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from spark_store.errors import StoreUnavailable, translate_system_error
from spark_store.journal.erasure import Erasure, condition
from spark_store.lake import durability, reader
from spark_store.lake.tables import ERASURES, TABLES, Lake, Table
from spark_store.pipeline import rebuild
from spark_store.pipeline.session import drop_shuffles
from spark_store.pipeline.tables import LakeWriter, append_once

AT_ONCE = 50
"""The most erasures at a time."""


def finished_erasures(erasures: Sequence[Erasure]) -> list[Erasure]:
    """Return the erasures that the journal has done, in order, up to the first unfinished one."""
    return list(takewhile(lambda erasure: erasure.journal_done is not None, erasures))


def erase(target: LakeWriter, erasures: Sequence[Erasure]) -> None:
    """Delete the rows, those of an interrupted rebuild, and unneeded files; then note it in every table."""
    rebuild.discard(target.lake)
    for table in TABLES:
        target.spark.sql(f"DELETE FROM {target.name(table)} WHERE {condition(erasures)}").collect()
    clean(target)
    drop_shuffles(target.spark)
    # Only now: a backup that has the ID has none of the old files.
    for table in TABLES:
        _note(target, table, erasures[-1].id)


def last_done(place: Lake) -> int:
    """Return the last erasure that every table has done; 0 for none. Raises StoreUnavailable, LakeUnfit."""
    return min(reader.last_transaction(place, table, ERASURES) for table in TABLES)


def _note(target: LakeWriter, table: Table, number: int) -> None:
    """Append nothing, with this number.

    A deletion cannot carry it: Delta would pass over one that is done again.
    """
    append_once(target, table, target.read(table).where("false"), ERASURES, number)


def clean(target: LakeWriter) -> None:
    """Remove every file that no table needs, after the files with remaining rows are durable.

    Raises StoreUnavailable if that fails, or if a file is missing.
    """
    durability.sync(target.lake)
    for table in TABLES:
        try:
            _clean(target.lake, table)
        except OSError as error:
            path = error.filename or target.lake.path(table)
            raise translate_system_error(path, error, "erased data cannot be removed from the files") from error


def _clean(place: Lake, table: Table) -> None:
    folder = Path(place.path(table))
    needed = {folder / name for name in reader.files(place, table)}
    # Before anything goes, each file that is to stay is known by its name on the disk.
    if missing := next((file for file in needed if not file.is_file()), None):
        raise StoreUnavailable(f"{missing}: expected a file of the table, found none; mount or restore it")
    kept = needed | {file.with_name(f".{file.name}.crc") for file in needed}
    for where, folders, names in os.walk(folder, onerror=_refuse, followlinks=True):
        if Path(where) == folder:
            folders.remove("_delta_log")
        for file in (Path(where) / name for name in names):
            if file not in kept:
                file.unlink()


def _refuse(error: OSError) -> None:
    """Refuse a folder that cannot be listed: its content is still there."""
    raise error

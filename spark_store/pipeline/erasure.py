"""Erases entities from the lake: rows from every table, bytes from the disk, IDs from the logs.

The journal is erased first (`spark_store.journal.erasure`), so nothing can arrive again. Rows up to the record's event
number are deleted; later ones stay. Then every file that no table needs is removed, whatever its age (Delta's VACUUM would
keep files that seem to be of the future), every part of a log before a new checkpoint, since statistics have the first and
the last ID of each file, and what an interrupted comparison left. Readers of older versions must open the table again.
At last Spark deletes shuffle files. All of it may be repeated. Each table's log gets the ID of the erasure, so that a table
restored from a backup is erased again. Nothing else writes the tables meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from spark_store.errors import StoreUnavailable, translate_system_error
from spark_store.journal.erasure import Erasure
from spark_store.lake import durability, reader
from spark_store.lake.durability import shorten_log
from spark_store.lake.tables import ERASURES, TABLES, Lake, Table
from spark_store.pipeline.session import drop_shuffles
from spark_store.pipeline.tables import LakeWriter, append_once, delete_rows, write_checkpoint

_GONE = "entity_type STRING, entity STRING, seq BIGINT"

AT_ONCE = 50
"""The most erasures at a time."""


def finished_erasures(erasures: Sequence[Erasure]) -> list[Erasure]:
    """Return the erasures that the journal has done, in order, up to the first unfinished one."""
    return list(takewhile(lambda erasure: erasure.journal_done is not None, erasures))


def erase(target: LakeWriter, erasures: Sequence[Erasure]) -> None:
    """Delete the rows, and unneeded files; then note it in every table."""
    last = {(it.entity_type, it.entity): it.seq for it in erasures}
    gone = target.spark.createDataFrame([(*key, seq) for key, seq in last.items()], _GONE)
    for table in TABLES:
        delete_rows(target, table, gone, "kept.seq <= gone.seq")
    clean(target.lake, {table.name: write_checkpoint(target, table) for table in TABLES})
    drop_shuffles(target.spark)
    # Only now: a backup that has the ID has none of the old files.
    for table in TABLES:
        # No rows, with this number. A deletion cannot carry it: Delta would pass over one that is done again.
        append_once(target, table, target.read(table).where("false"), ERASURES, erasures[-1].id)


def last_done(place: Lake) -> int:
    """Return the last erasure that every table has done; 0 for none. Raises StoreUnavailable, LakeUnfit."""
    return min(reader.last_transaction(place, table, ERASURES) for table in TABLES)


def clean(place: Lake, versions: Mapping[str, int]) -> None:
    """Remove every file that no table needs, when its newest version, with its checkpoint, is durable.

    Raises StoreUnavailable if that fails, if a file is missing, or if a table has another version.
    """
    durability.sync(place)
    for table in TABLES:
        try:
            _clean(place, table, versions[table.name])
            shorten_log(Path(place.path(table)) / "_delta_log", versions[table.name])
        except OSError as error:
            path = error.filename or place.path(table)
            raise translate_system_error(path, error, "erased data cannot be removed from the files") from error


def _clean(place: Lake, table: Table, version: int) -> None:
    folder = Path(place.path(table))
    found, names = reader.files_of_version(place, table)
    if found != version:
        raise StoreUnavailable(
            f"{folder}: expected version {version}, which Spark reads, found version {found}; no data was removed"
        )
    needed = {folder / name for name in names}
    # Before anything goes, each file that is to stay is known by its name on the disk.
    if missing := next((file for file in needed if not file.is_file()), None):
        raise StoreUnavailable(f"{missing}: this file of the table is missing; mount its disk, or restore the file")
    kept = needed | {file.with_name(f".{file.name}.crc") for file in needed}
    for where, folders, files in os.walk(folder, onerror=_refuse, followlinks=True):
        if Path(where) == folder:
            folders.remove("_delta_log")
        for file in (Path(where) / name for name in files):
            if file not in kept:
                file.unlink()


def _refuse(error: OSError) -> None:
    """Refuse a folder that cannot be listed: its content is still there."""
    raise error

"""Erasure from the lake: the rows of an entity leave every table, and their bytes leave the disk.

The journal decides and does its part first (`spark_store.journal.erasure`); so nothing of it can arrive here again. Rows are
deleted up to the event number that the record names: what the entity has become since then stays. Then every file that no
table needs now is removed, however young it is, and so are whole states that an interrupted rebuild has put aside. That is
not left to Delta's VACUUM, which spares what seems to be of the future once the clock was set back. A reader that holds an
older version of a table finds files missing and has to open it anew. At last Spark deletes what it has put aside of earlier
shuffles. Everything here may be done twice.

At the end each table's own log gets the number of the erasure. So a table that is put back from a backup is known by it,
whichever it is, and is erased from again.

The folders of tables are folders of this machine, or mounted here; and nobody else writes them meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from spark_store.errors import damaged, translate_system_error
from spark_store.journal.erasure import Erasure, condition
from spark_store.lake import durability, reader
from spark_store.lake.tables import ERASURES, TABLES, Lake, Table
from spark_store.pipeline import rebuild
from spark_store.pipeline.session import drop_shuffles
from spark_store.pipeline.tables import LakeWriter, append_once

AT_ONCE = 50
"""So many erasures at a time."""


def ready(erasures: Sequence[Erasure]) -> list[Erasure]:
    """Those that the journal has done, in order: what comes after an unfinished one waits for it."""
    return list(takewhile(lambda erasure: erasure.journal_done is not None, erasures))


def erase(target: LakeWriter, erasures: Sequence[Erasure]) -> None:
    """Delete the rows, what an interrupted rebuild has made of them, and every file that only older versions need; then
    note it in every table."""
    rebuild.discard(target.lake)
    for table in TABLES:
        target.spark.sql(f"DELETE FROM {target.name(table)} WHERE {condition(erasures)}").collect()
    clean(target)
    drop_shuffles(target.spark)
    # Only now: a backup that has the number has none of the old files.
    for table in TABLES:
        _note(target, table, erasures[-1].id)


def noted(place: Lake) -> int:
    """The number of the last erasure that every table has carried out; 0 for none.

    Raises StoreUnavailable, LakeUnfit.
    """
    return min(reader.last_transaction(place, table, ERASURES) for table in TABLES)


def _note(target: LakeWriter, table: Table, number: int) -> None:
    """Append nothing, with this number.

    A deletion cannot carry it: Delta would pass over one that is done again.
    """
    append_once(target, table, target.read(table).where("false"), ERASURES, number)


def clean(target: LakeWriter) -> None:
    """Remove every file that no table needs now, once those are durable which hold the rows of others that stay.

    Raises StoreUnavailable where that fails, LakeUnfit for a table that lacks a file.
    """
    durability.sync(target.lake)
    for table in TABLES:
        try:
            _clean(target.lake, table)
        except OSError as error:
            path = error.filename or target.lake.path(table)
            raise translate_system_error(path, error, "what was erased cannot be removed") from error


def _clean(place: Lake, table: Table) -> None:
    folder = Path(place.path(table))
    needed = {folder / name for name in reader.files(place, table)}
    # Before anything goes, each file that is to stay is known by its name on the disk.
    if missing := next((file for file in needed if not file.is_file()), None):
        raise damaged(f"{missing}: found no file, expected one that the table needs")
    kept = needed | {file.with_name(f".{file.name}.crc") for file in needed}
    for where, folders, names in os.walk(folder, onerror=_refuse, followlinks=True):
        if Path(where) == folder:
            folders.remove("_delta_log")
        for file in (Path(where) / name for name in names):
            if file not in kept:
                file.unlink()


def _refuse(error: OSError) -> None:
    """What is in a folder that cannot be listed is there still."""
    raise error

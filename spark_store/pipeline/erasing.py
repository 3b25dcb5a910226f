"""Erasure from the lake: the rows of an entity leave every table, and their bytes leave the disk.

The journal decides and does its part first (`spark_store.erasure`); so nothing of it can arrive here again. Rows are deleted
up to the event number that the record names: what the entity has become since then stays. Then every file that no table
needs now is removed, however young it is, and so are whole states that an interrupted rebuild has put aside. A reader that
holds an older version of a table finds files missing and has to open it anew. Everything here may be done twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from spark_store import durable
from spark_store.erasure import Erasure
from spark_store.pipeline import rebuild
from spark_store.pipeline.jobs import Target
from spark_store.sql import literal
from spark_store.tables import TABLES

AT_ONCE = 50
"""So many erasures in one statement."""


def ready(erasures: Sequence[Erasure]) -> list[Erasure]:
    """Those that the journal has done, in order: what comes after an unfinished one waits for it."""
    return list(takewhile(lambda erasure: erasure.journal_done is not None, erasures))


def condition(erasures: Sequence[Erasure]) -> str:
    """The rows, of any table, that these erasures mean, in SQL."""
    return " OR ".join(
        f"(entity_type = {literal(it.entity_type)} AND entity = {literal(it.entity)} AND seq <= {it.seq})"
        for it in erasures
    )


def erase(target: Target, erasures: Sequence[Erasure]) -> None:
    """Delete the rows, what an interrupted rebuild has made of them, and every file that only older versions need."""
    rebuild.discard(target.lake)
    for table in TABLES:
        for start in range(0, len(erasures), AT_ONCE):
            meant = condition(erasures[start : start + AT_ONCE])
            target.spark.sql(f"DELETE FROM {target.name(table)} WHERE {meant}").collect()
    clean(target)


def clean(target: Target) -> None:
    """Remove every file that no table needs now, once those are durable which hold the rows of others that stay."""
    durable.sync(target.lake)
    for table in TABLES:
        target.spark.sql(f"VACUUM {target.name(table)} RETAIN 0 HOURS").collect()

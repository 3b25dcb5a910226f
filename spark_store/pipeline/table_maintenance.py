"""Maintenance of the tables: compaction, vacuum, and when they are due.

`due` decides, the others act. Waiting times continue over restarts (`waited`). `spark_store.pipeline.retention` deletes
expired events. Compaction clusters new files by entity, so that a page of one entity is in few of them; the log has the
least and greatest values of each file. It changes no row, and readers of older versions continue until `vacuum` has
removed their files, after a time of each table (see `spark_store.lake.tables`). Appends continue meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from spark_store.lake import durability, reader
from spark_store.lake.tables import TABLES, Table
from spark_store.lake.watermark import Watermark
from spark_store.pipeline.settings import PipelineSettings
from spark_store.pipeline.tables import LakeWriter

GRACE = timedelta(minutes=1)
"""How long overdue maintenance waits at a start: new events come first, even if maintenance crashes."""


class MaintenanceState(NamedTuple):
    """How long each kind of maintenance has waited, the age of the process, and what has accumulated.

    Batches and new files since the last compaction, events since the last full snapshot, and all entities.
    """

    waited: Mapping[str, timedelta]
    age: timedelta
    batches: int = 0
    files: int = 0
    events: int = 0
    entities: int = 0


def due(state: MaintenanceState, settings: PipelineSettings) -> list[str]:
    """Return the kinds of maintenance that are due, in the order in which they are done."""

    def has_waited(kind: str, every: timedelta) -> bool:
        return state.waited[kind] >= every and state.age >= min(every, GRACE)

    has_new_batch = state.batches > 0 and has_waited("optimize", settings.optimize_every)
    is_due = {
        # A full snapshot has a row for each thing: there are at most half as many rows as events.
        "full_snapshot": state.events >= max(settings.full_snapshot_events, 2 * state.entities),
        "retention": not settings.retention.is_forever and has_waited("retention", settings.retention_every),
        "optimize": state.batches >= settings.optimize_batches
        or state.files >= settings.optimize_files
        or has_new_batch,
        "vacuum": has_waited("vacuum", settings.vacuum_every),
    }
    return [kind for kind, is_now in is_due.items() if is_now]


def waited(watermark: Watermark, made: datetime, now: datetime) -> dict[str, timedelta]:
    """Return for how long each kind was not done, by this process or an earlier one.

    A kind that was never done has waited since the lake was created. After a future time, the clock was set back, and
    the time that has passed is unknown.
    """
    run = watermark.retention
    done = {
        "retention": None if run is None else run.happened,
        "optimize": watermark.optimized,
        "vacuum": watermark.vacuumed,
    }
    ago = {kind: now - (made if at is None else datetime.fromisoformat(at)) for kind, at in done.items()}
    return {kind: it if it >= timedelta(0) else timedelta.max for kind, it in ago.items()}


CLUSTERED = tuple(table for table in TABLES if table.clustered_by)

SMALL, LARGE = 32 << 20, 256 << 20
"""Bytes of files that were compacted together, from which on they are not compacted again."""
LARGE_EVERY = 16
"""One of so many compactions joins the small parts that the others have made."""
_STABLE_FROM = "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.threshold"
_FILE_BYTES = 32 << 20
"""The size of compacted files: they are few, and a page of one entity reads little."""
_ONE_TASK = {"spark.sql.files.maxPartitionNum": "1", "spark.databricks.delta.optimize.maxFileSize": str(1 << 50)}


def optimize(target: LakeWriter, tables: Iterable[Table] = CLUSTERED, stable_from: int = LARGE) -> None:
    """Compact and cluster these tables, by default all, except partitioned ones.

    Files that were compacted together, and have `stable_from` bytes together, stay as they are. Spark uses one task at a
    time, which takes a minute or more: batches, merges and queries have the other slots.
    """
    spark = target.spark.newSession()
    for key, value in {**_ONE_TASK, _STABLE_FROM: str(stable_from)}.items():
        spark.conf.set(key, value)
    for table in tables:
        size, rows = reader.size(target.lake, table).bytes, reader.rows(target.lake, table)
        # The task begins a new file after so many rows.
        spark.conf.set("spark.sql.files.maxRecordsPerFile", str(max(1, rows * _FILE_BYTES // max(1, size))))
        spark.sql(f"OPTIMIZE {target.name(table)}").collect()


def vacuum(target: LakeWriter) -> None:
    """Remove files that no recent version needs, and old parts of logs, when the newer ones are durable."""
    durability.sync(target.lake)
    for table in TABLES:
        target.spark.sql(f"VACUUM {target.name(table)}").collect()
        durability.clean_log(Path(target.lake.path(table)) / "_delta_log", time.time())

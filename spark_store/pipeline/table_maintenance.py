"""Maintenance of the tables: compaction, vacuum, and when they are due.

`due` decides, the others act. Waiting times continue over restarts (`resume_times`). `spark_store.pipeline.retention`
deletes expired events. Compaction clusters new files by entity, so that a page of one entity is in few of them; the log
has the least and greatest values of each file. It changes no row, and readers of older versions continue until `vacuum`
has removed their files, after a time of each table (see `spark_store.lake.tables`). One thread does
this and merges: they exclude each other. Appends continue meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from spark_store.errors import StoreUnavailable
from spark_store.lake import durability
from spark_store.lake.tables import TABLES, Lake
from spark_store.lake.watermark import Watermark, publish_watermark, read_watermark
from spark_store.pipeline.settings import PipelineSettings
from spark_store.pipeline.tables import LakeWriter

GRACE = timedelta(minutes=1)
"""How long overdue maintenance waits at a start: new events come first, even if maintenance crashes."""


class MaintenanceState(NamedTuple):
    """The last times of maintenance by kind, and the numbers of batches, files, events and entities.

    Batches and new files since the last compaction, events since the last full snapshot.
    """

    done: Mapping[str, datetime]
    batches: int = 0
    files: int = 0
    events: int = 0
    entities: int = 0


def due(state: MaintenanceState, now: datetime, settings: PipelineSettings) -> list[str]:
    """Return the kinds of maintenance that are due, in the order in which they are done."""

    def has_waited(kind: str, every: timedelta) -> bool:
        # A future time means that the clock was set back: how long it is ago is unknown.
        return not timedelta(0) <= now - state.done[kind] < every

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


def resume_times(
    watermark: Watermark, made: datetime, now: datetime, settings: PipelineSettings, grace: timedelta
) -> dict[str, datetime]:
    """Return the last times of earlier processes by kind.

    A kind that was never done has waited since the lake was created; a future time is treated as now.
    """

    def since(at: str | None, every: timedelta) -> datetime:
        waited = now - (made if at is None else datetime.fromisoformat(at))
        return now - min(max(waited, timedelta(0)), max(every - grace, timedelta(0)))

    looked = watermark.retention
    return {
        "retention": since(None if looked is None else looked.happened, settings.retention_every),
        "optimize": since(watermark.optimized, settings.optimize_every),
        "vacuum": since(watermark.vacuumed, settings.vacuum_every),
    }


def optimize(target: LakeWriter) -> None:
    """Compact and cluster all tables, except partitioned ones."""
    for table in (table for table in TABLES if table.clustered_by):
        target.spark.sql(f"OPTIMIZE {target.name(table)}").collect()


def vacuum(target: LakeWriter) -> None:
    """Remove files that no recent version needs, and old parts of logs, when the newer ones are durable."""
    durability.sync(target.lake)
    for table in TABLES:
        target.spark.sql(f"VACUUM {target.name(table)}").collect()
        durability.clean_log(Path(target.lake.path(table)) / "_delta_log", time.time())


def publish_maintenance(place: Lake, done: Callable[[Watermark], Mapping[str, Any]], *kinds: str) -> None:
    """Publish manual maintenance on the locked lake, and clear its failures.

    An unreadable watermark is left to the pipeline, which writes it again. Raises StoreUnavailable.
    """
    durability.sync(place)
    try:
        last = read_watermark(place.watermark)
    except StoreUnavailable:
        return
    failures = {kind: reason for kind, reason in last.maintenance_failures.items() if kind not in kinds}
    publish_watermark(place.watermark, msgspec.structs.replace(last, maintenance_failures=failures, **done(last)))

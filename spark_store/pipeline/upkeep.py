"""Upkeep of the tables: small files made into large ones, files that nobody needs removed; and when what is due.

`due` decides, the others do. How long something has waited counts across starts (`resumed`), or what waits longer than a
process lives would never be done. What is past its time is the business of `spark_store.pipeline.retention`. Compaction
takes the files that are new since the last time and clusters them by entity, so that a page of one entity is in few of them;
what readers need to pass over files (the least and the greatest value of a column in each) stands with each file in the log.
It changes no row, and who reads an older version of a table goes on reading it until `vacuum` has removed that version's
files, for which each table has a time of its own (see `spark_store.lake.tables`). Nothing here may run while a batch does: a
merge and a compaction of one table exclude each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from spark_store.errors import StoreUnavailable
from spark_store.lake import durability
from spark_store.lake.tables import TABLES, Lake
from spark_store.lake.watermark import Watermark, publish_watermark, read_watermark
from spark_store.pipeline import fault_injection
from spark_store.pipeline.fault_injection import FaultPoint
from spark_store.pipeline.retention import RetentionRules
from spark_store.pipeline.tables import LakeWriter

GRACE = timedelta(minutes=1)
"""What has waited too long at a start waits so long more: new events come first, also where upkeep ends the process."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """When what is done.

    Tables are compacted after `batches` of them, or so many new `files`, or `optimize_every` if there was a batch. A moment
    is kept after `moment_events`, or twice as many as there are entities.
    """

    batches: int = 64
    files: int = 256
    optimize_every: timedelta = timedelta(minutes=10)
    vacuum_every: timedelta = timedelta(minutes=10)
    forget_every: timedelta = timedelta(hours=1)
    moment_events: int = 200_000
    retention: RetentionRules = field(default_factory=RetentionRules)


class UpkeepState(NamedTuple):
    """When each kind of upkeep was done last, how many batches and new files there were since the last compaction, how many
    events since the last moment that was kept, and how many entities there are."""

    optimized: datetime
    vacuumed: datetime
    forgotten: datetime
    batches: int
    files: int
    events: int = 0
    entities: int = 0


class Due(NamedTuple):
    """What is to be done now."""

    optimize: bool
    vacuum: bool
    forget: bool
    keep: bool = False


def due(done: UpkeepState, now: datetime, upkeep: Upkeep) -> Due:
    """What has waited long enough."""
    waited = done.batches > 0 and _has_passed(upkeep.optimize_every, done.optimized, now)
    return Due(
        optimize=done.batches >= upkeep.batches or done.files >= upkeep.files or waited,
        vacuum=_has_passed(upkeep.vacuum_every, done.vacuumed, now),
        forget=not upkeep.retention.is_forever and _has_passed(upkeep.forget_every, done.forgotten, now),
        # A moment costs a row for each thing, so there are at most half as many of them as events.
        keep=done.events >= max(upkeep.moment_events, 2 * done.entities),
    )


def without(done: UpkeepState, kind: str, now: datetime) -> UpkeepState:
    """`done`, as if this kind of upkeep, which failed, had been done now."""
    if kind == "moment":
        return done._replace(events=0)
    if kind == "optimize":
        return done._replace(optimized=now, batches=0, files=0)
    return done._replace(vacuumed=now) if kind == "vacuum" else done._replace(forgotten=now)


def resumed(
    done: UpkeepState, watermark: Watermark, made: datetime, now: datetime, upkeep: Upkeep, grace: timedelta
) -> UpkeepState:
    """`done`, with the times of earlier processes.

    What was never done has waited since the lake was made; a time to come counts as now.
    """

    def since(at: str | None, every: timedelta) -> datetime:
        waited = now - (made if at is None else datetime.fromisoformat(at))
        return now - min(max(waited, timedelta(0)), max(every - grace, timedelta(0)))

    looked = watermark.retention
    return done._replace(
        optimized=since(watermark.optimized, upkeep.optimize_every),
        vacuumed=since(watermark.vacuumed, upkeep.vacuum_every),
        forgotten=since(None if looked is None else looked.happened, upkeep.forget_every),
    )


def _has_passed(duration: timedelta, since: datetime, now: datetime) -> bool:
    """A time to come means that the clock was set back: nobody knows how long it is since then."""
    return not timedelta(0) <= now - since < duration


def optimize(target: LakeWriter) -> None:
    """Compact and cluster all tables; what is partitioned was written as it stays."""
    for table in (table for table in TABLES if table.clustered_by):
        with fault_injection.during(FaultPoint.DURING_COMPACTION, target.spark, Path(target.lake.path(table))):
            target.spark.sql(f"OPTIMIZE {target.name(table)}").collect()


def vacuum(target: LakeWriter) -> None:
    """Remove files that no version needs which is young enough to be read, once what has replaced them is durable."""
    durability.sync(target.lake)
    for table in TABLES:
        target.spark.sql(f"VACUUM {target.name(table)}").collect()


def tell(place: Lake, done: Callable[[Watermark], Mapping[str, Any]], *kinds: str) -> None:
    """Publish what was `done` by hand, where nobody else writes the lake, and that these kinds of upkeep have gone well.

    A watermark that cannot be read is left to the pipeline, which makes it anew. Raises StoreUnavailable.
    """
    durability.sync(place)
    try:
        last = read_watermark(place.watermark)
    except StoreUnavailable:
        return
    failures = {kind: reason for kind, reason in last.upkeep_failures.items() if kind not in kinds}
    publish_watermark(place.watermark, msgspec.structs.replace(last, upkeep_failures=failures, **done(last)))

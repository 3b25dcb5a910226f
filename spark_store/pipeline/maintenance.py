"""Upkeep of the tables: small files made into large ones, files nobody needs removed, events past their time deleted.

`due` decides, the others do. Compaction takes the files that are new since the last time and clusters them by entity and
revision, so that a page of one entity is in few of them. It changes no row, and who reads an older version of a table goes
on reading it until `vacuum` has removed that version's files, for which each table has a time of its own (see
`spark_store.tables`). Nothing here may run while a batch does: a merge and a compaction of one table exclude each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from spark_store.pipeline import crashes
from spark_store.pipeline.crashes import Point
from spark_store.pipeline.jobs import Target
from spark_store.tables import EVENTS, TABLES


@dataclass(frozen=True, slots=True)
class Retention:
    """How long events are kept: `default`, or what stands at their namespace. None is forever."""

    default: timedelta | None = None
    namespaces: Mapping[str, timedelta | None] = field(default_factory=dict)

    @property
    def is_forever(self) -> bool:
        return self.default is None and not any(self.namespaces.values())

    def expired(self, now: datetime) -> str:
        """The condition, in SQL, under which a row of `events` is past its time."""
        named = [f"namespace = {_text(name)} AND {_older(kept, now)}" for name, kept in self.namespaces.items()]
        others = " AND ".join([_older(self.default, now), *(f"namespace <> {_text(name)}" for name in self.namespaces)])
        return " OR ".join(f"({rule})" for rule in [others, *named])


def _older(kept: timedelta | None, now: datetime) -> str:
    return "false" if kept is None else f"ts < timestamp'{(now - kept).isoformat()}'"


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


@dataclass(frozen=True, slots=True)
class Upkeep:
    """When what is done. After `batches` of them, or `optimize_every` if there was one, tables are compacted."""

    batches: int = 64
    optimize_every: timedelta = timedelta(minutes=10)
    vacuum_every: timedelta = timedelta(minutes=10)
    forget_every: timedelta = timedelta(hours=1)
    retention: Retention = field(default_factory=Retention)


class Done(NamedTuple):
    """When each kind of upkeep was done last, and how many batches there were since the last compaction."""

    optimized: datetime
    vacuumed: datetime
    forgotten: datetime
    batches: int


class Due(NamedTuple):
    """What is to be done now."""

    optimize: bool
    vacuum: bool
    forget: bool


def due(done: Done, now: datetime, upkeep: Upkeep) -> Due:
    """What has waited long enough."""
    waited = done.batches > 0 and now - done.optimized >= upkeep.optimize_every
    return Due(
        optimize=done.batches >= upkeep.batches or waited,
        vacuum=now - done.vacuumed >= upkeep.vacuum_every,
        forget=not upkeep.retention.is_forever and now - done.forgotten >= upkeep.forget_every,
    )


def optimize(target: Target) -> None:
    """Compact and cluster all tables."""
    for table in TABLES:
        with crashes.during(Point.DURING_COMPACTION, target.spark, Path(target.lake.path(table))):
            target.spark.sql(f"OPTIMIZE {target.name(table)}").collect()


def vacuum(target: Target) -> None:
    """Remove files that no version needs which is young enough to be read."""
    for table in TABLES:
        target.spark.sql(f"VACUUM {target.name(table)}").collect()


def expired(target: Target, retention: Retention, now: datetime) -> dict[str, int]:
    """What `forget` would delete now: events by namespace."""
    rows = target.read(EVENTS).where(retention.expired(now)).groupBy("namespace").count().collect()
    return {row["namespace"]: int(row["count"]) for row in rows}


def forget(target: Target, retention: Retention, now: datetime) -> int:
    """Delete events that are past their time; how many. Their files go with a later `vacuum`."""
    # A table without such rows is left alone: a deletion that deletes nothing would still be a version of it.
    if retention.is_forever or not expired(target, retention, now):
        return 0
    condition = retention.expired(now)
    (row,) = target.spark.sql(f"DELETE FROM {target.name(EVENTS)} WHERE {condition}").collect()
    return int(row[0])

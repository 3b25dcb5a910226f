"""Retention: deletes old events from the lake.

A rule keeps young events, or an entity's newest revisions; with both, each keeps. So the beginning of a history is deleted,
up to a boundary. Ages are computed from the trusted time (`spark_store.lake.clock`), at most the newest event's. Numbers
are in the order of writing: an event after a young one is young, whatever its time.

The remaining events must be replayable, so first a snapshot at the boundary is kept, folded from deleted events if
necessary; older snapshots are deleted. A stream gets one that marks where its messages begin. Full snapshots that save
nothing are deleted. The journal is not affected. Every step may be repeated; snapshots come first, so an interrupted run is
repeated by the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from mappings.ids import namespace_of
from spark_store.journal.reader import JournalEntry
from spark_store.lake import durability, reader
from spark_store.lake.tables import EVENTS, FULL_SNAPSHOTS, LATEST, SNAPSHOTS
from spark_store.pipeline import snapshots
from spark_store.pipeline.folding import folded_states, with_ground
from spark_store.pipeline.snapshots import KEY
from spark_store.pipeline.tables import LakeWriter, delete_rows
from spark_store.records import SPARK_FORMAT
from spark_store.sql import literal

Firsts = Mapping[timedelta, int | None]
"""By age: the least number of a younger event of the lake; None if there is none."""


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """A rule: keeps events not older than `age`, and the newest `revisions` of each entity.

    Without either, everything.
    """

    age: timedelta | None = None
    revisions: int | None = None

    @property
    def is_forever(self) -> bool:
        return self.age is None and self.revisions is None

    def expired_condition(self, now: datetime, firsts: Firsts) -> str:
        """The condition, in SQL, under which an event may go; `newest` is the newest revision of its entity."""
        conditions = []
        if self.age is not None:
            conditions.append(f"ts < {literal(_ago(now, self.age))}")
            if (first := firsts.get(self.age)) is not None:
                conditions.append(f"seq < {first}")
        if self.revisions is not None:
            conditions.append(f"revision <= newest - {self.revisions}")
        return " AND ".join(conditions) or "false"

    def has_expired(self, happened: datetime, revision: int, newest: int, now: datetime) -> bool:
        """Whether one event has expired, as far as its own time and revision show."""
        is_old = self.age is None or happened < _ago(now, self.age)
        is_far = self.revisions is None or revision <= newest - self.revisions
        return not self.is_forever and is_old and is_far


def _ago(now: datetime, age: timedelta) -> datetime:
    """Return the time so long before now; the calendar's beginning if it is earlier: nothing is so old."""
    try:
        return now - age
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


FOREVER = RetentionRule()


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """The rules: the `default`, or that of a namespace."""

    default: RetentionRule = FOREVER
    namespaces: Mapping[str, RetentionRule] = field(default_factory=dict)

    @classmethod
    def of(cls, rules: Mapping[str, Mapping[str, Any]]) -> RetentionRules:
        """Return the rules of `{namespace or "default": {"seconds": …, "revisions": …}}`; both may be missing."""
        found = {
            name: RetentionRule(
                timedelta(seconds=rule["seconds"]) if "seconds" in rule else None, rule.get("revisions")
            )
            for name, rule in rules.items()
        }
        return cls(found.pop("default", FOREVER), found)

    @property
    def is_forever(self) -> bool:
        return self.default.is_forever and all(rule.is_forever for rule in self.namespaces.values())

    @property
    def ages(self) -> set[timedelta]:
        """The ages of all rules."""
        return {rule.age for rule in (self.default, *self.namespaces.values()) if rule.age is not None}

    def expired_condition(self, now: datetime, firsts: Firsts) -> str:
        """Return the SQL condition for expired rows of `events`, with `newest` as in `RetentionRule.expired`."""
        names = self.namespaces
        default, *rules = (rule.expired_condition(now, firsts) for rule in (self.default, *names.values()))
        others = " AND ".join([default, *(f"namespace <> {literal(name)}" for name in names)])
        named = [f"namespace = {literal(name)} AND {rule}" for name, rule in zip(names, rules, strict=True)]
        return " OR ".join(f"({rule})" for rule in [others, *named])

    def has_expired(self, entry: JournalEntry, newest: int, now: datetime) -> bool:
        """Whether the lake may lack an event of the journal, of an entity with the revision `newest`."""
        rule = self.namespaces.get(namespace_of(entry.entity), self.default)
        return rule.has_expired(datetime.fromisoformat(entry.timestamp), entry.revision, newest, now)

    def expired_rows(self, events: DataFrame, latest: DataFrame, now: datetime, firsts: Firsts) -> DataFrame:
        """Return the expired rows of `events`; by revision only with a row in `latest`."""
        newest = latest.select(*KEY, sql.col("revision").alias("newest"))
        return events.join(newest, KEY, "left").where(self.expired_condition(now, firsts)).drop("newest")


class DeletedEvents(NamedTuple):
    """The deleted events of one namespace: their number, entities, and first and last time as text."""

    namespace: str
    events: int
    entities: int
    oldest: str
    newest: str


def preview(target: LakeWriter, retention: RetentionRules, now: datetime) -> list[DeletedEvents]:
    """Return what `forget` would delete now, by namespace."""
    if retention.is_forever:
        return []
    boundaries = _boundaries(target, retention, now)
    found = boundaries.groupBy("namespace").agg(
        sql.sum("events").alias("events"),
        sql.count("*").alias("entities"),
        sql.date_format(sql.min("oldest"), SPARK_FORMAT).alias("oldest"),
        sql.date_format(sql.max("latest"), SPARK_FORMAT).alias("latest"),
    )
    return [DeletedEvents(*row) for row in found.orderBy("namespace").collect()]


def trusted_time(newest: datetime | None, now: datetime) -> datetime:
    """Return the time from which ages are computed: the clock, but at most the newest event's time.

    So a lake without new events keeps its events.
    """
    return now if newest is None else min(now, newest)


def forget(target: LakeWriter, retention: RetentionRules, now: datetime) -> int:
    """Delete events that are past their time; how many. Their files go with a later `vacuum`."""
    if retention.is_forever:
        return 0
    deleted = _forget_events(target, retention, now)
    snapshots.thin(target)
    return deleted


def _forget_events(target: LakeWriter, retention: RetentionRules, now: datetime) -> int:
    """The events, and the states from before them."""
    boundaries = _boundaries(target, retention, now).persist()
    try:
        deleted, last = boundaries.agg(sql.sum("events"), sql.max("last")).collect()[0]
        # Tables without such rows are left alone: a deletion that deletes nothing would still be a version of them.
        if not deleted:
            return 0
        snapshots.append(target, _missing_snapshots(target, boundaries))
        # After a power cut, events must not be gone without their snapshots.
        durability.sync(target.lake)
        delete_rows(target, SNAPSHOTS, boundaries, "kept.revision < gone.boundary")
        if reader.size(target.lake, FULL_SNAPSHOTS).files:
            delete_rows(target, FULL_SNAPSHOTS, boundaries, "kept.revision < gone.boundary")
        # Numbers grow with revisions: files of later events need not be opened.
        delete_rows(target, EVENTS, boundaries, f"kept.revision <= gone.boundary AND kept.seq <= {last}")
    finally:
        boundaries.unpersist()
    return int(deleted)


def _boundaries(target: LakeWriter, retention: RetentionRules, now: datetime) -> DataFrame:
    """Return one row per entity that loses events: last deleted revision, number, first time."""
    times = reader.event_times(target.lake)
    since = trusted_time(times and times.newest, now)
    # Up to the clock: a future time proves nothing.
    firsts = {age: reader.first_between(target.lake, _ago(since, age), now) for age in retention.ages}
    expired = retention.expired_rows(target.read(EVENTS), target.read(LATEST), since, firsts)
    return expired.groupBy(*KEY, "namespace").agg(
        sql.max("revision").alias("boundary"),
        sql.max("seq").alias("last"),
        sql.count("*").alias("events"),
        sql.min("ts").alias("oldest"),
        sql.max("ts").alias("latest"),
    )


def _missing_snapshots(target: LakeWriter, boundaries: DataFrame) -> DataFrame:
    """Return a snapshot for each boundary without one: the row of `latest`, or folded from deleted events."""
    taken, latest = target.read(SNAPSHOTS), target.read(LATEST)
    wanted = boundaries.select(*KEY, "boundary", "oldest")
    missing = wanted.join(taken.select(*KEY, sql.col("revision").alias("boundary")), [*KEY, "boundary"], "left_anti")
    at_boundary = latest.join(missing, KEY).where("revision = boundary").select(*SNAPSHOTS.column_names)
    within = missing.join(at_boundary.select(*KEY), KEY, "left_anti")
    bases = taken.join(within.select(*KEY, "boundary"), KEY).where("revision <= boundary")
    streams = _of_streams(target.read(EVENTS), within.where(snapshots.is_stream()), bases)
    within, bases = (rows.where(~snapshots.is_stream()) for rows in (within, bases))
    newest = bases.groupBy(*KEY).agg(sql.max("revision").alias("revision"))
    bases = bases.join(newest, [*KEY, "revision"]).select(*SNAPSHOTS.column_names)
    above = newest.withColumnRenamed("revision", "base")
    events = (
        target.read(EVENTS)
        .join(within, KEY)
        .join(above, KEY, "left")
        .where("revision <= boundary AND revision > coalesce(base, 0)")
    )
    folded = with_ground(folded_states(events, bases)).select(*SNAPSHOTS.column_names)
    return at_boundary.unionByName(folded).unionByName(streams)


def _of_streams(events: DataFrame, within: DataFrame, bases: DataFrame) -> DataFrame:
    """Return rows of `snapshots` for streams, with the message at each boundary and the oldest known time."""
    begun = bases.groupBy(*KEY).agg(sql.min("created").alias("begun"))
    last = events.join(within, KEY).where("revision = boundary").join(begun, KEY, "left")
    made = {
        "policy_id": sql.lit(None).cast("string"),
        "created": sql.coalesce("begun", "oldest"),
        "modified": sql.col("ts"),
        "deleted": sql.lit(False),
        "state": sql.lit("{}"),
    }
    return last.withColumns(made).select(*SNAPSHOTS.column_names)

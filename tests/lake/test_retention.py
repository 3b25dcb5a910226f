"""Expired events, and the snapshots that remain, with a real Spark and as pure rules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from spark_store.history.replay import evolve
from spark_store.lake.tables import EVENTS, FULL_SNAPSHOTS, LATEST, SNAPSHOTS
from spark_store.maintenance.verify import verify
from spark_store.pipeline import retention as module
from spark_store.pipeline import snapshots, tables
from spark_store.pipeline.retention import delete_expired, first_young, preview, trusted_time
from spark_store.pipeline.retention_rules import RetentionRule, RetentionRules
from spark_store.pipeline.tables import LakeWriter
from spark_store.records import Change, Snapshot
from tests.support.journal_entries import timestamp
from tests.support.lake.pipeline_process import DataFolder, take_all

NOW = datetime(2030, 1, 15, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def deleted(namespace: str, events: int, entities: int, newest: int) -> dict[str, Any]:
    """Return what a preview shows of a namespace whose events begin with the first second."""
    times = {"oldest": timestamp(1), "newest": timestamp(newest)}
    return {"namespace": namespace, "events": events, "entities": entities, **times}


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (RetentionRule(), "false"),
        (RetentionRule(DAY), "ts < timestamp'2030-01-14T12:00:00+00:00'"),
        (RetentionRule(revisions=7), "revision <= newest - 7"),
        (RetentionRule(DAY, 7), "ts < timestamp'2030-01-14T12:00:00+00:00' AND revision <= newest - 7"),
        # Longer than the calendar allows.
        (RetentionRule(1_000_000 * DAY), "ts < timestamp'0001-01-01T00:00:00+00:00'"),
    ],
)
def test_an_event_goes_when_nothing_keeps_it(rule: RetentionRule, expected: str) -> None:
    assert rule.expired_condition(NOW, {}) == expected


def test_retention_keeps_old_events_that_follow_a_young_event() -> None:
    """The clock was behind when it was written."""
    young = "ts < timestamp'2030-01-14T12:00:00+00:00' AND seq < 40"
    assert RetentionRule(DAY, 7).expired_condition(NOW, {DAY: 40}) == f"{young} AND revision <= newest - 7"
    rules = RetentionRules(RetentionRule(DAY), {"acme": RetentionRule(2 * DAY), "forever": RetentionRule()})
    assert rules.ages == {DAY, 2 * DAY}
    assert rules.expired_condition(NOW, {DAY: 40, 2 * DAY: None}) == (
        "(ts < timestamp'2030-01-14T12:00:00+00:00' AND seq < 40 AND namespace <> 'acme' AND namespace <> 'forever')"
        " OR (namespace = 'acme' AND ts < timestamp'2030-01-13T12:00:00+00:00')"
        " OR (namespace = 'forever' AND false)"
    )


def test_a_namespace_of_its_own_is_outside_the_default() -> None:
    rules = RetentionRules(RetentionRule(DAY), {"acme": RetentionRule(), "o'site": RetentionRule(revisions=3)})
    assert rules.expired_condition(NOW, {}) == (
        r"(ts < timestamp'2030-01-14T12:00:00+00:00' AND namespace <> 'acme' AND namespace <> 'o\'site')"
        r" OR (namespace = 'acme' AND false)"
        r" OR (namespace = 'o\'site' AND revision <= newest - 3)"
    )
    assert RetentionRules().is_forever
    assert not rules.is_forever


def test_a_lake_without_new_events_deletes_no_events() -> None:
    newest = NOW - DAY
    assert trusted_time(newest, NOW + 400 * DAY) == newest
    assert trusted_time(NOW + DAY, NOW) == NOW
    assert trusted_time(None, NOW) == NOW


def lamp(namespace: str, name: str) -> EntityId:
    return EntityId(EntityType.THING, namespace, name)


class Lamps:
    """Things whose states are what their events lead to."""

    def __init__(self, data_folder: DataFolder) -> None:
        self._site = data_folder
        self._newest: dict[EntityId, Snapshot] = {}

    def write(self, entity: EntityId, *revisions: int) -> None:
        for revision in revisions:
            value, path = (
                (b'{"attributes":{"n":0}}', "/") if revision == 1 else (str(revision).encode(), "/attributes/n")
            )
            event = Event(entity, revision, timestamp(revision), "modified", path, value, b"{}")
            snapshot = self._newest[entity] = evolve(self._newest.get(entity), event)
            self._site.append([Change((event,), (snapshot,))])


@pytest.mark.soak(shard="lake")
@pytest.mark.spark
def test_retention_deletes_expired_events_and_the_rest_can_be_replayed(
    spark: SparkSession, data_folder: DataFolder
) -> None:
    """By days, by revisions, and by both.

    One entity loses all its events. Some entities have snapshots, others have none.
    """
    lamps, target = Lamps(data_folder), LakeWriter.of(spark, data_folder.folder)
    old, counted, kept, both = lamp("old", "a"), lamp("counted", "b"), lamp("it's.kept", "c"), lamp("both", "d")
    for entity in (old, counted, kept, both):
        lamps.write(entity, *range(1, 5))
    lamps.write(lamp("old", "still"), 1, 2)
    take_all(spark, data_folder)
    assert snapshots.take(target, 4) == 4
    assert snapshots.take_full_snapshot(target, 18) == 5
    for revision in range(5, 9):
        for entity in (counted, both, old):
            lamps.write(entity, revision)
    take_all(spark, data_folder)
    # Between the sixth and the seventh second.
    now = datetime.fromisoformat(timestamp(6)) + timedelta(seconds=1.5)
    rules = RetentionRules(
        RetentionRule(timedelta(seconds=1)),
        {
            "counted": RetentionRule(revisions=2),
            "it's.kept": RetentionRule(1_000_000 * DAY),
            "both": RetentionRule(timedelta(seconds=1), 4),
        },
    )
    assert preview(target, rules, now) == [
        deleted("both", 4, 1, 4),
        deleted("counted", 6, 1, 6),
        deleted("old", 8, 2, 6),
    ]
    assert len(data_folder.table(EVENTS)) == 30
    assert delete_expired(target, rules, now) == 18
    left: dict[str, list[int]] = {}
    for event in data_folder.table(EVENTS):
        left.setdefault(event["entity"], []).append(event["revision"])
    assert {entity: sorted(revisions) for entity, revisions in left.items()} == {
        "old:a": [7, 8], "counted:b": [7, 8], "both:d": [5, 6, 7, 8], "it's.kept:c": [1, 2, 3, 4],
    }  # fmt: skip
    found = {(it["entity"], it["revision"]): it for it in data_folder.table(SNAPSHOTS)}
    assert sorted(found) == [("both:d", 4), ("counted:b", 6), ("it's.kept:c", 4), ("old:a", 6), ("old:still", 2)]
    assert found["counted:b", 6]["state"] == '{"attributes":{"n":6}}'
    assert (found["counted:b", 6]["seq"], found["old:a", 6]["seq"]) == (22, 24)
    assert found["counted:b", 6]["modified"].isoformat() == timestamp(6).replace("Z", "+00:00")
    # Entities before a boundary are missing from snapshots too.
    assert sorted(it["entity"] for it in data_folder.table(FULL_SNAPSHOTS)) == ["both:d", "it's.kept:c", "old:still"]
    assert found["old:still", 2] == next(it for it in data_folder.table(LATEST) if it["entity"] == "old:still")
    # A second run deletes nothing, and all events of the journal are still there.
    assert (delete_expired(target, rules, now), preview(target, rules, now)) == (0, [])
    assert verify(data_folder.lake, lambda entry, newest: rules.has_expired(entry, newest, now)).differences == []
    take_all(spark, data_folder)
    assert len(data_folder.table(EVENTS)) == 12
    assert delete_expired(target, RetentionRules(), now) == 0


@pytest.mark.soak(shard="lake")
@pytest.mark.spark
def test_retention_keeps_events_written_while_the_clock_was_behind(
    spark: SparkSession, data_folder: DataFolder
) -> None:
    lamps, target = Lamps(data_folder), LakeWriter.of(spark, data_folder.folder)
    lamps.write(lamp("a", "old"), *range(1, 9))
    lamps.write(lamp("a", "behind"), 1, 2)
    lamps.write(lamp("a", "old"), 9)
    take_all(spark, data_folder)
    rules, now = RetentionRules(RetentionRule(timedelta(seconds=1))), datetime.fromisoformat(timestamp(9))
    # The eighth is only a second old.
    assert preview(target, rules, now) == [deleted("a", 7, 1, 7)]
    assert delete_expired(target, rules, now) == 7
    assert sorted((it["entity"], it["revision"]) for it in data_folder.table(EVENTS)) == [
        ("a:behind", 1), ("a:behind", 2), ("a:old", 8), ("a:old", 9),
    ]  # fmt: skip


@pytest.mark.soak(shard="lake")
@pytest.mark.spark
def test_a_retention_that_was_killed_is_done_by_the_next_one(
    spark: SparkSession, data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    Lamps(data_folder).write(lamp("old", "a"), *range(1, 7))
    take_all(spark, data_folder)
    target, rules = LakeWriter.of(spark, data_folder.folder), RetentionRules(RetentionRule(revisions=2))
    delete = tables.delete_rows

    def killed(*given: Any) -> None:
        if given[1] is EVENTS:
            assert given[3] == "kept.revision <= gone.boundary AND kept.seq <= 4", "files of later events are skipped"
            raise KeyboardInterrupt
        delete(*given)

    monkeypatch.setattr(module, "delete_rows", killed)
    with pytest.raises(KeyboardInterrupt):
        delete_expired(target, rules, NOW)
    assert len(data_folder.table(EVENTS)) == 6
    monkeypatch.setattr(module, "delete_rows", delete)
    assert delete_expired(target, rules, NOW) == 4
    assert [it["revision"] for it in data_folder.table(SNAPSHOTS)] == [4], "once"


@pytest.mark.spark
def test_the_first_event_of_a_time_is_found_by_its_number(spark: SparkSession, tmp_path: Path) -> None:
    """For any other content of its file, and at any position in it."""
    target = LakeWriter.of(spark, tmp_path)
    place = target.lake

    def at(hours: int) -> datetime:
        return datetime(2030, 1, 15, hours, tzinfo=UTC)

    for events in ({9: 12, 12: 15}, {1: 1, 4: 14, 5: 11}, {2: 2, 3: 23, 7: 12}):
        rows = {
            "ts": pa.array(map(at, events.values()), pa.timestamp("us", "UTC")),
            "seq": pa.array(events, pa.int64()),
        }
        write_deltalake(place.path(EVENTS), pa.table(rows), mode="append")
    spans = ((12, 13), (0, 14), (11, 11), (3, 10), (13, 23))
    assert [first_young(target, at(since), at(until)) for since, until in spans] == [7, 1, 5, None, 3]
    write_deltalake(place.path(EVENTS), pa.table(rows).slice(0, 0), mode="overwrite")
    assert first_young(target, at(0), at(23)) is None

"""Streams in the lake: their messages are events like others, and are never folded. One real Spark."""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from connectivity.store.past_state import first_published
from connectivity.store.store import Store
from connectivity.subscriptions.history_feed import HistoryFeed
from mappings.ids import EntityId, partition_entity
from mappings.model.signals import Event, HistoryQuery
from spark_store.history.replay import evolve
from spark_store.journal.journal import Journal
from spark_store.lake.history_reader import LakeHistory
from spark_store.lake.tables import LATEST, SNAPSHOTS
from spark_store.maintenance.rebuild import rebuild_journal
from spark_store.maintenance.verify import verify
from spark_store.pipeline.retention import delete_expired
from spark_store.pipeline.retention_rules import RetentionRule, RetentionRules
from spark_store.pipeline.tables import LakeWriter
from spark_store.records import Change, Snapshot
from tests.support.journal_entries import LATER, MUCH, timestamp
from tests.support.lake.pipeline_process import DataFolder, take_all

TANK, OTHER, SHORT = map(partition_entity, ("tank/0", "tank/1", "acme.short:hall/é/0"))


class Publisher:
    """Publishes one message to each partition in turn, one per second, while a thing changes."""

    def __init__(self, data_folder: DataFolder) -> None:
        self.data_folder = data_folder
        self.messages: dict[EntityId, list[Event]] = {TANK: [], OTHER: [], SHORT: []}
        self._newest: dict[EntityId, Snapshot] = {}

    def publish(self, *entities: EntityId, times: int = 1) -> None:
        changes = []
        for entity in entities * times:
            before = self._newest.get(entity)
            offset = 1 if before is None else before.revision + 1
            headers = b"{}" if offset % 3 else b'{"ts":%d}' % (2_000_000_000_000 + offset)
            content = b'"{\\"v\\":%d,\\"\xc3\xbc\\":\\"\\\\n\\"}"' % offset
            message = Event(entity, offset, timestamp(offset), "published", "/", content, headers)
            self._newest[entity] = evolve(before, message)
            self.messages[entity].append(message)
            changes.append(Change((message,), (self._newest[entity],)))
        self.data_folder.append(changes)


async def resent(store: Store, entity: EntityId, **bounds: Any) -> list[Event]:
    """Return all pages of a history."""
    feed = HistoryFeed.open(store, HistoryQuery(entity, **bounds), datetime.fromisoformat(timestamp(0)))
    position, ended = 0, False
    found: list[Event] = []
    while not ended:
        page = await feed.page(position, 3, MUCH)
        found += page.elements
        position, ended = page.position, page.then.name == "END"
    return found


async def checked(publisher: Publisher, oldest: dict[EntityId, int], trimmed: int) -> None:
    """The journal lets go of its beginning, and streams are read from journal and lake."""
    data_folder = publisher.data_folder
    store = Store(Journal.open(data_folder.lake.journal), cold=lambda: LakeHistory(data_folder.lake))
    while await store.commits.trim(trimmed, LATER):
        pass
    for entity, first in oldest.items():
        kept = [message for message in publisher.messages[entity] if message.revision >= first]
        assert await store.retained_history.look(entity) == store.oldest_revision(entity) == first
        assert await resent(store, entity) == kept
        assert await resent(store, entity, from_revision=first + 1, to_revision=first + 4) == kept[1:5]
        named = next((message for message in kept if message.headers != b"{}"), None)
        assert named is not None
        last = kept[-1].revision
        assert await first_published(store, entity, first, last, 2_000_000_000_000 + named.revision) == named.revision
        assert store.snapshot(entity) == publisher._newest[entity]
    await store.close()


def entities(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(row["entity"] for row in rows)


@pytest.mark.soak(shard="lake")
@pytest.mark.spark
async def test_a_stream_is_in_the_lake_as_it_was_published_and_read_across_the_border(
    spark: SparkSession, data_folder: DataFolder
) -> None:
    """Retention by days and by revisions, twice; comparisons; a rebuild of the journal.

    Offsets continue after the rebuild.
    """
    publisher, target = Publisher(data_folder), LakeWriter.of(spark, data_folder.folder)
    publisher.publish(TANK, OTHER, SHORT, times=16)
    data_folder.write(4, entities=2)
    take_all(spark, data_folder)
    data_folder.assert_equal()
    rows = {row["entity"]: row for row in data_folder.table(LATEST) if row["entity_type"] == "stream"}
    assert {name: (row["revision"], row["state"], row["deleted"]) for name, row in rows.items()} == {
        each.id: (16, "{}", False) for each in publisher.messages
    }
    assert {row["namespace"] for row in rows.values()} == {"", "acme.short"}
    await checked(publisher, {TANK: 1, OTHER: 1, SHORT: 1}, trimmed=30)
    # Case R24: an expired message is not resent, and the message after it has no predecessor.
    now = datetime.fromisoformat(timestamp(16)) + timedelta(seconds=0.5)
    rules = RetentionRules(
        RetentionRule(timedelta(seconds=10)), {"acme.short": RetentionRule(revisions=4), "acme.site": RetentionRule()}
    )
    assert delete_expired(target, rules, now) == 5 + 5 + 12
    await checked(publisher, {TANK: 6, OTHER: 6, SHORT: 13}, trimmed=46)
    found = {row["entity"]: row for row in data_folder.table(SNAPSHOTS)}
    assert {name: row["revision"] for name, row in found.items()} == {TANK.id: 5, OTHER.id: 5, SHORT.id: 12}
    assert {row["created"].isoformat() for row in found.values()} == {timestamp(1).replace("Z", "+00:00")}
    assert verify(data_folder.lake, lambda entry, newest: rules.has_expired(entry, newest, now)).differences == []
    # A second run continues with the messages that the first one kept.
    assert delete_expired(target, RetentionRules(RetentionRule(), {"": RetentionRule(revisions=3)}), now) == 8 + 8
    left = {(row["entity"], row["revision"]): row for row in data_folder.table(SNAPSHOTS)}
    assert sorted(left) == [(SHORT.id, 12), (TANK.id, 13), (OTHER.id, 13)]
    assert left[TANK.id, 13]["created"].isoformat() == timestamp(1).replace("Z", "+00:00")
    # A journal without its states continues with the next offset.
    with contextlib.closing(Journal.open(data_folder.lake.journal)) as journal:
        journal.within(lambda it: it.execute("UPDATE entities SET revision = 7, modified = '' WHERE type = 'stream'"))
        journal.commit()
    assert rebuild_journal(data_folder.lake).changed == 3
    await checked(publisher, {OTHER: 14, SHORT: 13}, trimmed=46)

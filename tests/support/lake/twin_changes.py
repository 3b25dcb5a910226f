"""Changes like those of the service: each state is the fold of its events."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import Any

from mappings.ids import EntityId, EntityType
from mappings.json_values import WrittenFloat, encode_value
from mappings.model.signals import Event
from spark_store.history.replay import evolve
from spark_store.journal import erasure
from spark_store.journal.journal import Journal
from spark_store.journal.reader import JournalReader
from spark_store.records import Change, Snapshot
from tests.support.journal_entries import TANK, timestamp
from tests.support.lake.pipeline_process import DataFolder, lamp
from tests.support.replayed import fold


class Past:
    """The changes of some entities, one per second."""

    def __init__(self, data_folder: DataFolder) -> None:
        self._site = data_folder
        self._states: dict[EntityId, Snapshot] = {}
        self._seconds = 0
        self._changes: list[Change] = []

    def happens(
        self, entity: EntityId, action: str, path: str = "/", value: Any = None, headers: bytes = b"{}"
    ) -> None:
        before = self._states.get(entity)
        self._seconds += 1
        raw = None if action == "deleted" else encode_value(value)
        revision = 1 if before is None else before.revision + 1
        event = Event(entity, revision, timestamp(self._seconds), action, path, raw, headers)
        self._states[entity] = evolve(before, event)
        self._changes.append(Change((event,), (self._states[entity],)))

    def store(self) -> None:
        """Append the changes to the journal."""
        self._site.append(self._changes)
        self._changes.clear()


def write_eventful_past(data_folder: DataFolder, entities: int = 8) -> Past:
    """Store changes of each kind in the journal, and return them.

    Things are created, changed, deleted and created again, and lose parts; there are a policy and a stream with
    messages that are not JSON.
    """
    past = Past(data_folder)
    policy = EntityId(EntityType.POLICY, "acme.site", "owner")
    past.happens(policy, "created", "/", {"entries": {"DEFAULT": {"subjects": {}, "resources": {}}}})
    for number in range(entities):
        thing = lamp(number)
        past.happens(
            thing,
            "created",
            "/",
            {"policyId": str(policy), "attributes": {"größe": WrittenFloat(1.5, "1.50"), "n": number}},
        )
        past.happens(thing, "modified", "/features/lamp/properties/big", 9007199254740993)
        past.happens(thing, "merged", "/attributes", {"n": None, "note": "ü" * 40})
        past.happens(thing, "deleted", "/features/lamp")
        headers = b'{"_metadata":[["/attributes/n/unit","W"]]}'
        past.happens(thing, "modified", "/attributes/n", [True, 1, 1.0, None], headers)
    past.happens(lamp(0), "deleted")
    past.happens(lamp(1), "deleted")
    past.happens(lamp(1), "created", "/", {"policyId": "acme.site:other"})
    past.happens(policy, "modified", "/entries/DEFAULT/subjects/a:b/c", {"type": "x"})
    for content in ('{"v":1}', "ü" * 40, "{nope"):
        past.happens(TANK, "published", "/", content, b'{"ts":1700000000123}')
    past.store()
    return past


def erase_and_create(data_folder: DataFolder, thing: EntityId) -> None:
    """Erase a thing without completing the erasure, and create it again with the same content."""
    with contextlib.closing(Journal.open(data_folder.lake.journal)) as journal:
        erase_events(journal, thing)
        recreation = Event(
            thing, journal.latest(thing) + 1, timestamp(90), "created", "/", b'{"attributes":{"n":1}}', b"{}"
        )
        journal.append([Change((recreation,), (fold([recreation]),))])


def erase_events(journal: Journal, thing: EntityId) -> None:
    """Do the journal's part of an erasure: record it and remove the events."""
    begun = journal.within(lambda it: erasure.begin(it, thing.type.value, thing.id, timestamp(80), "anna"))
    journal.within(lambda it: erasure.take_entries(it, begun))
    journal.commit()


def trim(data_folder: DataFolder, seq: int) -> None:
    """Remove the events up to this number from the journal."""
    tamper(data_folder, "DELETE FROM entries WHERE seq <= ?", seq)


def tamper(data_folder: DataFolder, statement: str, *parameters: object) -> Any:
    """Execute a statement on the journal's file, and return its first row."""
    with contextlib.closing(sqlite3.connect(data_folder.lake.journal, isolation_level=None)) as journal:
        return journal.execute(statement, parameters).fetchone()


def states(data_folder: DataFolder) -> list[tuple[object, ...]]:
    """Return the journal's current states."""
    with JournalReader.open(data_folder.lake.journal) as follower:
        return sorted(follower.states(1, 0), key=str)

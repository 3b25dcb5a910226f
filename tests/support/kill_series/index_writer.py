"""Writes to a journal and rebuilds its search index at the same time, until it is killed.

    python -m tests.support.kill_series.index_writer FILE SEED

Things and policies are created, changed in all places, deleted, created again and erased, several in a transaction. It
prints a line after each commit. After the kill, the test compares index and states
(`spark_store.maintenance.index_check`).
"""

from __future__ import annotations

import random
import sys
from typing import Any

import msgspec

from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from spark_store.journal import erasure
from spark_store.journal.journal import Journal
from spark_store.records import Change, Snapshot
from spark_store.search import index_builder
from spark_store.search.index import LARGE

ENTITIES = 40


class Writer:
    """Writes random changes, which are the same for the same seed and the same initial journal."""

    def __init__(self, journal: Journal, seed: int) -> None:
        self._journal = journal
        self._chance = random.Random(seed)

    def batch(self) -> None:
        """Commit some changes, and sometimes a step of the index or an erasure, in one transaction."""
        entities = {self._entity() for _ in range(self._chance.randrange(1, 6))}
        self._journal.write([self._change(entity) for entity in sorted(entities)])
        dice = self._chance.random()
        if dice < 0.5:
            self._journal.within(index_builder.step)
        elif dice < 0.515:
            self._journal.within(index_builder.restart)
        elif dice < 0.53:
            paths = [f"attributes/a:{self._chance.randrange(9)}" for _ in range(self._chance.randrange(3))]
            self._journal.within(lambda it: index_builder.declare(it, paths))
        elif dice < 0.55:
            erased = self._entity()
            self._journal.within(lambda it: erasure.begin(it, erased.type.value, erased.id, "2030", "nobody"))
        self._journal.commit()

    def _entity(self) -> EntityId:
        number = self._chance.randrange(ENTITIES)
        return EntityId(EntityType.POLICY if number % 8 == 7 else EntityType.THING, "acme", str(number))

    def _change(self, entity: EntityId) -> Change:
        found = self._journal.snapshot(entity)
        revision = 1 if found is None else found.revision + 1
        at = f"2030-01-15T00:00:00.{revision:06}Z"
        state = None if self._chance.random() < 0.15 else self._state(entity)
        created = at if found is None or found.state is None else found.created
        value = None if state is None else msgspec.json.encode(state)
        event = Event(entity, revision, at, "deleted" if state is None else "modified", "/", value, b"{}")
        return Change((event,), (Snapshot(entity, revision, created, at, state, None),))

    def _state(self, entity: EntityId) -> dict[str, Any]:
        names = [f"a:{self._chance.randrange(9)}" for _ in range(3)]
        if entity.type is EntityType.POLICY:
            return {"entries": {"E": {"subjects": {name: {} for name in names}}}, "imports": {names[0]: {}}}
        value: Any = self._chance.choice([1, True, 1.5, None, "x", [], {}, [1, "x", {"y": 2}], {"z": [3]}])
        if self._chance.random() < 0.03:
            value = "x" * LARGE
        return {"policyId": names[0], "attributes": {names[1]: value, names[2]: self._chance.randrange(5)}}


def main(path: str, seed: int) -> None:
    index_builder.STEP_ENTITIES, index_builder.STEP_ROWS = 4, 40
    journal = Journal.open(path)
    writer = Writer(journal, seed)
    while True:
        writer.batch()
        print("committed", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

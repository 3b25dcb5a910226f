"""The states of the entities that were used last, so that most commands do not read the journal.

Bounded in number and in bytes; evicted states are read again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from mappings.ids import EntityId
from mappings.json_values import encode_value
from spark_store.records import Change, Snapshot

_SMALLEST_STATE = 256
"""The size of an entity without its state."""


class _Cached(msgspec.Struct, frozen=True):
    snapshot: Snapshot
    size: int
    """At least the size of the state's JSON."""
    measured: int
    """The size of the state's JSON when it was last measured."""


class SnapshotCache:
    """The states used last, bounded in number and in bytes of JSON.

    As Python values they take several times as much. A change adds the size of its values to the size of the state; when
    that has doubled, the state is measured again. So the sum is never too small, and states are rarely encoded only to
    measure them.
    """

    def __init__(self, entities: int, size: int) -> None:
        self._most_entities = entities
        self._most_bytes = size
        self._cached: OrderedDict[EntityId, _Cached] = OrderedDict()
        self.size = 0

    def __len__(self) -> int:
        return len(self._cached)

    def get(self, entity: EntityId) -> Snapshot | None:
        if (found := self._cached.get(entity)) is None:
            return None
        self._cached.move_to_end(entity)
        return found.snapshot

    def put(self, snapshot: Snapshot, grown: int | None = None) -> None:
        """Keep a committed state. `grown`: how many bytes were added since the kept one, if that is known."""
        former = self._cached.pop(snapshot.entity, None)
        freed = 0 if former is None else former.size
        if grown is None or former is None or freed + grown > 2 * former.measured:
            measured = size = _SMALLEST_STATE + len(encode_value(snapshot.state))
        else:
            measured, size = former.measured, freed + grown
        self._cached[snapshot.entity] = _Cached(snapshot, size, measured)
        self.size += size - freed
        while len(self._cached) > self._most_entities or self.size > self._most_bytes:
            self.drop(next(iter(self._cached)))

    def update(self, changes: Sequence[Change]) -> None:
        """Keep the states that these changes lead to."""
        grown: dict[EntityId, int] = {}
        newest: dict[EntityId, Snapshot] = {}
        for change in changes:
            for event in change.events:
                grown[event.entity] = grown.get(event.entity, 0) + len(event.path) + len(event.value or b"")
            for snapshot in change.snapshots:
                newest[snapshot.entity] = snapshot
        for entity, snapshot in newest.items():
            self.put(snapshot, grown.get(entity))

    def drop(self, entity: EntityId) -> None:
        if (former := self._cached.pop(entity, None)) is not None:
            self.size -= former.size

    def clear(self) -> None:
        self._cached.clear()
        self.size = 0

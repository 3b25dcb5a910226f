"""The deleted lives of entities, and who refers to a policy, as decided: durable or not.

Both are asked when something is deleted or created again, and when a history is opened, not for every command.
"""

from __future__ import annotations

from collections.abc import Callable

from connectivity.store.commit import UncommittedState
from mappings.ids import EntityId, EntityType
from spark_store.journal import incarnations
from spark_store.journal.journal import Journal
from spark_store.records import Incarnation, PolicyReferences, Snapshot
from spark_store.search.index import imports


class IncarnationRepository:
    """The incarnations of one store. Every method raises StoreUnavailable."""

    def __init__(
        self, journal: Journal, decided: UncommittedState, committed: Callable[[EntityId], Snapshot | None]
    ) -> None:
        """`committed` returns the newest durable state."""
        self._journal = journal
        self._decided = decided
        self._committed = committed

    def ended(self, entity: EntityId) -> list[Incarnation]:
        """Return the incarnations of an entity that have ended, the newest first."""
        present = self._decided.snapshots.get(entity)
        if present is not None and present.state is None and present.policy is None:
            # It is being erased.
            return []
        found = self._journal.read(lambda it: incarnations.ended(it, entity.type.value, entity.id))
        last = found[0].last if found else 0
        for revision, permissions in self._decided.deletions.get(entity, {}).items():
            if revision > last:
                found.insert(0, Incarnation(last + 1, revision, permissions))
                last = revision
        return found

    def references(self, policy: EntityId) -> PolicyReferences:
        """Return how many living things name a policy, and how many policies import it."""
        things, policies = self._journal.read(lambda it: incarnations.references(it, policy.id))
        for entity, decided in self._decided.snapshots.items():
            if entity.type is EntityType.STREAM:
                continue
            change = _refers(decided, policy) - _refers(self._committed(entity), policy)
            if entity.type is EntityType.THING:
                things += change
            else:
                policies += change
        return PolicyReferences(things, policies)


def _refers(snapshot: Snapshot | None, policy: EntityId) -> int:
    """Return 1 for a living thing that names the policy, and for a living policy that imports it."""
    if snapshot is None or snapshot.state is None:
        return 0
    if snapshot.entity.type is EntityType.THING:
        return int(snapshot.policy == policy.id)
    return int(policy.id in imports(snapshot.state))

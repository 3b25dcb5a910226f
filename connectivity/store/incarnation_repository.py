"""The deleted lives of entities, and who refers to a policy, as decided: durable or not.

Both are asked when something is deleted or created again, and when a history is opened, not for every command.
"""

from __future__ import annotations

from connectivity.store.commit import UncommittedState
from mappings.ids import EntityId, EntityType
from spark_store.journal import incarnations
from spark_store.journal.journal import Journal
from spark_store.records import Incarnation, PolicyReferences
from spark_store.search.index import imports


class IncarnationRepository:
    """The incarnations of one store. Every method raises StoreUnavailable."""

    def __init__(self, journal: Journal, decided: UncommittedState) -> None:
        self._journal = journal
        self._decided = decided

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
        """Return how many living things refer to a policy, and how many policies import it."""
        decided = self._decided.snapshots.values()
        things = [it for it in decided if it.entity.type is EntityType.THING]
        policies = [it for it in decided if it.entity.type is EntityType.POLICY]
        naming = [it for it in things if it.state is not None and it.policy == policy.id]
        decided_references = {it.entity: self._decided.is_reference(it.entity) for it in naming}
        # Some of them may be committed already: their committed states are left out, unless they decide.
        apart = (
            [it.entity.id for it in things if decided_references.get(it.entity, False) is not None],
            [it.entity.id for it in policies],
        )
        committed = self._journal.read(lambda it: incarnations.references(it, policy.id, *apart))
        return PolicyReferences(
            committed.things + sum(bool(it) for it in decided_references.values()),
            committed.policies + sum(it.state is not None and policy.id in imports(it.state) for it in policies),
        )

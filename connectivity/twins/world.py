"""The present, made from snapshots: policies compiled once and kept.

What is compiled holds as long as every policy that it was made from is the same (the imported ones too, and those that are
missing), and until the next of its subjects expires; then it is compiled again. So a change of a policy counts for the next
command, also for those who only import it. How many are kept is bounded; the one not asked for longest goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from connectivity.twins import importing
from connectivity.twins.base import state_of
from connectivity.twins.enforcer import Enforcer
from connectivity.twins.importing import Policy
from mappings.ids import EntityId, EntityType, parse_entity_id
from spark_store.records import Snapshot

KEPT: Final = 4_096
"""How many compiled policies are kept."""

_NAMESPACES: Final = 64
"""For how many namespaces a policy is kept compiled that has entries for some of them only."""


class _Compiled:
    """A policy worked out with what it imports, and its permissions: by namespace, where entries tell them apart."""

    __slots__ = ("effective", "enforcers", "has_namespaces", "others", "policy")

    def __init__(self, policy: Snapshot, others: dict[EntityId, Snapshot | None], effective: Policy) -> None:
        self.policy = policy
        self.others = others
        self.effective = effective
        self.has_namespaces = any(entry.get("namespaces") for entry in effective["entries"].values())
        self.enforcers: dict[str | None, Enforcer] = {}


class PresentWorld:
    """A `World` over a function that knows the newest snapshots, and a clock (text, as in `Event.timestamp`)."""

    def __init__(
        self, snapshot: Callable[[EntityId], Snapshot | None], now: Callable[[], str], kept: int = KEPT
    ) -> None:
        self._snapshot = snapshot
        self._now = now
        self._kept = kept
        self._compiled: OrderedDict[str, _Compiled] = OrderedDict()

    def snapshot(self, entity: EntityId) -> Snapshot | None:
        return self._snapshot(entity)

    def enforcer(self, policy_id: str, namespace: str | None = None) -> Enforcer | None:
        """The permissions of a policy; None where there is no such policy, or none any more."""
        entity = parse_entity_id(EntityType.POLICY, policy_id)
        policy = self._snapshot(entity) if entity is not None else None
        if entity is None or policy is None or policy.state is None:
            self._compiled.pop(policy_id, None)
            return None
        known = self._compiled.get(policy_id)
        if known is None or not self._is_present(known, policy):
            known = self._compiled[policy_id] = self._compile(policy)
            if len(self._compiled) > self._kept:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(policy_id)
        place = (entity.namespace if namespace is None else namespace) if known.has_namespaces else None
        enforcer = known.enforcers.get(place)
        if enforcer is None or (enforcer.expires is not None and self._now() >= enforcer.expires):
            if len(known.enforcers) >= _NAMESPACES:
                known.enforcers.clear()
            enforcer = known.enforcers[place] = Enforcer(
                known.effective, self._now(), place, frozenset((entity, *known.others))
            )
        return enforcer

    def _compile(self, policy: Snapshot) -> _Compiled:
        others: dict[EntityId, Snapshot | None] = {}

        def lookup(policy_id: str) -> Policy | None:
            entity = parse_entity_id(EntityType.POLICY, policy_id)
            if entity is None:
                return None
            if entity not in others:
                others[entity] = self._snapshot(entity)
            found = others[entity]
            return found.state if found is not None else None

        return _Compiled(policy, others, importing.effective(state_of(policy), lookup))

    def _is_present(self, compiled: _Compiled, policy: Snapshot) -> bool:
        """Whether what was compiled is still what the policies say. A revision alone does not tell: one that could not be
        stored is given again to something else."""
        if compiled.policy is not policy:
            if compiled.policy != policy:
                return False
            # An equal one that was read anew; so it is only compared once.
            compiled.policy = policy
        for entity, before in compiled.others.items():
            now = self._snapshot(entity)
            if now is not before:
                if now != before:
                    return False
                compiled.others[entity] = now
        return True

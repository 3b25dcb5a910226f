"""The present, made from snapshots: policies compiled once and kept.

An enforcer holds for one revision of a policy and until the next of its subjects expires; then it is compiled again. How
many are kept is bounded; the one that was not asked for longest goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from connectivity.twins.enforcer import Enforcer
from mappings.ids import EntityId, EntityType, parse_entity_id
from spark_store.records import Snapshot

KEPT: Final = 4_096
"""How many compiled policies are kept."""


class PresentWorld:
    """A `World` over a function that knows the newest snapshots, and a clock (text, as in `Event.timestamp`)."""

    def __init__(
        self, snapshot: Callable[[EntityId], Snapshot | None], now: Callable[[], str], kept: int = KEPT
    ) -> None:
        self._snapshot = snapshot
        self._now = now
        self._kept = kept
        self._enforcers: OrderedDict[str, tuple[Snapshot, Enforcer]] = OrderedDict()

    def snapshot(self, entity: EntityId) -> Snapshot | None:
        return self._snapshot(entity)

    def enforcer(self, policy_id: str) -> Enforcer | None:
        """The permissions of a policy; None where there is no such policy, or none any more."""
        entity = parse_entity_id(EntityType.POLICY, policy_id)
        policy = self._snapshot(entity) if entity is not None else None
        if policy is None or policy.state is None:
            self._enforcers.pop(policy_id, None)
            return None
        known = self._enforcers.get(policy_id)
        if known is not None and self._holds(*known, policy):
            self._enforcers.move_to_end(policy_id)
            return known[1]
        enforcer = Enforcer(policy.state, self._now())
        self._enforcers[policy_id] = (policy, enforcer)
        self._enforcers.move_to_end(policy_id)
        if len(self._enforcers) > self._kept:
            self._enforcers.popitem(last=False)
        return enforcer

    def _holds(self, compiled: Snapshot, enforcer: Enforcer, policy: Snapshot) -> bool:
        """Whether what was compiled is still the policy. A revision alone does not tell: one that could not be stored
        is given again to something else."""
        is_same = compiled is policy or compiled == policy
        return is_same and (enforcer.expires is None or self._now() < enforcer.expires)

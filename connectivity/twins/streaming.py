"""Who may stream the history of an entity.

Judged once, when a subscription is opened, by the present policy; the events are then sent whole (Ditto protocol,
streaming subscriptions, authorization). A deleted thing is still judged by the policy that it had last; what has no policy
any more is answered like what never was.
"""

from __future__ import annotations

from collections.abc import Sequence

from connectivity.twins.base import World
from connectivity.twins.faults import fault
from mappings.errors import Fault
from mappings.ids import EntityId, EntityType


def may_stream(entity: EntityId, subjects: Sequence[str], world: World) -> Fault | None:
    """None where the subjects may read the whole history of the entity, else why not."""
    snapshot = world.snapshot(entity)
    policy = snapshot.policy if snapshot is not None else None
    enforcer = world.enforcer(policy, entity.namespace) if policy is not None else None
    if enforcer is not None and enforcer.may_stream(subjects, entity.type.value):
        return None
    return fault("things:thing.notfound" if entity.type is EntityType.THING else "policies:policy.notfound", entity)

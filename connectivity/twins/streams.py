"""Who may read and write streams: those of their own, and the events of things and policies as streams.

A stream of its own has a policy that its operator names; what counts there is the resource `stream:/<id>` (Streamr protocol,
permissions). The parts of an id between its slashes are the segments of that resource, so `stream:/site-4` speaks for
`site-4/pumps` too, and `stream:/` for every stream with this policy; but streams below are other streams, so what is revoked
for one of those takes nothing away here. To publish needs no READ.

The events of a thing or policy are sent whole, so their reader needs READ at the root and nothing below it revoked. A
deleted thing is judged by the policy that it had last. Writing to one is a command, which `decide.py` judges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from connectivity.twins.base import World
from connectivity.twins.enforcer import READ
from mappings.ids import EntityId
from mappings.streamr.names import resource_of

_PARTED: Final = ":"


def may_use_stream(stream: str, policy_id: str, permission: str, subjects: Sequence[str], world: World) -> bool:
    """Whether the subjects hold `READ` or `WRITE` on a stream, by the policy that is named for it.

    Policy entries that count in some namespaces only count for a stream whose id begins with one of these and a colon.
    """
    namespace, colon, _ = stream.partition(_PARTED)
    enforcer = world.enforcer(policy_id, namespace if colon else "")
    return enforcer is not None and enforcer.has(subjects, permission, resource_of(stream))


def may_read_events(entity: EntityId, subjects: Sequence[str], world: World) -> bool:
    """Whether the subjects may read all events of a thing or policy, those to come included."""
    snapshot = world.snapshot(entity)
    policy = snapshot.policy if snapshot is not None else None
    enforcer = world.enforcer(policy, entity.namespace) if policy is not None else None
    return enforcer is not None and enforcer.unrestricted(subjects, READ, f"{entity.type.value}:/")

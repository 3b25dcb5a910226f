"""Who may send and who may receive what is live: messages, live commands and live events.

Nothing of it is decided upon the twin's state, only upon the policy of the thing (Ditto protocol, live channel). A message
has a resource of its own, `message:/inbox/messages/<subject>`; commands and events are judged at the place in the thing that
they are about, like those of the twin.
"""

from __future__ import annotations

from collections.abc import Sequence

from connectivity.errors import TwinError
from connectivity.twins import paths
from connectivity.twins.base import World
from connectivity.twins.enforcer import READ, WRITE, Enforcer
from connectivity.twins.faults import fault
from mappings.errors import Fault
from mappings.ids import EntityId
from mappings.signals import Live, LiveCommand, Message


def may_send(signal: Live, subjects: Sequence[str], world: World) -> Fault | None:
    """None where the subjects may send this signal, else why not."""
    snapshot = world.snapshot(signal.entity)
    if snapshot is None or snapshot.is_deleted:
        return fault("things:thing.notfound", signal.entity)
    enforcer = _enforcer(signal.entity, world)
    if isinstance(signal, Message):
        if enforcer is not None and enforcer.has(subjects, WRITE, f"message:{signal.path}"):
            return None
        return fault("messages:send.notallowed", signal.entity, signal.path)
    try:
        address = paths.address(signal.entity, signal.path)
    except TwinError as error:
        return error.fault
    name = address.resource.name
    if isinstance(signal, LiveCommand) and signal.action == "retrieve":
        if enforcer is not None and enforcer.partial(subjects, READ, address.guarded):
            return None
        return fault(f"things:{name}.notfound", signal.entity, address.pointer)
    if enforcer is not None and enforcer.unrestricted(subjects, WRITE, address.guarded):
        return None
    return fault(_forbidden(signal, name), signal.entity, address.pointer)


def may_receive(signal: Live, subjects: Sequence[str], world: World) -> bool:
    """Whether the subjects may read this signal."""
    enforcer = _enforcer(signal.entity, world)
    if enforcer is None:
        return False
    if isinstance(signal, Message):
        return enforcer.has(subjects, READ, f"message:{signal.path}")
    if isinstance(signal, LiveCommand) and signal.value is None:
        return enforcer.partial(subjects, READ, f"thing:{signal.path}")
    # What is sent is sent whole, so nothing in it may be withheld from them.
    return enforcer.unrestricted(subjects, READ, f"thing:{signal.path}")


def _enforcer(entity: EntityId, world: World) -> Enforcer | None:
    snapshot = world.snapshot(entity)
    policy = snapshot.policy if snapshot is not None else None
    return world.enforcer(policy, entity.namespace) if policy is not None else None


def _forbidden(signal: Live, name: str) -> str:
    if not isinstance(signal, LiveCommand):
        return "things:event.notallowed"
    if signal.action == "merge":
        return "things:thing.notmodifiable"
    return (
        "things:thing.notdeletable" if (signal.action, name) == ("delete", "thing") else f"things:{name}.notmodifiable"
    )

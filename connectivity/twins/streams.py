"""Who may read and write streams: those of their own, and the events of things and policies as streams.

A stream of its own has a policy that its operator names; what counts there is the resource `stream:/<id>` (Streamr protocol,
permissions). The parts of an id between its slashes are the segments of that resource, so `stream:/site-4` speaks for
`site-4/pumps` too, and `stream:/` for every stream with this policy; but streams below are other streams, so what is revoked
for one of those takes nothing away here. To publish needs no READ.

The events of a thing or policy are sent whole, so their reader needs READ at the root and nothing below it revoked. A
deleted thing is judged by the policy that it had last. Writing to one is a command, which `decide.py` judges.

`judge` is asked about each request; `may_follow` again, about what was allowed once: a permission may go while a stream is
followed. `concerning` says upon which entities that depends. What the request itself is like was looked at before
(`mappings.streamr.requests`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from connectivity.twins.base import World
from connectivity.twins.enforcer import READ
from mappings.errors import Fault
from mappings.ids import EntityId
from mappings.streamr import access, faults
from mappings.streamr.names import Own, Place, Policy, Thing, place_of, resource_of
from mappings.streamr.options import StreamOptions, StreamrOptions
from mappings.streamr.requests import Publish, Resend, Subscribe

_PARTED: Final = ":"

_ONE_PARTITION: Final = 1
"""Of the events of a thing or policy, whose order is that of its revisions."""

Judged: TypeAlias = Publish | Subscribe | Resend
"""The requests that need a permission."""


class Permit(NamedTuple):
    """What a request may: the stream, in how many partitions it lies, and the subjects that it was allowed to, those of
    its source in front of that of its key."""

    place: Place
    partitions: int
    subjects: tuple[str, ...]


def judge(request: Judged, options: StreamrOptions, given: Sequence[str], world: World) -> Permit | Fault:
    """What a request may, or what it is answered with.

    `given` are the subjects of its source or peer. That a stream does not exist is told to publishers alone; that it has no
    such partition, to those who may read it. A command for a thing or policy is allowed here whoever sends it with a known
    key: what it needs is for `decide` to know.
    """
    known = access.subjects_of(request.auth_key, options.keys, given)
    if known is None:
        return access.refused_as_unknown(request)
    subjects = (*given, *sorted(known.difference(given)))
    place = place_of(request.stream)
    stream = options.streams.get(request.stream) if isinstance(place, Own) else None
    if place is None or (isinstance(place, Own) and stream is None):
        return access.refused_as_missing(request)
    permission = access.permission_of(request)
    is_command = isinstance(request, Publish) and stream is None
    if permission is not None and not is_command and not _may(permission, place, stream, subjects, world):
        return access.refused(request)
    partitions = _ONE_PARTITION if stream is None else stream.partitions
    if not isinstance(request, Publish) and request.partition >= partitions:
        return faults.invalid_partition(request.stream, request.partition)
    return Permit(place, partitions, subjects)


def may_follow(stream: str, options: StreamrOptions, subjects: frozenset[str], world: World) -> bool:
    """Whether these subjects may still read a stream."""
    place = place_of(stream)
    own = options.streams.get(stream)
    if place is None or (isinstance(place, Own) and own is None):
        return False
    return _may(READ, place, own, tuple(subjects), world)


def concerning(stream: str, options: StreamrOptions, world: World) -> frozenset[EntityId]:
    """The policies, and the thing, a change of which may change who may read a stream."""
    place = place_of(stream)
    if isinstance(place, Thing | Policy):
        entity, snapshot = place.entity, world.snapshot(place.entity)
        policy_id = snapshot.policy if snapshot is not None else None
        return frozenset({entity}) | _made_of(policy_id, entity.namespace, world)
    own = options.streams.get(stream)
    return frozenset() if own is None else frozenset({own.policy}) | _made_of(str(own.policy), None, world)


def _made_of(policy_id: str | None, namespace: str | None, world: World) -> frozenset[EntityId]:
    enforcer = world.enforcer(policy_id, namespace) if policy_id is not None else None
    return enforcer.made_of if enforcer is not None else frozenset()


def _may(permission: str, place: Place, stream: StreamOptions | None, subjects: tuple[str, ...], world: World) -> bool:
    if isinstance(place, Thing | Policy):
        return may_read_events(place.entity, subjects, world)
    return stream is not None and may_use_stream(place.id, str(stream.policy), permission, subjects, world)


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

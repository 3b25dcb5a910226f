"""Read permissions on things and policies that were deleted, or created again under their IDs.

A re-creation begins a new incarnation. The present policy decides about the present one alone; an incarnation that has ended
is judged by its last policy, imports included, as it was at the deletion. The journal keeps these permissions
(`spark_store.journal.incarnations`); without them, no client may read. Unreadable revisions look as if they never existed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec

from connectivity.authorization.enforcer import Enforcer
from mappings.ids import EntityId
from mappings.json_values import encode_value
from spark_store.records import Incarnation, PolicyReferences, Snapshot

if TYPE_CHECKING:
    from connectivity.twins.context import StateLookup


class EntityLives(Protocol):
    """The lives of entities before their deletion, and the references to policies."""

    def ended(self, entity: EntityId) -> Sequence[Incarnation]:
        """Return the incarnations of an entity that have ended, the newest first, undurable ones too."""

    def references(self, policy: EntityId) -> PolicyReferences:
        """Return how many living things name a policy, and how many policies import it."""


class PresentOnly(EntityLives):
    """The lives of entities that were never deleted, for searches of the present."""

    def ended(self, entity: EntityId) -> Sequence[Incarnation]:  # noqa: ARG002
        return ()

    def references(self, policy: EntityId) -> PolicyReferences:  # noqa: ARG002
        return PolicyReferences(0, 0)


class WithoutPast:
    """The part of a `StateLookup` about incarnations that have ended, for a view of the present alone."""

    __slots__ = ()

    @property
    def lives(self) -> EntityLives:
        return PresentOnly()

    def permissions(self, policy_id: str) -> bytes | None:  # noqa: ARG002
        return None

    def past_enforcer(self, permissions: bytes | None, namespace: str) -> Enforcer | None:  # noqa: ARG002
        return None


class _Permissions(msgspec.Struct):
    policies: list[str]
    entries: dict[str, Any]


_decode: Final = msgspec.json.Decoder(_Permissions).decode


def permissions_text(entries: Mapping[str, Any], policies: Iterable[EntityId]) -> bytes:
    """Return the permissions of effective policy entries as JSON, with the policies that they come from."""
    kept = {
        label: {
            "subjects": {
                subject: {"expiry": about["expiry"]} if "expiry" in about else {}
                for subject, about in entry["subjects"].items()
            },
            "resources": entry["resources"],
            "namespaces": entry.get("namespaces") or [],
        }
        for label, entry in entries.items()
    }
    return encode_value(_Permissions(sorted(str(policy) for policy in policies), kept))


def past_enforcer(permissions: bytes | None, namespace: str, now: str) -> Enforcer | None:
    """Return the enforcer of permissions as they were at a deletion; None if they are not known."""
    if permissions is None:
        return None
    return Enforcer({"entries": _decode(permissions).entries}, now, namespace)


def enforcer_of(entity: EntityId, world: StateLookup) -> Enforcer | None:
    """Return the permissions on an entity: those of its policy, or of its last policy if it is deleted."""
    snapshot = world.snapshot(entity)
    return None if snapshot is None else snapshot_enforcer(snapshot, world)


def snapshot_enforcer(snapshot: Snapshot, world: StateLookup) -> Enforcer | None:
    """As `enforcer_of`, of an entity whose newest snapshot is at hand."""
    if snapshot.state is None:
        return _ended_enforcer(snapshot.entity, snapshot.revision, world)
    return world.enforcer(snapshot.policy, snapshot.entity.namespace) if snapshot.policy is not None else None


def enforcer_at(entity: EntityId, revision: int, world: StateLookup) -> Enforcer | None:
    """Return the permissions that decide about an event, or the state after it."""
    if revision <= last_ended(entity, world):
        return _ended_enforcer(entity, revision, world)
    return enforcer_of(entity, world)


def last_ended(entity: EntityId, world: StateLookup) -> int:
    """Return the last revision of the incarnations that have ended; 0 for none."""
    return next((it.last for it in world.lives.ended(entity)), 0)


def _ended_enforcer(entity: EntityId, revision: int, world: StateLookup) -> Enforcer | None:
    for incarnation in world.lives.ended(entity):
        if incarnation.first <= revision <= incarnation.last:
            return world.past_enforcer(incarnation.permissions, entity.namespace)
    return None


class VisibleRevisions(NamedTuple):
    """The revisions of an entity that some subjects may read, without gap, both inclusive."""

    first: int
    last: int


MayRead: TypeAlias = Callable[[Enforcer], bool]


def visible_revisions(
    entity: EntityId, world: StateLookup, may_read: MayRead, until: int | None = None
) -> VisibleRevisions | None:
    """Return the newest readable incarnation with the readable ones immediately before it.

    None if none is readable. `until`: the last requested revision; incarnations that begin later are passed over if an
    unreadable one separates them from an earlier readable one.
    """
    latest = math.inf if until is None else until
    newest: VisibleRevisions | None = None
    found: VisibleRevisions | None = None
    for first, last, enforcer in _incarnations(entity, world):
        if enforcer is not None and may_read(enforcer):
            found = VisibleRevisions(first, last if found is None else found.last)
        elif found is not None:
            if found.first <= latest:
                return found
            newest, found = newest or found, None
    return found if newest is None or (found is not None and found.first <= latest) else newest


def _incarnations(entity: EntityId, world: StateLookup) -> Iterator[tuple[int, int, Enforcer | None]]:
    """Yield first and last revision and the permissions of each incarnation, the newest first."""
    ended = world.lives.ended(entity)
    present = world.snapshot(entity)
    if present is not None and present.state is not None:
        yield (ended[0].last if ended else 0) + 1, present.revision, snapshot_enforcer(present, world)
    for incarnation in ended:
        yield *incarnation[:2], world.past_enforcer(incarnation.permissions, entity.namespace)

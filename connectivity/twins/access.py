"""Permissions on configured streams, events of things and policies, and live signals.

A configured stream names its policy; the resource `stream:/<id>` decides. The
parts of an ID between slashes are the segments of that resource, so `stream:/site-4` covers `site-4/pumps`, and `stream:/`
every stream with this policy. Publishing does not require READ. Events of a thing or policy are sent unfiltered, so a reader
needs READ at the root with nothing revoked below. A deleted thing is judged by its last policy. `concerning` returns
what the permission of a reader depends on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from msgspec.structs import replace

from connectivity.authorization.enforcer import DROP, READ, WRITE, Enforcer
from connectivity.authorization.revalidation import AccessDependencies
from connectivity.errors import TwinError
from connectivity.twins import paths
from connectivity.twins.context import CommandContext, StateLookup, encode
from connectivity.twins.errors import fault, not_found
from connectivity.twins.incarnations import VisibleRevisions, enforcer_of, visible_revisions
from mappings.errors import Fault
from mappings.ids import EntityId, EntityType
from mappings.json_values import decode_value
from mappings.model.json_pointer import MISSING, Segments, format_pointer
from mappings.model.metadata import METADATA
from mappings.model.signals import Command, Live, LiveAnswer, LiveCommand, LiveResponse, Message, is_success
from mappings.streams.options import StreamDefinition
from mappings.streams.stream_id import PolicyStream, Stream, ThingStream, parse_stream_id, resource_of
from spark_store.history.replay import is_delete_pattern
from spark_store.records import StateGuard
from spark_store.rql.query import Access, Thing

_PARTED: Final = ":"


def may_read_stream(
    stream: Stream, definition: StreamDefinition | None, subjects: Sequence[str], world: StateLookup
) -> bool:
    """Whether the subjects may read a stream; `definition` is that of a configured one."""
    if isinstance(stream, ThingStream | PolicyStream):
        return may_read_events(stream.entity, subjects, world)
    return definition is not None and may_use_stream(stream.id, definition, READ, subjects, world)


def concerning(stream: str, streams: Mapping[str, StreamDefinition], world: StateLookup) -> AccessDependencies:
    """Return the policies and the thing that decide who may read a stream, and the first expiry."""
    found = parse_stream_id(stream)
    if isinstance(found, ThingStream | PolicyStream):
        return _dependencies(found.entity, enforcer_of(found.entity, world))
    own = streams.get(stream)
    return AccessDependencies() if own is None else _dependencies(own.policy, _stream_enforcer(stream, own, world))


def _dependencies(entity: EntityId, enforcer: Enforcer | None) -> AccessDependencies:
    if enforcer is None:
        return AccessDependencies(frozenset({entity}))
    return AccessDependencies(enforcer.policies | {entity}, enforcer.expires)


_TYPES: Final[Mapping[EntityType, tuple[str, ...]]] = {
    EntityType.THING: ("thing", "message"),
    EntityType.POLICY: ("policy",),
}
"""The types of resources by which a policy gives permissions on an entity."""


def has_any_permission(entity: EntityId, enforcer: Enforcer | None, subjects: Sequence[str]) -> bool:
    """Whether the subjects have any permission on any part of an entity. To others it does not exist."""
    return enforcer is not None and enforcer.is_known_to(subjects, *_TYPES[entity.type])


def forbidden(case: CommandContext, enforcer: Enforcer | None, code: str, detail: str = "") -> TwinError:
    """Return the refusal for a missing permission; without any, it is that of a missing entity."""
    is_known = has_any_permission(case.entity, enforcer, case.subjects)
    return case.refuse(code, detail) if is_known else case.refuse(not_found(case.entity))


def may_use_stream(
    stream: str, definition: StreamDefinition, permission: str, subjects: Sequence[str], world: StateLookup
) -> bool:
    """Whether the subjects have `READ` or `WRITE` on a stream, by its policy."""
    enforcer = _stream_enforcer(stream, definition, world)
    return enforcer is not None and enforcer.has(subjects, permission, resource_of(stream))


def _stream_enforcer(stream: str, definition: StreamDefinition, world: StateLookup) -> Enforcer | None:
    """Return the permissions on a stream.

    Policy entries for some namespaces apply to streams whose ID begins with one of these and a colon.
    """
    namespace, colon, _ = stream.partition(_PARTED)
    return world.enforcer(str(definition.policy), namespace if colon else "")


def may_read_events(entity: EntityId, subjects: Sequence[str], world: StateLookup) -> bool:
    """Whether the subjects may read all events of a thing or policy, unfiltered, future ones included."""
    enforcer = enforcer_of(entity, world)
    return enforcer is not None and enforcer.unrestricted(subjects, READ, f"{entity.type.value}:/")


_BESIDE = frozenset({"_revision", "_created", "_modified", METADATA})
"""The members of a `Thing` that are no part of its document."""


class ThingRights:
    """The `ReadRights` of some subjects. It caches policies: create one for each page."""

    def __init__(self, world: StateLookup, subjects: Sequence[str]) -> None:
        self.subjects = frozenset(subjects)
        self._subjects = tuple(subjects)
        self._world = world
        self._known: dict[tuple[str, str], Access | None] = {}

    def access(self, policy: str, namespace: str) -> Access | None:
        """Return what they may read of the things of a policy in a namespace; None for nothing."""
        key = (policy, namespace)
        if key not in self._known:
            self._known[key] = self._access(self._world.enforcer(policy, namespace))
        return self._known[key]

    def access_of(self, guard: StateGuard) -> Access | None:
        """Return what they may read of the past states under a guard; None for nothing."""
        if guard.permissions is None:
            return self.access(guard.policy, guard.namespace)
        return self._access(self._world.past_enforcer(guard.permissions, guard.namespace))

    def _access(self, enforcer: Enforcer | None) -> Access | None:
        if enforcer is None or not enforcer.partial(self._subjects, READ, "thing:/"):
            return None
        return ThingAccess(enforcer, self._subjects)


class ThingAccess:
    """The readable part of the things of one policy, for subjects that may read some of it."""

    __slots__ = ("_enforcer", "_known", "_subjects", "is_whole")

    def __init__(self, enforcer: Enforcer, subjects: Sequence[str]) -> None:
        self.is_whole = enforcer.unrestricted(subjects, READ, "thing:/")
        self._enforcer = enforcer
        self._subjects = subjects
        self._known: dict[Sequence[str], bool] = {}

    def may(self, path: Sequence[str]) -> bool:
        """Whether they may read the place itself."""
        if self.is_whole:
            return True
        path = tuple(path)
        found = self._known.get(path)
        if found is None:
            if path[:1] == (METADATA,):
                # As `Enforcer.view_metadata`: readers of a whole part may read its metadata.
                found = self._enforcer.unrestricted(self._subjects, READ, _resource(path[:-1]))
            else:
                found = self._enforcer.has(self._subjects, READ, _resource(path))
            self._known[path] = found
        return found

    def view(self, thing: Thing) -> Thing | None:
        """Return the readable part of the thing; None if no existing part is readable."""
        if self.is_whole:
            return thing
        document = {name: value for name, value in thing.items() if name not in _BESIDE}
        seen = self._enforcer.view(document, "thing:/", self._subjects)
        if seen is DROP:
            return None
        beside = {name: thing[name] for name in ("_revision", "_created", "_modified") if name in thing}
        metadata = thing.get(METADATA)
        shown = None if metadata is None else self._enforcer.view_metadata(metadata, thing, self._subjects)
        return {**seen, **beside, METADATA: shown} if shown else {**seen, **beside}


def _resource(path: Sequence[str]) -> str:
    """Return the resource in policies for a place of a thing.

    Metadata of a part has the resource of the part.
    """
    places = path[1:] if path and path[0] == METADATA else path
    return "thing:/" + "/".join([segment.replace("~", "~0") for segment in places])


_CLAIM: Final = "/inbox/messages/claim"
"""The path of the message by which a client without permissions asks a thing for them."""


def may_send(signal: Live, subjects: Sequence[str], world: StateLookup) -> Fault | None:
    """Return None if the subjects may send this signal, else the fault. Anybody may send a claim message."""
    snapshot = world.snapshot(signal.entity)
    enforcer = enforcer_of(signal.entity, world)
    is_claim = isinstance(signal, Message) and signal.path == _CLAIM
    if (
        enforcer is None
        or snapshot is None
        or snapshot.is_deleted
        or not (is_claim or has_any_permission(signal.entity, enforcer, subjects))
    ):
        return fault("things:thing.notfound", signal.entity)
    if is_claim:
        return None
    if isinstance(signal, Message):
        if enforcer.has(subjects, WRITE, f"message:{signal.path}"):
            return None
        return fault("messages:send.notallowed", signal.entity, signal.path)
    try:
        address = paths.address(signal.entity, signal.path)
    except TwinError as error:
        return error.fault
    name = address.resource.name
    if isinstance(signal, LiveCommand) and signal.action == "retrieve":
        if enforcer.partial(subjects, READ, address.guarded):
            return None
        return fault(f"things:{name}.notfound", signal.entity, address.pointer)
    patch = _patch_of(signal)
    may = (
        enforcer.unrestricted(subjects, WRITE, address.guarded)
        if patch is MISSING
        else may_merge(enforcer, subjects, WRITE, address, patch)
    )
    return None if may else fault(_forbidden(signal, name), signal.entity, address.pointer)


def _patch_of(signal: Live) -> Any:
    """Return the parsed patch of a live merge; MISSING for other signals."""
    is_merge = isinstance(signal, LiveCommand) and signal.action == "merge"
    return decode_value(signal.value) if is_merge and signal.value is not None else MISSING


def may_merge(
    enforcer: Enforcer, subjects: Sequence[str], permission: str, address: paths.ResourcePath, patch: Any
) -> bool:
    """Whether the subjects have a permission on everything at the path, or at all places of the patch."""
    if enforcer.unrestricted(subjects, permission, address.guarded):
        return True
    return enforcer.partial(subjects, permission, address.guarded) and all(
        enforcer.unrestricted(subjects, permission, f"thing:{format_pointer(place)}")
        for place in _written_paths(patch, address.segments)
    )


def _written_paths(patch: Any, path: Segments) -> Iterator[Segments]:
    """Every place that a patch at `path` writes: its leaves, deletions included.

    A delete pattern may name any member, so it writes the object that it is applied to.
    """
    if not isinstance(patch, Mapping) or not patch:
        yield path
        return
    for key, member in patch.items():
        if member is None and is_delete_pattern(key):
            yield path
        else:
            yield from _written_paths(member, (*path, key))


def may_receive(signal: Live, subjects: Sequence[str], world: StateLookup) -> bool:
    """Whether the subjects may read this signal."""
    enforcer = enforcer_of(signal.entity, world)
    if enforcer is None:
        return False
    if isinstance(signal, Message):
        return enforcer.has(subjects, READ, f"message:{signal.path}")
    if isinstance(signal, LiveCommand) and signal.value is None:
        return enforcer.partial(subjects, READ, f"thing:{signal.path}")
    # Signals are sent unfiltered, so nothing in them may be unreadable.
    return enforcer.unrestricted(subjects, READ, f"thing:{signal.path}")


def may_acknowledge(signal: Command | Live, subjects: Sequence[str], world: StateLookup) -> bool:
    """Whether the subjects may read this signal, or a part of what a command changes."""
    if not isinstance(signal, Command):
        return may_receive(signal, subjects, world)
    enforcer = enforcer_of(signal.entity, world)
    return enforcer is not None and enforcer.partial(subjects, READ, f"{signal.entity.type.value}:{signal.path}")


def readable_response(answer: LiveAnswer, subjects: Sequence[str], world: StateLookup) -> LiveAnswer:
    """Return a device's response with what the requester can read of it, as the twin would answer.

    Status 404 if that is nothing of what a retrieve has found.
    """
    if not isinstance(answer, LiveResponse) or answer.action != "retrieve" or not is_success(answer.status):
        return answer
    enforcer = enforcer_of(answer.entity, world)
    if enforcer is not None:
        if enforcer.unrestricted(subjects, READ, f"thing:{answer.path}"):
            return answer
        value = decode_value(answer.value) if answer.value is not None else None
        if (seen := readable(enforcer, subjects, answer.path, value)) is not DROP:
            return replace(answer, value=encode(seen))
    try:
        name = paths.address(answer.entity, answer.path).resource.name
    except TwinError as unknown:
        missing = unknown.fault
    else:
        missing = fault(f"things:{name}.notfound", answer.entity, answer.path)
    error = {"status": missing.status, "error": missing.error, "message": missing.message}
    return replace(answer, status=missing.status, value=encode(error))


def _forbidden(signal: Live, name: str) -> str:
    if not isinstance(signal, LiveCommand):
        return "things:event.notallowed"
    if signal.action == "merge":
        return "things:thing.notmodifiable"
    return (
        "things:thing.notdeletable" if (signal.action, name) == ("delete", "thing") else f"things:{name}.notmodifiable"
    )


class Visibility(Enum):
    """How much is readable at a place."""

    WHOLE = "all"
    PART = "part"
    NOTHING = "nothing"


def view_of_path(enforcer: Enforcer, subjects: Sequence[str], path: str) -> Visibility:
    """Return how much the subjects can read at a path of a thing."""
    place = f"thing:{path}"
    if enforcer.unrestricted(subjects, READ, place):
        return Visibility.WHOLE
    return Visibility.PART if enforcer.partial(subjects, READ, place) else Visibility.NOTHING


def readable(enforcer: Enforcer, subjects: Sequence[str], path: str, value: Any) -> Any:
    """Return the readable part of a value; DROP for none.

    An empty object or array is readable where its place is, whether or not it was empty before.
    """
    place = f"thing:{path}"
    if enforcer.has(subjects, READ, place):
        return enforcer.view(value, place, subjects)
    seen = enforcer.view(value, place, subjects) if isinstance(value, Mapping) else DROP
    return DROP if seen == {} else seen


def may_stream(entity: EntityId, subjects: Sequence[str], world: StateLookup) -> Fault | None:
    """Return the fault if the subjects may not read the events of the present or last incarnation."""
    if may_read_events(entity, subjects, world):
        return None
    return fault(not_found(entity), entity)


def readable_history(
    entity: EntityId, subjects: Sequence[str], world: StateLookup, until: int | None = None
) -> VisibleRevisions | Fault:
    """Return the revisions that the subjects may read of a history, or the fault.

    `until`: see `visible_revisions`.
    """
    place = f"{entity.type.value}:/"
    found = visible_revisions(entity, world, lambda enforcer: enforcer.unrestricted(subjects, READ, place), until)
    return fault(not_found(entity), entity) if found is None else found

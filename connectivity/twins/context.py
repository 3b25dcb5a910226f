"""The input and the result of a decision about a command.

A `CommandContext` is one command with everything that is known when it is decided. The other modules of this folder query it
and build the `Decision`. Nothing here stores, sends or waits.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec
import structlog

from connectivity.authorization import policy_imports
from connectivity.authorization.enforcer import DROP, READ, Enforcer
from connectivity.authorization.policy_imports import Policy
from connectivity.errors import TwinError
from connectivity.security.creation import UNRESTRICTED, CreationRules
from connectivity.security.token_integration import DEFAULT, TokenIntegration
from connectivity.twins import errors, incarnations
from connectivity.twins.incarnations import EntityLives, PresentOnly
from connectivity.twins.paths import ResourcePath
from mappings.ids import EntityId, EntityType, parse_entity_id
from mappings.json_values import encode_value
from mappings.model.metadata import METADATA, MetadataChange, evolve_metadata, without_changes
from mappings.model.signals import Command, Event, Headers, PolicyAnnouncement, Response
from spark_store.history.replay import data_of, evolve_parsed
from spark_store.records import PastState, Snapshot

log = structlog.get_logger(__name__)

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"

encode: Final = encode_value
_decode: Final = msgspec.json.Decoder().decode
_canonical: Final = msgspec.json.Encoder(order="sorted", enc_hook=float).encode


class StateLookup(Protocol):
    """The present, as decisions see it."""

    def snapshot(self, entity: EntityId) -> Snapshot | None:
        """The newest snapshot, also of a deleted entity, also one that is decided and not yet committed."""

    def enforcer(self, policy_id: str, namespace: str | None = None) -> Enforcer | None:
        """Return the permissions of a policy; None if it does not exist or is deleted.

        Some entries apply only in some namespaces: `namespace` is that of the entity. Without one it is the policy's own.
        """

    @property
    def lives(self) -> EntityLives:
        """Return the lives of entities before their deletion."""

    def permissions(self, policy_id: str) -> bytes | None:
        """Return the permissions of a policy as for `Incarnation`; None if it does not exist."""

    def past_enforcer(self, permissions: bytes | None, namespace: str) -> Enforcer | None:
        """Return the enforcer of permissions as they were at a deletion; None if they are not known."""


@dataclass(frozen=True, slots=True)
class TwinLimits:
    """Limits of sizes, and the headers of a command that its event keeps.

    `thing`, `policy`: bytes of compact JSON; `headers`: characters of all names and values; the rest are numbers, who may
    create what, and the subjects of token integration.
    """

    thing: int = 102_400
    policy: int = 102_400
    headers: int = 5_120
    subjects: int = 100
    imports: int = 10
    things_at_once: int = 200
    historical_headers: tuple[str, ...] = ()
    creation: CreationRules = UNRESTRICTED
    token_integration: TokenIntegration = DEFAULT

    @property
    def value(self) -> int:
        """The most bytes of a command's value: a thing is created together with its policy."""
        return self.thing + self.policy


class Decision(msgspec.Struct, frozen=True):
    """The result of a command: events to store in order, the states after them, the response.

    A query has neither events nor snapshots. There is always a response; others decide whether it is sent. `is_for_device`:
    a query that must be sent to the device, because the twin satisfies its live condition; then the response is the twin's.
    `announcements` are sent when the events are durable. `is_reference`: see `Change`.
    """

    events: tuple[Event, ...]
    snapshots: tuple[Snapshot, ...]
    response: Response
    is_for_device: bool = False
    announcements: tuple[PolicyAnnouncement, ...] = ()
    permissions: bytes | None = None
    is_reference: bool | None = None


class EventStep(msgspec.Struct, frozen=True):
    """One event and the state after it."""

    event: Event
    snapshot: Snapshot


class CommandContext(msgspec.Struct, frozen=True):
    """One command, its sender, and the present states.

    `address` is the parsed path. `past` is the state that a retrieve of the past returns.
    """

    command: Command
    subjects: tuple[str, ...]
    world: StateLookup
    now: str
    limits: TwinLimits
    address: ResourcePath
    past: PastState | None = None

    @property
    def entity(self) -> EntityId:
        return self.command.entity

    @property
    def headers(self) -> Headers:
        return self.command.headers

    def refuse(
        self, code: str, detail: str = "", *, about: EntityId | str | None = None, status: int | None = None
    ) -> TwinError:
        return errors.refusal(code, self.entity, self.address.pointer, detail, about=about, status=status)

    def check_creation(self, entity: EntityId) -> None:
        """Refuse to create an entity in a namespace in which the subjects may not. Raises TwinError."""
        if not self.limits.creation.may_create(entity.type.value, entity.namespace, self.subjects):
            raise self.refuse(f"{entity.type.group}:creation.notallowed", entity.namespace, about=entity)

    def precondition_failed(self, detail: str) -> TwinError:
        return self.refuse(f"{self.entity.type.group}:precondition.failed", detail)

    def flag(self, name: str) -> bool:
        """Whether a boolean header is set, as JSON or as text."""
        value = self.headers.get(name)
        return value is True or (isinstance(value, str) and value.lower() == "true")

    def living(self) -> Snapshot | None:
        """The addressed entity; None if it never existed or is deleted."""
        snapshot = self.world.snapshot(self.command.entity)
        return None if snapshot is None or snapshot.state is None else snapshot

    def displayed(self, present: Snapshot) -> Snapshot:
        """Return the entity that a retrieve shows, present or past.

        Raises TwinError if it does not or did not exist.
        """
        if self.past is None:
            return present
        if self.past.snapshot.is_deleted:
            raise self.refuse(errors.not_found(self.entity))
        return self.past.snapshot

    def step(
        self,
        before: Snapshot | None,
        action: str,
        value: bytes | None,
        parsed: Any,
        *,
        entity: EntityId | None = None,
        metadata: Sequence[MetadataChange] = (),
    ) -> EventStep:
        """Return the next event of the addressed entity (or of `entity`, at its root) and its state.

        `metadata` is how the event changes the metadata. An event that replaces a whole thing contains all metadata, so that
        the state needs no earlier event.
        """
        address = self.address
        if action == "modified" and not address.segments and before is not None and before.state is not None:
            present = before.state.get(METADATA)
            if metadata or present is not None:
                metadata = [("/", evolve_metadata(present, data_of(before.state), parsed, metadata))]
        revision, timestamp = 1, self.now
        if before is not None:
            revision, timestamp = before.revision + 1, max(timestamp, before.modified)
        is_plain = not metadata and not self.limits.historical_headers
        headers = b"{}" if is_plain else self._stored_headers(metadata)
        written, path = (self.command.entity, address.pointer) if entity is None else (entity, "/")
        event = Event(written, revision, timestamp, action, path, value, headers)
        return EventStep(event, evolve_parsed(before, event, parsed))

    def _stored_headers(self, metadata: Sequence[MetadataChange]) -> bytes:
        """Return the headers that an event keeps: those the operator names, and its metadata changes."""
        headers = {**self.headers, "ditto-originator": self.subjects[0] if self.subjects else None, METADATA: None}
        kept = {name: headers[name] for name in self.limits.historical_headers if headers.get(name) is not None}
        if metadata:
            kept[METADATA] = metadata
        return encode(kept)

    def respond(
        self,
        status: int,
        value: bytes | None,
        *,
        revision: int | None = None,
        tag: str | None = None,
        action: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Response:
        """The answer.

        It carries the command's own headers too; which of them may leave is the codec's to know.
        """
        command = self.command
        headers = dict(command.headers)
        action = action or command.action
        if action == "merge":
            headers["content-type"] = MERGE_PATCH
        elif value is not None:
            headers["content-type"] = JSON
        if self.past is not None:
            headers["historical-headers"] = self._headers_of(self.past)
        for name, own in (
            ("etag", tag),
            ("entity-revision", revision),
            ("ditto-originator", self.subjects[0] if self.subjects else None),
            ("ditto-metadata", metadata),
        ):
            if own is not None:
                headers[name] = own
            elif name in headers:
                del headers[name]
        return Response(command.entity, action, self.address.pointer, status, value, headers)

    def _headers_of(self, past: PastState) -> Headers:
        """Return the stored headers of the last event, whose change may be anywhere in the entity."""
        enforcer = incarnations.enforcer_at(self.entity, past.snapshot.revision, self.world)
        if enforcer is None or not enforcer.unrestricted(self.subjects, READ, f"{self.entity.type.value}:/"):
            return {}
        found: Headers = _decode(without_changes(past.headers))
        return found


def decision(
    steps: Sequence[EventStep],
    response: Response,
    announcements: Sequence[PolicyAnnouncement] = (),
    *,
    is_for_device: bool = False,
    permissions: bytes | None = None,
    is_reference: bool | None = None,
) -> Decision:
    events, snapshots = tuple(step.event for step in steps), tuple(step.snapshot for step in steps)
    return Decision(events, snapshots, response, is_for_device, tuple(announcements), permissions, is_reference)


def revision_tag(snapshot: Snapshot) -> str:
    """The entity tag of a whole entity."""
    return f'"rev:{snapshot.revision}"'


def hash_tag(value: Any) -> str:
    """The entity tag of a part: equal JSON, whatever the order of its members, has an equal tag."""
    return f'"hash:{hashlib.blake2b(_canonical(value), digest_size=8).hexdigest()}"'


def part_tag(case: CommandContext, enforcer: Enforcer, snapshot: Snapshot, value: Any) -> str | None:
    """Return the entity tag of the addressed part as far as the caller may read it; None if nothing."""
    if not case.address.segments:
        return revision_tag(snapshot)
    seen = enforcer.view(value, case.address.guarded, case.subjects)
    return None if seen is DROP else hash_tag(seen)


def is_same_json(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal; `1`, `1.0` and `true` differ."""
    return one == other and _canonical(one) == _canonical(other)


def state_of(snapshot: Snapshot) -> Mapping[str, Any]:
    """The state of an entity that is there, without its metadata. Raises ValueError for a deleted one."""
    if snapshot.state is None:
        raise ValueError(f"{snapshot.entity}: found a deleted entity, expected one that exists")
    return data_of(snapshot.state)


KEPT: Final = 100_000
"""The weight of the compiled policies that are kept: segments, subjects, entries of about 500 bytes."""

_NAMESPACES: Final = 64
"""For how many namespaces a compiled policy is kept, if its entries differ between namespaces."""


class _Compiled:
    """A policy with its imports, and its permissions by namespace."""

    __slots__ = ("effective", "enforcers", "has_namespaces", "others", "policy", "weight")

    def __init__(self, policy: Snapshot, others: dict[EntityId, Snapshot | None], effective: Policy) -> None:
        self.policy = policy
        self.others = others
        self.effective = effective
        self.has_namespaces = any(entry.get("namespaces") for entry in effective["entries"].values())
        self.enforcers: dict[str | None, Enforcer] = {}
        self.weight = _weight(effective) + sum(
            _weight(other.state) for other in others.values() if other is not None and other.state is not None
        )

    def add(self, namespace: str | None, enforcer: Enforcer, kept: int) -> int:
        """Keep the permissions in a namespace, and return by how much the weight has changed."""
        before = self.weight
        if (old := self.enforcers.pop(namespace, None)) is not None:
            self.weight -= old.weight
        if len(self.enforcers) >= _NAMESPACES or self.weight + enforcer.weight > kept:
            self.weight -= sum(each.weight for each in self.enforcers.values())
            self.enforcers.clear()
        self.enforcers[namespace] = enforcer
        self.weight += enforcer.weight
        return self.weight - before


def _weight(policy: Mapping[str, Any]) -> int:
    """The entries, subjects and resources of a policy."""
    entries = policy["entries"].values()
    return len(entries) + sum(len(entry["subjects"]) + len(entry["resources"]) for entry in entries)


class CurrentStateLookup:
    """A `StateLookup` over a function that returns the newest snapshots, and a clock.

    The clock returns text as in `Event.timestamp`.
    """

    def __init__(
        self,
        snapshot: Callable[[EntityId], Snapshot | None],
        now: Callable[[], str],
        kept: int = KEPT,
        lives: EntityLives | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.lives: EntityLives = lives or PresentOnly()
        self._now = now
        self._kept = kept
        self._weight = 0
        self._compiled: OrderedDict[str, _Compiled] = OrderedDict()

    def permissions(self, policy_id: str) -> bytes | None:
        """Return the permissions of a policy as for `Incarnation`; None if it does not exist."""
        if self.enforcer(policy_id) is None:
            return None
        compiled = self._compiled[policy_id]
        return incarnations.permissions_text(compiled.effective["entries"], (compiled.policy.entity, *compiled.others))

    def past_enforcer(self, permissions: bytes | None, namespace: str) -> Enforcer | None:
        """Return the enforcer of permissions as they were at a deletion; None if they are not known."""
        return incarnations.past_enforcer(permissions, namespace, self._now())

    def enforcer(self, policy_id: str, namespace: str | None = None) -> Enforcer | None:
        """Return the permissions of a policy; None if it does not exist or is deleted."""
        known = self._compiled.get(policy_id)
        entity = parse_entity_id(EntityType.POLICY, policy_id) if known is None else known.policy.entity
        policy = self.snapshot(entity) if entity is not None else None
        if entity is None or policy is None or policy.state is None:
            self._drop(policy_id)
            return None
        if known is None or ((known.policy is not policy or known.others) and not self._is_present(known, policy)):
            self._drop(policy_id)
            known = self._compiled[policy_id] = self._compile(policy)
            self._weight += known.weight
        self._compiled.move_to_end(policy_id)
        place = (entity.namespace if namespace is None else namespace) if known.has_namespaces else None
        enforcer = known.enforcers.get(place)
        if enforcer is None or (enforcer.expires is not None and self._now() >= enforcer.expires):
            enforcer = Enforcer(known.effective, self._now(), place, frozenset((entity, *known.others)))
            self._weight += known.add(place, enforcer, self._kept)
            while self._weight > self._kept and len(self._compiled) > 1:
                self._drop(next(iter(self._compiled)))
        return enforcer

    def _drop(self, policy_id: str) -> None:
        if (compiled := self._compiled.pop(policy_id, None)) is not None:
            self._weight -= compiled.weight

    def _compile(self, policy: Snapshot) -> _Compiled:
        others: dict[EntityId, Snapshot | None] = {}

        def lookup(policy_id: str) -> Policy | None:
            entity = parse_entity_id(EntityType.POLICY, policy_id)
            if entity is None:
                return None
            if entity not in others:
                others[entity] = self.snapshot(entity)
            found = others[entity]
            return found.state if found is not None else None

        found, size = policy_imports.enforced(state_of(policy), lookup)
        if size.is_too_large:
            log.warning(
                "policy too large", policy=policy.entity.id, policies=size.policies, permissions=size.permissions
            )
        return _Compiled(policy, others, found)

    def _is_present(self, compiled: _Compiled, policy: Snapshot) -> bool:
        """Whether the compiled policy is still current.

        A revision alone does not prove it: the revision of a change that could not be stored is used again.
        """
        if compiled.policy is not policy:
            if compiled.policy != policy:
                return False
            # Remember the equal object, so that it is compared only once.
            compiled.policy = policy
        for entity, before in compiled.others.items():
            now = self.snapshot(entity)
            if now is not before:
                if now != before:
                    return False
                compiled.others[entity] = now
        return True

"""Decides `checkPermissions`: which permissions its sender has (Ditto, checking permissions).

The value has checks by name; each has a resource, an entity, and permissions. A check succeeds if the sender has all of
these permissions at the resource, with nothing revoked below it. There are no permissions on an unknown entity.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from connectivity.authorization.enforcer import EXECUTE, READ, WRITE, Enforcer
from connectivity.twins import values
from connectivity.twins.context import CommandContext, Decision, decision, encode
from connectivity.twins.errors import quote
from mappings.ids import EntityId, EntityType, parse_entity_id

CHECK_PERMISSIONS: Final = "checkPermissions"

_KNOWN: Final = frozenset({READ, WRITE, EXECUTE})
"""The permissions that a policy can grant."""

_TYPES: Final = {"thing": EntityType.THING, "message": EntityType.THING, "policy": EntityType.POLICY}
"""The entity that a type of resource belongs to."""


class _Check(NamedTuple):
    entity: EntityId
    resource: str
    permissions: list[str]


def check_permissions(case: CommandContext) -> Decision:
    """Respond with the result of each check, by name. Raises TwinError for an invalid check."""
    value = values.parse(case) if case.command.value is not None else None
    named = value if isinstance(value, dict) else {}
    checks = {name: _read(case, name, check) for name, check in named.items() if isinstance(check, dict)}
    entities = {check.entity for check in checks.values()}
    if len(entities) > (limit := case.limits.things_at_once):
        raise case.refuse(
            "json.invalid", f"found checks of {len(entities)} entities, expected checks of at most {limit} entities"
        )
    enforcers = {entity: _enforcer_of(case, entity) for entity in entities}
    found = {name: _is_permitted(case, check, enforcers[check.entity]) for name, check in checks.items()}
    return decision([], case.respond(200, encode(found)))


def _read(case: CommandContext, name: str, check: Mapping[str, Any]) -> _Check:
    for member in ("resource", "entityId", "hasPermissions"):
        if member not in check:
            raise case.refuse("json.field.missing", member)
    resource, id, permissions = check["resource"], check["entityId"], check["hasPermissions"]
    where = f"in the check {quote(name)}"
    if not isinstance(resource, str) or not isinstance(id, str):
        raise case.refuse("json.invalid", f"expected resource and entityId to be strings {where}")
    if not isinstance(permissions, list) or not permissions or not all(isinstance(each, str) for each in permissions):
        raise case.refuse("json.invalid", f"expected hasPermissions to be a non-empty array of strings {where}")
    kind, colon, path = resource.partition(":")
    if kind not in _TYPES or not colon or not path.startswith("/"):
        expected = ", ".join(f"'{each}:/…'" for each in _TYPES)
        raise case.refuse("json.invalid", f"found the resource {quote(resource)} {where}, expected one of {expected}")
    entity = parse_entity_id(_TYPES[kind], id)
    if entity is None:
        raise case.refuse(f"{_TYPES[kind].group}:id.invalid", quote(id))
    return _Check(entity, resource, permissions)


def _enforcer_of(case: CommandContext, entity: EntityId) -> Enforcer | None:
    """Return the permissions on an entity; None for an unknown one."""
    if entity.type is EntityType.POLICY:
        return case.world.enforcer(str(entity))
    snapshot = case.world.snapshot(entity)
    if snapshot is None or snapshot.state is None or snapshot.policy is None:
        return None
    return case.world.enforcer(snapshot.policy, entity.namespace)


def _is_permitted(case: CommandContext, check: _Check, enforcer: Enforcer | None) -> bool:
    # The enforcer collects the statements about each permission that it is asked for.
    return (
        enforcer is not None
        and _KNOWN.issuperset(check.permissions)
        and all(enforcer.unrestricted(case.subjects, permission, check.resource) for permission in check.permissions)
    )

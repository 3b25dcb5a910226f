"""Policies that import other policies, for tests of imports and references."""

from __future__ import annotations

from typing import Any

from tests.support.twin_world import OWNERS, POLICY, TwinWorld, entry, granting, policy

P = policy(POLICY)
ROLES, BASE = "acme.shared:roles", "acme.root:base"
READING = {"thing:/": granting("READ")}


def importable(kind: str, *subjects: str, resources: Any = READING, **more: Any) -> dict[str, Any]:
    return {**entry(subjects, resources), "importable": kind, **more}


def a_world_importing(wanted: dict[str, Any], entries: dict[str, Any], **own: Any) -> TwinWorld:
    """Return a world with a thing whose policy imports `wanted` of ROLES, which has these entries."""
    world = TwinWorld()
    world.write_policy(entries, to=ROLES)
    value = {"entries": {"OWNERS": OWNERS, **own}, "imports": {ROLES: wanted}}
    world.send("modify", "/", value, to=P)
    world.send("create", "/", {"policyId": POLICY, "attributes": {"a": 1}})
    return world


def may_read(world: TwinWorld, *subjects: str, path: str = "/attributes/a") -> bool:
    enforcer = world.world.enforcer(POLICY, "acme.plant")
    assert enforcer is not None
    return enforcer.has(subjects, "READ", f"thing:{path}")

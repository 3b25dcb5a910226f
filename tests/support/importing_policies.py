"""Policies that import other policies, for tests of imports and references."""

from __future__ import annotations

from typing import Any

from tests.support.twin_harness import OWNERS, POLICY, TwinHarness, entry, granting, policy

P = policy(POLICY)
ROLES, BASE = "acme.shared:roles", "acme.root:base"
READING = {"thing:/": granting("READ")}


def importable(kind: str, *subjects: str, resources: Any = READING, **more: Any) -> dict[str, Any]:
    return {**entry(subjects, resources), "importable": kind, **more}


def importing_harness(wanted: dict[str, Any], entries: dict[str, Any], **own: Any) -> TwinHarness:
    """Return a harness with a thing whose policy imports `wanted` of ROLES, which has these entries."""
    harness = TwinHarness()
    harness.write_policy(entries, to=ROLES)
    value = {"entries": {"OWNERS": OWNERS, **own}, "imports": {ROLES: wanted}}
    harness.send("modify", "/", value, to=P)
    harness.send("create", "/", {"policyId": POLICY, "attributes": {"a": 1}})
    return harness


def may_read(harness: TwinHarness, *subjects: str, path: str = "/attributes/a") -> bool:
    enforcer = harness.lookup.enforcer(POLICY, "acme.plant")
    assert enforcer is not None
    return enforcer.has(subjects, "READ", f"thing:{path}")

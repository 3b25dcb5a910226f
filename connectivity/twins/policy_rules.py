"""What a policy must keep to as a whole, whichever part of it a command writes.

Somebody can still change it afterwards (Ditto protocol, validity): a subject that does not expire has WRITE on `policy:/`,
and no entry takes that away. Where a policy imports others that is not asked, since those may change at any time. Whoever
adds an import may read what it takes, and references lead somewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from connectivity.twins import importing
from connectivity.twins.base import Case, encode, state_of
from connectivity.twins.enforcer import READ, WRITE, Enforcer
from connectivity.twins.importing import Policy, Taken
from connectivity.twins.policy_values import NEVER, check_number_of_imports
from mappings.ids import EntityType, parse_entity_id


def lookup_of(case: Case) -> importing.Lookup:
    """The states of policies as the case's world knows them."""

    def lookup(policy_id: str) -> Policy | None:
        entity = parse_entity_id(EntityType.POLICY, policy_id)
        snapshot = case.world.snapshot(entity) if entity is not None else None
        return None if snapshot is None or snapshot.is_deleted else state_of(snapshot)

    return lookup


def enforcer_of(case: Case, policy: Policy, namespace: str) -> Enforcer:
    """The permissions of a policy that is not stored yet, for entities of a namespace."""
    return Enforcer(importing.effective(policy, lookup_of(case)), case.now, namespace)


def is_administered(policy: Policy) -> bool:
    """Whether a subject that does not expire may WRITE on `policy:/`, and no entry takes that away."""
    if policy["imports"]:
        return True
    namespace = policy["policyId"].partition(":")[0]
    granted: set[str] = set()
    revoked: set[str] = set()
    # What references share counts as well: an entry may be revoked by one that it refers to.
    for entry in importing.effective(policy, lambda _: None)["entries"].values():
        permissions = entry["resources"].get("policy:/")
        if permissions is None:
            continue
        if WRITE in permissions["grant"] and importing.holds_in(entry, namespace):
            granted.update(subject for subject, about in entry["subjects"].items() if "expiry" not in about)
        if WRITE in permissions["revoke"]:
            revoked.update(entry["subjects"])
    return bool(granted - revoked)


def may_administer(case: Case, policy: Policy) -> bool:
    """Whether the creator could change his policy afterwards, or does not care."""
    if case.flag("allow-policy-lockout"):
        return True
    namespace = policy["policyId"].partition(":")[0]
    return enforcer_of(case, policy, namespace).unrestricted(case.subjects, WRITE, "policy:/")


def check(case: Case, policy: Policy, before: Policy | None = None) -> None:
    """Refuse a policy that is too large, refers to nothing, or imports what the caller may not read.

    Of the imports those are judged that are not in the policy `before`. Raises TwinError.
    """
    if (size := len(encode(policy))) > case.limits.policy:
        raise case.refuse("policies:policy.toolarge", f"found {size} bytes, expected at most {case.limits.policy}")
    check_number_of_imports(case, policy["imports"], policy["policyId"])
    _check_references(case, policy, before)
    _check_imports(case, policy, before)


def _check_references(case: Case, policy: Policy, before: Policy | None) -> None:
    for label, reference in _references(policy):
        imported, referred = reference.get("import"), reference["entry"]
        if imported is not None:
            if imported not in policy["imports"]:
                if (
                    before is not None
                    and imported in before["imports"]
                    and case.address.resource.name.startswith("import")
                ):
                    raise case.refuse("policies:import.referenceconflict", imported)
                raise case.refuse(
                    "policies:import.invalid", f"the entry '{label}' refers to an import that is not there"
                )
            continue
        if referred == label:
            raise case.refuse("policies:entry.invalid", f"the entry '{label}' refers to itself")
        entry = policy["entries"].get(referred)
        if entry is None:
            if _is_about(case, referred):
                raise case.refuse("policies:entry.referenceconflict", referred)
            raise case.refuse("policies:entry.invalid", f"the entry '{label}' refers to one that is not there")
        if entry["importable"] == NEVER and _is_about(case, referred):
            raise case.refuse("policies:entry.referenceconflict", referred)


def _is_about(case: Case, label: str) -> bool:
    """Whether the command is about this very entry."""
    return case.address.segments[:2] == ("entries", label)


def _references(policy: Policy) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for label, entry in policy["entries"].items():
        for reference in entry.get("references", ()):
            yield label, reference


def _check_imports(case: Case, policy: Policy, before: Policy | None) -> None:
    """Refuse an import of what is not there, or of what the caller may not read: both are one answer."""
    known = before["imports"] if before is not None else {}
    added = {id: wanted for id, wanted in policy["imports"].items() if known.get(id) != wanted}
    for imported in added:
        enforcer = case.world.enforcer(imported)
        if enforcer is None or not enforcer.partial(case.subjects, READ, "policy:/"):
            raise case.refuse("policies:policy.notfound", about=imported)
    lookup = lookup_of(case)
    takes = list(importing.taken({**policy, "imports": added, "entries": {}}, lookup))
    if before is None or [*_references(before)] != [*_references(policy)]:
        takes += [found for found in importing.taken(policy, lookup) if not found.here]
    for found in takes:
        if not may_take(case, found):
            raise case.refuse("policies:policy.notfound", about=found.policy_id)


def may_take(case: Case, found: Taken) -> bool:
    """Whether the caller may read an entry in the policy that it is taken of."""
    enforcer = case.world.enforcer(found.policy_id)
    label = found.label.replace("~", "~0")
    return enforcer is not None and enforcer.unrestricted(case.subjects, READ, f"policy:/entries/{label}")

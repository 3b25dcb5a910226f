"""A second implementation of permissions, slow and simple, for comparison with the enforcer.

Each statement of a policy is a row, and each check is a search through all rows. The policies have no imports and
references; `flattened` resolves those first, in the simplest way. `a_value` draws a random value.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from connectivity.authorization.enforcer import DROP

Policy = dict[str, Any]


def rows(policy: Policy) -> Iterator[tuple[str, str, tuple[str, ...], bool]]:
    """Yield subject, permission, path, and whether it is a grant."""
    for entry in policy["entries"].values():
        for subject in entry["subjects"]:
            for resource, permissions in entry["resources"].items():
                for permission in permissions["grant"]:
                    yield subject, permission, segments(resource), True
                for permission in permissions["revoke"]:
                    yield subject, permission, segments(resource), False


@functools.cache
def segments(resource: str) -> tuple[str, ...]:
    type, _, path = resource.partition(":")
    return (type, *(part.replace("~0", "~") for part in path.split("/") if part))


def nearest(policy: Policy, subject: str, permission: str, path: tuple[str, ...]) -> tuple[bool, int] | None:
    about = [(place, grants) for who, what, place, grants in rows(policy) if (who, what) == (subject, permission)]
    for depth in range(len(path), 0, -1):
        here = [grants for place, grants in about if place == path[:depth]]
        if here:
            return all(here), depth
    return None


def reference_has(policy: Policy, subjects: Sequence[str], permission: str, path: tuple[str, ...]) -> bool:
    states = [state for subject in subjects if (state := nearest(policy, subject, permission, path))]
    grants = [depth for is_grant, depth in states if is_grant]
    revokes = [depth for is_grant, depth in states if not is_grant]
    return bool(grants) and (not revokes or max(revokes) < max(grants))


def reference_unrestricted(policy: Policy, subjects: Sequence[str], permission: str, path: tuple[str, ...]) -> bool:
    revoked_below = any(
        who in subjects and what == permission and not grants and place[: len(path)] == path
        for who, what, place, grants in rows(policy)
    )
    return reference_has(policy, subjects, permission, path) and not revoked_below


def reference_partial(policy: Policy, subjects: Sequence[str], permission: str, path: tuple[str, ...]) -> bool:
    below = {place for _, _, place, _ in rows(policy) if place[: len(path)] == path}
    return any(reference_has(policy, subjects, permission, place) for place in (path, *below))


def reference_view(policy: Policy, subjects: Sequence[str], value: Any, path: tuple[str, ...]) -> Any:
    is_granted = reference_has(policy, subjects, "READ", path)
    if isinstance(value, dict):
        seen = {key: reference_view(policy, subjects, member, (*path, key)) for key, member in value.items()}
        seen = {key: member for key, member in seen.items() if member is not DROP}
        return seen if seen or is_granted else DROP
    if isinstance(value, list):
        elements = [reference_view(policy, subjects, element, path) for element in value]
        elements = [element for element in elements if element is not DROP]
        return elements if elements or is_granted else DROP
    return value if is_granted else DROP


def reference_root(policy: Policy, subjects: Sequence[str], value: dict[str, Any]) -> Any:
    """Return the visible part of a whole thing; its ID is visible with any other part."""
    seen = reference_view(policy, subjects, value, ("thing",))
    if seen is DROP:
        return DROP
    return {key: seen.get(key, value[key]) for key in value if key in seen or key == "thingId"}


# --- imports, references, namespaces and expiry: each function follows a sentence of Ditto's documentation ---


def flattened(policy_id: str, policies: Mapping[str, Policy], now: str, namespace: str) -> Policy:
    """Return one policy with all entries that apply now to a thing of this namespace."""
    found = [entry for _, entry in resolved(policies[policy_id], policies)]
    return {"entries": {str(n): living(each, now) for n, each in enumerate(found) if counts(each, namespace)}}


def resolved(policy: Policy, policies: Mapping[str, Policy]) -> list[tuple[str, Policy]]:
    """Return labels and entries of a policy with resolved imports and references, its own ones first."""
    id = policy["policyId"]
    brought = imported(policy, [other for other in policy["imports"] if other != id], policies, {id}, 0)
    return [*_with_references(policy, brought), *brought]


def imported(
    policy: Policy, wanted: Sequence[str], policies: Mapping[str, Policy], visited: set[str], level: int
) -> list[tuple[str, Policy]]:
    """Return the entries of the wanted imports of a policy, at most ten levels deep."""
    found = []
    for id, about in policy["imports"].items():
        if id not in wanted or id not in policies:
            continue
        listed = about.get("transitiveImports", []) if level < 10 else []
        further = [other for other in listed if other not in visited and other != id]
        below = imported(policies[id], further, policies, visited | {id}, level + 1)
        for label, entry in [*_with_references(policies[id], below), *below]:
            is_listed = entry["importable"] == "explicit" and label in about["entries"]
            if entry["importable"] == "implicit" or is_listed:
                entry = {name: part for name, part in entry.items() if name != "references"}
                found.append((f"imported-{id}-{label}", entry))
    return found


def _with_references(policy: Policy, brought: list[tuple[str, Policy]]) -> list[tuple[str, Policy]]:
    return [
        (label, _merged(entry, [other for each in entry["references"] for other in _referred(policy, each, brought)]))
        if entry.get("references")
        else (label, entry)
        for label, entry in policy["entries"].items()
    ]


def _referred(policy: Policy, reference: Mapping[str, str], brought: list[tuple[str, Policy]]) -> list[Policy]:
    """Return a list with the entry that a reference names, or an empty list."""
    known = list(policy["entries"].items())
    name = reference["entry"]
    if "import" in reference:
        known, name = brought, f"imported-{reference['import']}-{name}"
    return [entry for label, entry in known if label == name and entry["importable"] != "never"][:1]


def _merged(entry: Policy, others: list[Policy]) -> Policy:
    kinds = {"subjects", "resources", "namespaces"}
    allowed = kinds.intersection(*(other["allowedAdditions"] for other in others if "allowedAdditions" in other))
    parts = [*others, {kind: entry[kind] for kind in allowed if kind in entry}]
    merged = {
        **entry,
        "subjects": {
            subject: next(part["subjects"][subject] for part in parts if subject in part.get("subjects", {}))
            for part in parts
            for subject in part.get("subjects", {})
        },
        "resources": {
            path: {
                effect: [
                    permission
                    for permission in ("READ", "WRITE")
                    if any(permission in part.get("resources", {}).get(path, {}).get(effect, []) for part in parts)
                ]
                for effect in ("grant", "revoke")
            }
            for part in parts
            for path in part.get("resources", {})
        },
        "namespaces": sorted({pattern for part in parts for pattern in part.get("namespaces", [])}),
    }
    if any("allowedAdditions" in other for other in others):
        merged["allowedAdditions"] = allowed.intersection(entry.get("allowedAdditions", kinds))
    return merged


def counts(entry: Policy, namespace: str) -> bool:
    patterns = entry.get("namespaces") or [namespace]
    return any(
        namespace == pattern or (pattern.endswith(".*") and namespace.startswith(pattern.removesuffix("*")))
        for pattern in patterns
    )


def living(entry: Policy, now: str) -> Policy:
    at = datetime.fromisoformat(now)
    subjects = {
        subject: about
        for subject, about in entry["subjects"].items()
        if "expiry" not in about or datetime.fromisoformat(about["expiry"]) > at
    }
    return {**entry, "subjects": subjects}


def a_value(dice: random.Random, keys: Sequence[str], depth: int = 3) -> Any:
    """Return a JSON value of limited depth, whose objects have some of these keys."""
    match dice.randint(0, 3 if depth else 1):
        case 0:
            return None
        case 1:
            return dice.randint(0, 9)
        case 2:
            return [a_value(dice, keys, depth - 1) for _ in range(dice.randint(0, 2))]
        case _:
            return {key: a_value(dice, keys, depth - 1) for key in dice.sample(keys, dice.randint(0, 3))}

"""A policy together with the policies that it imports (Ditto protocol, imports).

`resolve_imports` adds imported entries to a policy's own, as `policy-view: resolved` shows them, under labels that
clients cannot choose. `effective` returns the enforced entries, with references resolved: an entry that references
another one shares its subjects and resources, one level deep. Imported are `implicit` entries, and `explicit` ones that
the import names, but not what the imported policy imports itself, except by `transitiveImports`. Missing policies and
cycles are skipped. A `Lookup` supplies the policies, and so learns all dependencies, missing policies included. How much is
read and applied is bounded; `enforced` returns what applies of a policy whose imports have grown beyond that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

Lookup: TypeAlias = Callable[[str], Mapping[str, Any] | None]
"""Returns the state of the policy with an ID; None if it does not exist."""

Policy: TypeAlias = Mapping[str, Any]

MOST_POLICIES: Final = 20
"""How many policies a policy may reach by its imports and by theirs, each way on its own."""

MOST_PERMISSIONS: Final = 5_000
"""How many permissions may apply: subjects times the segments of resources, over all policy entries.

It bounds the time that it takes to compile a policy.
"""

_LEAST_BY_ENTRY: Final = 3
"""How many permissions an entry adds at least: it takes as long to compile."""


class ImportedEntry(NamedTuple):
    """An entry that is taken of a policy: under which label there, and under which one here."""

    policy_id: str
    label: str
    here: str
    entry: Mapping[str, Any]


class PolicySize:
    """The numbers of policies reached and of permissions, until one exceeds its bound."""

    __slots__ = ("_segments", "permissions", "policies")

    def __init__(self) -> None:
        self.policies = self.permissions = 0
        self._segments: dict[int, int] = {}
        """The segments of resources that several entries share."""

    @property
    def is_too_large(self) -> bool:
        return self.policies > MOST_POLICIES or self.permissions > MOST_PERMISSIONS

    def add(self, entry: Mapping[str, Any]) -> None:
        """Count the permissions of an entry, or its namespaces if there are more."""
        found = 0
        if subjects := entry["subjects"]:
            resources = entry["resources"]
            segments = self._segments.get(id(resources))
            if segments is None:
                segments = self._segments[id(resources)] = "".join(resources).count("/")
            found = len(subjects) * segments
        self.permissions += max(_LEAST_BY_ENTRY, found, len(entry.get("namespaces", ())))


def imported_entries(policy: Policy, lookup: Lookup, size: PolicySize | None = None) -> Iterator[ImportedEntry]:
    """Return the entries that a policy imports, references to them included, but not beyond the bounds."""
    size = PolicySize() if size is None else size
    for imported, wanted in policy["imports"].items():
        yield from _entries_of_import(imported, wanted, lookup, (policy["policyId"],), size)
    for entry in policy["entries"].values():
        for reference in entry.get("references", ()):
            if (found := _find_referenced(policy, reference, lookup)) is not None and "import" in reference:
                yield ImportedEntry(reference["import"], reference["entry"], "", found)


def _entries_of_import(
    imported: str, wanted: Mapping[str, Any], lookup: Lookup, way: tuple[str, ...], size: PolicySize
) -> Iterator[ImportedEntry]:
    """Return the entries of one import. `way`: the policies that led here."""
    if imported in way or size.is_too_large:
        return
    size.policies += 1
    if size.is_too_large or (policy := lookup(imported)) is None:
        return
    for label, entry in policy["entries"].items():
        importable = entry["importable"]
        if importable == "implicit" or (importable == "explicit" and label in wanted["entries"]):
            size.add(entry)
            if size.is_too_large:
                return
            yield ImportedEntry(imported, label, f"imported-{imported}-{label}", entry)
    for further in wanted.get("transitiveImports", ()):
        if (also := policy["imports"].get(further)) is not None:
            for found in _entries_of_import(further, also, lookup, (*way, imported), size):
                yield found._replace(here=f"imported-{imported}-{found.here}")


def resolve_imports(
    policy: Policy, lookup: Lookup, is_shown: Callable[[ImportedEntry], bool] = lambda _: True
) -> Policy:
    """The policy with the imported entries behind its own: those of them that are shown."""
    if not policy["imports"]:
        return policy
    entries = dict(policy["entries"])
    entries.update(
        (found.here, found.entry) for found in imported_entries(policy, lookup) if found.here and is_shown(found)
    )
    return {**policy, "entries": entries}


def effective(policy: Policy, lookup: Lookup) -> tuple[Policy, PolicySize]:
    """Return the policy with every entry that applies, and its size.

    Entries are its own, imported ones, and those that references share. Of a policy that is too large a part is returned.
    """
    size = PolicySize()
    for entry in policy["entries"].values():
        size.add(entry)
    if size.is_too_large or not (
        policy["imports"] or any(entry.get("references") for entry in policy["entries"].values())
    ):
        return policy, size
    entries = dict(policy["entries"])
    entries.update((found.here, found.entry) for found in imported_entries(policy, lookup, size) if found.here)
    for number, joint in enumerate(_joint_entries(policy, lookup, size)):
        # No label of a client has a slash in it.
        entries[f"/{number}"] = joint
    return {**policy, "entries": entries}, size


def enforced(policy: Policy, lookup: Lookup) -> tuple[Policy, PolicySize]:
    """Return the policy with the entries to enforce, and its size.

    A policy becomes too large if an imported one grows. To leave out some entries could leave out a revoke. So all that
    applies is what they say about policies, for administrators to repair it; nothing if that is too large too.
    """
    whole, size = effective(policy, lookup)
    if not size.is_too_large:
        return whole, size
    known: dict[str, Policy | None] = {}

    def narrowed(policy_id: str) -> Policy | None:
        if policy_id not in known:
            found = lookup(policy_id)
            known[policy_id] = None if found is None else _about_policies(found)
        return known[policy_id]

    rest, left = effective(_about_policies(policy), narrowed)
    return ({**policy, "entries": {}} if left.is_too_large else rest), size


def _about_policies(policy: Policy) -> Policy:
    """Return the policy with the resources of policies alone."""
    entries = {
        label: {
            **entry,
            "resources": {key: each for key, each in entry["resources"].items() if key.startswith("policy:")},
        }
        for label, entry in policy["entries"].items()
    }
    return {**policy, "entries": entries}


def _joint_entries(policy: Policy, lookup: Lookup, size: PolicySize) -> Iterator[Mapping[str, Any]]:
    """Return what the entries share by references, but not beyond the bounds."""
    for entry in policy["entries"].values():
        for reference in _distinct(entry.get("references", ())):
            if (other := _find_referenced(policy, reference, lookup)) is None:
                continue
            # To compare namespaces is work too.
            size.permissions += len(entry.get("namespaces", ())) + len(other.get("namespaces", ()))
            if size.is_too_large:
                return
            for joint in _joint_resources(entry, other, _allowed_additions(reference, other)):
                size.add(joint)
                if size.is_too_large:
                    return
                yield joint


def _distinct(references: Sequence[Mapping[str, str]]) -> Iterator[Mapping[str, str]]:
    """Each reference once: thousands of one and the same fit into a policy, and each would be worked out."""
    return iter({(reference.get("import"), reference["entry"]): reference for reference in references}.values())


def _find_referenced(policy: Policy, reference: Mapping[str, str], lookup: Lookup) -> Mapping[str, Any] | None:
    """The entry that a reference means, if it is there and may be had."""
    if (imported := reference.get("import")) is None:
        own: Mapping[str, Any] | None = policy["entries"].get(reference["entry"])
        return own
    other = lookup(imported) if imported in policy["imports"] and imported != policy["policyId"] else None
    entry: Mapping[str, Any] | None = other["entries"].get(reference["entry"]) if other is not None else None
    return None if entry is None or entry["importable"] == "never" else entry


def _allowed_additions(reference: Mapping[str, str], other: Mapping[str, Any]) -> Sequence[str]:
    """Return what the referencing entry may add to the other one; within a policy everything."""
    every = ("subjects", "resources")
    if "import" not in reference:
        return every
    found: Sequence[str] | None = other.get("allowedAdditions")
    return every if found is None else found


def _joint_resources(
    entry: Mapping[str, Any], other: Mapping[str, Any], allowed: Sequence[str]
) -> Iterator[Mapping[str, Any]]:
    """Return what two entries give together that neither gives alone."""
    namespaces = _both(entry.get("namespaces") or [], other.get("namespaces") or [])
    if namespaces is None:
        return
    if "subjects" in allowed:
        yield {"subjects": entry["subjects"], "resources": other["resources"], "namespaces": namespaces}
    if "resources" in allowed:
        yield {"subjects": other["subjects"], "resources": entry["resources"], "namespaces": namespaces}


def matches(pattern: str, namespace: str) -> bool:
    """`acme.plant` is that namespace alone; `acme.*` every one below `acme`, but not `acme` itself."""
    return namespace.startswith(pattern[:-1]) if pattern.endswith(".*") else namespace == pattern


def holds_in(entry: Mapping[str, Any], namespace: str) -> bool:
    """Whether an entry applies to an entity of this namespace."""
    patterns = entry.get("namespaces")
    return not patterns or any(matches(pattern, namespace) for pattern in patterns)


def _both(one: Sequence[str], other: Sequence[str]) -> list[str] | None:
    """Return the namespace patterns common to both lists; an empty list means all, None means none."""
    if not one or not other:
        return list(one or other)
    return list(dict.fromkeys((*_within(one, other), *_within(other, one)))) or None


def _within(patterns: Sequence[str], others: Sequence[str]) -> Iterator[str]:
    """Return the patterns that match no other namespaces than those of another list."""
    known = set(others)
    above = {other[:-1] for other in others if other.endswith(".*")}
    lengths = {len(prefix) for prefix in above}
    for pattern in patterns:
        ends = (end for end, sign in enumerate(pattern, 1) if sign == "." and end in lengths)
        if pattern in known or any(pattern[:end] in above for end in ends):
            yield pattern

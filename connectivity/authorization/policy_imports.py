"""A policy together with the policies that it imports (Ditto protocol, imports).

`resolve_imports` adds imported entries to a policy's own, as `policy-view: resolved` shows them, under labels that
clients cannot choose. `effective` returns the enforced entries, with references resolved: an entry that references
another one shares its subjects and resources, one level deep. Imported are `implicit` entries, and `explicit` ones that
the import names, but not what the imported policy imports itself, except by `transitiveImports`. Missing policies and
cycles are skipped. One import reads at most `MOST_REACHED` policies, so that it does not limit other imports. A
`Lookup` supplies the policies, and so learns all dependencies, missing policies included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

Lookup: TypeAlias = Callable[[str], Mapping[str, Any] | None]
"""Returns the state of the policy with an ID; None if it does not exist."""

Policy: TypeAlias = Mapping[str, Any]

MOST_REACHED: Final = 10
"""How many policies are read for one import: the imported one and its own imports."""


class ImportedEntry(NamedTuple):
    """An entry that is taken of a policy: under which label there, and under which one here."""

    policy_id: str
    label: str
    here: str
    entry: Mapping[str, Any]


def imported_entries(policy: Policy, lookup: Lookup) -> Iterator[ImportedEntry]:
    """Return the entries that a policy imports, references to them included."""
    for imported, wanted in policy["imports"].items():
        yield from _entries_of_import(imported, wanted, lookup, (policy["policyId"],), _Budget())
    for entry in policy["entries"].values():
        for reference in entry.get("references", ()):
            if (found := _find_referenced(policy, reference, lookup)) is not None and "import" in reference:
                yield ImportedEntry(reference["import"], reference["entry"], "", found)


class _Budget:
    """How many policies may still be read for an import."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MOST_REACHED


def _entries_of_import(
    imported: str, wanted: Mapping[str, Any], lookup: Lookup, way: tuple[str, ...], budget: _Budget
) -> Iterator[ImportedEntry]:
    """Return the entries of one import. `way`: the policies that led here."""
    if imported in way or not budget.left:
        return
    budget.left -= 1
    if (policy := lookup(imported)) is None:
        return
    for label, entry in policy["entries"].items():
        importable = entry["importable"]
        if importable == "implicit" or (importable == "explicit" and label in wanted["entries"]):
            yield ImportedEntry(imported, label, f"imported-{imported}-{label}", entry)
    for further in wanted.get("transitiveImports", ()):
        if (also := policy["imports"].get(further)) is not None:
            for found in _entries_of_import(further, also, lookup, (*way, imported), budget):
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


def effective(policy: Policy, lookup: Lookup) -> Policy:
    """Return the policy with every entry that applies: own, imported, and shared by references."""
    whole = resolve_imports(policy, lookup)
    shared = [
        found
        for entry in policy["entries"].values()
        for reference in _distinct(entry.get("references", ()))
        if (other := _find_referenced(policy, reference, lookup)) is not None
        for found in _joint_resources(entry, other, _allowed_additions(reference, other))
    ]
    if not shared:
        return whole
    # No label of a client has a slash in it.
    return {**whole, "entries": {**whole["entries"], **{f"/{number}": found for number, found in enumerate(shared)}}}


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
    found = [
        inner
        for a in one
        for b in other
        for inner, outer in ((a, b), (b, a))
        if inner == outer or matches(outer, inner)
    ]
    return list(dict.fromkeys(found)) or None

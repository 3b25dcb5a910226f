"""The effective entries of a policy: own and imported ones, with their references merged (Ditto).

`effective_entries` is the one place with these rules, a pure function of the policies that a `Lookup` returns. Imported are
`implicit` entries, and `explicit` ones that the import names; of the imports of an imported policy, those that
`transitiveImports` names. A reference merges another entry into its own one, one level deep; `allowedAdditions` of the
other one limits what remains of the own one. Missing policies and entries, entries that are `never` importable, and cycles
are skipped. The `Lookup` learns all dependencies, missing policies included. How much is read and applied is bounded;
`enforced` returns what applies of a policy whose imports have grown beyond that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from typing import Any, Final, NamedTuple, TypeAlias

Policy: TypeAlias = Mapping[str, Any]
Entry: TypeAlias = Mapping[str, Any]

Lookup: TypeAlias = Callable[[str], Policy | None]
"""Returns the state of the policy with an ID; None if it does not exist."""

Source: TypeAlias = tuple[str, str]
"""An entry as it is stored: the ID of its policy, and its label there."""

MOST_POLICIES: Final = 20
"""How many policies a policy may reach by its imports and by theirs, each way on its own."""

MOST_LEVELS: Final = 10
"""How many levels of `transitiveImports` are followed."""

MOST_PERMISSIONS: Final = 5_000
"""How many permissions may apply: subjects times the segments of resources, over all policy entries.

It bounds the time that it takes to compile a policy.
"""

IMPLICIT, EXPLICIT, NEVER = "implicit", "explicit", "never"
ADDITIONS: Final = ("subjects", "resources", "namespaces")
"""The parts of an entry that references merge, and that `allowedAdditions` names."""

_ALLOWED: Final = "allowedAdditions"

_LEAST_BY_ENTRY: Final = 3
"""How many permissions an entry adds at least: it takes as long to compile."""


_LONG_PATH: Final = 1024
"""Up to how many characters of a path only its segments count."""


def segments_of(resources: Collection[str]) -> int:
    """Return the number of segments of resources.

    Those of long paths count once more for each 1,024 characters: a compiled policy has the path down to each segment.
    """
    text = "".join(resources)
    found = text.count("/")
    if len(text) > _LONG_PATH and max(map(len, resources)) >= _LONG_PATH:
        found += sum(each.count("/") * (len(each) // _LONG_PATH) for each in resources)
    return found


def weight_of(resources: Collection[str]) -> int:
    """Return the memory for resources and the paths above them, in units of about 500 bytes."""
    text = "".join(resources)
    # An upper bound of what the paths above add. To count each of them takes longer.
    most = text.count("/") * max(map(len, resources), default=0) // _LONG_PATH
    if most <= len(resources) // 4:
        return len(resources)
    return len(resources) + sum(each.count("/") * len(each) // _LONG_PATH for each in resources)


class EffectiveEntry(NamedTuple):
    """An entry that applies, with what its references merge into it.

    `path`: the imported policies on the way to it, and its label. `sources`: the stored entries that it consists of, the
    entry itself first.
    """

    path: tuple[str, ...]
    sources: tuple[Source, ...]
    entry: Entry

    @property
    def label(self) -> str:
        """The label in the importing policy, which clients cannot choose."""
        *imports, label = self.path
        return "".join(f"imported-{id}-" for id in imports) + label


_Imported: TypeAlias = dict[tuple[str, ...], EffectiveEntry]
"""Imported entries by path."""


class PolicySize:
    """The numbers of policies reached and of permissions, until one exceeds its bound."""

    __slots__ = ("permissions", "policies")

    def __init__(self) -> None:
        self.policies = self.permissions = 0

    @property
    def is_too_large(self) -> bool:
        return self.policies > MOST_POLICIES or self.permissions > MOST_PERMISSIONS

    def add(self, entry: Entry) -> None:
        """Count the permissions of an entry, or its namespaces if there are more."""
        found = 0
        if subjects := entry["subjects"]:
            found = len(subjects) * segments_of(entry["resources"])
        self.permissions += max(_LEAST_BY_ENTRY, found, len(entry.get("namespaces", ())))

    def add_merge(self, entry: Entry) -> None:
        """Count what of an entry is merged into another one, by the time that it takes."""
        resources = entry.get("resources", {}).values()
        found = sum(1 + len(each["grant"]) + len(each["revoke"]) for each in resources)
        found += len(entry.get("subjects", ())) + len(entry.get("namespaces", ()))
        self.permissions += max(_LEAST_BY_ENTRY, found)


def effective_entries(
    policy: Policy,
    lookup: Lookup,
    size: PolicySize | None = None,
    is_readable: Callable[[Source], bool] | None = None,
) -> Sequence[EffectiveEntry]:
    """Return the entries of a policy that apply: its own ones, then imported ones.

    Some are missing if `size` is too large in the end. Imported and referenced entries that are not readable are left out.
    """
    resolution = _Resolution(lookup, PolicySize() if size is None else size, is_readable)
    id = policy["policyId"]
    imported = resolution.imports(policy, policy["imports"].keys() - {id}, frozenset((id,)), 0)
    return [*resolution.own(policy, policy["entries"], imported), *imported.values()]


class _Resolution:
    """The resolution of one policy, which stops when it is too large."""

    __slots__ = ("_is_readable", "_lookup", "_size")

    def __init__(self, lookup: Lookup, size: PolicySize, is_readable: Callable[[Source], bool] | None) -> None:
        self._lookup = lookup
        self._size = size
        self._is_readable = is_readable

    def imports(self, policy: Policy, wanted: Set[str], visited: frozenset[str], level: int) -> _Imported:
        """Return the entries of some of a policy's imports. `visited`: the policies on the way there."""
        found: _Imported = {}
        for id, about in policy["imports"].items():
            if id in wanted:
                found.update(self._import(id, about, visited | {id}, level))
        return found

    def _import(self, id: str, about: Mapping[str, Any], visited: frozenset[str], level: int) -> _Imported:
        if self._size.is_too_large:
            return {}
        self._size.policies += 1
        if self._size.is_too_large or (policy := self._lookup(id)) is None:
            return {}
        below: _Imported = {}
        further = frozenset(about.get("transitiveImports", ())) - visited
        if further and level < MOST_LEVELS:
            below = self.imports(policy, further, visited, level + 1)
        taken = [
            label
            for label, entry in policy["entries"].items()
            if entry["importable"] == IMPLICIT or (entry["importable"] == EXPLICIT and label in about["entries"])
            if self._is_readable is None or self._is_readable((id, label))
        ]
        found: _Imported = {}
        for each in self.own(policy, taken, below):
            # References belong to the policy that declares them.
            entry = {name: part for name, part in each.entry.items() if name != "references"}
            found[id, *each.path] = EffectiveEntry((id, *each.path), each.sources, entry)
        for path, each in below.items():
            # An import names entries of its own policy alone.
            if each.entry["importable"] == IMPLICIT:
                found[id, *path] = each._replace(path=(id, *path))
        return found

    def own(self, policy: Policy, labels: Collection[str], imported: _Imported) -> Iterator[EffectiveEntry]:
        """Return some of a policy's own entries, with what they refer to."""
        for label in labels:
            if self._size.is_too_large:
                return
            entry: Entry = policy["entries"][label]
            sources: tuple[Source, ...] = ((policy["policyId"], label),)
            if references := entry.get("references"):
                others = list(self._referenced(policy, references, imported))
                entry = self._merged(entry, [other.entry for other in others])
                sources += tuple(source for other in others for source in other.sources)
            self._size.add(entry)
            yield EffectiveEntry((label,), sources, entry)

    def _referenced(
        self, policy: Policy, references: Sequence[Mapping[str, str]], imported: _Imported
    ) -> Iterator[EffectiveEntry]:
        """Return the entries that references name, each once: thousands to the same entry fit into a policy."""
        own = policy["policyId"]
        for id, label in dict.fromkeys((each.get("import"), each["entry"]) for each in references):
            if id is not None:
                if (found := imported.get((id, label))) is not None:
                    yield found
                continue
            entry = policy["entries"].get(label)
            if entry is None or entry["importable"] == NEVER:
                continue
            if self._is_readable is None or self._is_readable((own, label)):
                yield EffectiveEntry((label,), ((own, label),), entry)

    def _merged(self, entry: Entry, others: Sequence[Entry]) -> Entry:
        """Return an entry with others merged into it; a subject is taken from the first that has it."""
        limits = [each[_ALLOWED] for each in others if each.get(_ALLOWED) is not None]
        own = {part: entry[part] for part in ADDITIONS if part in entry and all(part in limit for limit in limits)}
        subjects: dict[str, Any] = {}
        resources: dict[str, Any] = {}
        namespaces: dict[str, None] = {}
        for each in (*others, own):
            self._size.add_merge(each)
            if self._size.is_too_large:
                break
            for subject, about in each.get("subjects", {}).items():
                subjects.setdefault(subject, about)
            for key, permissions in each.get("resources", {}).items():
                resources[key] = _united(resources[key], permissions) if key in resources else permissions
            namespaces.update(dict.fromkeys(each.get("namespaces", ())))
        merged = {**entry, "subjects": subjects, "resources": resources, "namespaces": list(namespaces)}
        if not namespaces:
            del merged["namespaces"]
        if limits:
            # These limits also apply to an entry that refers to this one.
            limits += [entry[_ALLOWED]] if entry.get(_ALLOWED) is not None else []
            merged[_ALLOWED] = [part for part in ADDITIONS if all(part in limit for limit in limits)]
        return merged


def _united(one: Mapping[str, Sequence[str]], other: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return all grants and all revokes of two statements about the same resource."""
    return {name: list(dict.fromkeys((*one[name], *other[name]))) for name in ("grant", "revoke")}


def effective(policy: Policy, lookup: Lookup) -> tuple[Policy, PolicySize]:
    """Return the policy with every entry that applies, and its size.

    Of a policy that is too large a part is returned.
    """
    size = PolicySize()
    if not policy["imports"] and not any(entry.get("references") for entry in policy["entries"].values()):
        for entry in policy["entries"].values():
            size.add(entry)
        return policy, size
    entries: dict[str, Entry] = {}
    for found in effective_entries(policy, lookup, size):
        label = found.label
        while label in entries:
            # IDs and labels can form the same text. No label of a client has a slash in it.
            label += "/"
        entries[label] = found.entry
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


def matches(pattern: str, namespace: str) -> bool:
    """`acme.plant` is that namespace alone; `acme.*` every one below `acme`, but not `acme` itself."""
    return namespace.startswith(pattern[:-1]) if pattern.endswith(".*") else namespace == pattern


def holds_in(entry: Entry, namespace: str) -> bool:
    """Whether an entry applies to an entity of this namespace."""
    patterns = entry.get("namespaces")
    return not patterns or any(matches(pattern, namespace) for pattern in patterns)

"""A compiled policy: permissions of subjects on the parts of an entity.

A policy grants and revokes permissions on resources `thing:/…`, `policy:/…`, `message:/…` and `stream:/…`. Its entries form
one tree with a node for each segment; the nearest explicit statement above a path wins, and a revoke wins over a grant at
the same node (Ditto protocol, effective permission). An enforcer is immutable: compiled once per revision, used many times.
Subjects whose `expiry` has passed are left out; the enforcer is valid until `expires`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, TypeAlias

from connectivity.authorization.policy_imports import holds_in
from mappings.ids import MAX_CACHED_LENGTH, EntityId
from mappings.model.metadata import METADATA
from mappings.timestamps import utc_text

READ: Final = "READ"
WRITE: Final = "WRITE"

DROP: Final[Any] = object()
"""The result of `Enforcer.view` if no part of a value is readable."""

ALWAYS_VISIBLE: Final[Mapping[str, frozenset[str]]] = {
    "thing": frozenset({"thingId", "_namespace", "_revision", "_modified", "_created"}),
    "policy": frozenset({"policyId", "_namespace", "_revision", "_modified", "_created"}),
}
"""The members of an entity that are shown to every reader of any part."""

_NOBODY: Final[frozenset[str]] = frozenset()

_Statements: TypeAlias = dict[str, Set[str]]
"""Permissions, and the subjects that have or lose each."""

_PERMISSIONS: Final = (READ, WRITE)
"""The permissions with a meaning; others are never asked for."""

_KNOWN: Final = 128
"""How many answers an enforcer keeps."""

_ESCAPED: Final[Mapping[str, int]] = {"policy": 3, "stream": 0}
"""For how many segments all spellings with `~0` are tried."""


class _Node:
    """One segment of a resource: grants and revokes here, and here or below."""

    __slots__ = ("children", "granted", "granted_below", "parent", "revoked", "revoked_below")

    def __init__(self, parent: _Node | None) -> None:
        self.parent = parent
        self.children: dict[str, _Node] = _NO_CHILDREN
        self.granted = self.revoked = self.granted_below = self.revoked_below = _NO_STATEMENTS

    def has(self, subjects: Sequence[str], permission: str) -> bool:
        """Whether several subjects together have a permission: the deepest statement decides, a tie denies."""
        node: _Node | None = self
        while node is not None:
            if not node.revoked.get(permission, _NOBODY).isdisjoint(subjects):
                return False
            if not node.granted.get(permission, _NOBODY).isdisjoint(subjects):
                return True
            node = node.parent
        return False

    def has_below(self, subjects: Sequence[str], permission: str) -> bool:
        """Whether several subjects together have a permission at any node below."""
        nodes, asking = [self], frozenset(subjects)
        while nodes:
            for below in nodes.pop().children.values():
                if below.granted_below.get(permission, _NOBODY).isdisjoint(asking):
                    continue
                # A grant at the node itself is the deepest statement there, unless one of them is revoked.
                is_granted = not below.granted.get(permission, _NOBODY).isdisjoint(asking)
                if is_granted and below.revoked.get(permission, _NOBODY).isdisjoint(asking):
                    return True
                nodes.append(below)
        return False


def _join(statements: _Statements, permission: str, subjects: frozenset[str]) -> _Statements:
    """Add the subjects of an entry. Its resources share them, until those of another entry are added."""
    if statements is _NO_STATEMENTS:
        return {permission: subjects}
    known = statements.get(permission)
    if known is None:
        statements[permission] = subjects
    elif known is not subjects:
        if isinstance(known, frozenset):
            known = statements[permission] = set(known)
        known |= subjects
    return statements


_NO_CHILDREN: Final[dict[str, _Node]] = {}
_NO_STATEMENTS: Final[_Statements] = {}
"""Shared by all nodes without any, and never changed."""


class Enforcer:
    """The permissions that the entries of a policy give.

    Paths are resources as text: `thing:/attributes/site`. `now` is the time as in `Event.timestamp`; expired subjects are
    left out. `expires` is the next expiry, or None. Entries for other namespaces than `namespace` are left out; without one
    all apply. `policies` are those it depends on, imports included, missing ones too. `weight` is the number of its segments
    and subjects, some 500 bytes each.
    """

    __slots__ = ("_known", "_root", "expires", "policies", "weight")

    def __init__(
        self,
        policy: Mapping[str, Any],
        now: str = "",
        namespace: str | None = None,
        policies: frozenset[EntityId] = frozenset(),
    ) -> None:
        self._known: dict[tuple[tuple[str, ...], str, str], bool] = {}
        self.policies = policies
        self.expires: str | None = None
        self._root = _Node(None)
        self.weight = 1
        for entry in policy.get("entries", {}).values():
            if namespace is not None and not holds_in(entry, namespace):
                continue
            subjects = frozenset(self._effective(entry["subjects"], now))
            if subjects:
                self.weight += len(subjects)
                for resource, permissions in entry["resources"].items():
                    self._add(resource, subjects, permissions)

    def _add(self, resource: str, subjects: frozenset[str], permissions: Mapping[str, Sequence[str]]) -> None:
        node = self._root
        path = [node]
        for segment in _segments(resource):
            below = node.children.get(segment)
            if below is None:
                if node.children is _NO_CHILDREN:
                    node.children = {}
                below = node.children[segment] = _Node(node)
                self.weight += 1
            node = below
            path.append(node)
        for permission in _PERMISSIONS:
            if permission in permissions["grant"]:
                node.granted = _join(node.granted, permission, subjects)
                for above in path:
                    above.granted_below = _join(above.granted_below, permission, subjects)
            if permission in permissions["revoke"]:
                node.revoked = _join(node.revoked, permission, subjects)
                for above in path:
                    above.revoked_below = _join(above.revoked_below, permission, subjects)

    def _effective(self, subjects: Mapping[str, Any], now: str) -> Iterator[str]:
        for subject, about in subjects.items():
            if (expiry := about.get("expiry")) is not None:
                instant = six_digits(expiry)
                if instant <= now:
                    continue
                self.expires = min(instant, self.expires or instant)
            yield subject

    def _find(self, path: str) -> tuple[_Node, bool]:
        """The node of `path`, or the nearest one above it; and whether it is the node itself."""
        node = self._root
        for segment in _segments(path):
            below = node.children.get(segment)
            if below is None:
                return node, False
            node = below
        return node, True

    def has(self, subjects: Sequence[str], permission: str, path: str) -> bool:
        """Whether the subjects have the permission at the path itself."""
        return self._find(path)[0].has(subjects, permission)

    def unrestricted(self, subjects: Sequence[str], permission: str, path: str) -> bool:
        """Whether they have it at the path with nothing revoked below, not even if granted again.

        The same senders write to the same paths, so the last answers are kept.
        """
        asked = (tuple(subjects), permission, path)
        found = self._known.get(asked)
        if found is None:
            found = self._is_unrestricted(subjects, permission, path)
            if len(path) <= MAX_CACHED_LENGTH:
                if len(self._known) >= _KNOWN:
                    self._known.clear()
                self._known[asked] = found
        return found

    def _is_unrestricted(self, subjects: Sequence[str], permission: str, path: str) -> bool:
        node, is_exact = self._find(path)
        if not node.has(subjects, permission):
            return False
        revoked = node.revoked_below.get(permission) if is_exact else None
        return revoked is None or revoked.isdisjoint(subjects)

    def partial(self, subjects: Sequence[str], permission: str, path: str) -> bool:
        """Whether they have it at the path or at a place below."""
        node, is_exact = self._find(path)
        return node.has(subjects, permission) or (is_exact and node.has_below(subjects, permission))

    def is_known_to(self, subjects: Sequence[str], *types: str) -> bool:
        """Whether they have any permission on anything of these types."""
        return any(self.partial(subjects, permission, f"{type}:/") for type in types for permission in (READ, WRITE))

    def named_below(self, path: str) -> Sequence[str]:
        """Return the segments directly below the path that the policy names."""
        node, is_exact = self._find(path)
        return list(node.children) if is_exact else []

    def view(self, value: Any, path: str, subjects: Sequence[str]) -> Any:
        """Return the readable part of the JSON value at the path; DROP for nothing.

        At the root of an entity, readers of any part of it also see the members that are `ALWAYS_VISIBLE`.
        """
        if self.unrestricted(subjects, READ, path):
            return value
        node, is_exact = self._find(path)
        seen = _view(node, value, subjects) if is_exact else (value if node.has(subjects, READ) else DROP)
        type, _, pointer = path.partition(":")
        if seen is DROP or pointer.strip("/") or not isinstance(value, Mapping):
            return seen
        always = ALWAYS_VISIBLE.get(type, _NOBODY)
        found = {key: seen[key] if key in seen else value[key] for key in value if key in seen or key in always}
        if METADATA in value:
            # Metadata of a part is readable by the readers of the part.
            found.pop(METADATA, None)
            if said := self.view_metadata(value[METADATA], path, subjects):
                found[METADATA] = said
        return found

    def view_metadata(self, metadata: Mapping[str, Any], path: str, subjects: Sequence[str]) -> Mapping[str, Any]:
        """Return the metadata of readable parts, without places of which nothing is left."""
        seen = self.view(metadata, path, subjects)
        if seen is metadata or seen is DROP:
            return {} if seen is DROP else metadata
        return _without_emptied(seen, metadata)


def _view(node: _Node, value: Any, subjects: Sequence[str]) -> Any:
    """The readable part of a value at a node of the tree.

    The elements of an array are seen by the array's own node, so that keys of objects inside arrays obey and indices
    do not matter. An empty object or array remains only where reading is granted at the node.
    """
    if not node.children:
        return value if node.has(subjects, READ) else DROP
    if isinstance(value, Mapping):
        members = {}
        for key, member in value.items():
            below, is_exact = _below(node, key)
            seen = _view(below, member, subjects) if is_exact else (member if below.has(subjects, READ) else DROP)
            if seen is not DROP:
                members[key] = seen
        return members if members or node.has(subjects, READ) else DROP
    if isinstance(value, list):
        elements = [seen for element in value if (seen := _view(node, element, subjects)) is not DROP]
        return elements if elements or node.has(subjects, READ) else DROP
    return value if node.has(subjects, READ) else DROP


def _without_emptied(seen: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object without objects that had members and have none left."""
    found: dict[str, Any] = {}
    for key, member in seen.items():
        if isinstance(member, Mapping) and whole[key]:
            if left := _without_emptied(member, whole[key]):
                found[key] = left
        else:
            found[key] = member
    return found


def _below(node: _Node, key: str) -> tuple[_Node, bool]:
    """The node of a member, or the nearest one above it.

    Keys of a policy's resources have slashes in them.
    """
    if "/" not in key:
        below = node.children.get(key)
        return (node, False) if below is None else (below, True)
    for segment in filter(None, key.split("/")):
        below = node.children.get(segment)
        if below is None:
            return node, False
        node = below
    return node, True


@lru_cache(maxsize=8192)
def _segments(path: str) -> tuple[str, ...]:
    """`thing:/attributes/site` → `("thing", "attributes", "site")`.

    The subjects and resources of a policy's entry are written there as they are, tildes included, and so are ids of streams.
    """
    type, _, pointer = path.partition(":")
    parts = [part for part in pointer.split("/") if part]
    escaped = _ESCAPED.get(type, len(parts))
    return (type, *(part.replace("~0", "~") for part in parts[:escaped]), *parts[escaped:])


@lru_cache(maxsize=1024)
def six_digits(instant: str) -> str:
    """Return an ISO 8601 instant as text that sorts by time."""
    return utc_text(datetime.fromisoformat(instant))

"""A compiled policy: permissions of subjects on the parts of an entity.

A policy grants and revokes permissions on resources `thing:/…`, `policy:/…`, `message:/…` and `stream:/…`. Its entries form
one tree with a node for each segment; the nearest explicit statement above a path wins, and a revoke wins over a grant at
the same node (Ditto protocol, effective permission). An enforcer is immutable: compiled once per revision, used many times.
Subjects whose `expiry` has passed are left out; the enforcer is valid until `expires`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

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

_KNOWN: Final = 128
"""How many answers an enforcer keeps."""

_ESCAPED: Final[Mapping[str, int]] = {"policy": 3, "stream": 0}
"""For how many segments all spellings with `~0` are tried."""


class _Node:
    """One segment of a resource: grants and revokes here, and whether there are some below."""

    __slots__ = ("children", "depth", "granted", "granted_below", "parent", "revoked", "revoked_below")

    def __init__(self, parent: _Node | None) -> None:
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: dict[str, _Node] = {}
        self.granted: dict[str, set[str]] = {}
        self.revoked: dict[str, set[str]] = {}
        self.granted_below: dict[str, set[str]] = {}
        self.revoked_below: dict[str, set[str]] = {}

    def child(self, segment: str) -> _Node:
        found = self.children.get(segment)
        if found is None:
            found = self.children[segment] = _Node(self)
        return found

    def state(self, subject: str, permission: str) -> tuple[bool, int] | None:
        """The nearest statement about a subject at this node or above: whether it grants, and its depth."""
        node: _Node | None = self
        while node is not None:
            if subject in node.revoked.get(permission, _NOBODY):
                return False, node.depth
            if subject in node.granted.get(permission, _NOBODY):
                return True, node.depth
            node = node.parent
        return None

    def has(self, subjects: Sequence[str], permission: str) -> bool:
        """Whether several subjects together have a permission: the deeper statement wins, a tie denies."""
        granted = revoked = -1
        for subject in subjects:
            if (state := self.state(subject, permission)) is not None:
                if state[0]:
                    granted = max(granted, state[1])
                else:
                    revoked = max(revoked, state[1])
        return granted > revoked


class Enforcer:
    """The permissions that the entries of a policy give.

    Paths are resources as text: `thing:/attributes/site`. `now` is the time as in `Event.timestamp`; expired subjects are
    left out. `expires` is the next expiry, or None. Entries for other namespaces than `namespace` are left out; without one
    all apply. `policies` are those it depends on, imports included, missing ones too.
    """

    __slots__ = ("_known", "_root", "expires", "policies")

    def __init__(
        self,
        policy: Mapping[str, Any],
        now: str = "",
        namespace: str | None = None,
        policies: frozenset[EntityId] = frozenset(),
    ) -> None:
        self._root = _Node(None)
        self._known: dict[tuple[tuple[str, ...], str, str], bool] = {}
        self.policies = policies
        self.expires: str | None = None
        for entry in policy.get("entries", {}).values():
            if namespace is not None and not holds_in(entry, namespace):
                continue
            subjects = self._effective(entry["subjects"], now)
            for resource, permissions in entry["resources"].items():
                self._add(resource, subjects, permissions)

    def _effective(self, subjects: Mapping[str, Any], now: str) -> list[str]:
        effective = []
        for subject, about in subjects.items():
            if (expiry := about.get("expiry")) is not None:
                instant = six_digits(expiry)
                if instant <= now:
                    continue
                self.expires = min(instant, self.expires or instant)
            effective.append(subject)
        return effective

    def _add(self, resource: str, subjects: Sequence[str], permissions: Mapping[str, Sequence[str]]) -> None:
        node = self._root
        path = [node]
        for segment in _segments(resource):
            node = node.child(segment)
            path.append(node)
        for granted in permissions["grant"]:
            node.granted.setdefault(granted, set()).update(subjects)
            for above in path:
                above.granted_below.setdefault(granted, set()).update(subjects)
        for revoked in permissions["revoke"]:
            node.revoked.setdefault(revoked, set()).update(subjects)
            for above in path:
                above.revoked_below.setdefault(revoked, set()).update(subjects)

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
        """Whether they have it at the path or below; only revokes at the path or above apply."""
        node, is_exact = self._find(path)
        if node.has(subjects, permission):
            return True
        return is_exact and any(
            not below.granted_below.get(permission, _NOBODY).isdisjoint(subjects) for below in node.children.values()
        )

    def view(self, value: Any, path: str, subjects: Sequence[str]) -> Any:
        """Return the readable part of the JSON value at the path; DROP for nothing.

        At the root of an entity it includes the members that every reader of any part may see.
        """
        if self.unrestricted(subjects, READ, path):
            return value
        node, is_exact = self._find(path)
        seen = _view(node, value, subjects) if is_exact else (value if node.has(subjects, READ) else DROP)
        type, _, pointer = path.partition(":")
        if pointer.strip("/") or not isinstance(value, Mapping) or not self.partial(subjects, READ, path):
            return seen
        readable = {} if seen is DROP else seen
        always = ALWAYS_VISIBLE.get(type, _NOBODY)
        found = {
            key: readable[key] if key in readable else value[key] for key in value if key in readable or key in always
        }
        if METADATA in value:
            # Metadata of a part is readable by the readers of the part.
            found.pop(METADATA, None)
            said = self.view(value[METADATA], path, subjects)
            if said is not DROP and said:
                found[METADATA] = said
        return found

    def may_stream(self, subjects: Sequence[str], type: str) -> bool:
        """Whether they may read the whole unfiltered history of a `thing` or `policy`.

        A thing requires READ without exception; a policy READ on any part.
        """
        asks = self.unrestricted if type == "thing" else self.partial
        return asks(subjects, READ, f"{type}:/")


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


def _resources(node: _Node, path: str = "") -> Iterator[str]:
    for segment, child in node.children.items():
        below = f"{path}/{segment}" if path else f"{segment}:"
        if child.granted or child.revoked:
            yield below if path else f"{below}/"
        yield from _resources(child, below)

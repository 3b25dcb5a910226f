"""A compiled policy: permissions of subjects on the parts of an entity.

A policy grants and revokes permissions on resources `thing:/…`, `policy:/…`, `message:/…` and `stream:/…`. The nearest
explicit statement at or above a path wins, and a revoke wins over a grant at the same path (Ditto protocol, effective
permission). An enforcer only indexes the policy's subjects when it is made; the statements about subjects are collected
when they ask, so that a policy with thousands of permissions delays no other. Its answers never change.
Subjects whose `expiry` has passed are left out; the enforcer is valid until `expires`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, TypeAlias

from connectivity.authorization.policy_imports import holds_in, weight_of
from mappings.ids import EntityId
from mappings.model.metadata import METADATA
from mappings.text_cache import MAX_CACHED_LENGTH
from mappings.timestamps import utc_text

READ: Final = "READ"
WRITE: Final = "WRITE"
EXECUTE: Final = "EXECUTE"

DROP: Final[Any] = object()
"""The result of `Enforcer.view` if no part of a value is readable."""

ALWAYS_VISIBLE: Final[Mapping[str, frozenset[str]]] = {
    "thing": frozenset({"thingId", "_namespace", "_revision", "_modified", "_created"}),
    "policy": frozenset({"policyId", "_namespace", "_revision", "_modified", "_created"}),
}
"""The members of an entity that are shown to every reader of any part."""

_PERMISSIONS: Final[Mapping[str, Sequence[str]]] = {"policy": (READ, WRITE, EXECUTE)}
"""The permissions on resources of a type, if they are not READ and WRITE alone."""

_NONE: Final[frozenset[str]] = frozenset()

_KNOWN: Final = 128
"""How many answers an enforcer keeps."""

_KEPT_BY_WEIGHT: Final = 4
"""How many statements an enforcer keeps for those that ask, as a multiple of its weight."""

_LONG_PATH: Final = 256
_DEEP_PATH: Final = 20
"""The most characters and segments of paths whose paths above are kept."""

_ESCAPED: Final[Mapping[str, int]] = {"policy": 3, "stream": 0}
"""For how many segments all spellings with `~0` are tried."""

_Resources: TypeAlias = Mapping[str, Mapping[str, Sequence[str]]]
"""The resources of a policy entry, each with its granted and revoked permissions."""


class _Statements:
    """The statements about one permission of some subjects together, by canonical path."""

    __slots__ = ("_above_granted", "_above_revoked", "by_path")

    def __init__(self, permission: str, resources: Iterable[_Resources]) -> None:
        self.by_path: dict[str, bool] = {}
        """Whether the permission is granted at a path, for paths with a statement."""
        self._above_granted: Collection[str] | None = None
        self._above_revoked: Collection[str] | None = None
        stated: dict[str, bool] = {}
        for each in resources:
            for resource, permissions in each.items():
                if permission in permissions["revoke"]:
                    stated[resource] = False
                elif permission in permissions["grant"] and resource not in stated:
                    stated[resource] = True
        for written, is_granted in stated.items():
            is_canonical = written[-1:] != "/" and "~" not in written and "//" not in written
            path = written if is_canonical else _canonical(written)
            self.by_path[path] = self.by_path.get(path, True) and is_granted

    def has(self, path: str) -> bool:
        """Whether the permission is granted at a path: the nearest statement decides."""
        if not _is_short(path):
            return self._has_long(_canonical(path))
        for each in _lineage(path):
            if (is_granted := self.by_path.get(each)) is not None:
                return is_granted
        return False

    def _has_long(self, path: str) -> bool:
        """Return the same for a long canonical path, in time that does not grow with its number of segments."""
        for length in sorted({len(each) for each in self.by_path}, reverse=True):
            is_granted = self.by_path.get(path[:length]) if path[length : length + 1] in ("", "/") else None
            if is_granted is not None:
                return is_granted
        return False

    @property
    def above_granted(self) -> Collection[str]:
        """The paths with a grant below."""
        if self._above_granted is None:
            self._above_granted = self._above(is_granted=True)
        return self._above_granted

    @property
    def above_revoked(self) -> Collection[str]:
        """The paths with a revoke below."""
        if self._above_revoked is None:
            self._above_revoked = self._above(is_granted=False)
        return self._above_revoked

    def _above(self, *, is_granted: bool) -> Collection[str]:
        found: set[str] = set()
        for path, granted in self.by_path.items():
            if granted is is_granted:
                above, slash, _ = path.rpartition("/")
                while slash and above not in found:
                    found.add(above)
                    above, slash, _ = above.rpartition("/")
        return found or _NONE

    def view(self, value: Any, path: str, *, is_granted: bool) -> Any:
        """Return the part of a value at a canonical path that the permission is on; DROP for nothing.

        The elements of an array are seen by the array's own path, so that keys of objects inside arrays obey and indices
        do not matter. An empty object or array remains only where the permission is granted at its path.
        """
        if path not in (self.above_revoked if is_granted else self.above_granted):
            return value if is_granted else DROP
        if isinstance(value, Mapping):
            members = {}
            for key, member in value.items():
                below, is_granted_below = self._member(path, key, is_granted)
                seen = self.view(member, below, is_granted=is_granted_below)
                if seen is not DROP:
                    members[key] = seen
            return members if members or is_granted else DROP
        if isinstance(value, list):
            elements = [
                seen for element in value if (seen := self.view(element, path, is_granted=is_granted)) is not DROP
            ]
            return elements if elements or is_granted else DROP
        return value if is_granted else DROP

    def _member(self, path: str, key: str, is_granted: bool) -> tuple[str, bool]:
        """Return the path of a member, and whether the permission is granted there.

        Keys of a policy's resources have slashes in them.
        """
        for segment in filter(None, key.split("/")) if "/" in key else (key,):
            path = f"{path}/{segment}"
            is_granted = self.by_path.get(path, is_granted)
        return path, is_granted


class Enforcer:
    """The permissions that the entries of a policy give.

    Paths are resources as text: `thing:/attributes/site`. `now` is the time as in `Event.timestamp`; expired subjects are
    left out. `expires` is the next expiry, or None. Entries for other namespaces than `namespace` are left out; without one
    all apply. `policies` are those it depends on, imports included, missing ones too. `weight` is the number of its subjects
    and resources; with what is kept for those that ask, they take some 500 bytes each.
    """

    __slots__ = ("_kept", "_known", "_of", "_stated", "expires", "policies", "weight")

    def __init__(
        self,
        policy: Mapping[str, Any],
        now: str = "",
        namespace: str | None = None,
        policies: frozenset[EntityId] = frozenset(),
    ) -> None:
        self._known: dict[tuple[tuple[str, ...], str, str], bool] = {}
        self._stated: dict[tuple[tuple[str, ...], str], _Statements] = {}
        self._kept = 0
        """The number of statements in `_stated`."""
        self._of: dict[str, list[_Resources]] = {}
        """The resources of the entries of each subject."""
        self.policies = policies
        self.expires: str | None = None
        self.weight = 1
        of = self._of
        for entry in policy.get("entries", {}).values():
            if namespace is not None and not holds_in(entry, namespace):
                continue
            resources = entry["resources"]
            if not resources:
                continue
            self.weight += len(entry["subjects"]) + weight_of(resources)
            for subject, about in entry["subjects"].items():
                if "expiry" in about and not self._is_valid(about["expiry"], now):
                    continue
                if subject in of:
                    of[subject].append(resources)
                else:
                    of[subject] = [resources]

    def _is_valid(self, expiry: str, now: str) -> bool:
        instant = six_digits(expiry)
        if instant <= now:
            return False
        if self.expires is None or instant < self.expires:
            self.expires = instant
        return True

    def _statements(self, subjects: Sequence[str], permission: str) -> _Statements:
        """Return the statements about some subjects, as far as the policy names them."""
        named = tuple([subject for subject in subjects if subject in self._of])
        found = self._stated.get((named, permission))
        if found is None:
            # An entry may name several of them.
            resources = {id(each): each for subject in named for each in self._of[subject]}
            found = _Statements(permission, resources.values())
            self._kept += len(found.by_path) + 1
            if self._kept > _KEPT_BY_WEIGHT * self.weight:
                self._stated.clear()
                self._kept = len(found.by_path) + 1
            self._stated[named, permission] = found
        return found

    def has(self, subjects: Sequence[str], permission: str, path: str) -> bool:
        """Whether the subjects have the permission at the path itself."""
        return self._statements(subjects, permission).has(path)

    def unrestricted(self, subjects: Sequence[str], permission: str, path: str) -> bool:
        """Whether they have it at the path with nothing revoked below, not even if granted again.

        The same senders write to the same paths, so the last answers are kept.
        """
        asked = (tuple(subjects), permission, path)
        found = self._known.get(asked)
        if found is None:
            statements = self._statements(subjects, permission)
            found = statements.has(path) and _canonical(path) not in statements.above_revoked
            if len(path) <= MAX_CACHED_LENGTH:
                if len(self._known) >= _KNOWN:
                    self._known.clear()
                self._known[asked] = found
        return found

    def partial(self, subjects: Sequence[str], permission: str, path: str) -> bool:
        """Whether they have it at the path or at a place below."""
        statements = self._statements(subjects, permission)
        return statements.has(path) or _canonical(path) in statements.above_granted

    def is_known_to(self, subjects: Sequence[str], *types: str) -> bool:
        """Whether they have any permission on anything of these types."""
        return any(
            self.partial(subjects, permission, f"{type}:/")
            for type in types
            for permission in _PERMISSIONS.get(type, (READ, WRITE))
        )

    def named_below(self, subjects: Sequence[str], permission: str, path: str) -> Collection[str]:
        """Return the segments directly below the path that statements about the subjects name."""
        above = f"{_canonical(path)}/"
        stated = self._statements(subjects, permission).by_path
        return {each[len(above) :].partition("/")[0] for each in stated if each.startswith(above)}

    def view(self, value: Any, path: str, subjects: Sequence[str]) -> Any:
        """Return the readable part of the JSON value at the path; DROP for nothing.

        At the root of an entity, readers of any part of it also see the members that are `ALWAYS_VISIBLE`.
        """
        if self.unrestricted(subjects, READ, path):
            return value
        statements = self._statements(subjects, READ)
        seen = statements.view(value, _canonical(path), is_granted=statements.has(path))
        type, _, pointer = path.partition(":")
        if seen is DROP or pointer.strip("/") or not isinstance(value, Mapping):
            return seen
        always = ALWAYS_VISIBLE.get(type, _NONE)
        found = {key: seen[key] if key in seen else value[key] for key in value if key in seen or key in always}
        if METADATA in value:
            # Metadata of a part is readable by the readers of the part.
            found.pop(METADATA, None)
            if shown := self.view_metadata(value[METADATA], value, subjects):
                found[METADATA] = shown
        return found

    def view_metadata(
        self, metadata: Mapping[str, Any], data: Any, subjects: Sequence[str], place: str = "thing:"
    ) -> Mapping[str, Any]:
        """Return the metadata of readable parts of a thing, or of its part at `place`; `data` is the value.

        A part that overwrites everything with an empty object has no metadata. So whether an object has metadata could tell
        whether unreadable members are in it: readers of a part of an object get only the metadata of its members.
        """
        if self.unrestricted(subjects, READ, place):
            return metadata if place == "thing:" else _without_empty(metadata)
        found = {}
        for key, member in metadata.items():
            if isinstance(member, Mapping) and isinstance(data, Mapping) and key in data:
                below = f"{place}/{key.replace('~', '~0')}"
                if left := self.view_metadata(member, data[key], subjects, below):
                    found[key] = left
        return found


def _without_empty(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object without empty objects, since they may be what is left of unreadable parts."""
    found: dict[str, Any] = {}
    for key, member in metadata.items():
        if not isinstance(member, Mapping):
            found[key] = member
        elif left := _without_empty(member):
            found[key] = left
    return found


def _is_short(path: str) -> bool:
    return len(path) <= _LONG_PATH and path.count("/") <= _DEEP_PATH


def _canonical(path: str) -> str:
    """Return the canonical path."""
    return _lineage(path)[0] if _is_short(path) else _normalize(path)


def _normalize(path: str) -> str:
    """Return a path without empty segments and escapes: `thing:/features/a~0/` → `thing:/features/a~`.

    The subjects and resources of a policy's entry are written there as they are, tildes included, and so are ids of streams.
    """
    type, _, pointer = path.partition(":")
    parts = [part for part in pointer.split("/") if part]
    escaped = _ESCAPED.get(type, len(parts))
    parts[:escaped] = [part.replace("~0", "~") for part in parts[:escaped]]
    return "/".join((f"{type}:", *parts))


@lru_cache(maxsize=8192)
def _lineage(path: str) -> tuple[str, ...]:
    """Return the canonical path and those above it, the nearest first.

    `thing:/features/a/` → `("thing:/features/a", "thing:/features", "thing:")`. Only for short paths, since the time and
    memory grow with the square of the length.
    """
    found = [_normalize(path)]
    while (above := found[-1].rpartition("/"))[1]:
        found.append(above[0])
    return tuple(found)


_IN_SECONDS: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ").fullmatch


def six_digits(instant: str) -> str:
    """Return an ISO 8601 instant as text that sorts by time."""
    # Policies have whole seconds in UTC, and may have thousands of them.
    if _IN_SECONDS(instant):
        return f"{instant[:-1]}.000000Z"
    return _six_digits(instant)


@lru_cache(maxsize=1024)
def _six_digits(instant: str) -> str:
    return utc_text(datetime.fromisoformat(instant))

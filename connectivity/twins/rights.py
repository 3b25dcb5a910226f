"""What somebody may read of things, as a search asks it (Ditto protocol, search, permissions).

A search sees the things of which a subject may read anything that is there. A predicate about a field counts only where he
may read the place of the field itself: `Enforcer.has`. What he is shown is `Enforcer.view`, as in a retrieve. The present
policy decides, for every page anew.

What is said about a part of a thing (`_metadata`) is read by whoever may read the part, as in a retrieve too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from connectivity.twins.base import World
from connectivity.twins.enforcer import ALWAYS_VISIBLE, DROP, READ, Enforcer
from mappings.metadata import METADATA
from spark_store.asking import Access, Thing

_BESIDE = frozenset({"_revision", "_created", "_modified", METADATA})
"""The members of a `Thing` that are no part of its document."""


class ThingRights:
    """`Rights` of some subjects in a world. What was found of a policy is kept: make one for every page."""

    def __init__(self, world: World, subjects: Sequence[str]) -> None:
        self.subjects = frozenset(subjects)
        self._subjects = tuple(subjects)
        self._world = world
        self._known: dict[tuple[str, str], Access | None] = {}

    def access(self, policy: str, namespace: str) -> Access | None:
        """What they may read of the things of a policy in a namespace; None for nothing at all."""
        key = (policy, namespace)
        if key not in self._known:
            self._known[key] = self._access(policy, namespace)
        return self._known[key]

    def _access(self, policy: str, namespace: str) -> Access | None:
        enforcer = self._world.enforcer(policy, namespace)
        if enforcer is None or not enforcer.partial(self._subjects, READ, "thing:/"):
            return None
        return ThingAccess(enforcer, self._subjects)


class ThingAccess:
    """What some subjects may read of the things of one policy, of which they may read a part at least."""

    __slots__ = ("_enforcer", "_known", "_subjects", "is_whole")

    def __init__(self, enforcer: Enforcer, subjects: Sequence[str]) -> None:
        self.is_whole = enforcer.unrestricted(subjects, READ, "thing:/")
        self._enforcer = enforcer
        self._subjects = subjects
        self._known: dict[Sequence[str], bool] = {}

    def may(self, path: Sequence[str]) -> bool:
        """Whether they may read the place itself."""
        if self.is_whole:
            return True
        path = tuple(path)
        found = self._known.get(path)
        if found is None:
            found = self._known[path] = self._enforcer.has(self._subjects, READ, _resource(path))
        return found

    def view(self, thing: Thing) -> Thing | None:
        """The thing as far as they may read it; None where nothing of it that is there may be read."""
        if self.is_whole:
            return thing
        document = {name: value for name, value in thing.items() if name not in _BESIDE}
        seen = self._enforcer.view(document, "thing:/", self._subjects)
        if seen is DROP or not self._is_seen(seen):
            return None
        beside = {name: thing[name] for name in ("_revision", "_created", "_modified") if name in thing}
        said = self._said(thing.get(METADATA))
        return {**seen, **beside, METADATA: said} if said else {**seen, **beside}

    def _is_seen(self, seen: Mapping[str, Any]) -> bool:
        """Whether anything is seen for its own sake: some members are shown to whoever sees the thing at all."""
        always = ALWAYS_VISIBLE["thing"]
        return any(name not in always for name in seen) or self.may(()) or any(self.may((name,)) for name in seen)

    def _said(self, metadata: Any) -> Any:
        seen = DROP if metadata is None else self._enforcer.view(metadata, "thing:/", self._subjects)
        return None if seen is DROP else seen


def _resource(path: Sequence[str]) -> str:
    """A place of a thing as policies write it; the place of what is said about a part is the part's."""
    places = path[1:] if path and path[0] == METADATA else path
    return "thing:/" + "/".join([segment.replace("~", "~0") for segment in places])

"""The paths of things and policies, and their actions (Ditto protocol, path grammar).

`resource` returns the normal form of a path and its actions; results are cached. In a policy, the rest of a path is the ID
of a subject or the key of a resource, slashes included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from mappings.ditto import errors
from mappings.errors import DecodeError, UnknownPath
from mappings.ids import EntityType, cached_by_type
from mappings.json_values import MAX_NESTING
from mappings.model.json_pointer import format_pointer, parse_pointer

_CHANGE = frozenset({"modify", "retrieve"})
_CHANGE_AND_DELETE = _CHANGE | {"delete"}
_EVERY = _CHANGE_AND_DELETE | {"merge"}

_ENTRY_PARTS = {
    "subjects": _CHANGE,
    "resources": _CHANGE,
    "importable": _CHANGE,
    "namespaces": _CHANGE,
    "allowedAdditions": _CHANGE_AND_DELETE,
    "references": _CHANGE_AND_DELETE,
}
_CREATE = frozenset({"create"})
_POLICY_ACTIONS = frozenset({"activateTokenIntegration", "deactivateTokenIntegration"})
_IMPORT_PARTS = frozenset({"entries", "transitiveImports"})


class DittoResource(NamedTuple):
    """A place in a thing or policy: its path in responses, and the actions of commands there."""

    path: str
    actions: frozenset[str]


def _resource(type: EntityType, path: str) -> DittoResource:
    found = _policy_resource(path) if type is EntityType.POLICY else _thing_resource(path)
    if found is None:
        raise UnknownPath(errors.unknown_path(path))
    return found


RESOURCES: Final = cached_by_type(8192, _resource)
"""A function for each type of entity: it returns the place that a path names.

Raises DecodeError: `json.pointer.invalid`, `json.invalid` for too many segments, or UnknownPath.
"""


def _thing_resource(path: str) -> DittoResource | None:
    # Before the segments exist: a payload has room for half a million of them.
    if (found := path.removeprefix("/").removesuffix("/").count("/") + 1) > MAX_NESTING:
        raise DecodeError(errors.too_many_segments(path, found))
    segments = parse_pointer(path)
    actions = _thing_actions(segments)
    return DittoResource(format_pointer(segments), actions) if actions is not None else None


def _thing_actions(segments: Sequence[str]) -> frozenset[str] | None:
    match segments:
        case ():
            return _EVERY | {"create"}
        case ("policyId",):
            return _EVERY - {"delete"}
        case ("definition" | "features",) | ("attributes", *_) | ("features", _):
            return _EVERY
        case ("features", _, "definition") | ("features", _, "properties" | "desiredProperties", *_):
            return _EVERY
        case _:
            return None


def _policy_resource(path: str) -> DittoResource | None:
    if path in ("", "/"):
        return DittoResource("/", _CHANGE_AND_DELETE | {"create", "checkPermissions"})
    parts = path.removeprefix("/").split("/", 3)
    match parts:
        case ["entries", label, "subjects" | "resources" as kind, key] if label and key:
            return DittoResource(f"/entries/{label}/{kind}/{key}", _CHANGE_AND_DELETE)
    segments = parse_pointer(path)
    actions = _policy_actions(segments)
    return DittoResource(format_pointer(segments), actions) if actions is not None else None


def _policy_actions(segments: Sequence[str]) -> frozenset[str] | None:
    match segments:
        case ("entries",):
            return _CHANGE
        case ("entries", _, part):
            return _ENTRY_PARTS.get(part)
        case ("actions", action) | ("entries", _, "actions", action) if action in _POLICY_ACTIONS:
            return _CREATE
        case ("entries", _) | ("imports",) | ("imports", _):
            return _CHANGE_AND_DELETE
        case ("imports", _, part) if part in _IMPORT_PARTS:
            return _CHANGE
        case _:
            return None

"""The paths of commands: the parts of things and policies, and the actions of each.

The tables of the Ditto protocol's thing and policy resources as data: the part for each path, its actions, and the name in
its error codes. In a policy, the rest of a path is the ID of a subject or the key of a resource, slashes and tildes
included.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from connectivity.errors import TwinError
from connectivity.twins import errors
from mappings.errors import DecodeError
from mappings.ids import MAX_ID_LENGTH, EntityId, EntityType, cached_by_type, parse_entity_id, utf16_length
from mappings.model.json_pointer import Segments, format_pointer, parse_pointer

_EVERY: Final = frozenset({"modify", "merge", "retrieve", "delete"})


class Resource(NamedTuple):
    """A part of a thing or a policy.

    Its error codes begin with `name`; `below_feature`: it cannot exist without its feature. `is_selectable`: a retrieve may
    name `fields` of it. `part` distinguishes parts of a policy that share their codes; `is_created`: writing it where it
    does not exist creates it.
    """

    name: str
    actions: frozenset[str] = _EVERY
    below_feature: bool = False
    is_selectable: bool = True
    part: str = ""
    is_created: bool = False


class ResourcePath(NamedTuple):
    """A path, understood. `pointer` is the path as answers and events write it, `guarded` as policies do."""

    resource: Resource
    segments: Segments
    pointer: str
    guarded: str

    @property
    def is_root(self) -> bool:
        return not self.segments


THING: Final = Resource("thing", _EVERY | {"create"})
POLICY: Final = Resource("policy", frozenset({"create", "modify", "retrieve", "delete"}), part="policy")

_TOP: Final = {
    "policyId": Resource("policyId", _EVERY - {"delete"}, is_selectable=False),
    "definition": Resource("definition", is_selectable=False),
    "attributes": Resource("attributes"),
    "features": Resource("features"),
}
_ATTRIBUTE: Final = Resource("attribute")
_FEATURE: Final = Resource("feature")
_OF_FEATURE: Final = {
    "definition": Resource("feature.definition", below_feature=True, is_selectable=False),
    "properties": Resource("feature.properties", below_feature=True),
    "desiredProperties": Resource("feature.desiredProperties", below_feature=True),
}
_OF_PROPERTIES: Final = {
    "properties": Resource("feature.property", below_feature=True),
    "desiredProperties": Resource("feature.desiredProperty", below_feature=True),
}

_CHANGED: Final = frozenset({"modify", "retrieve"})
_REMOVED: Final = _CHANGED | {"delete"}
_OF_POLICY: Final = {
    # Parts without codes of their own use those of their parent.
    "entries": Resource("policy", _CHANGED, part="entries"),
    "imports": Resource("imports", _REMOVED, part="imports"),
}
_ENTRY: Final = Resource("entry", _REMOVED, part="entry", is_created=True)
_OF_ENTRY: Final = {
    "subjects": Resource("subjects", _CHANGED, part="subjects"),
    "resources": Resource("resources", _CHANGED, part="resources"),
    "importable": Resource("entry", _CHANGED, is_selectable=False, part="importable"),
    "namespaces": Resource("entry", _CHANGED, is_selectable=False, part="namespaces"),
    "allowedAdditions": Resource("entry", _REMOVED, is_selectable=False, part="allowedAdditions"),
    "references": Resource("entry", _REMOVED, is_selectable=False, part="references"),
}
_OF_SUBJECTS: Final = {
    "subjects": Resource("subject", _REMOVED, part="subject", is_created=True),
    "resources": Resource("resource", _REMOVED, part="resource", is_created=True),
}
ACTIVATE, DEACTIVATE = "activateTokenIntegration", "deactivateTokenIntegration"
_ACTIONS: Final = {
    name: Resource("action", frozenset({"create"}), is_selectable=False, part=name) for name in (ACTIVATE, DEACTIVATE)
}
"""The actions on a policy or on an entry of it."""

_IMPORT: Final = Resource("import", _REMOVED, part="import", is_created=True)
_OF_IMPORT: Final = {
    "entries": Resource("import", _CHANGED, is_selectable=False, part="labels"),
    "transitiveImports": Resource("import", _CHANGED, is_selectable=False, part="transitiveImports"),
}

_KEY: Final = re.compile(r"[^\x00-\x1F\x7F-\xFF/]+")


def is_key(text: str) -> bool:
    """Whether this is a valid feature ID, label, or key of attributes or properties."""
    return len(text) <= MAX_ID_LENGTH and _is_key(text)


@lru_cache(maxsize=8192)
def _is_key(text: str) -> bool:
    return _KEY.fullmatch(text) is not None and utf16_length(text) <= MAX_ID_LENGTH


def address(entity: EntityId, path: str) -> ResourcePath:
    """Return the part that `path` names.

    Raises TwinError: `json.pointer.invalid`, `json.key.invalid` or an unknown path.
    """
    found = _PARSERS[entity.type](path)
    # The fast check has failed: find the error to report.
    return found if found is not None else _address(entity, path)


def _address(entity: EntityId, path: str) -> ResourcePath:
    try:
        found = _read(entity.type, path)
    except DecodeError as error:
        raise errors.refusal("json.pointer.invalid", entity, path) from error
    if found is None:
        raise errors.refusal("protocoladapter:unknown.path", entity, path)
    if entity.type is EntityType.POLICY:
        _check_policy_keys(entity, found)
        return found
    for key in found.segments:
        if not is_key(key):
            raise errors.refusal("json.key.invalid", entity, path, errors.quote(key))
    return found


def _check_policy_keys(entity: EntityId, found: ResourcePath) -> None:
    """Refuse an invalid label or policy ID; subjects and resources are checked with their values."""
    match found.segments:
        case ("entries", label, *_) if not is_key(label):
            raise errors.refusal(
                "policies:entry.invalid", entity, found.pointer, f"found {errors.quote(label)}, which cannot be a label"
            )
        case ("imports", id, *_) if parse_entity_id(EntityType.POLICY, id) is None:
            raise errors.refusal("policies:id.invalid", entity, found.pointer, errors.quote(id))


def _parse_valid(type: EntityType, path: str) -> ResourcePath | None:
    """Return the address of a valid path; None for any other."""
    try:
        return _address(EntityId(type, "", ""), path)
    except TwinError:
        return None


_PARSERS: Final = cached_by_type(8192, _parse_valid)
"""A function for each type of entity, which caches the addresses of paths; None: not a valid path."""


def _read(type: EntityType, path: str) -> ResourcePath | None:
    if type is EntityType.POLICY:
        return _read_policy_path(path)
    segments = parse_pointer(path)
    resource = _resource(segments)
    if resource is None:
        return None
    pointer = format_pointer(segments)
    return ResourcePath(resource, segments, pointer, f"thing:{pointer}")


def _read_policy_path(path: str) -> ResourcePath | None:
    parts = path.removeprefix("/").split("/", 3)
    match parts:
        case ["entries", label, "subjects" | "resources" as kind, key] if label and key:
            return below_entry(parse_pointer(label)[0], kind, key)
    segments = parse_pointer(path)
    resource = _policy_resource(segments)
    if resource is None:
        return None
    pointer = format_pointer(segments)
    return ResourcePath(resource, segments, pointer, f"policy:{pointer}")


def below_entry(label: str, kind: str, key: str) -> ResourcePath:
    """The address of one subject or resource of an entry: `kind` is `subjects` or `resources`."""
    pointer = f"{format_pointer(('entries', label, kind))}/{key}"
    return ResourcePath(_OF_SUBJECTS[kind], ("entries", label, kind, key), pointer, f"policy:{pointer}")


def _policy_resource(segments: Segments) -> Resource | None:
    """Return the part of a policy at this path; None if there is none."""
    match segments:
        case ():
            return POLICY
        case (top,):
            return _OF_POLICY.get(top)
        case ("entries", _):
            return _ENTRY
        case ("entries", _, part):
            return _OF_ENTRY.get(part)
        case ("actions", action) | ("entries", _, "actions", action):
            return _ACTIONS.get(action)
        case ("imports", _):
            return _IMPORT
        case ("imports", _, part):
            return _OF_IMPORT.get(part)
        case _:
            return None


def _resource(segments: Segments) -> Resource | None:
    """Return the part of a thing at this path; None if there is none."""
    match segments:
        case ():
            return THING
        case (top,):
            return _TOP.get(top)
        case ("attributes", *_):
            return _ATTRIBUTE
        case ("features", _):
            return _FEATURE
        case ("features", _, part):
            return _OF_FEATURE.get(part)
        case ("features", _, part, *_):
            return _OF_PROPERTIES.get(part)
        case _:
            return None

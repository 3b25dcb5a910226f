"""Where a command points: the parts of a thing, and what each of them offers.

The table of the Ditto protocol's thing resources as data: which path is which part, which actions it takes, and the name
that its error codes are made of. A policy is addressed as a whole only: the commands on parts of a policy are refused in
`policies.py`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from connectivity.errors import TwinError
from connectivity.twins import faults
from mappings.errors import DecodeError
from mappings.ids import LONGEST_KNOWN, MAX_ID_LENGTH, EntityId, EntityType, utf16_length
from mappings.pointer import Segments, format_pointer, parse_pointer

MAX_NESTING: Final = 200
"""The deepest that a thing or policy may be nested."""

_EVERY: Final = frozenset({"modify", "merge", "retrieve", "delete"})


class Resource(NamedTuple):
    """A part of a thing. `name` is what its codes begin with; `below_feature`: it cannot be where no feature is.

    `is_selectable`: a retrieve may name `fields` of it.
    """

    name: str
    actions: frozenset[str] = _EVERY
    below_feature: bool = False
    is_selectable: bool = True


class Address(NamedTuple):
    """A path, understood. `pointer` is the path as answers and events write it, `guarded` as policies do."""

    resource: Resource
    segments: Segments
    pointer: str
    guarded: str

    @property
    def is_root(self) -> bool:
        return not self.segments


THING: Final = Resource("thing", _EVERY | {"create"})
POLICY: Final = Resource("policy", frozenset({"create", "modify", "retrieve", "delete"}))

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

_KEY: Final = re.compile(r"[^\x00-\x1F\x7F-\xFF/]+")


def is_key(text: str) -> bool:
    """Whether a feature id, a label, or a key of attributes or properties may be called so."""
    return len(text) <= MAX_ID_LENGTH and _is_key(text)


@lru_cache(maxsize=8192)
def _is_key(text: str) -> bool:
    return _KEY.fullmatch(text) is not None and utf16_length(text) <= MAX_ID_LENGTH


def address(entity: EntityId, path: str) -> Address:
    """What `path` names. Raises TwinError: `json.pointer.invalid`, `json.key.invalid` or an unknown path."""
    if len(path) > LONGEST_KNOWN:
        return _address(entity, path)
    found = _known(entity.type, path)
    # What is refused is refused to somebody: then it is read again, for him.
    return found if found is not None else _address(entity, path)


def _address(entity: EntityId, path: str) -> Address:
    try:
        found = _read(entity.type, path)
    except DecodeError as error:
        raise faults.refusal("json.pointer.invalid", entity, path) from error
    if found is None:
        raise faults.refusal("protocoladapter:unknown.path", entity, path)
    for key in found.segments:
        if not is_key(key):
            raise faults.refusal("json.key.invalid", entity, path, faults.shown(key))
    if len(found.segments) > MAX_NESTING:
        detail = f"found {len(found.segments)} segments, expected at most {MAX_NESTING}"
        raise faults.refusal("json.invalid", entity, path, detail)
    return found


@lru_cache(maxsize=8192)
def _known(type: EntityType, path: str) -> Address | None:
    """The address of a path in which nothing is wrong, or None."""
    try:
        return _address(EntityId(type, "", ""), path)
    except TwinError:
        return None


def _read(type: EntityType, path: str) -> Address | None:
    if type is EntityType.POLICY:
        return Address(POLICY, (), "/", "policy:/") if path in ("", "/") else None
    segments = parse_pointer(path)
    resource = _resource(segments)
    if resource is None:
        return None
    pointer = format_pointer(segments)
    return Address(resource, segments, pointer, f"thing:{pointer}")


def _resource(segments: Segments) -> Resource | None:
    """The part of a thing at this place, or None where no thing has one."""
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

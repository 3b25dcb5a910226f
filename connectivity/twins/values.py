"""Checks the values of thing commands, and prepares them for storing.

A value is stored as the client wrote it, except unknown members of things and features, which are dropped. Its bytes go into
the event unchanged if nothing was dropped, so that numbers keep their spelling. Wrong types follow the Ditto protocol, value
mapping: `json.format.invalid` for the addressed value itself (and for `definition` everywhere), `json.invalid` further in,
and everywhere in a merge.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from connectivity.errors import TwinError
from connectivity.twins.context import CommandContext, encode
from connectivity.twins.errors import quote
from connectivity.twins.paths import is_key
from mappings.ids import EntityType, parse_entity_id
from mappings.json_values import MAX_NESTING, decode_value, nesting
from spark_store.history.replay import is_delete_pattern

THING_MEMBERS: Final = ("thingId", "policyId", "definition", "attributes", "features")
"""The members of a thing that are stored, in the order in which they are written."""

_FEATURE_MEMBERS: Final = frozenset({"definition", "properties", "desiredProperties"})
_IDENTIFIER: Final = re.compile(r"[_a-zA-Z0-9\-.]+(?::[_a-zA-Z0-9\-.]+){2}")
_ADDRESS: Final = re.compile(r"https?://[^\s/?#]+(?:[/?#]\S*)?", re.IGNORECASE)

_parse_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class CheckedValue(msgspec.Struct, frozen=True):
    """A checked value of a command: parsed, as bytes to store, and before members were dropped."""

    parsed: Any
    raw: bytes
    given: Any = None


def read(case: CommandContext, *, is_patch: bool = False) -> CheckedValue:
    """The command's value, fit for its path. Raises TwinError."""
    found = parse(case)
    parsed = _CHECKS[case.address.resource.name](case, found, is_patch)
    check_keys(case, parsed)
    raw = case.command.value or b"null"
    return CheckedValue(parsed, raw if parsed is found else encode(parsed), found)


def parse(case: CommandContext) -> Any:
    """The command's value as JSON of any type. Raises TwinError: `json.invalid`, `json.key.invalid`."""
    raw = case.command.value
    if raw is None:
        raise case.refuse("json.invalid", "found no value, expected one")
    try:
        found = decode_value(raw)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise case.refuse("json.invalid", "found invalid JSON, or JSON that cannot be stored") from error
    level = len(case.address.segments)
    # A level takes a bracket, so most values need not be walked through.
    if raw.count(b"{") + raw.count(b"[") > MAX_NESTING - level and nesting(raw) > MAX_NESTING - level:
        raise case.refuse("json.invalid", f"found more than {MAX_NESTING} levels of nesting")
    if raw.find(b"\\u0000") >= 0 and (code := _find_nul(found)) is not None:
        raise case.refuse(code, "with U+0000" if code == "json.key.invalid" else "found U+0000")
    return found


def _find_nul(value: Any) -> str | None:
    if isinstance(value, str):
        return "json.invalid" if "\0" in value else None
    if isinstance(value, dict):
        if any("\0" in key for key in value):
            return "json.key.invalid"
        value = value.values()
    if isinstance(value, str | int | float) or value is None:
        return None
    return next((code for member in value if (code := _find_nul(member)) is not None), None)


def check_keys(case: CommandContext, value: Any) -> None:
    """Refuse an invalid key, in nested objects too; arrays may contain any."""
    if isinstance(value, dict):
        for key, member in value.items():
            if not is_key(key):
                raise case.refuse("json.key.invalid", quote(key))
            if isinstance(member, dict):
                check_keys(case, member)


def _thing(case: CommandContext, value: Any, is_patch: bool) -> Any:
    if value is None and case.command.action == "create":
        value = {}
    if is_patch and (value is None or value == {}):
        raise case.refuse("things:merge.invalid", "found nothing to merge")
    members = _object(case, value)
    checked = {}
    for name, member in members.items():
        if name in _MEMBER_CHECKS:
            checked[name] = _MEMBER_CHECKS[name](case, member, is_patch)
        elif is_patch and member is None and is_delete_pattern(name):
            checked[name] = None
    return value if _is_unchanged(checked, members) else checked


def _thing_id(case: CommandContext, value: Any, is_patch: bool) -> Any:
    if value is None and not is_patch:
        return None
    if value is None:
        raise case.refuse("things:id.notdeletable")
    if not isinstance(value, str):
        raise case.refuse("json.invalid", f"found {_type(value)} as thingId, expected a string")
    if value != str(case.entity):
        known = parse_entity_id(EntityType.THING, value)
        raise case.refuse("things:id.notsettable" if known else "things:id.invalid", quote(value))
    return value


def _policy_id_member(case: CommandContext, value: Any, is_patch: bool) -> Any:
    if value is None:
        return _policy_id(case, value, is_patch) if is_patch else None
    if not isinstance(value, str):
        raise case.refuse("json.invalid", f"found {_type(value)} as policyId, expected a string")
    return _policy_id(case, value, is_patch)


def _policy_id(case: CommandContext, value: Any, is_patch: bool) -> Any:
    if value is None and is_patch:
        raise case.refuse("things:policyId.notdeletable")
    if not isinstance(value, str):
        raise _wrong_type(case, f"found {_type(value)}, expected a string")
    if parse_entity_id(EntityType.POLICY, value) is None:
        raise case.refuse("policies:id.invalid", quote(value))
    return value


def _definition_member(case: CommandContext, value: Any, is_patch: bool) -> Any:
    return None if value is None else _definition(case, value, is_patch)


def _definition(case: CommandContext, value: Any, is_patch: bool) -> Any:
    if value is None and is_patch:
        return None
    if not isinstance(value, str):
        raise _wrong_type(case, f"found {_type(value)} as definition, expected a string")
    return _identifier(case, value)


def _identifier(case: CommandContext, value: str) -> str:
    if _IDENTIFIER.fullmatch(value) is None and _ADDRESS.fullmatch(value) is None:
        raise case.refuse("things:definition.identifier.invalid")
    return value


def _open_object(case: CommandContext, value: Any, is_patch: bool) -> Any:  # noqa: ARG001 one face for every check
    return None if value is None else _object(case, value)


def _open_object_member(case: CommandContext, value: Any, is_patch: bool) -> Any:  # noqa: ARG001
    return None if value is None else _nested_object(case, value)


def _anything(case: CommandContext, value: Any, is_patch: bool) -> Any:  # noqa: ARG001
    return value


def _features(case: CommandContext, value: Any, is_patch: bool) -> Any:
    return None if value is None else _each_feature(case, _object(case, value), is_patch)


def _features_member(case: CommandContext, value: Any, is_patch: bool) -> Any:
    return None if value is None else _each_feature(case, _nested_object(case, value), is_patch)


def _each_feature(case: CommandContext, features: dict[str, Any], is_patch: bool) -> Any:
    checked = {
        name: None if feature is None else _feature_members(case, _nested_object(case, feature), is_patch)
        for name, feature in features.items()
    }
    return features if _is_unchanged(checked, features) else checked


def _feature(case: CommandContext, value: Any, is_patch: bool) -> Any:
    return None if value is None else _feature_members(case, _object(case, value), is_patch)


def _feature_members(case: CommandContext, feature: dict[str, Any], is_patch: bool) -> Any:
    if (definition := feature.get("definition")) is not None:
        if not isinstance(definition, list):
            raise case.refuse("json.invalid", f"found {_type(definition)} as a feature's definition, expected an array")
        _identifiers(case, definition)
    for name in ("properties", "desiredProperties"):
        if feature.get(name) is not None:
            _nested_object(case, feature[name])
    if feature.keys() <= _FEATURE_MEMBERS:
        return feature
    return {
        name: member
        for name, member in feature.items()
        if name in _FEATURE_MEMBERS or (is_patch and member is None and is_delete_pattern(name))
    }


def _feature_definition(case: CommandContext, value: Any, is_patch: bool) -> Any:  # noqa: ARG001
    if value is None:
        return None
    if not isinstance(value, list):
        raise _wrong_type(case, f"found {_type(value)}, expected an array")
    _identifiers(case, value)
    return value


def _identifiers(case: CommandContext, identifiers: list[Any]) -> None:
    if not identifiers:
        raise case.refuse("things:feature.definition.empty")
    for identifier in identifiers:
        if not isinstance(identifier, str):
            raise case.refuse("json.invalid", f"found {_type(identifier)} in a feature's definition, expected strings")
        _identifier(case, identifier)


_Check = Callable[[CommandContext, Any, bool], Any]

_MEMBER_CHECKS: Final[Mapping[str, _Check]] = {
    "thingId": _thing_id,
    "policyId": _policy_id_member,
    "definition": _definition_member,
    "attributes": _open_object_member,
    "features": _features_member,
}

_CHECKS: Final[Mapping[str, _Check]] = {
    "thing": _thing,
    "policyId": _policy_id,
    "definition": _definition,
    "attributes": _open_object,
    "attribute": _anything,
    "features": _features,
    "feature": _feature,
    "feature.definition": _feature_definition,
    "feature.properties": _open_object,
    "feature.property": _anything,
    "feature.desiredProperties": _open_object,
    "feature.desiredProperty": _anything,
}


def _wrong_type(case: CommandContext, found: str) -> TwinError:
    """Return the refusal of the addressed value; in a merge it is that of a value inside."""
    return case.refuse("json.invalid" if case.command.action == "merge" else "json.format.invalid", found)


def _object(case: CommandContext, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong_type(case, f"found {_type(value)}, expected an object")
    return value


def _nested_object(case: CommandContext, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise case.refuse("json.invalid", f"found {_type(value)} as a member, expected an object")
    return value


def _is_unchanged(checked: dict[str, Any], found: dict[str, Any]) -> bool:
    return len(checked) == len(found) and all(checked[name] is found[name] for name in checked)


def _type(value: Any) -> str:
    """A JSON type, for messages; never the value itself."""
    names: dict[type, str] = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    return "null" if value is None else names.get(type(value), "a number")


def whole_thing(case: CommandContext, value: CheckedValue, policy_id: str) -> CheckedValue:
    """Return a thing as it is stored and shown: both IDs and the given members, in order."""
    given = value.parsed or {}
    members: dict[str, Any] = {"thingId": str(case.entity), "policyId": policy_id}
    members.update((name, given[name]) for name in THING_MEMBERS[2:] if name in given)
    return CheckedValue(members, b"{" + b",".join(_splice(members, value.raw)) + b"}", value.given)


def _splice(members: dict[str, Any], raw: bytes) -> Iterator[bytes]:
    """The members of a thing as JSON text, each in the spelling it came with."""
    texts = _parse_members(raw) if raw != b"null" else {}
    for name, member in members.items():
        text = texts.get(name) if name in THING_MEMBERS[2:] else None
        yield b'"%s":%s' % (name.encode(), bytes(text) if text is not None else encode(member))


def strip_nulls(value: Any) -> Any:
    """A patch as the value of something new: without nulls, also inside arrays."""
    if isinstance(value, dict):
        return {key: strip_nulls(member) for key, member in value.items() if member is not None}
    if isinstance(value, list):
        return [strip_nulls(member) for member in value if member is not None]
    return value

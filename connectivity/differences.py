"""What differs between two documents of one connection, field by field. Pure; no secret is shown.

Compared is what the documents mean: a field that is left out is worth its default, null is left out, options are text
whatever a file made of them, and the former `mappingContext` is what it stands for now. Both are shown masked. Where both
have `*****` nobody can tell whether the secrets differ; only a document that says `*****` itself wants what is stored. A
reference (`${env:…}`, `${file:…}`) is no secret and is compared as it is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from connectivity.model import migrate_mapping_context
from connectivity.rules import json_path
from connectivity.spec import json_schema
from connectivity.uri import MASK
from connectivity.vault import masked

_IGNORED = frozenset({"id", "__lifecycle"})
"""The name under which documents are compared, and what no document decides; so are all that begin with `_`."""

Steps = tuple[str | int, ...]


class Difference(NamedTuple):
    """A field that differs; None where it is not there."""

    path: str
    before: Any
    after: Any


class Compared(NamedTuple):
    """What differs, in the order of the fields, and the paths of secrets that cannot be compared."""

    changes: tuple[Difference, ...]
    unknown: tuple[str, ...]


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> Compared:
    """What becomes of `before` when it is replaced by `after`."""
    schema = _schema()
    old, new, written = (_meant(document, schema) for document in (masked(before), masked(after), after))
    changes = tuple(_differences((), old, new))
    unknown = tuple(json_path(*steps) for steps in _hidden((), old, new, written))
    return Compared(changes, unknown)


@cache
def _schema() -> Mapping[str, Any]:
    return json_schema()


def _meant(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Any:
    kept = {name: value for name, value in document.items() if not (name in _IGNORED or name.startswith("_"))}
    return _filled(migrate_mapping_context(kept), schema, schema)


def _filled(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    """The value with the defaults of its schema, in the order of the schema, and without nulls."""
    schema = _fitting(value, schema, root)
    if isinstance(value, dict):
        fields, others = schema.get("properties", {}), schema.get("additionalProperties")
        others = others if isinstance(others, dict) else {}
        there = {name: item for name, item in value.items() if item is not None}
        defaults = {name: field["default"] for name, field in fields.items() if field.get("default") is not None}
        names = [name for name in fields if name in there or name in defaults]
        names += [name for name in there if name not in fields]
        whole = {**defaults, **there}
        return {name: _filled(whole[name], fields.get(name, others), root) for name in names}
    if isinstance(value, list):
        return [_filled(item, schema.get("items", {}), root) for item in value]
    if isinstance(value, bool | int | float) and schema.get("type") == "string":
        return str(value).lower() if isinstance(value, bool) else str(value)
    return value


def _fitting(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema behind references, and of several the one that the value is meant for."""
    if (reference := schema.get("$ref")) is not None:
        return _fitting(value, root["$defs"][reference.rpartition("/")[2]], root)
    choices = [_fitting(value, each, root) for name in ("anyOf", "oneOf") for each in schema.get(name, ())]
    for each in choices:
        kind = each.get("properties", {}).get("type", {}).get("const")
        if isinstance(value, dict) and each.get("type") == "object" and kind in (None, value.get("type", kind)):
            return each
        if isinstance(value, list) and each.get("type") == "array":
            return each
    return schema


def _differences(steps: Steps, before: Any, after: Any) -> Iterator[Difference]:
    """Objects and lists of objects are gone into, everything else is one value."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys((*after, *before)):
            yield from _differences((*steps, name), before.get(name), after.get(name))
    elif _holds_objects(before) and _holds_objects(after) and (before or after):
        for index in range(max(len(before), len(after))):
            old, new = (items[index] if index < len(items) else None for items in (before, after))
            yield from _differences((*steps, index), old, new)
    elif not _is_same(before, after):
        yield Difference(json_path(*steps), before, after)


def _holds_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _is_same(before: Any, after: Any) -> bool:
    """Python takes true for 1; JSON does not."""
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and all(map(_is_same, before, after))
    return before == after and isinstance(before, bool) == isinstance(after, bool)


def _hidden(steps: Steps, before: Any, after: Any, written: Any) -> Iterator[Steps]:
    """Where both say `*****` and the document that was written says something else."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in after:
            yield from _hidden((*steps, name), before.get(name), after[name], written.get(name))
    elif isinstance(after, str) and before == after and MASK in after and written != after:
        yield steps

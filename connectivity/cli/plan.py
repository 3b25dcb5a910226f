"""Decides what `connectivity connections apply` does, from files and the service's connections. Pure.

A connection is

    new         the service has none with this ID
    changed     some fields differ
    unchanged   no visible field differs; secrets that cannot be compared are ignored unless they are to be sent
    gone        no document has it any more, and such connections are to be deleted
    refused     a file of the service owns it, and must be changed instead
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from connectivity.config.problems import json_path
from connectivity.connections.model import READ_ONLY, migrate_mapping_context
from connectivity.connections.vault import mask
from connectivity.security.uri import MASK
from connectivity.validation.validator import json_schema
from spark_store.history.replay import is_same

_IGNORED = READ_ONLY | {"id"}
"""Fields that are not compared: the ID and fields that only the service sets."""

Steps = tuple[str | int, ...]

_schema = cache(json_schema)


class FieldDifference(NamedTuple):
    """A field that differs; None if it is missing."""

    path: str
    before: Any
    after: Any


class DocumentComparison(NamedTuple):
    """The differences in the order of the fields, and the paths of secrets that cannot be compared."""

    changes: tuple[FieldDifference, ...]
    unknown: tuple[str, ...]


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> DocumentComparison:
    """Compare `before` with `after`, which replaces it."""
    schema = _schema()
    old, new, written = (_normalize(document, schema) for document in (mask(before), mask(after), after))
    changes = tuple(_differences((), old, new))
    unknown = tuple(json_path(*steps) for steps in _incomparable_secrets((), old, new, written))
    return DocumentComparison(changes, unknown)


def _normalize(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Any:
    kept = {name: value for name, value in document.items() if not (name in _IGNORED or name.startswith("_"))}
    return _fill_defaults(migrate_mapping_context(kept), schema, schema)


def _fill_defaults(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    """Return the value with the defaults of its schema, in the order of the schema, and without nulls."""
    schema = _resolve_schema(value, schema, root)
    if isinstance(value, dict):
        fields, others = schema.get("properties", {}), schema.get("additionalProperties")
        others = others if isinstance(others, dict) else {}
        stored = {name: item for name, item in value.items() if item is not None}
        defaults = {name: field["default"] for name, field in fields.items() if field.get("default") is not None}
        names = [name for name in fields if name in stored or name in defaults]
        names += [name for name in stored if name not in fields]
        whole = {**defaults, **stored}
        return {name: _fill_defaults(whole[name], fields.get(name, others), root) for name in names}
    if isinstance(value, list):
        return [_fill_defaults(item, schema.get("items", {}), root) for item in value]
    if isinstance(value, bool | int | float) and schema.get("type") == "string":
        return str(value).lower() if isinstance(value, bool) else str(value)
    return value


def _resolve_schema(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema behind references; of several, the one that fits the value."""
    if (reference := schema.get("$ref")) is not None:
        return _resolve_schema(value, root["$defs"][reference.rpartition("/")[2]], root)
    choices = [_resolve_schema(value, each, root) for name in ("anyOf", "oneOf") for each in schema.get(name, ())]
    for each in choices:
        kind = each.get("properties", {}).get("type", {}).get("const")
        if isinstance(value, dict) and each.get("type") == "object" and kind in (None, value.get("type", kind)):
            return each
        if isinstance(value, list) and each.get("type") == "array":
            return each
    return schema


def _differences(steps: Steps, before: Any, after: Any) -> Iterator[FieldDifference]:
    """Yield the fields that differ. Fields of objects and of lists of objects are compared separately."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys((*after, *before)):
            yield from _differences((*steps, name), before.get(name), after.get(name))
    elif _holds_objects(before) and _holds_objects(after) and (before or after):
        for index in range(max(len(before), len(after))):
            old, new = (items[index] if index < len(items) else None for items in (before, after))
            yield from _differences((*steps, index), old, new)
    elif not is_same(before, after):
        yield FieldDifference(json_path(*steps), before, after)


def _holds_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _incomparable_secrets(steps: Steps, before: Any, after: Any, written: Any) -> Iterator[Steps]:
    """Yield the paths where both masked documents have `*****` and the written one has another value."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in after:
            yield from _incomparable_secrets((*steps, name), before.get(name), after[name], written.get(name))
    elif isinstance(after, str) and before == after and MASK in after and written != after:
        yield steps


class Action(str, Enum):
    """The action of a step."""

    NEW = "new"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    GONE = "gone"
    REFUSED = "refused"


CHANGING_ACTIONS = frozenset({Action.NEW, Action.CHANGED, Action.GONE})
"""The actions that change something."""


@dataclass(frozen=True, slots=True)
class DesiredDocument:
    """A document, and its file."""

    document: Mapping[str, Any]
    file: Path


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A connection of the service; `file` owns it, None for the API.

    The document may be missing for those of files.
    """

    tag: str
    document: Mapping[str, Any] | None = None
    file: str | None = None


@dataclass(frozen=True, slots=True)
class PlanStep:
    """The step for one connection. `tag` identifies the compared revision, None if there is none."""

    id: str
    action: Action
    file: Path | None = None
    tag: str | None = None
    changes: Sequence[FieldDifference] = ()
    unknown: Sequence[str] = ()
    reason: str | None = None


def decide(
    desired: Mapping[str, DesiredDocument],
    stored: Mapping[str, StoredDocument],
    *,
    secrets: bool = False,
    prune: bool = False,
) -> list[PlanStep]:
    """Return a step for each wanted connection, and with `prune` for other connections of the API."""
    steps = [_step(name, document, stored.get(name), secrets) for name, document in desired.items()]
    if prune:
        steps += [
            PlanStep(name, Action.GONE, tag=found.tag)
            for name, found in stored.items()
            if name not in desired and found.file is None
        ]
    return steps


def _step(name: str, desired: DesiredDocument, stored: StoredDocument | None, secrets: bool) -> PlanStep:
    if stored is None:
        return PlanStep(name, Action.NEW, desired.file)
    if stored.file is not None:
        return PlanStep(name, Action.REFUSED, desired.file, stored.tag, reason=f"it belongs to the file {stored.file}")
    found: DocumentComparison = compare(stored.document or {}, desired.document)
    is_changed = found.changes or (secrets and found.unknown)
    action = Action.CHANGED if is_changed else Action.UNCHANGED
    return PlanStep(name, action, desired.file, stored.tag, found.changes, found.unknown)


def lines(step: PlanStep) -> Iterator[str]:
    """Return the changes of a step as lines of text."""
    for change in step.changes:
        yield f"{change.path}: {_value(change.before)} → {_value(change.after)}"
    for path in step.unknown:
        sent = "it is sent" if step.action in CHANGING_ACTIONS else "it is not sent without --secrets"
        yield f"{path}: a secret that cannot be compared; {sent}"


def step_as_json(step: PlanStep) -> dict[str, Any]:
    """The step for machines."""
    return {
        "id": step.id,
        "action": step.action.value,
        "file": None if step.file is None else str(step.file),
        "tag": step.tag,
        "changes": [change._asdict() for change in step.changes],
        "unknown": list(step.unknown),
        "reason": step.reason,
    }


def summary(steps: Sequence[PlanStep]) -> str:
    """Return the number of steps by action: `1 new, 2 changed`."""
    counts = {action: sum(step.action is action for step in steps) for action in Action}
    return ", ".join(f"{count} {action.value}" for action, count in counts.items() if count) or "nothing"


def _value(value: Any) -> str:
    return "–" if value is None else json.dumps(value, ensure_ascii=False)

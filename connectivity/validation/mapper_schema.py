"""The part of the JSON Schema of connection files that is about payload mappers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from connectivity.connections import schema_patterns as patterns
from connectivity.transports import ConnectionType
from mappings.mappers import Codec, load_codec, mapper_names

Schema = dict[str, Any]

PRESENT: Schema = {"not": {"type": "null"}}
ONE: Schema = {"enum": [None, 1]}

_FROM_HEADER = r"^\{\{\s*header:reply-to\s*\}\}$"


def names(mappers: Iterable[str]) -> Schema:
    """Names of mappers as editors should offer them, and as they may be written, too: `raw_message`."""
    names = list(mappers)
    spelled = "|".join("_?".join(map(patterns.any_case, re.findall("[A-Z]+[a-z]*", name))) for name in names)
    return {"anyOf": [{"enum": names}, {"type": "string", "pattern": f"^(?:{spelled})$"}]}


def _names_of(choose: Callable[[Codec], object]) -> list[str]:
    return [name for name in mapper_names() if choose(load_codec(name))]


def _uses(mappers: Iterable[str]) -> Schema:
    """Whether a source uses one of these mappers."""
    return {
        "properties": {"payloadMapping": {"type": "array", "contains": names(mappers)}},
        "required": ["payloadMapping"],
    }


def _has_definitions() -> Schema:
    """Whether a document has definitions, whose names may be anything."""
    own = {name: {"type": "object", "minProperties": 1} for name in ("mappingDefinitions", "mappingContext")}
    return {"anyOf": [{"properties": {name: kind}, "required": [name]} for name, kind in own.items()]}


def bare_mappers() -> Schema:
    """Return what `payloadMapping` may name without definitions, and what sessions need of a source."""
    bare, sessions = _names_of(lambda it: not it.needs_definition), _names_of(lambda it: it.has_sessions)
    for_targets = [name for name in bare if name not in sessions]
    answered = {
        "payloadMapping": {"contains": names(sessions), "maxContains": 1},
        "replyTarget": {"properties": {"enabled": {"enum": [None, True]}}},
    }
    unreliable = {"properties": {"qos": {"not": {"const": 0}}}}
    source = {
        "properties": {"payloadMapping": {"items": names(bare)}},
        "allOf": [
            {"if": _uses(sessions), "then": {"properties": answered}},
            {"if": _uses(_names_of(lambda it: it.unreliable_option)), "then": unreliable},
        ],
    }
    target = {"properties": {"payloadMapping": {"items": names(for_targets)}}}
    parts = {"sources": {"items": source}, "targets": {"items": target}}
    return {"if": {"not": _has_definitions()}, "then": {"properties": parts}}


def sessions_of(broker: ConnectionType) -> Schema:
    """Return what sessions need of sources of this connection type: order, and an address for replies."""
    rules: list[Schema] = []
    if not broker.has_headers:
        others = {"propertyNames": {"not": {"pattern": f"^{patterns.any_case('reply-to')}$"}}}
        named = {"properties": {"headerMapping": {"not": others}}, "required": ["headerMapping"]}
        fixed = {"properties": {"address": {"not": {"pattern": _FROM_HEADER}}}, "required": ["address"]}
        own = {"properties": {"replyTarget": PRESENT | fixed}, "required": ["replyTarget"]}
        rules.append({"if": _uses(_names_of(lambda it: it.has_sessions)), "then": {"anyOf": [named, own]}})
    schema: Schema = {"properties": {"sources": {"items": {"allOf": rules}}}}
    if not broker.keeps_key_order:
        ordered = _uses(_names_of(lambda it: it.needs_order))
        single = {"consumerCount": ONE, "addresses": {"items": {"pattern": r"^(?!\$share/)"}}}
        rules.append({"if": ordered, "then": {"properties": single}})
        any_source = {"properties": {"sources": {"type": "array", "contains": ordered}}, "required": ["sources"]}
        schema |= {"if": any_source, "then": {"properties": {"clientCount": ONE}}}
    return {"if": {"not": _has_definitions()}, "then": schema} if rules else {}


def engines() -> Iterator[Schema]:
    """The mappers of definitions, and the options of each."""
    conditions = {"additionalProperties": {"pattern": patterns.CONDITION}}
    known = {
        "mappingEngine": names(mapper_names()),
        "incomingConditions": conditions,
        "outgoingConditions": conditions,
    }
    yield {"properties": known}
    for name in mapper_names():
        options = load_codec(name).options
        known = {option.name: {"description": option.description, "examples": [option.example]} for option in options}
        required = [option.name for option in options if option.is_required]
        schema: Schema = {"properties": known, "additionalProperties": False}
        if required:
            schema["required"] = required
            known |= {option: known[option] | PRESENT for option in required}
        yield {
            "if": {"properties": {"mappingEngine": names([name])}, "required": ["mappingEngine"]},
            "then": {"properties": {"options": schema}},
        }

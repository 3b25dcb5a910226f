"""Random connection documents: from the JSON Schema alone, and usable ones with a few changed members.

A member gets a value that its schema allows, one of its examples, a value with a meaning elsewhere in a document, or a
value of another type. So some documents are far from valid, and some have a single problem.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from connectivity.validation.validator import json_schema
from tests.support.vectors.connections import base_document

SCHEMA = json_schema()

WORDS = (
    "",
    " ",
    "*****",
    "open",
    "amqp-091",
    "mqtt-5",
    "kafka",
    "tcp://127.0.0.1:1883",
    "ssl://user:p%40ss@broker.acme.example:8883",
    "amqps://[::1]:5671/%2F",
    "tcp://169.254.169.254:1",
    "tcp://host:99999999",
    "amqp://a@b@c:1//",
    "${env:NOBODY}",
    "${file:/nowhere}",
    "${",
    "{{ header:reply-to }}",
    "{{ thing:id | fn:default('x') | fn:upper() }}",
    "{{ topic:action | fn:filter('eq','created') }}",
    "{{ connection:id }}:label",
    "{{",
    "{{ no:such }}",
    "fn:delete()",
    "_/_/things/twin/events?filter=gt(attributes/a,1)&extraFields=attributes/b",
    "_/_/things/twin/events?filter=nonsense(",
    "_/_/connections/announcements",
    "$share/group/a/#",
    "a/+/b",
    "exchange/key",
    "/queue",
    "topic#7",
    "Ditto",
    "JavaScript",
    "Normalized",
    "unit-dry-run",
    "30s",
    "true",
    "-1",
    "\x00",
    "\u2028",
    "🜁" * 40,
    "x" * 5000,
)

texts = st.one_of(st.sampled_from(WORDS), st.text(max_size=20))
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-2, 10),
    st.floats(allow_nan=False, allow_infinity=False),
    texts,
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def of_schema(schema: Mapping[str, Any], depth: int = 0) -> st.SearchStrategy[Any]:
    """Return a strategy whose values mostly fit a JSON Schema of pydantic."""
    if "$ref" in schema:
        return of_schema(SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], depth)
    good = _of_kind(schema, depth)
    examples = [st.sampled_from(schema["examples"])] if schema.get("examples") else []
    # Valid values are twice as likely as others; hypothesis shrinks to the first strategies.
    return st.one_of(*examples, good, good, anything) if depth else good


def _of_kind(schema: Mapping[str, Any], depth: int) -> st.SearchStrategy[Any]:
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return st.one_of(*(of_schema(each, depth) for each in schema[choice]))
    match schema.get("type"):
        case "object":
            return _objects(schema, depth)
        case "array":
            return st.lists(of_schema(schema.get("items", {}), depth + 1), max_size=3)
        case "integer":
            return st.integers(schema.get("minimum", -5), schema.get("maximum", 50))
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case "string":
            return texts
        case _:
            return anything


def _objects(schema: Mapping[str, Any], depth: int) -> st.SearchStrategy[dict[str, Any]]:
    properties: Mapping[str, Any] = schema.get("properties", {})
    more = schema.get("additionalProperties", True)
    required = (
        {name: of_schema(each, depth + 1) for name, each in properties.items() if name in schema["required"]}
        if schema.get("required")
        else {}
    )
    optional = {name: of_schema(each, depth + 1) for name, each in properties.items() if name not in required}
    fixed = st.fixed_dictionaries(required, optional=optional)
    if more is False:
        return fixed
    others = st.dictionaries(texts, of_schema(more, depth + 1) if isinstance(more, dict) else anything, max_size=2)
    return st.builds(lambda own, besides: {**besides, **own}, fixed, others) if properties else others


from_schema = of_schema(SCHEMA)
"""Random whole documents."""

_MQTT: dict[str, Any] = {
    "id": "site",
    "name": "A site",
    "connectionType": "mqtt",
    "connectionStatus": "closed",
    "uri": "tcp://lamp:s3cr3t@127.0.0.1:1883",
    "sources": [
        {
            "addresses": ["site/+/up"],
            "qos": 1,
            "authorizationContext": ["acme:site"],
            "enforcement": {"input": "{{ source:address }}", "filters": ["site/{{ thing:name }}/up"]},
            "replyTarget": {"address": "site/{{ thing:name }}/down", "headerMapping": {}},
            "headerMapping": {},
        }
    ],
    "targets": [
        {"address": "out", "topics": ["_/_/things/twin/events"], "qos": 1, "authorizationContext": ["acme:site"]}
    ],
    "specificConfig": {"keepAlive": "30s"},
    "tags": ["a"],
}
_MQTT_5: dict[str, Any] = {
    **_MQTT,
    "connectionType": "mqtt-5",
    "clientCount": 2,
    "mappingDefinitions": {
        "slim": {
            "mappingEngine": "Normalized",
            "options": {"fields": "thingId,attributes"},
            "outgoingConditions": {"twin": "fn:filter(topic:channel,'eq','twin')"},
        }
    },
    "sources": [
        {
            "addresses": ["$share/depot/site/#"],
            "qos": 2,
            "authorizationContext": ["acme:{{ header:line }}"],
            "acknowledgementRequests": {"includes": ["twin-persisted", "site:seen"]},
            "declaredAcks": ["site:seen"],
            "payloadMapping": ["Ditto"],
            "headerMapping": {"x-line": "{{ header:line | fn:upper() }}"},
        }
    ],
    "targets": [
        {
            "address": "out/{{ thing:id }}",
            "topics": ["_/_/things/live/messages?namespaces=acme", "_/_/things/twin/events?filter=gt(attributes/a,1)"],
            "qos": 0,
            "authorizationContext": ["acme:site"],
            "payloadMapping": ["slim"],
            "issuedAcknowledgementLabel": "{{ connection:id }}:delivered",
        }
    ],
}

USABLE = (*(base_document(name) for name in ("amqp_091", "kafka")), _MQTT, _MQTT_5)
"""Documents without problems, one of each type."""


@st.composite
def nearly_usable(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a usable document with one to three changed members."""
    document: dict[str, Any] = copy.deepcopy(draw(st.sampled_from(USABLE)))
    for _ in range(draw(st.integers(1, 3))):
        _change(draw, document, SCHEMA)
    return document


def _change(draw: st.DrawFn, value: Any, schema: Mapping[str, Any]) -> None:
    """Change one member of an object or of its parts. The new value is a copy, which may be changed next."""
    schema = _resolved(schema, value)
    if isinstance(value, list) and value:
        index = draw(st.integers(0, len(value) - 1))
        inner = schema.get("items", {})
        if isinstance(value[index], dict | list) and draw(st.booleans()):
            _change(draw, value[index], inner)
        else:
            value[index] = copy.deepcopy(draw(of_schema(inner, 1)))
    elif isinstance(value, dict):
        names = sorted({*schema.get("properties", {}), *value})
        name = draw(st.sampled_from(names)) if names else draw(texts)
        extra = schema.get("additionalProperties")
        inner = schema.get("properties", {}).get(name, extra if isinstance(extra, dict) else {})
        if isinstance(value.get(name), dict | list) and value[name] and draw(st.booleans()):
            _change(draw, value[name], inner)
        elif name in value and draw(st.integers(0, 9)) == 0:
            del value[name]
        else:
            value[name] = copy.deepcopy(draw(of_schema(inner, 1)))


def _resolved(schema: Mapping[str, Any], value: Any) -> Mapping[str, Any]:
    """Return the schema for this value, behind references and choices."""
    if "$ref" in schema:
        return _resolved(SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], value)
    for choice in ("anyOf", "oneOf"):
        for each in schema.get(choice, ()):
            resolved = _resolved(each, value)
            if resolved.get("type") == ("object" if isinstance(value, dict) else "array"):
                return resolved
    return schema

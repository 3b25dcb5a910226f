"""The JSON Schema of connection files, for editors: one connection, or a list of them.

It is the schema of the model with what `checks` requires beyond single fields, as far as JSON Schema can say it, and with
the part of each connection type: its schemes, its options, and `ConnectionType.schema`. It refuses no document that
`validate` accepts.
"""

from __future__ import annotations

import re
from typing import Any

from connectivity.config.written_schema import SCHEMA_DIALECT, WrittenSchema
from connectivity.connections import schema_patterns as patterns
from connectivity.connections.model import (
    AUTHORIZED_CONNECTIONS,
    DIVERSION_SWITCHES,
    READ_ONLY,
    Connection,
    ResponseType,
)
from connectivity.connections.target_topics import CONNECTION_ANNOUNCEMENTS, TOPICS
from connectivity.connections.templates import DIVERT_TO, DIVERTED_TYPES
from connectivity.transports import ConnectionType, connection_types, load_connection_type
from connectivity.validation.checks import (
    FINGERPRINT_ALGORITHMS,
    FOREIGN_WILDCARD,
    MAX_PAYLOAD_MAPPINGS,
    MAX_SOURCES,
    MAX_TARGETS,
)
from connectivity.validation.mapper_schema import ONE, bare_mappers, engines, sessions_of
from mappings.placeholders.template import Scope

Schema = dict[str, Any]

SCHEMA_ID = "urn:broker-connectivity:connection"

_SCOPES = (
    Scope.COMMON,
    Scope.SOURCE,
    Scope.AUTHORIZATION,
    Scope.ENFORCEMENT_INPUT,
    Scope.ENFORCEMENT_FILTER,
)
_MESSAGE = "patternErrorMessage"
"""The message that editors show instead of a pattern; other checkers ignore it."""

_NULL: Schema = {"type": "null"}
_INTEGER = rf"^{patterns.WHITE}*[+-]?[0-9]+(?:\.0*)?{patterns.WHITE}*$"
_SWITCH = rf"^(?:{patterns.any_case('true')}|{patterns.any_case('false')})$|{patterns.REFERENCE}"
_BOOLEANS = ("true", "false", "yes", "no", "on", "off", "1", "0", "t", "f", "y", "n")
_ID = rf"{patterns.WHITE}*[a-zA-Z0-9_:-]{{1,100}}{patterns.WHITE}*"
_IDS = rf"^{_ID}(?:,{_ID})*$|{patterns.REFERENCE}"


def file_schema() -> Schema:
    """Return the JSON Schema of a connection file."""
    schema = Connection.model_json_schema(by_alias=True)
    definitions: Schema = schema.pop("$defs")
    definitions["ResponseType"] = _in_any_case([it.value for it in ResponseType])
    for model in (schema, *definitions.values()):
        _allow_null(model)
    properties = schema["properties"]
    properties["connectionType"]["enum"] = list(connection_types())
    properties["mappingContext"] = {
        "anyOf": [{"$ref": "#/$defs/MappingDefinition"}, _NULL],
        "deprecated": True,
        "description": "The former place of a single mapping, for all sources and targets; use `mappingDefinitions`.",
    }
    properties["specificConfig"] = {
        "type": ["object", "null"],
        "description": properties["specificConfig"]["description"],
    }
    properties |= {name: {"readOnly": True, "description": "Ignored: a service sets it."} for name in sorted(READ_ONLY)}
    # In a file, the default is the file's name.
    schema["required"].remove("id")
    schema["allOf"] = [_rules(), *(_of_type(load_connection_type(name)) for name in connection_types())]
    definitions |= {f"template.{scope.name.lower()}": _of_scope(scope) for scope in _SCOPES}
    definitions |= {f"{name}.specificConfig": _options(load_connection_type(name)) for name in connection_types()}
    definitions["MappingDefinition"]["allOf"] = list(engines())
    return {
        "$schema": SCHEMA_DIALECT,
        "$id": SCHEMA_ID,
        "title": "Connections",
        "description": "A connection, or a list of connections.",
        "if": {"type": "array"},
        "then": {"items": {"$ref": "#/$defs/Connection"}},
        "else": {"$ref": "#/$defs/Connection"},
        "$defs": {"Connection": schema, **definitions},
    }


def _of_scope(scope: Scope) -> Schema:
    return {
        "type": "string",
        "description": f"A template for {scope.place}.",
        "pattern": patterns.template(scope),
        _MESSAGE: f"expected placeholders of {', '.join(sorted(scope.prefixes))}, and known functions",
    }


def _allow_null(model: Schema) -> None:
    """Fields that are not required may be null, which is treated as absent."""
    required = model.get("required", ())
    for name, field in model.get("properties", {}).items():
        if name in required:
            continue
        if isinstance(kind := field.get("type"), str):
            field["type"] = [kind, "null"]
        elif "$ref" in field:
            field["anyOf"] = [{"$ref": field.pop("$ref")}, _NULL]


def _in_any_case(texts: list[str]) -> Schema:
    """The texts as editors should offer them, and in any other case."""
    return {
        "anyOf": [{"enum": texts}, {"type": "string", "pattern": f"^(?:{'|'.join(map(patterns.any_case, texts))})$"}]
    }


# --- all types ----------------------------------------------------------------------------------------------------------


def _rules() -> Schema:
    """Return the requirements of `checks`, which the documents of all types share."""
    mapping: Schema = {"maxItems": MAX_PAYLOAD_MAPPINGS}
    topics = "|".join(TOPICS)
    return {
        "properties": {
            "sources": {
                "maxItems": MAX_SOURCES,
                "items": {
                    "properties": {
                        "payloadMapping": mapping,
                        "authorizationContext": {"items": _template(Scope.AUTHORIZATION)},
                        "headerMapping": _DIVERTING | {"additionalProperties": _template(Scope.SOURCE)},
                        "enforcement": {
                            "properties": {
                                "input": _template(Scope.ENFORCEMENT_INPUT),
                                "filters": {"items": _template(Scope.ENFORCEMENT_FILTER)},
                            }
                        },
                        "replyTarget": {
                            "properties": {
                                "address": _template(Scope.SOURCE),
                                "addressPattern": {"not": {"pattern": FOREIGN_WILDCARD.pattern}},
                                "headerMapping": {"additionalProperties": _template(Scope.SOURCE)},
                            }
                        },
                        "declaredAcks": {"items": {"pattern": patterns.OWN_LABEL}},
                        "acknowledgementRequests": {
                            "properties": {
                                "includes": {"items": {"pattern": patterns.LABEL}},
                                "filter": {"pattern": patterns.CONDITION},
                            }
                        },
                    }
                },
            },
            "targets": {
                "maxItems": MAX_TARGETS,
                "items": {
                    "properties": {
                        "payloadMapping": mapping,
                        "address": _template(Scope.COMMON),
                        "authorizationContext": {"items": {"pattern": f"^{patterns.WITHOUT_PLACEHOLDERS}"}},
                        "headerMapping": {"additionalProperties": _template(Scope.COMMON)},
                        "topics": {
                            "items": {
                                "pattern": rf"^(?:{topics})(?:\?[\s\S]*)?$",
                                _MESSAGE: f"expected one of {', '.join(TOPICS)}, with parameters after ?",
                            }
                        },
                        "issuedAcknowledgementLabel": {"pattern": f"^live-response$|{patterns.OWN_LABEL}"},
                    }
                },
            },
            "ca": {"pattern": rf"^{patterns.WHITE}*$|{patterns.pem('CERTIFICATE')}"},
            "credentials": {
                "properties": {
                    "cert": {"pattern": patterns.pem("CERTIFICATE")},
                    "key": {"pattern": patterns.pem("PRIVATE KEY")},
                }
            },
            "sshTunnel": _tunnel(),
        },
        "allOf": [
            {"anyOf": [_has_part("sources"), _has_part("targets")]},
            bare_mappers(),
            {"if": _has_part("targets", _ANNOUNCED), "then": {"properties": {"clientCount": ONE}}},
            {"if": _IS_DIVERSION_TARGET, "then": _each("targets", {"properties": {"topics": {"maxItems": 0}}})},
        ],
    }


_RESPONSE_TYPES = "|".join(patterns.any_case(it.value) for it in ResponseType)
_RESPONSE_TYPE = rf"{patterns.WHITE}*(?:{_RESPONSE_TYPES}){patterns.WHITE}*"
_EXPRESSION = r"\{\{|\$\{"
_DIVERTING: Schema = {
    "patternProperties": {
        f"^{patterns.any_case(name)}$": {"type": "string", "pattern": f"^{value}$|{_EXPRESSION}"}
        for name, value in (
            (DIVERT_TO, "[a-zA-Z0-9_:-]{1,100}"),
            (DIVERTED_TYPES, f"{_RESPONSE_TYPE}(?:,{_RESPONSE_TYPE})*"),
        )
    }
}


def _template(scope: Scope) -> Schema:
    return {"$ref": f"#/$defs/template.{scope.name.lower()}"}


def _each(name: str, part: Schema) -> Schema:
    return {"properties": {name: {"items": part}}}


def _has_part(name: str, part: Schema | None = None) -> Schema:
    """Whether a document has a source or a target, or one like this."""
    return {"properties": {name: {"type": "array", "contains": part or {}}}, "required": [name]}


_ANNOUNCED: Schema = {
    "properties": {"topics": {"type": "array", "contains": {"pattern": rf"^{CONNECTION_ANNOUNCEMENTS}(?:\?|$)"}}},
    "required": ["topics"],
}
_IS_DIVERSION_TARGET: Schema = {
    "properties": {
        "specificConfig": {
            "type": "object",
            "properties": {"is-diversion-target": {"anyOf": [{"const": True}, {"pattern": "^[tT][rR][uU][eE]$"}]}},
            "required": ["is-diversion-target"],
        }
    },
    "required": ["specificConfig"],
}


def _tunnel() -> Schema:
    algorithms = "|".join(map(patterns.any_case, FINGERPRINT_ALGORITHMS))
    return {
        "properties": {
            "uri": {"pattern": rf"{patterns.REFERENCE}|^[sS][sS][hH]://[^@/]*:[0-9]+/?$"},
            "knownHosts": {"items": {"pattern": rf"{patterns.REFERENCE}|^(?:{algorithms}):\S+$"}},
            "credentials": {
                "properties": {
                    "publicKey": {"pattern": patterns.pem("PUBLIC KEY")},
                    "privateKey": {"pattern": patterns.pem("PRIVATE KEY")},
                }
            },
        },
        "if": {"properties": {"validateHost": {"const": True}}, "required": ["validateHost"]},
        "then": {"properties": {"knownHosts": {"type": "array", "minItems": 1}}, "required": ["knownHosts"]},
    }


# --- connection types ---------------------------------------------------------------------------------------------------


def _of_type(broker: ConnectionType) -> Schema:
    """Return the requirements of one connection type."""
    has_type = {"properties": {"connectionType": {"const": broker.name}}, "required": ["connectionType"]}
    options = {"$ref": f"#/$defs/{broker.name}.specificConfig"}
    schemes = tuple(dict.fromkeys((*broker.schemes, *broker.secure_schemes)))
    needs_options = any(field.is_required() for field in broker.options.model_fields.values())
    of_all: Schema = {
        "properties": {
            "uri": {
                "pattern": patterns.uri(schemes),
                _MESSAGE: f"expected {' or '.join(schemes)}, then ://[user:password@]host:port[/path]",
            },
            "specificConfig": options if needs_options else {"anyOf": [options, _NULL]},
        },
        "if": {"properties": {"ca": {"type": "string", "pattern": rf"(?!{patterns.WHITE})\S"}}, "required": ["ca"]},
        "then": {
            "properties": {"uri": {"pattern": rf"^{patterns.REFERENCE}|{patterns.scheme(broker.secure_schemes)}"}}
        },
    }
    if needs_options:
        of_all["required"] = ["specificConfig"]
    parts = [of_all, sessions_of(broker), broker.schema]
    return {"if": has_type, "then": {"allOf": [part for part in parts if part]}}


def _options(broker: ConnectionType) -> Schema:
    """The options of a connection type as documents write them: texts, numbers and booleans."""
    schema = broker.options.model_json_schema(by_alias=True, schema_generator=WrittenSchema)
    properties = {name: _option(field) for name, field in schema["properties"].items()}
    properties |= _DIVERSION
    required = {"required": schema["required"]} if "required" in schema else {}
    return {"type": "object", "properties": properties, "additionalProperties": False, **required}


def _option(field: Schema) -> Schema:
    about = {name: field[name] for name in ("description", "default", "examples") if name in field}
    choices = [it for it in field.get("anyOf", [field]) if it.get("type") != "null"]
    return about | {"anyOf": [*(it for choice in choices for it in _written(choice)), _REFERENCE]}


_DIVERSION: Schema = {
    **{
        name: {
            "description": "Diversion of responses to another connection; true or false.",
            "anyOf": [{"type": "boolean"}, {"type": "string", "pattern": _SWITCH}],
        }
        for name in DIVERSION_SWITCHES
    },
    AUTHORIZED_CONNECTIONS: {
        "description": "Diversion of responses: IDs of connections whose responses this one accepts, separated by commas.",
        "pattern": _IDS,
    },
}
_REFERENCE: Schema = {"type": "string", "pattern": patterns.REFERENCE}


def _written(shape: Schema) -> list[Schema]:
    """The forms in which a document may write the value of an option."""
    kept: Schema = {name: shape[name] for name in ("type", "enum", "pattern", "minimum", "maximum") if name in shape}
    match kept["type"]:
        case "integer":
            return [kept, {"type": "string", "pattern": _INTEGER}]
        case "boolean":
            return [kept, {"type": "string", "pattern": f"^(?:{'|'.join(map(patterns.any_case, _BOOLEANS))})$"}]
        case _:
            samples = (("number", "1"), ("boolean", "true"))
            return [kept, *({"type": kind} for kind, text in samples if _fits(text, kept))]


def _fits(text: str, shape: Schema) -> bool:
    return text in shape.get("enum", [text]) and re.search(shape.get("pattern", ""), text) is not None

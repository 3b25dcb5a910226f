"""JSON Schemas and examples of requests and responses. The connection's schema comes from the model."""

from __future__ import annotations

from typing import Any

from connectivity.validation.validator import json_schema
from mappings.ids import EntityType

_TEXT = {"type": "string"}
_OPEN = {"type": "object"}
_AT = {"type": "string", "format": "date-time"}
_AT_OR_NULL = {"type": ["string", "null"], "format": "date-time"}

CONNECTION_EXAMPLE = {
    "id": "depot-7",
    "name": "Depot 7",
    "connectionType": "mqtt-5",
    "connectionStatus": "open",
    "uri": "ssl://fleet:*****@broker.acme.example:8883",
    "sources": [
        {
            "addresses": ["fleet/+/cmd"],
            "qos": 1,
            "authorizationContext": ["integration:fleet"],
            "replyTarget": {"addressPattern": "fleet/*/reply"},
        }
    ],
}
NEW_CONNECTION_EXAMPLE = {**CONNECTION_EXAMPLE, "uri": "ssl://fleet:${env:MQTT_PASSWORD}@broker.acme.example:8883"}
TEST_EXAMPLE = {
    "connection": NEW_CONNECTION_EXAMPLE,
    "sample": {
        "payload": '{"topic": "acme.site/lamp-7/things/twin/commands/retrieve", "path": "/"}',
        "headers": {"reply-to": "fleet/7/reply"},
        "source": 0,
        "address": "fleet/7/cmd",
    },
}
TEST_RESULT_EXAMPLE: dict[str, Any] = {
    "connection": "open",
    "clients": [{"status": "open", "details": "connected"}],
    "sources": [{"index": 0, "address": "fleet/+/cmd", "status": "open", "details": "connected"}],
    "replyTargets": [
        {
            "index": 0,
            "address": "{{ header:reply-to }}",
            "status": "unknown",
            "details": "its placeholders are filled for each message",
        }
    ],
    "targets": [],
    "withoutEffect": [],
}
READY_EXAMPLE = {
    "status": "ready",
    "store": "writable",
    "lake": "off: the journal keeps everything",
    "jobs": [],
    "connections": {"depot-7": {"status": "open", "details": "connected"}},
}
STATUS_EXAMPLE = {
    "connectionId": "depot-7",
    "connectionStatus": "open",
    "liveStatus": "open",
    "recoveryStatus": "succeeded",
    "connectedSince": "2026-02-03T09:12:44Z",
    "clientStatus": [
        {
            "type": "client",
            "client": "connectivity-0",
            "status": "open",
            "recoveryStatus": "succeeded",
            "statusDetails": "connected",
            "inStateSince": "2026-02-03T09:12:44Z",
        }
    ],
    "sourceStatus": [],
    "targetStatus": [],
    "sshTunnelStatus": [],
}
METRICS_EXAMPLE = {
    "connectionId": "depot-7",
    "containsFailures": False,
    "connectionMetrics": {
        "inbound": {"consumed": {"success": {"PT1M": 3, "PT1H": 120, "PT24H": 800}}},
        "outbound": {"published": {"success": {"PT1M": 9, "PT1H": 130, "PT24H": 900}}},
    },
    "sourceMetrics": {"addressMetrics": {}},
    "targetMetrics": {"addressMetrics": {}},
}
LOGS_EXAMPLE = {
    "connectionId": "depot-7",
    "connectionLogs": [
        {
            "correlationId": "c-88af",
            "timestamp": "2026-02-03T10:01:07Z",
            "category": "source",
            "type": "consumed",
            "level": "success",
            "message": "Message was consumed.",
            "address": "fleet/+/cmd",
        }
    ],
    "enabledSince": "2026-02-03T09:12:40Z",
    "enabledUntil": "2026-02-03T10:12:40Z",
}
REVISION_EXAMPLE = {"revision": 3, "modified": "2026-02-03T09:12:40Z", "by": "anna", "action": "modify"}
SUBSCRIPTION_EXAMPLE = {
    "id": "k3Vd9QpA",
    "connection": "depot-7",
    "entity": "acme.site:lamp-7",
    "demand": 100,
    "sent": 250,
    "idle": 1.5,
}
AUDIT_EXAMPLE = {"at": "2026-02-03T09:12:40Z", "by": "anna", "action": "modify", "connection": "depot-7", "revision": 3}
PERMISSION_CHECKS_EXAMPLE = {
    "canRead": {"resource": "thing:/attributes/room", "entityId": "acme.site:lamp-7", "hasPermissions": ["READ"]},
    "canManage": {"resource": "policy:/", "entityId": "acme.site:lamps", "hasPermissions": ["READ", "WRITE"]},
}
PERMISSION_RESULTS_EXAMPLE = {"canRead": True, "canManage": False}
SEARCH_PAGE_EXAMPLE = {
    "items": [
        {"thingId": "acme.site:lamp-7", "attributes": {"room": "hall", "size": 4}},
        {"thingId": "acme.site:lamp-8", "attributes": {"room": "hall", "size": 3}},
    ],
    "nextPageOffset": 25,
    "cursor": "gqRkYXRhxA",
}
PLAN_EXAMPLE = {
    "accessPath": "all candidates, sorted",
    "order": "+thingId",
    "things": 120000,
    "candidates": 42,
    "isIndexed": True,
    "text": "all candidates, sorted; 120000 things, order +thingId\nrows of attributes/room = hall\ncandidates: 42",
}
ERASURE_EXAMPLE = {
    "id": 1,
    "entity_type": "thing",
    "entity": "acme.site:lamp-7",
    "seq": 4711,
    "requested_at": "2026-02-03T09:12:40Z",
    "requested_by": "anna",
    "journal_done": None,
    "lake_done": None,
}


def schemas() -> dict[str, Any]:
    """Every schema of the OpenAPI document, by name."""
    connection = _relocate_references(json_schema())
    parts: dict[str, Any] = connection.pop("$defs")
    connection.pop("$schema")
    return {
        **parts,
        "NewConnection": {
            **connection,
            "required": [it for it in connection["required"] if it not in ("id", "connectionStatus")],
            "title": "NewConnection",
            "description": "A connection as it is sent. `connectionStatus` may only be missing where POST creates one.",
        },
        "ConnectionParts": {
            "type": "object",
            "description": "A connection as a client has sent it, or the members of it that `fields` names.",
            "properties": {
                "_revision": {"type": "integer", "minimum": 1},
                "_modified": _AT,
                "_owner": {"enum": ["file", "api"]},
                "_file": {"type": ["string", "null"], "description": "The file that owns the connection."},
                "_override": {
                    "type": ["string", "null"],
                    "description": "The status that an operator asked for, where the file says something else.",
                },
                "_problems": {
                    "type": "array",
                    "items": _TEXT,
                    "description": "Problems of a newer version of the file.",
                },
            },
        },
        "Connections": {"type": "array", "items": {"anyOf": [_TEXT, ref("ConnectionParts")]}},
        "ConnectionCommand": {
            "type": "string",
            "enum": [
                "connectivity.commands:openConnection",
                "connectivity.commands:closeConnection",
                "connectivity.commands:resetConnectionMetrics",
                "connectivity.commands:enableConnectionLogs",
                "connectivity.commands:resetConnectionLogs",
            ],
        },
        "ConnectionTest": _connection_test(),
        "ConnectionTestResult": {
            **_OPEN,
            "description": "The result for each address and for the sample.",
        },
        "Status": _of_connection("connectionStatus", "liveStatus"),
        "Metrics": _of_connection("connectionMetrics"),
        "Logs": _of_connection("connectionLogs"),
        "Revisions": _list_of({"revision": {"type": "integer"}, "modified": _AT, "by": _TEXT, "action": _TEXT}),
        "Subscriptions": _list_of(
            {"id": _TEXT, "connection": _TEXT, "demand": {"type": "integer"}, "sent": {"type": "integer"}}
        ),
        "Audit": _list_of({"at": _AT, "by": _TEXT, "action": _TEXT}),
        "PermissionChecks": {
            "type": "object",
            "description": "The checks, by names of your choice.",
            "additionalProperties": {
                "type": "object",
                "required": ["resource", "entityId", "hasPermissions"],
                "properties": {
                    "resource": {"type": "string", "pattern": "^(thing|message|policy):/"},
                    "entityId": {"type": "string", "maxLength": 256, "description": "The ID of a thing or a policy."},
                    "hasPermissions": {
                        "type": "array",
                        "minItems": 1,
                        "items": _TEXT,
                        "description": "`READ`, `WRITE`, `EXECUTE`.",
                    },
                },
            },
        },
        "PermissionResults": {
            "type": "object",
            "additionalProperties": {"type": "boolean"},
            "description": "Whether the caller has all permissions of each check.",
        },
        "SearchPage": {
            "type": "object",
            "required": ["items"],
            "additionalProperties": False,
            "properties": {
                "items": {
                    "type": "array",
                    "items": _OPEN,
                    "description": "Things, or their members named in `fields`.",
                },
                "nextPageOffset": {
                    "type": "integer",
                    "minimum": -1,
                    "description": "For `option=limit(…)`: the number of things before the next page, -1 for none. "
                    "Absent if `size` or `cursor` is given and the page has things.",
                },
                "cursor": {"type": "string", "description": "For `option=cursor(…)`; absent on the last page."},
            },
        },
        "Plan": {
            "type": "object",
            "required": ["accessPath", "order", "things", "candidates", "isIndexed", "text"],
            "properties": {
                "accessPath": {"type": "string", "description": "How the search produces things in order."},
                "order": _TEXT,
                "things": {
                    "type": "integer",
                    "description": "Approximate number of all things, regardless of permissions.",
                },
                "candidates": {
                    "type": ["integer", "null"],
                    "description": "Number of candidates from the index; null if there are too many to list.",
                },
                "isIndexed": {"type": "boolean", "description": "False while the index is being built."},
                "text": {"type": "string", "description": "The plan as text, with the index entries it reads."},
            },
        },
        "Count": {"type": "integer", "minimum": 0},
        "ErasureRequest": {
            "type": "object",
            "required": ["entity"],
            "additionalProperties": False,
            "properties": {
                "entity": {"type": "string", "maxLength": 512},
                "type": {"enum": [type.value for type in EntityType], "default": "thing"},
                "by": {"type": "string", "maxLength": 512, "description": "The requester."},
            },
        },
        "Erasure": {
            "type": "object",
            "properties": {
                "id": {"type": "integer"},
                "entity_type": {"enum": [type.value for type in EntityType]},
                "entity": _TEXT,
                "seq": {"type": "integer", "description": "The number of the last erased event."},
                "requested_at": _AT,
                "requested_by": _TEXT,
                "journal_done": _AT_OR_NULL,
                "lake_done": _AT_OR_NULL,
            },
        },
        "Erasures": {"type": "array", "items": ref("Erasure")},
        "Health": {"type": "object", "required": ["status"], "properties": {"status": _TEXT}},
        "Error": _error(),
    }


def _error() -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["status", "error", "message"],
        "properties": {
            "status": {"type": "integer", "minimum": 400, "maximum": 599},
            "error": {
                "type": "string",
                "description": "The error code. Programs should first check `status`, then `error`.",
            },
            "message": _TEXT,
            "description": _TEXT,
            "report": {"type": "object", "description": "Partial results of a failed connection test."},
            "problems": {
                "type": "array",
                "description": "All problems of the request.",
                "items": {
                    "type": "object",
                    "required": ["path", "found", "expected"],
                    "properties": {
                        "path": {"type": "string", "examples": ["sources[0].replyTarget.address"]},
                        "found": _TEXT,
                        "expected": _TEXT,
                        "hint": {"type": ["string", "null"]},
                    },
                },
            },
        },
    }


def _connection_test() -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["connection"],
        "additionalProperties": False,
        "properties": {
            "connection": ref("NewConnection"),
            "sample": {
                "type": ["object", "null"],
                "required": ["payload"],
                "additionalProperties": False,
                "description": "A sample of an incoming message.",
                "properties": {
                    "payload": {"type": "string", "description": "The message, as `encoding` says."},
                    "encoding": {"enum": ["text", "base64"], "default": "text"},
                    "headers": {"type": "object", "additionalProperties": _TEXT},
                    "source": {
                        "type": "integer",
                        "minimum": 0,
                        "maximum": 999,
                        "default": 0,
                        "description": "The index of the source that receives it.",
                    },
                    "address": {
                        "type": ["string", "null"],
                        "description": "The address that receives it. Default: the first address of the source.",
                    },
                },
            },
        },
    }


def _of_connection(*needed: str) -> dict[str, Any]:
    return {"type": "object", "required": ["connectionId", *needed], "properties": {"connectionId": _TEXT}}


def _list_of(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "object", "required": list(properties), "properties": properties}}


def ref(name: str) -> dict[str, str]:
    """Return a reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def _relocate_references(value: Any) -> Any:
    """Return a schema with references to `#/components/schemas`."""
    if isinstance(value, dict):
        return {
            name: it.replace("#/$defs/", "#/components/schemas/") if name == "$ref" else _relocate_references(it)
            for name, it in value.items()
        }
    return [_relocate_references(it) for it in value] if isinstance(value, list) else value

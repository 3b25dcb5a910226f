"""OpenAPI descriptions of operations: parameters, responses, examples, error codes.

`openapi_document` creates the OpenAPI document of an application; the connection in it is the JSON Schema of
the model. Errors of every request (tokens, unknown parameters, large bodies) are added here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from connectivity import __version__
from connectivity.api.errors import CODES
from connectivity.api.schemas import ref, schemas

HEALTH = "Health"
TEST = "application/vnd.connectivity.connection-test+json"
"""The media type of a connection that is tried together with a sample."""

Answers = dict[int | str, dict[str, Any]]

ALWAYS = ("api:parameter.invalid", "api:token.misplaced", "internalerror")
EXCEPT_PROBES = (
    "api:unauthorized",
    "api:forbidden",
    "api:host.foreign",
    "api:requests.toomany",
    "api:service.stopping",
)
CHANGING = ("api:origin.foreign",)
WITH_BODY = ("api:request.invalid", "api:body.toolarge", "api:body.timeout", "api:contenttype.unsupported")
WITH_JSON = ("json.invalid",)

_JSON = "application/json"

TOTAL = "x-total-count"
"""The header that says of how many the answer lists some."""

_HEADERS: Mapping[str, dict[str, Any]] = {
    "etag": {"description": "The revision.", "schema": {"type": "string", "pattern": r'^"rev:[0-9]+"$'}},
    "location": {"description": "Where the connection is.", "schema": {"type": "string"}},
    "www-authenticate": {"description": "The authentication scheme.", "schema": {"type": "string"}},
    TOTAL: {"description": "How many there are.", "schema": {"type": "integer"}},
    "retry-after": {"description": "Seconds to wait. Sent only after wrong tokens.", "schema": {"type": "integer"}},
}
_ERROR_HEADERS = {304: ("etag",), 401: ("www-authenticate",), 412: ("etag",), 429: ("retry-after",)}
_MAY_BE_ABSENT = {412, 429}
"""Statuses whose headers depend on the error: a connection that does not exist has no revision."""


def body(meaning: str, schema: str, example: Any, *headers: str) -> dict[str, Any]:
    """An answer of JSON."""
    content = {_JSON: {"schema": ref(schema), "example": example}}
    return {"description": meaning, "content": content, **_headers(headers)}


def nothing(meaning: str, *headers: str) -> dict[str, Any]:
    """An answer without a body."""
    return {"description": meaning, **_headers(headers)}


def text(meaning: str, *media_types: str) -> dict[str, Any]:
    """An answer that is no JSON."""
    return {"description": meaning, "content": {it: {"schema": {"type": "string"}} for it in media_types}}


def request_body(bodies: Mapping[str, tuple[str, Any]]) -> dict[str, Any]:
    """The request body: its schema and an example by media type."""
    content = {kind: {"schema": ref(schema), "example": example} for kind, (schema, example) in bodies.items()}
    return {"requestBody": {"required": True, "content": content}}


def answers(
    wanted: Answers,
    *codes: str,
    is_probe: bool = False,
    has_json: bool = False,
    has_body: bool = False,
    is_change: bool = False,
) -> Answers:
    """Return the responses of an operation: the declared ones, and the errors."""
    every = {*codes, *ALWAYS}
    if not is_probe:
        every.update(EXCEPT_PROBES)
    if is_change or has_json or has_body:
        every.update(CHANGING)
    if has_json or has_body:
        every.update(WITH_BODY)
    if has_json:
        every.update(WITH_JSON)
    by_status: dict[int, list[str]] = {}
    for code in sorted(every):
        by_status.setdefault(CODES[code].status, []).append(code)
    errors: Answers = {status: _error(status, its) for status, its in sorted(by_status.items())}
    return {**wanted, **errors}


def _error(status: int, codes: list[str]) -> dict[str, Any]:
    meaning = "\n".join(f"- `{code}`: {CODES[code].when}" for code in codes)
    if status == 304:
        return nothing(meaning, *_ERROR_HEADERS[status])
    examples = {
        code: {"value": {"status": status, "error": code, "message": _sentence(CODES[code].when)}} for code in codes
    }
    content = {_JSON: {"schema": ref("Error"), "examples": examples}}
    return {
        "description": meaning,
        "content": content,
        **_headers(_ERROR_HEADERS.get(status, ()), status not in _MAY_BE_ABSENT),
    }


def _sentence(words: str) -> str:
    plain = words.replace("`", "'")
    return f"{plain[0].upper()}{plain[1:]}."


def _headers(names: tuple[str, ...], is_required: bool = True) -> dict[str, Any]:
    required = {"required": True} if is_required else {}
    return {"headers": {name: {**_HEADERS[name], **required} for name in names}} if names else {}


def openapi_document(app: FastAPI, needs_token: bool) -> dict[str, Any]:
    """The OpenAPI document of the application."""
    document = get_openapi(
        title="Connectivity",
        version=__version__,
        description="Management of connections to brokers, search of things, and operator requests.",
        routes=app.routes,
    )
    probes = {"/health/live", "/health/ready"}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            # The library's own response to invalid parameters, which the API replaces.
            operation["responses"].pop("422", None)
            if needs_token and path in probes:
                operation["security"] = [{"bearer": []}, {}]
    document["components"] = {"schemas": schemas()}
    if needs_token:
        document["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"bearer": []}]
    return document

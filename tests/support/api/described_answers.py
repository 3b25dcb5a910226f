"""Compares answers of the API with the OpenAPI document: status, headers, media type, body and error code."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator, Mapping
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import httpx
import jsonschema_rs

from connectivity.api.openapi import ALWAYS, CHANGING, EXCEPT_PROBES
from connectivity.connections.templates import URI_INVALID
from connectivity.validation.checks import FIELDS_INVALID, LABEL_INVALID, MAPPER_INVALID, TOPIC_INVALID
from tools.docs.api import description

_JSON = "application/json"
_ELSEWHERE = {*ALWAYS, *EXCEPT_PROBES, *CHANGING, "api:request.invalid"}
_ELSEWHERE |= {"api:path.notfound", "api:method.notallowed"}
"""Error codes of requests that are no operation of the document."""

_PROBLEMS = {
    "connectivity:connection.id.invalid",
    FIELDS_INVALID,
    LABEL_INVALID,
    MAPPER_INVALID,
    TOPIC_INVALID,
    URI_INVALID,
}
"""Error codes of problems of a connection document that are more precise than the usual one."""

_document = cache(description)


@cache
def _paths() -> Mapping[re.Pattern[str], dict[str, Any]]:
    """The operations of each path."""
    paths = _document()["paths"].items()
    return {re.compile(re.sub(r"\{\w+\}", "[^/]+", path)): operations for path, operations in paths}


@cache
def _headers() -> frozenset[str]:
    """Every header that the document names."""
    return frozenset(
        name
        for operations in _paths().values()
        for operation in operations.values()
        for answer in operation["responses"].values()
        for name in answer.get("headers", ())
    )


@cache
def _validator(schema: str) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for({**json.loads(schema), "components": _document()["components"]})


def _deviations(method: str, path: str, status: int, headers: Mapping[str, str], body: bytes) -> Iterator[str]:
    operations = next((its for pattern, its in _paths().items() if pattern.fullmatch(path)), {})
    operation = operations.get("get" if method == "HEAD" else method.lower())
    if operation is None:
        if path != "/openapi.json" or status >= 400:
            error = {"$ref": "#/components/schemas/Error"}
            yield from _json_deviations(error, _ELSEWHERE, method, status, body)
        return
    answer = operation["responses"].get(str(status))
    if answer is None:
        yield "the status"
        return
    described = answer.get("headers", {})
    yield from (f"the header {name}" for name in _headers() & headers.keys() - described.keys())
    for name, header in described.items():
        if name in headers:
            value: Any = int(headers[name]) if header["schema"]["type"] == "integer" else headers[name]
            yield from _violations(header["schema"], value)
        elif header.get("required"):
            yield f"no header {name}"
    content = answer.get("content", {"": {}})
    media_type = headers.get("content-type", "").partition(";")[0]
    if media_type not in content:
        yield f"the media type {media_type!r}"
    elif media_type == _JSON:
        described_as = content[_JSON]
        yield from _json_deviations(
            described_as["schema"], described_as.get("examples", {}).keys(), method, status, body
        )
    elif not media_type and body:
        yield "a body"


def _json_deviations(
    schema: Mapping[str, Any], codes: Container[str], method: str, status: int, body: bytes
) -> Iterator[str]:
    if method == "HEAD":
        return
    found = json.loads(body)
    yield from _violations(schema, found)
    if status >= 400 and "error" in found:
        code, is_of_document = found["error"], "connectivity:connection.configuration.invalid" in codes
        # A connection document is refused with the code of its first problem.
        if code not in codes and not (is_of_document and code in _PROBLEMS):
            yield f"the error code {code}"
        if found["status"] != status:
            yield f"the status {found['status']} in the body"


def _violations(schema: Mapping[str, Any], value: object) -> Iterator[str]:
    yield from (error.message for error in _validator(json.dumps(schema)).iter_errors(value))


def check_answer(method: str, target: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Raise AssertionError unless the document describes this answer. Header names are in lower case."""
    found = list(_deviations(method, urlsplit(target).path, status, headers, body))
    assert not found, f"not in the OpenAPI document: {found} of {method} {target}: {status} {headers} {body[:500]!r}"


async def check_response(response: httpx.Response) -> None:
    """Check an answer, as an event hook of an httpx client."""
    sent, body = response.request, await response.aread()
    check_answer(sent.method, sent.url.raw_path.decode(), response.status_code, dict(response.headers), body)

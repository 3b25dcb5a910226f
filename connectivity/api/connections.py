"""Connections over HTTP: list, create, show, change, delete, command, status (Ditto connections).

A definition is its document, as it can be sent back; members that begin with `_` (`_revision`, `_modified`, `_owner`,
`_file`, `_override`, `_problems`) are shown if `fields` names them. Secrets are shown as `*****`, and a document that comes
back with that keeps them. A test (`?dry-run=true`) takes the document, or, with a sample message,
`application/vnd.connectivity.connection-test+json`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Header, Path, Query, Request, Response

from connectivity.api import preconditions
from connectivity.api.authentication import caller_of
from connectivity.api.errors import refusal
from connectivity.api.openapi import TEST, answers, body, nothing, request_body
from connectivity.api.permits import permit_of
from connectivity.api.requests import BodyLimits, content, expect_media_type, field_selection, json_object
from connectivity.api.responses import JSON, JsonResponse
from connectivity.api.schemas import (
    CONNECTION_EXAMPLE,
    LOGS_EXAMPLE,
    METRICS_EXAMPLE,
    NEW_CONNECTION_EXAMPLE,
    REVISION_EXAMPLE,
    STATUS_EXAMPLE,
    TEST_EXAMPLE,
    TEST_RESULT_EXAMPLE,
)
from connectivity.config.problems import ROOT, json_path, show
from connectivity.connections.model import CONNECTION_ID_FORM, READ_ONLY
from connectivity.errors import Problem
from connectivity.management.definition import Definition, Permit, SampleMessage
from connectivity.management.manager import ConnectionManager
from mappings.model.field_selector import FieldSelection, select

PREFIX = "/api/2/connections"

COMMANDS: Mapping[str, Callable[[ConnectionManager], Callable[[str, str, Permit], Awaitable[None]]]] = {
    "connectivity.commands:openConnection": lambda management: management.open,
    "connectivity.commands:closeConnection": lambda management: management.close,
    "connectivity.commands:resetConnectionMetrics": lambda management: management.reset_metrics,
    "connectivity.commands:enableConnectionLogs": lambda management: management.enable_logs,
    "connectivity.commands:resetConnectionLogs": lambda management: management.reset_logs,
}
"""Each command of the API, and the method that carries it out."""

ConnectionId = Annotated[
    str,
    Path(alias="connection_id", description="The connection.", examples=["depot-7"]),
    CONNECTION_ID_FORM,
]
Fields = Annotated[
    str | None,
    Query(
        description="The members to show, such as `id,name,specificConfig/clientId`. Members that begin with `_` are shown "
        "only if you name them: `_revision`, `_modified`, `_owner` (`file` or `api`), `_file`, `_override`, "
        "`_problems`.",
        examples=["id,connectionStatus,_revision"],
        max_length=10_000,
    ),
]
Flag = Literal["true", "false"]


def router(management: ConnectionManager, bounds: BodyLimits) -> APIRouter:
    """Everything below `/api/2/connections`."""
    api = APIRouter(prefix=PREFIX, tags=["connections"])

    @api.get(
        "",
        summary="List connections",
        description="With `fields=id` alone, the response lists only ids, as with `ids-only=true`.",
        operation_id="listConnections",
        responses=answers(
            {200: body("All connections, sorted by id.", "Connections", [CONNECTION_EXAMPLE])},
            "json.fieldselector.invalid",
        ),
    )
    async def every(
        fields: Fields = None,
        ids_only: Annotated[Flag, Query(alias="ids-only", description="Return only the ids.")] = "false",
    ) -> Response:
        selection = field_selection(fields)
        if ids_only == "true" or (selection is not None and selection.keys() == {"id"}):
            return JsonResponse(management.ids())
        return JsonResponse([_render(it, selection) for it in await management.definitions()])

    @api.post(
        "",
        summary="Create a connection, or test one",
        description="The service generates a missing `id`. The response comes before the service opens the "
        "connection. With `dry-run=true`, the service stores nothing: it connects, checks every address, "
        "and maps the sample, if the body has one.",
        operation_id="createConnection",
        status_code=201,
        responses=answers(
            {
                201: body("The stored connection.", "ConnectionParts", CONNECTION_EXAMPLE, "etag", "location"),
                200: body("The results of the dry run.", "ConnectionTestResult", TEST_RESULT_EXAMPLE),
            },
            *("connectivity:connection.configuration.invalid", "connectivity:connection.conflict"),
            *("connectivity:connection.failed", "connectivity:connection.unavailable"),
            *("api:store.unavailable", "api:body.invalid", "api:subject.forbidden", "api:stream.forbidden"),
            has_json=True,
        ),
        openapi_extra=request_body(
            {JSON: ("NewConnection", NEW_CONNECTION_EXAMPLE), TEST: ("ConnectionTest", TEST_EXAMPLE)}
        ),
    )
    async def create(
        request: Request,
        dry_run: Annotated[
            Flag, Query(alias="dry-run", description="Test the connection without storing it.")
        ] = "false",
    ) -> Response:
        if dry_run == "true":
            kind = expect_media_type(request, JSON, TEST)
            sent = await json_object(request, bounds)
            document, sample = _connection_test(sent) if kind == TEST else (sent, None)
            return JsonResponse(await management.test(document, sample, permit_of(request)))
        expect_media_type(request, JSON)
        document = await json_object(request, bounds)
        return _created_response(await management.create(document, caller_of(request).name, permit_of(request)))

    @api.get(
        "/{connection_id}",
        summary="Retrieve a connection",
        operation_id="retrieveConnection",
        responses=answers(
            {200: body("The connection.", "ConnectionParts", CONNECTION_EXAMPLE, "etag")},
            *("connectivity:connection.notfound", "connectivity:connection.history.notfound"),
            *("connectivity:connection.id.invalid", "json.fieldselector.invalid", "header.invalid"),
            *("connectivity:precondition.failed", "connectivity:precondition.notmodified", "api:store.unavailable"),
        ),
        openapi_extra={"parameters": CONDITIONAL},
    )
    async def retrieve(
        request: Request,
        connection_id: ConnectionId,
        fields: Fields = None,
        revision: Annotated[
            int | None, Header(alias=preconditions.AT_REVISION, ge=1, le=2**63 - 1, description="Show this revision.")
        ] = None,
        time: Annotated[
            str | None,
            Header(
                alias=preconditions.AT_TIME,
                description="Show the revision that was current at this time.",
                examples=["2026-02-03T09:12:45Z"],
                json_schema_extra={"format": "date-time"},
            ),
        ] = None,
    ) -> Response:
        selection = field_selection(fields)
        at = preconditions.parse_past_revision(revision, time)
        found = await management.definition(connection_id, at)
        preconditions.check_retrieve(request.headers, found)
        return JsonResponse(_render(found, selection), headers={"etag": found.tag})

    @api.put(
        "/{connection_id}",
        summary="Change a connection, or create it under this id",
        description="The response comes when the change is in effect. `connectivity:connection.failed` means that the"
        " service has stored the change, but could not reach the broker; it keeps retrying.",
        operation_id="putConnection",
        status_code=204,
        responses=answers(
            {
                204: nothing("The connection was changed.", "etag"),
                201: body("The created connection.", "ConnectionParts", CONNECTION_EXAMPLE, "etag", "location"),
            },
            *("connectivity:connection.configuration.invalid", "connectivity:id.notsettable"),
            *("connectivity:connection.id.invalid", "connectivity:connection.conflict", "header.invalid"),
            *("connectivity:precondition.failed", "connectivity:connection.failed", "api:store.unavailable"),
            *("api:body.invalid", "api:subject.forbidden", "api:stream.forbidden"),
            has_json=True,
        ),
        openapi_extra={**request_body({JSON: ("NewConnection", NEW_CONNECTION_EXAMPLE)}), "parameters": CONDITIONAL},
    )
    async def put(request: Request, connection_id: ConnectionId) -> Response:
        expect_media_type(request, JSON)
        judge = preconditions.precondition_of(request.headers)
        document = await json_object(request, bounds)
        found, is_new = await management.put(
            connection_id, document, caller_of(request).name, judge, permit_of(request)
        )
        return _created_response(found) if is_new else Response(status_code=204, headers={"etag": found.tag})

    @api.delete(
        "/{connection_id}",
        summary="Close and delete a connection",
        operation_id="deleteConnection",
        status_code=204,
        responses=answers(
            {204: nothing("The connection was deleted.")},
            *("connectivity:connection.notfound", "connectivity:connection.conflict"),
            *("connectivity:connection.id.invalid", "connectivity:precondition.failed", "header.invalid"),
            *("api:store.unavailable", "api:subject.forbidden"),
            is_change=True,
        ),
        openapi_extra={"parameters": CONDITIONAL},
    )
    async def delete(request: Request, connection_id: ConnectionId) -> Response:
        judge = preconditions.precondition_of(request.headers)
        await management.delete(connection_id, caller_of(request).name, judge, permit_of(request))
        return Response(status_code=204)

    @api.post(
        "/{connection_id}/command",
        summary="Open, close, reset metrics, enable or reset logs",
        description=f"The body is one of {', '.join(f'`{it}`' for it in COMMANDS)}. "
        "You can also open and close connections that a file owns.",
        operation_id="commandConnection",
        response_class=Response,
        responses=answers(
            {200: nothing("The command was carried out.")},
            *("connectivity:connection.notfound", "connectivity:command.invalid", "connectivity:connection.failed"),
            *("connectivity:connection.id.invalid", "connectivity:connection.configuration.invalid"),
            *("api:store.unavailable", "api:subject.forbidden"),
            has_body=True,
        ),
        openapi_extra=request_body({"text/plain": ("ConnectionCommand", next(iter(COMMANDS)))}),
    )
    async def command(request: Request, connection_id: ConnectionId) -> Response:
        expect_media_type(request, "text/plain")
        wanted = (await content(request, bounds)).decode("utf-8", "replace")
        if (method_of := COMMANDS.get(wanted)) is None:
            raise refusal(
                "connectivity:command.invalid",
                f"The command {show(wanted)} is unknown.",
                f"expected one of: {', '.join(COMMANDS)}",
            )
        await method_of(management)(connection_id, caller_of(request).name, permit_of(request))
        return Response(status_code=200)

    @api.get(
        "/{connection_id}/status",
        summary="Retrieve the status of a connection",
        operation_id="connectionStatus",
        responses=_read_responses("The status of the connection.", "Status", STATUS_EXAMPLE),
    )
    async def status(connection_id: ConnectionId) -> Response:
        return JsonResponse(management.status(connection_id))

    @api.get(
        "/{connection_id}/metrics",
        summary="Retrieve the metrics of a connection",
        operation_id="connectionMetrics",
        responses=_read_responses("The metrics of the connection.", "Metrics", METRICS_EXAMPLE),
    )
    async def metrics(connection_id: ConnectionId) -> Response:
        return JsonResponse(management.metrics(connection_id))

    @api.get(
        "/{connection_id}/logs",
        summary="Retrieve the log of a connection",
        operation_id="connectionLogs",
        responses=_read_responses("The log entries of the connection.", "Logs", LOGS_EXAMPLE),
    )
    async def logs(connection_id: ConnectionId) -> Response:
        return JsonResponse(management.logs(connection_id))

    @api.get(
        "/{connection_id}/revisions",
        summary="List the revisions of a connection, the newest first",
        operation_id="connectionRevisions",
        responses=_read_responses(
            "The last hundred revisions of the connection.", "Revisions", [REVISION_EXAMPLE], "api:store.unavailable"
        ),
    )
    async def revisions(connection_id: ConnectionId) -> Response:
        return JsonResponse(await management.revisions(connection_id))

    return api


CONDITIONAL: list[dict[str, Any]] = [
    {"name": name, "in": "header", "description": meaning, "schema": {"type": "string"}, "example": '"rev:3"'}
    for name, meaning in (
        ("if-match", 'Carry out the request only if this is the current revision: `"rev:3"`; `*` means any revision.'),
        (
            "if-none-match",
            "Carry out the request only if none of these is the current revision; `*`: only if the connection "
            "does not exist.",
        ),
    )
]


def _read_responses(meaning: str, schema: str, example: Any, *codes: str) -> dict[int | str, dict[str, Any]]:
    """Return the responses of an operation that only reads one connection."""
    return answers(
        {200: body(meaning, schema, example)},
        *("connectivity:connection.notfound", "connectivity:connection.id.invalid", *codes),
    )


def _created_response(found: Definition) -> Response:
    location = f"{PREFIX}/{quote(found.id, safe=':')}"
    return JsonResponse(_document(found), 201, {"location": location, "etag": found.tag})


def _document(found: Definition) -> dict[str, Any]:
    """Return the document without members that only the service sets, which a client may have sent."""
    return {name: value for name, value in found.document.items() if name not in READ_ONLY}


def _render(found: Definition, selection: FieldSelection | None) -> Mapping[str, Any]:
    if selection is None:
        return _document(found)
    special = {
        "_revision": found.revision,
        "_modified": found.modified,
        "_owner": found.owner.value,
        "_file": None if found.file is None else str(found.file),
        "_override": found.override,
        "_problems": list(found.problems),
    }
    return select({**_document(found), **special}, selection)


def _connection_test(sent: Mapping[str, Any]) -> tuple[dict[str, Any], SampleMessage | None]:
    """`{"connection": …, "sample": {"payload", "encoding", "headers", "source", "address"}}`.

    Raises OperationRefused.
    """
    document, sample = sent.get("connection"), sent.get("sample")
    if unknown := sent.keys() - {"connection", "sample"}:
        raise _unfit_connection_test(ROOT, show(min(unknown)), 'an object with "connection", and optionally "sample"')
    if not isinstance(document, dict):
        raise _unfit_connection_test("connection", _shown(sent, "connection"), "a connection document")
    if sample is None:
        return document, None
    if not isinstance(sample, dict) or (unknown := sample.keys() - _SAMPLE.keys()):
        found = show(min(unknown)) if isinstance(sample, dict) else show(sample)
        raise _unfit_connection_test("sample", found, f"an object with {', '.join(_SAMPLE)}")
    sample = _DEFAULTS | sample
    for name, (kind, expected) in _SAMPLE.items():
        if not isinstance(value := sample.get(name), kind) or isinstance(value, bool):
            raise _unfit_connection_test(f"sample.{name}", _shown(sample, name), expected)
    headers, index = sample["headers"], sample["source"]
    for name, value in headers.items():
        if not isinstance(value, str):
            raise _unfit_connection_test(json_path("sample", "headers", name), show(value), "a string")
    if not 0 <= index < 1_000:
        raise _unfit_connection_test("sample.source", show(index), "the index of a source")
    return document, SampleMessage(_payload(sample), headers, index, sample["address"])


_SAMPLE: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "payload": (str, "a text"),
    "encoding": (str, "one of: text, base64"),
    "headers": (dict, "an object of strings"),
    "source": (int, "the index of a source"),
    "address": ((str, type(None)), "an address"),
}
_DEFAULTS: dict[str, Any] = {"encoding": "text", "headers": {}, "source": 0, "address": None}


def _shown(members: Mapping[str, Any], name: str) -> str:
    return show(members[name]) if name in members else "nothing"


def _payload(sample: Mapping[str, Any]) -> bytes:
    text, encoding = sample["payload"], sample["encoding"]
    if encoding not in ("text", "base64"):
        raise _unfit_connection_test("sample.encoding", show(encoding), "one of: text, base64")
    if encoding == "text":
        return str(text).encode()
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _unfit_connection_test(
            "sample.payload", "a string that is not Base64", "Base64, or the encoding text"
        ) from None


def _unfit_connection_test(path: str, found: str, expected: str) -> Exception:
    problem = Problem(path, found, expected)
    return refusal("api:body.invalid", "The connection test request is invalid.", str(problem), [problem])

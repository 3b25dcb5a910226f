"""Responses of the API: JSON, errors of one form, HEAD for every GET.

`ResponseMiddleware` surrounds the application. It logs unexpected errors with their traceback and without the query, and
answers with 500 without details. Requests that take too long for the stop of the service get 503.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from connectivity.api.errors import error_body, fault
from connectivity.api.preconditions import PreconditionFailed
from connectivity.config.problems import expected_of, nearest_choice, show
from connectivity.errors import OperationRefused, Problem
from mappings.errors import INTERNAL_ERROR, Fault
from mappings.texts import shorten

log = structlog.get_logger(__name__)

JSON = "application/json"

_STOPPING = fault("api:service.stopping", "The service stopped before the response.")

_CODE_BY_LOCATION = {
    "path": "connectivity:connection.id.invalid",
    "header": "header.invalid",
    "query": "api:parameter.invalid",
}
"""The place of an invalid value → the error code."""


class JsonResponse(Response):
    """A response with this value as JSON."""

    media_type = JSON

    def render(self, content: Any) -> bytes:
        try:
            return msgspec.json.encode(content)
        except (OverflowError, UnicodeEncodeError):
            # A number of more than 64 bits, or half a surrogate pair in a client's text.
            return json.dumps(content, default=msgspec.to_builtins).encode()


def error_response(
    found: Fault,
    problems: Sequence[Problem] = (),
    headers: Mapping[str, str] | None = None,
    report: Mapping[str, Any] | None = None,
) -> Response:
    """Return the response for a fault. 304 has no body."""
    if found.status == 304:
        return Response(status_code=304, headers=dict(headers or {}))
    return JsonResponse(error_body(found, problems, report), found.status, dict(headers or {}))


def install(app: FastAPI) -> None:
    """Make the application answer every error in our form."""

    @app.exception_handler(OperationRefused)
    async def _refusal_response(_request: Request, error: OperationRefused) -> Response:
        headers = {"etag": error.tag} if isinstance(error, PreconditionFailed) else None
        return error_response(error.fault, error.problems, headers, error.report)

    @app.exception_handler(RequestValidationError)
    async def _unfit(_request: Request, error: RequestValidationError) -> Response:
        return _invalid_parameter_response(error.errors())

    @app.exception_handler(HTTPException)
    async def _not_found_response(request: Request, error: HTTPException) -> Response:
        if error.status_code == 405:
            allowed = allowed_methods(app, request.scope)
            message = f"'{request.method}' is not a method of this path."
            return error_response(
                fault("api:method.notallowed", message, f"Use one of: {allowed}."), headers={"allow": allowed}
            )
        message = f"The path '{shorten(request.url.path)}' does not exist."
        return error_response(fault("api:path.notfound", message, "/openapi.json lists all paths."))


def _invalid_parameter_response(errors: Sequence[Any]) -> Response:
    """Return the response to invalid parameters, headers or paths."""
    problems = []
    for error in errors:
        expected = expected_of(error["type"], error.get("ctx", {}), error["msg"])
        found = error.get("input")
        problems.append(Problem(_parameter_of(error), show(found), expected, nearest_choice(found, expected)))
    place, name = errors[0]["loc"][0], _parameter_of(errors[0])
    code = "api:parameter.invalid" if name == "prefix" else _CODE_BY_LOCATION[place]
    return error_response(fault(code, f"'{name}' is invalid.", str(problems[0])), problems)


def _parameter_of(error: Any) -> str:
    """Return the name of the invalid parameter; an index after it is the position of a repeated parameter."""
    return str(next(part for part in reversed(error["loc"]) if isinstance(part, str)))


def allowed_methods(app: FastAPI, scope: Scope) -> str:
    """The methods that the path of this request has, as `allow` names them."""
    found = [
        method
        for method in ("DELETE", "GET", "PATCH", "POST", "PUT")
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in app.routes)
    ]
    return ", ".join(sorted([*found, "HEAD"] if "GET" in found else found))


class ResponseMiddleware:
    """Middleware: answers HEAD like GET, errors with 500, cancelled requests with 503; forbids caching."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_head, has_begun = scope["method"] == "HEAD", False

        async def sending(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            if message["type"] == "http.response.start":
                # The state of connections must not be cached.
                message = {**message, "headers": [*message["headers"], (b"cache-control", b"no-store")]}
            if is_head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        try:
            await self._app({**scope, "method": "GET"} if is_head else scope, receive, sending)
        except (Exception, asyncio.CancelledError) as error:
            found = _STOPPING
            if isinstance(error, Exception):
                log.exception("API request failed", method=scope["method"], path=scope["path"])
                found = INTERNAL_ERROR
            if not has_begun:
                await error_response(found)(scope, receive, sending)

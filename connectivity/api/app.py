"""The ASGI application: health and metrics. It reads the service and changes nothing.

Live means that the event loop turns. Ready means that the store can write and that every connection which should be open
has ended its first attempt, one way or the other; a connection that failed with a known status does not make the service
unready, since restarting the service would not mend it.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from connectivity.monitor import CONTENT_TYPE, Monitor

Readiness = Callable[[], tuple[bool, Mapping[str, Any]]]
"""Whether the service is ready, and what the answer shows."""


def application(monitor: Monitor, readiness: Readiness, token: str | None) -> Starlette:
    """The application. With a `token`, metrics and the details of health want it as a bearer token; probes need none."""

    async def live(_request: Request) -> Response:
        return JSONResponse({"status": "live"})

    async def ready(request: Request) -> Response:
        is_ready, shown = readiness()
        if token is not None and not _is_allowed(request, token):
            shown = {"status": shown["status"]}
        return JSONResponse(shown, status_code=200 if is_ready else 503)

    async def metrics(request: Request) -> Response:
        if token is not None and not _is_allowed(request, token):
            return JSONResponse(
                {"status": 401, "error": "api:unauthorized", "message": "A bearer token is needed."},
                status_code=401,
                headers={"www-authenticate": "Bearer"},
            )
        return Response(monitor.exposition(), media_type=CONTENT_TYPE)

    return Starlette(routes=[Route("/health/live", live), Route("/health/ready", ready), Route("/metrics", metrics)])


def _is_allowed(request: Request, token: str) -> bool:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    # Header bytes come as Latin-1, whatever they were meant to be.
    is_same = hmac.compare_digest(given.strip().encode("latin-1"), token.encode())
    return is_same and scheme.lower() == "bearer"

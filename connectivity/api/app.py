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
    """The application. With a `token`, metrics want it as a bearer token; health is open to probes."""

    async def live(_request: Request) -> Response:
        return JSONResponse({"status": "live"})

    async def ready(_request: Request) -> Response:
        is_ready, shown = readiness()
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
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    return hmac.compare_digest(given.encode(), token.encode())

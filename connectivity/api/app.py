"""The HTTP API: its middleware and its routers.

    health.py        /health/live, /health/ready, /metrics
    connections.py   /api/2/connections…
    search.py        /api/2/search/things…
    permissions.py   /api/2/checkPermissions
    operations.py    /api/2/connectivity/subscriptions, /api/2/audit, /api/2/erasures
    openapi.py       /openapi.json

Handlers return finished bytes: results of `ConnectionManager` are encoded once, and not validated again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import get_origin

from fastapi import Depends, FastAPI, Request, Response

from connectivity.api import connections, health, operations, search
from connectivity.api import permissions as checks
from connectivity.api.authentication import Authenticator
from connectivity.api.errors import refusal
from connectivity.api.health import Readiness
from connectivity.api.openapi import openapi_document
from connectivity.api.requests import BodyLimits
from connectivity.api.responses import JsonResponse, ResponseMiddleware, install
from connectivity.config.api_settings import ApiSettings
from connectivity.config.problems import did_you_mean
from connectivity.maintenance.erasure import Eraser
from connectivity.management.manager import ConnectionManager
from connectivity.management.permission_requests import PermissionRequests
from connectivity.monitoring.prometheus import PrometheusRegistry
from connectivity.subscriptions.search_requests import SearchRequests

OPENAPI_PATH = "/openapi.json"


def application(
    monitor: PrometheusRegistry,
    readiness: Readiness,
    settings: ApiSettings | None = None,
    erasures: Eraser | None = None,
    management: ConnectionManager | None = None,
    searches: SearchRequests | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    *,
    permissions: PermissionRequests | None = None,
    looked: asyncio.Event | None = None,
) -> FastAPI:
    """Return the application with its services. `sleep` is how long wrong tokens wait.

    Requests about connections wait for `looked`: until then, the service does not know all of them.
    """
    settings = settings or ApiSettings()
    bounds = BodyLimits(settings.max_body, settings.read_timeout.total_seconds())
    app = FastAPI(
        title="Connectivity",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        dependencies=[Depends(_known_parameters)],
        telemetry={"auto_configure": False, "logs": False},
    )
    install(app)
    app.include_router(health.router(monitor, readiness))
    if management is not None:
        waiting = [Depends(looked.wait)] if looked is not None else []
        app.include_router(connections.router(management, bounds), dependencies=waiting)
        app.include_router(operations.router(management))
    if searches is not None:
        app.include_router(search.router(searches))
    if permissions is not None:
        app.include_router(checks.router(permissions, bounds))
    if erasures is not None:
        app.include_router(operations.erasure_router(erasures, bounds))
    _add_openapi_route(app, settings.needs_token)
    app.add_middleware(Authenticator, settings=settings, sleep=sleep)
    app.add_middleware(ResponseMiddleware)
    return app


def _add_openapi_route(app: FastAPI, needs_token: bool) -> None:
    """Put the description of everything else under its path."""
    made: list[Response] = []

    @app.get(OPENAPI_PATH, include_in_schema=False)
    async def description() -> Response:
        if not made:
            # Once, and beside the loop: it takes some tenths of a second.
            made.append(JsonResponse(await asyncio.to_thread(openapi_document, app, needs_token)))
        return made[0]


async def _known_parameters(request: Request) -> None:
    """Refuse unknown parameters: `?dryrun=true` must not create a connection instead of a test.

    So are repeated ones, unless they are lists. Dependencies are coroutines: FastAPI calls functions in a thread, which
    takes two turns of a busy event loop for each request.
    """
    route = request.scope["route"]
    known = [parameter.alias for parameter in route.dependant.query_params]
    lists = {it.alias for it in route.dependant.query_params if get_origin(it.field_info.annotation) is list}
    seen = set()
    for name, _ in request.query_params.multi_items():
        if name in seen and name not in lists:
            raise refusal(
                "api:parameter.invalid", f"The query has the parameter '{name[:40]}' twice.", "expected it once"
            )
        seen.add(name)
        if name not in known:
            expected = f"one of: {', '.join(known)}" if known else "no parameters"
            hint = did_you_mean(name, known)
            raise refusal(
                "api:parameter.invalid",
                f"The query has an unknown parameter '{name[:40]}'.",
                f"expected {expected}" + (f" ({hint})" if hint else ""),
            )

"""The ASGI application: health and metrics, which read the service and change nothing, and erasures.

Live means that the event loop turns. Ready means that the store can write and that every connection which should be open
has ended its first attempt, one way or the other; a connection that failed with a known status does not make the service
unready, since restarting the service would not mend it.

Without a token it is the loopback interface that keeps others out, and a browser on this machine reaches that too: a page
whose name is made to resolve to it sends its own name as `Host`, any page sends its `Origin`. Neither gets at erasures.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from connectivity.erasing import NotErased, UnknownEntity, entity_of
from connectivity.management import Management
from connectivity.monitor import CONTENT_TYPE, Monitor
from connectivity.settings import is_loopback
from mappings.ids import EntityId

_LONGEST_TEXT = 512
_READING = {"GET", "HEAD"}
_PORT = re.compile(r":\d*\Z")

Readiness = Callable[[], tuple[bool, Mapping[str, Any]]]
"""Whether the service is ready, and what the answer shows."""


class Erasures(Protocol):
    """Whoever erases entities."""

    async def erase(self, entity: EntityId, by: str) -> Mapping[str, Any]:
        """Begin to erase; the durable record. Raises UnknownEntity, NotErased."""

    async def all(self) -> Sequence[Mapping[str, Any]]:
        """Every record. Raises NotErased."""


def application(
    monitor: Monitor,
    readiness: Readiness,
    token: str | None,
    erasures: Erasures | None = None,
    host: str = "localhost",
    *,
    management: Management | None = None,
) -> Starlette:
    """The application. With a `token`, all but probes want it as a bearer token, the details of health too.

    `host` is where it listens, as the settings name it; `management` carries out what is asked about connections.
    """

    async def live(_request: Request) -> Response:
        return JSONResponse({"status": "live"})

    async def ready(request: Request) -> Response:
        is_ready, shown = readiness()
        if token is not None and not _is_allowed(request, token):
            shown = {"status": shown["status"]}
        return JSONResponse(shown, status_code=200 if is_ready else 503)

    async def metrics(request: Request) -> Response:
        if token is not None and not _is_allowed(request, token):
            return _unauthorized()
        return Response(await monitor.scrape(), media_type=CONTENT_TYPE)

    async def erasing(request: Request) -> Response:
        if token is not None and not _is_allowed(request, token):
            return _unauthorized()
        if (refusal := _foreign(request, host, token)) is not None:
            return refusal
        assert erasures is not None
        try:
            if request.method == "GET":
                return JSONResponse(list(await erasures.all()))
            return await _erase(request, erasures)
        except UnknownEntity as error:
            return _refusal(404, "api:entity.notfound", str(error))
        except NotErased as error:
            return _refusal(503, "api:store.unavailable", str(error))

    routes = [Route("/health/live", live), Route("/health/ready", ready), Route("/metrics", metrics)]
    if erasures is not None:
        routes.append(Route("/api/2/erasures", erasing, methods=["GET", "POST"]))
    application = Starlette(routes=routes)
    application.state.management = management
    return application


async def _erase(request: Request, erasures: Erasures) -> Response:
    """`{"entity": …, "type": …, "by": …}` → 202 and the record."""
    # A page in a browser on this machine can send plain text without being asked, JSON it cannot.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return _refusal(415, "api:contenttype.unsupported", "expected content-type application/json")
    try:
        asked = await request.json()
        entity, kind, by = asked["entity"], asked.get("type", "thing"), asked.get("by", "api")
        is_text = all(isinstance(it, str) and len(it) <= _LONGEST_TEXT for it in (entity, kind, by))
    except (ValueError, KeyError, TypeError, AttributeError):
        is_text = False
    if not is_text:
        return _refusal(
            400, "api:body.invalid", 'expected a JSON object of texts: "entity", and perhaps "type" and "by"'
        )
    return JSONResponse(await erasures.erase(entity_of(entity, kind), by), status_code=202)


def _foreign(request: Request, host: str, token: str | None) -> Response | None:
    """The refusal of what a page in a browser may have sent; None if it did not."""
    named = request.headers.get("host", "")
    name = _PORT.sub("", named)
    if token is None and not (is_loopback(name) or name.strip("[]").lower() == host.strip("[]").lower()):
        return _refusal(403, "api:host.foreign", f"expected localhost or {host} as Host, found {named!r}")
    origin = request.headers.get("origin")
    if request.method not in _READING and origin is not None and origin.partition("://")[2] != named:
        return _refusal(403, "api:origin.foreign", f"expected no Origin but {named}, found {origin!r}")
    return None


def _refusal(status: int, error: str, message: str) -> Response:
    return JSONResponse({"status": status, "error": error, "message": message}, status_code=status)


def _unauthorized() -> Response:
    refused = _refusal(401, "api:unauthorized", "A bearer token is needed.")
    refused.headers["www-authenticate"] = "Bearer"
    return refused


def _is_allowed(request: Request, token: str) -> bool:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    # Header bytes come as Latin-1, whatever they were meant to be.
    is_same = hmac.compare_digest(given.strip().encode("latin-1"), token.encode())
    return is_same and scheme.lower() == "bearer"

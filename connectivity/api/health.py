"""Liveness, readiness, and metrics, for probes and Prometheus.

Live: the event loop runs. Ready: the store can write, and every connection that should be open has ended its first attempt.
A failed connection does not make the service unready, since a restart would not fix it. Callers without token get the status
only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import choose_encoder

from connectivity.api.openapi import HEALTH, answers, body, text
from connectivity.api.responses import JsonResponse
from connectivity.api.schemas import READY_EXAMPLE
from connectivity.monitoring.prometheus import Encode, PrometheusRegistry

Readiness = Callable[[], tuple[bool, Mapping[str, Any]]]
"""Returns whether the service is ready, and the details."""


def _format(accept: str) -> tuple[Encode, str]:
    """Return the metrics encoder that the request accepts, and its media type."""
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):
        # The library stumbles over a version that is no number.
        return choose_encoder("")


def router(monitor: PrometheusRegistry, readiness: Readiness) -> APIRouter:
    """Health and metrics."""
    api = APIRouter(tags=["health"])

    @api.get(
        "/health/live",
        summary="Check whether the process responds",
        operation_id="live",
        responses=answers({200: body("The process responds.", HEALTH, {"status": "live"})}, is_probe=True),
    )
    async def live() -> Response:
        return JsonResponse({"status": "live"})

    @api.get(
        "/health/ready",
        summary="Check whether the store is writable, and every connection has ended its first attempt to connect",
        description="If the service requires a token and the request has no valid token, the response has only `status`.",
        operation_id="ready",
        responses=answers(
            {
                200: body("The service is ready.", HEALTH, READY_EXAMPLE),
                503: body("The service is not ready yet.", HEALTH, {"status": "not ready"}),
            },
            is_probe=True,
        ),
    )
    async def ready(request: Request) -> Response:
        is_ready, shown = readiness()
        if request.state.caller is None:
            shown = {"status": shown["status"]}
        return JsonResponse(shown, 200 if is_ready else 503)

    @api.get(
        "/metrics",
        summary="Retrieve the metrics, for Prometheus",
        description="The metrics come in the text format of Prometheus, or as OpenMetrics if `accept` requests it.",
        operation_id="metrics",
        response_class=Response,
        responses=answers({200: text("Every metric.", "text/plain", "application/openmetrics-text")}),
    )
    async def metrics(request: Request) -> Response:
        encode, content_type = _format(request.headers.get("accept", ""))
        return Response(await monitor.scrape(encode), headers={"content-type": content_type})

    return api

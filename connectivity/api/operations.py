"""Operator requests besides connections: subscriptions, audit log, erasures.

A subscription is named by the first characters of its ID, since the whole ID gives access to it. Erasures and the audit log
require the role admin.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from connectivity.api.authentication import admins_only, caller_of
from connectivity.api.errors import refusal
from connectivity.api.openapi import TOTAL, answers, body, nothing, request_body
from connectivity.api.permits import permit_of
from connectivity.api.requests import BodyLimits, expect_media_type, json_object
from connectivity.api.responses import JSON, JsonResponse
from connectivity.api.schemas import AUDIT_EXAMPLE, ERASURE_EXAMPLE, SUBSCRIPTION_EXAMPLE
from connectivity.config.text_form import TextForm
from connectivity.maintenance.erasure import Eraser, ErasureUnavailable, InvalidEntity, UnknownEntity, entity_of
from connectivity.management.manager import ConnectionManager

_LONGEST_TEXT = 512
_MOST_LINES = 10_000


def router(management: ConnectionManager) -> APIRouter:
    """Subscriptions and the audit log."""
    api = APIRouter(prefix="/api/2")

    @api.get(
        "/connectivity/subscriptions",
        tags=["subscriptions"],
        summary="List the open subscriptions",
        operation_id="listSubscriptions",
        responses=answers({200: body("Up to `limit` subscriptions.", "Subscriptions", [SUBSCRIPTION_EXAMPLE], TOTAL)}),
    )
    async def subscriptions(
        limit: Annotated[int, Query(ge=1, le=_MOST_LINES, description="Maximum number of entries.")] = 1_000,
    ) -> Response:
        total = {TOTAL: str(management.subscription_count())}
        return JsonResponse(management.subscriptions(limit), headers=total)

    @api.delete(
        "/connectivity/subscriptions/{prefix}",
        tags=["subscriptions"],
        summary="End a subscription",
        description="The client of the subscription receives `failed`.",
        operation_id="cancelSubscription",
        status_code=204,
        responses=answers(
            {204: nothing("The subscription has ended.")},
            "connectivity:subscription.notfound",
            "connectivity:subscription.conflict",
            "api:subject.forbidden",
            is_change=True,
        ),
    )
    async def cancel(
        request: Request,
        prefix: Annotated[
            str,
            Path(description="The first characters of its id."),
            TextForm(r"^[A-Za-z0-9_\-]{1,200}$", "1 to 200 letters, digits and the characters - _"),
        ],
    ) -> Response:
        await management.cancel_subscription(prefix, caller_of(request).name, permit_of(request))
        return Response(status_code=204)

    @api.get(
        "/audit",
        tags=["audit"],
        summary="List the changes of connections, the newest first",
        operation_id="audit",
        dependencies=[Depends(admins_only)],
        responses=answers(
            {200: body("The latest entries.", "Audit", [AUDIT_EXAMPLE])}, "api:store.unavailable", "api:forbidden"
        ),
    )
    async def audit(
        limit: Annotated[int, Query(ge=1, le=_MOST_LINES, description="Maximum number of entries.")] = 100,
    ) -> Response:
        return JsonResponse(await management.audit(limit))

    return api


def erasure_router(erasures: Eraser, bounds: BodyLimits) -> APIRouter:
    """Erasures."""
    api = APIRouter(prefix="/api/2", tags=["erasures"], dependencies=[Depends(admins_only)])

    @api.get(
        "/erasures",
        summary="List all erasures, with requester and completion times",
        operation_id="listErasures",
        responses=answers(
            {200: body("All erasures.", "Erasures", [ERASURE_EXAMPLE])}, "api:store.unavailable", "api:forbidden"
        ),
    )
    async def every() -> Response:
        try:
            return JsonResponse(list(await erasures.all()))
        except ErasureUnavailable as error:
            raise refusal("api:store.unavailable", str(error)) from error

    @api.post(
        "/erasures",
        summary="Erase all data of an entity from journal and lake",
        description="The erasure continues after the response, and after a restart of the service. `by` names the "
        "requester; it applies only if the token has no name.",
        operation_id="erase",
        status_code=202,
        responses=answers(
            {202: body("Erasure started.", "Erasure", ERASURE_EXAMPLE)},
            *("api:entity.notfound", "api:store.unavailable", "api:forbidden", "api:body.invalid"),
            has_json=True,
        ),
        openapi_extra=request_body(
            {JSON: ("ErasureRequest", {"entity": "acme.site:lamp-7", "type": "thing", "by": "anna"})}
        ),
    )
    async def erase(request: Request) -> Response:
        expect_media_type(request, JSON)
        sent = await json_object(request, bounds)
        has_members = {"entity"} <= sent.keys() <= {"entity", "type", "by"}
        if not has_members or not all(isinstance(it, str) and len(it) <= _LONGEST_TEXT for it in sent.values()):
            raise refusal(
                "api:body.invalid",
                'expected a JSON object with "entity", and optionally "type" and "by", which are strings',
            )
        caller = caller_of(request)
        by = caller.name if caller.is_named else sent.get("by", caller.name)
        try:
            record = await erasures.erase(entity_of(sent["entity"], sent.get("type", "thing")), by)
        except InvalidEntity as error:
            raise refusal("api:body.invalid", str(error)) from error
        except UnknownEntity as error:
            raise refusal("api:entity.notfound", str(error)) from error
        except ErasureUnavailable as error:
            raise refusal("api:store.unavailable", str(error)) from error
        return JsonResponse(record, 202)

    return api

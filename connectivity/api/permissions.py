"""Checks of permissions over HTTP (Ditto, checking permissions)."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request, Response

from connectivity.api.authentication import caller_of
from connectivity.api.errors import refusal
from connectivity.api.openapi import answers, body, request_body
from connectivity.api.requests import BodyLimits, expect_media_type, json_object
from connectivity.api.responses import JSON
from connectivity.api.schemas import PERMISSION_CHECKS_EXAMPLE, PERMISSION_RESULTS_EXAMPLE
from connectivity.api.search import Subjects, searching_subjects
from connectivity.management.permission_requests import PermissionRequest, PermissionRequests

PATH = "/api/2/checkPermissions"


def router(permissions: PermissionRequests, bounds: BodyLimits) -> APIRouter:
    """The one operation."""
    api = APIRouter(tags=["permissions"])

    @api.post(
        PATH,
        summary="Check permissions",
        description="Checks whether the caller has permissions on resources of things and policies. The response has "
        "one result for the name of each check; it is false for an unknown entity.",
        operation_id="checkPermissions",
        responses=answers(
            {200: body("The result of each check.", "PermissionResults", PERMISSION_RESULTS_EXAMPLE)},
            *("json.field.missing", "things:id.invalid", "policies:id.invalid", "api:body.invalid"),
            *("api:subjects.missing", "api:store.unavailable"),
            has_json=True,
        ),
        openapi_extra=request_body({JSON: ("PermissionChecks", PERMISSION_CHECKS_EXAMPLE)}),
    )
    async def check(request: Request, subjects: Subjects) -> Response:
        expect_media_type(request, JSON)
        checks = await json_object(request, bounds)
        if not all(isinstance(each, dict) for each in checks.values()):
            raise refusal("api:body.invalid", "The body has a permission check that is not a JSON object.")
        asked = PermissionRequest(
            searching_subjects(request, subjects),
            msgspec.json.encode(checks),
            caller_of(request).name if subjects else None,
        )
        return Response(await permissions.check(asked), media_type=JSON)

    return api

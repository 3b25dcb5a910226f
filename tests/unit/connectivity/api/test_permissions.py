"""Permission checks over HTTP: the requests passed on, their subjects, and refusals."""

from __future__ import annotations

from functools import cache
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from connectivity.errors import OperationRefused
from connectivity.management.permission_requests import PermissionRequest
from mappings.errors import Fault
from tests.support.api.fake_management import FakeManagement, ask, shared_app

PATH = "/api/2/checkPermissions"
CHECKS = {"canRead": {"resource": "thing:/", "entityId": "acme:lamp", "hasPermissions": ["READ"]}}
TEXT = b'{"canRead":{"resource":"thing:/","entityId":"acme:lamp","hasPermissions":["READ"]}}'
TOKENS: list[dict[str, Any]] = [
    {"name": "bert", "token": "token-of-bert-who-reads", "role": "read", "subjects": ["acme:bert", "acme:staff"]},
    {"name": "nina", "token": "token-of-nina-who-reads", "role": "read"},
    {"name": "root", "token": "token-of-root-the-admin", "role": "admin"},
]


@cache
def guarded() -> FastAPI:
    return shared_app(tokens=TOKENS)


async def check(who: str, management: FakeManagement, query: str = "", **more: Any) -> httpx.Response:
    token = next(it["token"] for it in TOKENS if it["name"] == who)
    headers = {"authorization": f"Bearer {token}"}
    return await ask(management, "POST", PATH + query, guarded(), headers=headers, **(more or {"json": CHECKS}))


async def test_the_subjects_of_the_token_are_asked_about() -> None:
    management = FakeManagement()
    answer = await check("bert", management)
    assert (answer.status_code, answer.json(), answer.headers["content-type"]) == (
        200,
        {"canRead": False},
        "application/json",
    )
    assert management.requests == [("check", PermissionRequest(("acme:bert", "acme:staff"), TEXT))]


async def test_an_admin_checks_permissions_of_other_subjects() -> None:
    management = FakeManagement()
    assert (await check("root", management, "?as=acme:anna&as=acme:bert")).status_code == 200
    assert management.requests == [("check", PermissionRequest(("acme:anna", "acme:bert"), TEXT, "root"))]
    assert (await check("bert", management, "?as=acme:anna")).json()["error"] == "api:forbidden"


async def test_a_token_without_subjects_cannot_check_its_own_permissions() -> None:
    answer = await check("nina", FakeManagement())
    assert (answer.status_code, answer.json()["error"]) == (403, "api:subjects.missing")
    assert "search" not in answer.text


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"{", "json.invalid"), (b"[]", "api:body.invalid"), (b"5", "api:body.invalid"), (b'{"a":5}', "api:body.invalid")],
)
async def test_a_body_that_is_no_object_is_refused(content: bytes, code: str) -> None:
    management = FakeManagement()
    token = {"authorization": f"Bearer {TOKENS[0]['token']}", "content-type": "application/json"}
    answer = await ask(management, "POST", PATH, guarded(), headers=token, content=content)
    assert (answer.status_code, answer.json()["error"], management.requests) == (400, code, [])


async def test_an_invalid_check_is_refused_with_the_code_of_the_protocol() -> None:
    refused = OperationRefused(Fault(400, "things:id.invalid", "'lamp' is not a valid thing id."))
    answer = await check("bert", FakeManagement(refuses={"check": refused}))
    assert (answer.status_code, answer.json()["error"]) == (400, "things:id.invalid")

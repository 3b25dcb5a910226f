"""The application as a whole: paths, methods, parameters."""

from __future__ import annotations

from urllib.parse import unquote

import anyio.to_thread
import pytest

from connectivity.api.app import application
from connectivity.monitoring.prometheus import PrometheusRegistry
from tests.support.api.fake_management import DOCUMENT, ask, client_of, management_with_connection
from tests.support.table import each_row


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/",
            "/nowhere",
            "/api",
            "/api/2",
            "/api/2/connections/",
            "/api/1/connections",
            "/docs",
            "/redoc",
            "/metrics/",
        ),
        *("/api/2/connections/site/nothing", "/api/2/connections/a/b/status", "/api/2/connections//status", "/%00"),
    ],
)
async def test_a_path_that_is_invalid_is_not_found(path: str) -> None:
    answer = await ask(management_with_connection(), "GET", path)
    assert (answer.status_code, answer.json()["error"]) == (404, "api:path.notfound")
    assert answer.json()["message"] == f"The path '{unquote(path)}' does not exist."
    assert answer.json()["description"] == "/openapi.json lists all paths."


@each_row(
    ("path", "allowed"),
    [
        ("/api/2/connections", "GET, HEAD, POST"),
        ("/api/2/connections/site", "DELETE, GET, HEAD, PUT"),
        ("/api/2/connections/site/command", "POST"),
        ("/api/2/connections/site/status", "GET, HEAD"),
        ("/api/2/erasures", "GET, HEAD, POST"),
        ("/health/live", "GET, HEAD"),
    ],
)
@each_row("method", ["PATCH", "OPTIONS", "TRACE", "PROPFIND", "get"])
async def test_an_unsupported_method_is_refused_with_the_supported_ones(path: str, allowed: str, method: str) -> None:
    answer = await ask(management_with_connection(), method, path)
    if method == "get":
        # The client library makes the method upper case.
        assert answer.status_code in (200, 405)
        return
    assert (answer.status_code, answer.json()["error"]) == (405, "api:method.notallowed")
    assert answer.headers["allow"] == allowed


@pytest.mark.parametrize(
    "path", ["/health/live", "/metrics", "/api/2/connections", "/api/2/connections/site", "/openapi.json"]
)
async def test_head_is_get_without_the_body(path: str) -> None:
    management = management_with_connection()
    got, head = await ask(management, "GET", path), await ask(management, "HEAD", path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == got.headers["content-type"]
    assert head.headers.get("etag") == got.headers.get("etag")
    assert (await ask(management, "HEAD", "/api/2/connections/site/command")).status_code == 405


@pytest.mark.parametrize(
    "path", ["/health/live?a=b", "/api/2/connections/site?field=id", "/api/2/connections/site/status?x"]
)
async def test_an_unknown_parameter_is_refused(path: str) -> None:
    answer = await ask(management_with_connection(), "GET", path)
    assert (answer.status_code, answer.json()["error"]) == (400, "api:parameter.invalid")


async def test_a_repeated_parameter_is_refused_regardless_of_its_values() -> None:
    management = management_with_connection()
    new = {**DOCUMENT, "id": "new"}
    answer = await ask(management, "POST", "/api/2/connections?dry-run=true&dry-run=false", json=new)
    assert (answer.status_code, answer.json()["error"], management.requests) == (400, "api:parameter.invalid", [])


@pytest.mark.parametrize("path", ["/api/2/connections/site", "/api/2/connections/nobody", "/metrics", "/health/live"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_no_answer_is_for_caches(method: str, path: str) -> None:
    answer = await ask(management_with_connection(), method, path)
    assert answer.headers.get_list("cache-control") == ["no-store"]


async def test_a_route_without_a_handler_is_not_found() -> None:
    async with client_of(application(PrometheusRegistry(), lambda: (True, {"status": "ready"}))) as client:
        client.event_hooks = {}  # The OpenAPI document has all routes.
        assert (await client.get("/health/ready")).status_code == 200
        assert (await client.get("/api/2/connections")).status_code == 404
        assert (await client.get("/api/2/erasures")).status_code == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/health/live"),
        ("GET", "/api/2/connections"),
        ("GET", "/api/2/connections/site/status"),
        ("PUT", "/api/2/connections/site"),
        ("GET", "/api/2/audit"),
        ("GET", "/api/2/connectivity/subscriptions"),
        ("GET", "/api/2/erasures"),
    ],
)
async def test_no_request_waits_for_a_thread_to_have_its_turn(
    method: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(call: object, *_: object, **__: object) -> None:
        raise AssertionError(f"{call} goes to a thread")

    monkeypatch.setattr(anyio.to_thread, "run_sync", refuse)
    answer = await ask(management_with_connection(), method, path, json=dict(DOCUMENT) if method == "PUT" else None)
    assert answer.status_code < 300

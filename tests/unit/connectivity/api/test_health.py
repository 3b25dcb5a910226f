"""Health and metrics over HTTP."""

from __future__ import annotations

import httpx
import pytest

from tests.support.api.fake_management import app_of, client_of


async def get(path: str, *, is_ready: bool = True, token: str | None = None, **headers: str) -> httpx.Response:
    async with client_of(app_of(readiness=lambda: (is_ready, {"status": "shown"}), token=token)) as client:
        return await client.get(path, headers=headers)


async def test_the_live_endpoint_returns_200() -> None:
    assert (await get("/health/live")).status_code == 200


@pytest.mark.parametrize(("is_ready", "status"), [(True, 200), (False, 503)])
async def test_design_8_09_ready_is_a_status_and_shows_why(is_ready: bool, status: int) -> None:
    answer = await get("/health/ready", is_ready=is_ready)
    assert (answer.status_code, answer.json()) == (status, {"status": "shown"})


async def test_metrics_are_in_the_text_format_of_prometheus() -> None:
    answer = await get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "# TYPE connectivity_journal_commit_seconds histogram" in answer.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "secret"}, 401),
        ({"authorization": "Bearer sécret"}, 401),
        ({"authorization": "Bearer secret"}, 200),
    ],
)
async def test_with_a_token_metrics_want_it_as_a_bearer_token(headers: dict[str, str], status: int) -> None:
    raw = {name: value.encode("utf-8") for name, value in headers.items()}
    answer = await get("/metrics", token="secret", **raw)  # type: ignore[arg-type]
    assert answer.status_code == status
    assert ("www-authenticate" in answer.headers) == (status == 401)


async def test_probes_need_no_token() -> None:
    assert (await get("/health/live", token="secret")).status_code == 200
    assert (await get("/health/ready", token="secret")).status_code == 200


async def test_without_the_token_a_probe_learns_the_status_and_nothing_else() -> None:
    app = app_of(readiness=lambda: (True, {"status": "ready", "connections": {"site": {}}}), token="secret")
    async with client_of(app) as client:
        assert (await client.get("/health/ready")).json() == {"status": "ready"}
        response = await client.get("/health/ready", headers={"authorization": "Bearer secret"})
    assert response.json() == {"status": "ready", "connections": {"site": {}}}


async def test_where_only_this_machine_gets_a_foreign_page_learns_the_status_alone() -> None:
    app = app_of(readiness=lambda: (True, {"status": "ready", "connections": {"site": {}}}))
    async with client_of(app) as client:
        assert (await client.get("/health/ready", headers={"host": "evil.example"})).json() == {"status": "ready"}
        assert "connections" in (await client.get("/health/ready")).json()


@pytest.mark.parametrize(
    ("accept", "content_type", "ends"),
    [
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text; version=1.0.0", True),
        ("text/html, application/openmetrics-text;q=0.5", "application/openmetrics-text; version=1.0.0", True),
        ("*/*", "text/plain; version=0.0.4", False),
        ("no/such;;type,,", "text/plain; version=0.0.4", False),
    ],
)
async def test_metrics_are_openmetrics_where_that_is_asked_for(accept: str, content_type: str, ends: bool) -> None:
    answer = await get("/metrics", accept=accept)
    assert answer.headers["content-type"].startswith(content_type)
    assert answer.text.endswith("# EOF\n") == ends


@pytest.mark.parametrize(
    "accept", ["application/openmetrics-text; version=x", "text/plain; version=", "text/plain;version=9.9"]
)
async def test_an_invalid_accept_header_is_not_an_internal_error(accept: str) -> None:
    assert (await get("/metrics", accept=accept)).status_code == 200

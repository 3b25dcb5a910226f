"""Health and metrics over HTTP."""

from __future__ import annotations

import httpx
import pytest

from connectivity.api.app import application
from connectivity.monitor import Monitor


async def get(path: str, *, is_ready: bool = True, token: str | None = None, **headers: str) -> httpx.Response:
    app = application(Monitor(), lambda: (is_ready, {"status": "shown"}), token)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://service") as client:
        return await client.get(path, headers=headers)


async def test_live_says_so() -> None:
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
    app = application(Monitor(), lambda: (True, {"status": "ready", "connections": {"site": {}}}), "secret")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://service") as client:
        assert (await client.get("/health/ready")).json() == {"status": "ready"}
        told = await client.get("/health/ready", headers={"authorization": "Bearer secret"})
    assert told.json() == {"status": "ready", "connections": {"site": {}}}


async def test_any_other_path_is_not_found() -> None:
    assert (await get("/nowhere")).status_code == 404


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        ("bearer secret", 200),
        ("BEARER  secret ", 200),
        ("", 401),
        ("Bearer", 401),
        ("Bearer ", 401),
        ("Basic secret", 401),
        ("Bearer secret-2", 401),
        ("Bearer secret secret", 401),
    ],
)
async def test_a_bearer_token_is_told_by_its_scheme_in_any_case(authorization: str, status: int) -> None:
    answer = await get("/metrics", token="secret", authorization=authorization)
    assert answer.status_code == status
    assert ("connectivity_" in answer.text) == (status == 200)


async def test_a_refusal_says_why_in_the_form_of_every_error() -> None:
    answer = await get("/metrics", token="secret")
    assert (answer.json()["status"], answer.json()["error"]) == (401, "api:unauthorized")


async def test_a_token_may_hold_any_character() -> None:
    answer = await get("/metrics", token="schlüssel", authorization="Bearer schlüssel".encode())  # type: ignore[arg-type]
    assert answer.status_code == 200

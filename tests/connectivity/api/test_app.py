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


async def test_any_other_path_is_not_found() -> None:
    assert (await get("/nowhere")).status_code == 404

"""Health and metrics over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from connectivity.api.app import application
from connectivity.erasing import NotErased, UnknownEntity
from connectivity.monitor import Monitor
from mappings.ids import EntityId, EntityType


async def get(path: str, *, is_ready: bool = True, token: str | None = None, **headers: str) -> httpx.Response:
    app = application(Monitor(), lambda: (is_ready, {"status": "shown"}), token)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost:8080") as client:
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
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost:8080") as client:
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


class Erasures:
    """Keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[EntityId, str]] = []

    async def erase(self, entity: EntityId, by: str) -> dict[str, Any]:
        if entity.name == "none":
            raise UnknownEntity("found no such thing")
        if entity.name == "full":
            raise NotErased("the disk is full")
        self.asked.append((entity, by))
        return {"id": 1, "entity": str(entity)}

    async def all(self) -> list[dict[str, Any]]:
        return [{"id": 1}]


async def erase(content: bytes | None, token: str | None = None, **headers: str) -> tuple[httpx.Response, Erasures]:
    """POST `content`, or GET."""
    kept = Erasures()
    app = application(Monitor(), lambda: (True, {}), token, kept)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost:8080") as client:
        given = {"content-type": "application/json", **headers}
        if content is None:
            return await client.get("/api/2/erasures", headers=given), kept
        return await client.post("/api/2/erasures", content=content, headers=given), kept


async def test_an_erasure_is_begun_and_listed() -> None:
    answer, kept = await erase(b'{"entity": "acme:lamp", "by": "anna"}')
    assert (answer.status_code, answer.json()) == (202, {"id": 1, "entity": "acme:lamp"})
    assert kept.asked == [(EntityId(EntityType.THING, "acme", "lamp"), "anna")]
    _, kept = await erase(b'{"entity": "acme:lamp", "type": "policy"}')
    assert kept.asked == [(EntityId(EntityType.POLICY, "acme", "lamp"), "api")]
    assert (await erase(None))[0].json() == [{"id": 1}]


@pytest.mark.parametrize(
    ("content", "status", "error"),
    [
        (b"", 400, "api:body.invalid"),
        (b"[1]", 400, "api:body.invalid"),
        (b"{}", 400, "api:body.invalid"),
        (b'{"entity": 7}', 400, "api:body.invalid"),
        (b'{"entity": "acme:lamp", "by": ["x"]}', 400, "api:body.invalid"),
        (b'{"entity": "lamp"}', 404, "api:entity.notfound"),
        (b'{"entity": "acme:lamp", "type": "lamp"}', 404, "api:entity.notfound"),
        (b'{"entity": "acme:none"}', 404, "api:entity.notfound"),
        (b'{"entity": "acme:full"}', 503, "api:store.unavailable"),
    ],
)
async def test_an_erasure_that_cannot_be_begun_says_why(content: bytes, status: int, error: str) -> None:
    answer, kept = await erase(content)
    assert (answer.status_code, answer.json()["error"]) == (status, error)
    assert kept.asked == []


async def test_a_page_in_a_browser_cannot_erase_anything() -> None:
    answer, kept = await erase(b'{"entity": "acme:lamp"}', **{"content-type": "text/plain"})
    assert (answer.status_code, kept.asked) == (415, [])


@pytest.mark.parametrize("content", [None, b'{"entity": "acme:lamp"}'])
@pytest.mark.parametrize(
    ("host", "is_foreign"),
    [
        ("localhost", False),
        ("LOCALHOST:8080", False),
        ("127.0.0.1:8080", False),
        ("127.1.2.3", False),
        ("[::1]:8080", False),
        ("[::1]", False),
        ("evil.example:8080", True),
        ("127.0.0.1.evil.example", True),
        ("localhost.evil.example:8080", True),
        ("192.0.2.7:8080", True),
        ("", True),
    ],
)
async def test_a_name_that_somebody_made_resolve_to_this_machine_gets_at_nothing(
    content: bytes | None, host: str, is_foreign: bool
) -> None:
    answer, kept = await erase(content, host=host)
    assert (answer.status_code == 403) == is_foreign
    assert not (is_foreign and kept.asked)
    if is_foreign:
        assert answer.json()["error"] == "api:host.foreign"
    allowed, _ = await erase(content, token="secret", authorization="Bearer secret", host=host)
    assert allowed.status_code != 403, "no page has the token"


@pytest.mark.parametrize(
    ("origin", "is_foreign"),
    [
        ("http://localhost:8080", False),
        ("http://localhost:3000", True),
        ("https://evil.example", True),
        ("null", True),
        ("", True),
    ],
)
async def test_a_page_of_another_origin_changes_nothing(origin: str, is_foreign: bool) -> None:
    answer, kept = await erase(b'{"entity": "acme:lamp"}', origin=origin)
    assert answer.status_code == (403 if is_foreign else 202)
    assert is_foreign != bool(kept.asked)
    if is_foreign:
        assert answer.json()["error"] == "api:origin.foreign"
    assert (await erase(None, origin=origin))[0].status_code == 200, "what it may read a browser decides"


@pytest.mark.parametrize("content", [None, b'{"entity": "acme:lamp"}'])
async def test_with_a_token_erasures_want_it(content: bytes | None) -> None:
    answer, kept = await erase(content, token="secret")
    assert (answer.status_code, answer.json()["error"], kept.asked) == (401, "api:unauthorized", [])
    answer, _ = await erase(content, token="secret", authorization="Bearer secret")
    assert answer.status_code in (200, 202)

"""Subscriptions, the audit log and erasures over HTTP."""

from __future__ import annotations

from functools import cache

import httpx
import pytest
from fastapi import FastAPI

from mappings.ids import EntityId, EntityType
from tests.support.api.fake_erasures import Erasures
from tests.support.api.fake_management import FakeManagement, app_of, ask, client_of
from tests.support.table import each_row

SUBSCRIPTIONS = "/api/2/connectivity/subscriptions"


async def test_open_subscriptions_are_listed() -> None:
    answer = await ask(FakeManagement(), "GET", SUBSCRIPTIONS)
    assert (answer.status_code, [it["id"] for it in answer.json()]) == (200, ["abcd"])


@pytest.mark.parametrize(("query", "limit"), [("", 1_000), ("?limit=7", 7), ("?limit=10000", 10_000)])
async def test_as_many_subscriptions_are_listed_as_are_wanted_and_the_number_of_all_is_reported(
    query: str, limit: int
) -> None:
    management = FakeManagement()
    answer = await ask(management, "GET", f"{SUBSCRIPTIONS}{query}")
    assert (answer.headers["x-total-count"], management.requests) == ("5", [("subscriptions", limit)])
    assert (await ask(management, "GET", f"{SUBSCRIPTIONS}?limit=0")).status_code == 400


async def test_a_subscription_is_ended_by_the_first_characters_of_its_id() -> None:
    management = FakeManagement()
    answer = await ask(management, "DELETE", f"{SUBSCRIPTIONS}/ab")
    assert (answer.status_code, management.requests) == (204, [("cancel", "ab", "api")])
    answer = await ask(management, "DELETE", f"{SUBSCRIPTIONS}/x")
    assert (answer.status_code, answer.json()["error"]) == (404, "connectivity:subscription.notfound")


@pytest.mark.parametrize("prefix", ["x" * 201, "%00", "a%20b", "ä"])
async def test_an_invalid_subscription_id_prefix_is_refused_without_a_lookup(prefix: str) -> None:
    management = FakeManagement()
    answer = await ask(management, "DELETE", f"{SUBSCRIPTIONS}/{prefix}")
    assert answer.status_code == 400
    assert answer.json()["problems"][0]["expected"] == "1 to 200 letters, digits and the characters - _"
    assert management.requests == []


@pytest.mark.parametrize(("query", "limit"), [("", 100), ("?limit=7", 7), ("?limit=10000", 10_000)])
async def test_the_audit_log_is_shown_up_to_a_limit(query: str, limit: int) -> None:
    management = FakeManagement()
    answer = await ask(management, "GET", f"/api/2/audit{query}")
    assert (answer.status_code, answer.json()[0]["by"], management.requests) == (200, "anna", [("audit", limit)])


@pytest.mark.parametrize("limit", ["0", "-1", "10001", "9" * 40, "x", ""])
async def test_a_limit_that_is_invalid_is_refused(limit: str) -> None:
    answer = await ask(FakeManagement(), "GET", f"/api/2/audit?limit={limit}")
    assert (answer.status_code, answer.json()["error"]) == (400, "api:parameter.invalid")
    assert answer.json()["problems"][0]["path"] == "limit"


@cache
def erasing(token: str | None) -> tuple[FastAPI, Erasures]:
    """Make an application and its erasures once, as this takes longer than most tests."""
    kept = Erasures()
    return app_of(erasures=kept, token=token), kept


async def erase(content: bytes | None, token: str | None = None, **headers: str) -> tuple[httpx.Response, Erasures]:
    """POST `content`, or GET; return the response, and the erasures with this request."""
    app, kept = erasing(token)
    kept.requests = []
    async with client_of(app) as client:
        given = {"content-type": "application/json", **headers}
        if content is None:
            return await client.get("/api/2/erasures", headers=given), kept
        return await client.post("/api/2/erasures", content=content, headers=given), kept


async def test_an_erasure_is_started_and_listed() -> None:
    answer, kept = await erase(b'{"entity": "acme:lamp", "by": "anna"}')
    assert (answer.status_code, answer.json()) == (202, {"id": 1, "entity": "acme:lamp"})
    assert kept.requests == [(EntityId(EntityType.THING, "acme", "lamp"), "anna")]
    _, kept = await erase(b'{"entity": "acme:lamp", "type": "policy"}')
    assert kept.requests == [(EntityId(EntityType.POLICY, "acme", "lamp"), "api")]
    assert (await erase(None))[0].json() == [{"id": 1}]


@pytest.mark.parametrize(
    ("content", "status", "error"),
    [
        (b"", 400, "json.invalid"),
        (b"[1]", 400, "api:body.invalid"),
        (b"{}", 400, "api:body.invalid"),
        (b'{"entity": 7}', 400, "api:body.invalid"),
        (b'{"entity": "acme:lamp", "by": ["x"]}', 400, "api:body.invalid"),
        (b'{"entity": "lamp"}', 400, "api:body.invalid"),
        (b'{"entity": "acme:lamp", "type": "lamp"}', 400, "api:body.invalid"),
        (b'{"entity": "acme:none"}', 404, "api:entity.notfound"),
        (b'{"entity": "acme:full"}', 503, "api:store.unavailable"),
    ],
)
async def test_an_erasure_that_cannot_be_started_reports_its_reason(content: bytes, status: int, error: str) -> None:
    answer, kept = await erase(content)
    assert (answer.status_code, answer.json()["error"]) == (status, error)
    assert kept.requests == []


async def test_a_page_in_a_browser_cannot_erase_anything() -> None:
    answer, kept = await erase(b'{"entity": "acme:lamp"}', **{"content-type": "text/plain"})
    assert (answer.status_code, kept.requests) == (415, [])


@each_row("content", [None, b'{"entity": "acme:lamp"}'])
@each_row(
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
async def test_a_foreign_host_name_that_resolves_to_this_machine_is_refused(
    content: bytes | None, host: str, is_foreign: bool
) -> None:
    answer, kept = await erase(content, host=host)
    assert (answer.status_code == 403) == is_foreign
    assert not (is_foreign and kept.requests)
    if is_foreign:
        assert answer.json()["error"] == "api:host.foreign"
    guarded, _ = await erase(content, token="secret", authorization="Bearer secret", host=host)
    assert (guarded.status_code == 403) == (is_foreign and not host.startswith("192.0.2.7")), "an address is no name"


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
    assert is_foreign != bool(kept.requests)
    if is_foreign:
        assert answer.json()["error"] == "api:origin.foreign"
    assert (await erase(None, origin=origin))[0].status_code == 200, "what it may read a browser decides"


@pytest.mark.parametrize("content", [None, b'{"entity": "acme:lamp"}'])
async def test_with_a_token_erasures_want_it(content: bytes | None) -> None:
    answer, kept = await erase(content, token="secret")
    assert (answer.status_code, answer.json()["error"], kept.requests) == (401, "api:unauthorized", [])
    answer, _ = await erase(content, token="secret", authorization="Bearer secret")
    assert answer.status_code in (200, 202)


async def test_the_name_of_the_token_is_recorded_for_an_erasure_regardless_of_the_body() -> None:
    kept = Erasures()
    tokens = [{"name": "anna", "token": "a" * 16, "role": "admin"}]
    async with client_of(app_of(erasures=kept, tokens=tokens)) as client:
        answer = await client.post(
            "/api/2/erasures",
            json={"entity": "acme:lamp", "by": "bert"},
            headers={"authorization": "Bearer " + "a" * 16},
        )
    assert (answer.status_code, [by for _, by in kept.requests]) == (202, ["anna"])

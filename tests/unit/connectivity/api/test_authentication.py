"""Authentication of the API: tokens, roles, delays, and requests of browser pages."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from connectivity.api.authentication import (
    ANONYMOUS_ADMIN,
    TokenDigests,
    address_of,
    check_query_token,
)
from connectivity.config.api_settings import ApiSettings, TokenRole
from tests.support.api.fake_management import (
    DOCUMENT,
    FakeManagement,
    app_of,
    ask,
    client_of,
    management_with_connection,
    shared_app,
)
from tests.support.table import each_row
from tests.support.wait import PATIENCE, wait_until

TOKENS = [
    {"name": "reader", "token": "r" * 16, "role": "read", "subjects": ["acme:r"]},
    {"name": "writer", "token": "w" * 16, "role": "write", "subjects": ["acme:w"]},
    {"name": "admin", "token": "a" * 16, "role": "admin", "subjects": ["acme:a"]},
]
READER, WRITER, ADMIN = ({"authorization": f"Bearer {letter * 16}"} for letter in "rwa")


@cache
def guarded() -> FastAPI:
    """An application that knows the three tokens."""
    return shared_app(tokens=TOKENS)


async def get(path: str, *, token: str | None = None, **headers: str) -> httpx.Response:
    async with client_of(app_of(token=token)) as client:
        return await client.get(path, headers=headers)


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
async def test_a_bearer_token_is_recognized_by_its_scheme_in_any_case(authorization: str, status: int) -> None:
    answer = await get("/metrics", token="secret", authorization=authorization)
    assert answer.status_code == status
    assert ("connectivity_" in answer.text) == (status == 200)


async def test_a_refusal_has_a_reason_in_the_form_of_every_error() -> None:
    answer = await get("/metrics", token="secret")
    assert (answer.json()["status"], answer.json()["error"]) == (401, "api:unauthorized")


@pytest.mark.parametrize("token", ["schlüssel", "voilà", "Århus-Å"])
async def test_a_token_may_hold_any_character(token: str) -> None:
    """The last bytes of some characters are white space in Latin-1."""
    answer = await get("/metrics", token=token, authorization=f"Bearer {token}".encode())  # type: ignore[arg-type]
    assert answer.status_code == 200


# --- roles ---

OPERATIONS: list[tuple[TokenRole, str, str, dict[str, Any]]] = [
    (TokenRole.READ, "GET", "/metrics", {}),
    (TokenRole.READ, "GET", "/openapi.json", {}),
    (TokenRole.READ, "GET", "/api/2/connections", {}),
    (TokenRole.READ, "GET", "/api/2/connections/site", {}),
    (TokenRole.READ, "HEAD", "/api/2/connections/site", {}),
    (TokenRole.READ, "GET", "/api/2/connections/site/status", {}),
    (TokenRole.READ, "GET", "/api/2/connections/site/metrics", {}),
    (TokenRole.READ, "GET", "/api/2/connections/site/logs", {}),
    (TokenRole.READ, "GET", "/api/2/connections/site/revisions", {}),
    (TokenRole.READ, "GET", "/api/2/connectivity/subscriptions", {}),
    (TokenRole.WRITE, "POST", "/api/2/connections", {"json": {**DOCUMENT, "id": "new"}}),
    (TokenRole.WRITE, "POST", "/api/2/connections?dry-run=true", {"json": DOCUMENT}),
    (TokenRole.WRITE, "PUT", "/api/2/connections/site", {"json": DOCUMENT}),
    (TokenRole.WRITE, "DELETE", "/api/2/connections/site", {}),
    (TokenRole.WRITE, "DELETE", "/api/2/connectivity/subscriptions/ab", {}),
    (
        TokenRole.WRITE,
        "POST",
        "/api/2/connections/site/command",
        {"content": "connectivity.commands:openConnection", "headers": {"content-type": "text/plain"}},
    ),
    (TokenRole.READ, "GET", "/api/2/search/things", {}),
    (TokenRole.READ, "GET", "/api/2/search/things/count", {}),
    (TokenRole.READ, "POST", "/api/2/checkPermissions", {"json": {}}),
    (TokenRole.ADMIN, "POST", "/api/2/checkPermissions?as=acme:anna", {"json": {}}),
    (TokenRole.ADMIN, "GET", "/api/2/search/things?as=acme:anna", {}),
    (TokenRole.ADMIN, "GET", "/api/2/search/things/count?as=acme:anna", {}),
    (TokenRole.ADMIN, "GET", "/api/2/search/things/plan", {}),
    (TokenRole.ADMIN, "GET", "/api/2/audit", {}),
    (TokenRole.ADMIN, "GET", "/api/2/erasures", {}),
    (TokenRole.ADMIN, "POST", "/api/2/erasures", {"json": {"entity": "acme:lamp"}}),
]


def test_every_operation_has_its_role_here() -> None:
    documented = {
        (method.upper(), path.replace("{connection_id}", "site").replace("{prefix}", "ab"))
        for path, operations in _paths().items()
        for method in operations
    }
    probes = {("GET", "/health/live"), ("GET", "/health/ready")}
    here = {(method, path.partition("?")[0]) for _, method, path, _ in OPERATIONS}
    assert here - {("HEAD", "/api/2/connections/site"), ("GET", "/openapi.json")} == documented - probes


def _paths() -> dict[str, Any]:
    from tools.docs.api import description

    found: dict[str, Any] = description()["paths"]
    return found


@each_row(("needed", "method", "path", "more"), OPERATIONS)
async def test_an_operation_takes_its_role(needed: TokenRole, method: str, path: str, more: dict[str, Any]) -> None:
    for role, token in zip(TokenRole, (READER, WRITER, ADMIN), strict=True):
        management = management_with_connection()
        headers = {**token, **more.get("headers", {})}
        answer = await ask(management, method, path, guarded(), **{**more, "headers": headers})
        if role.may(needed):
            assert answer.status_code < 300, answer.text
        else:
            assert answer.status_code == 403
            assert answer.json()["error"] == "api:forbidden"
            assert management.requests == []


@each_row(("method", "path", "more"), [it[1:] for it in OPERATIONS])
async def test_without_a_token_nothing_is_done(method: str, path: str, more: dict[str, Any]) -> None:
    management = management_with_connection()
    answer = await ask(management, method, path, guarded(), **more)
    assert (answer.status_code, answer.headers["www-authenticate"], management.requests) == (401, "Bearer", [])


async def test_the_name_of_the_token_identifies_the_requester() -> None:
    management = management_with_connection()
    async with client_of(app_of(management, tokens=TOKENS, token="shared")) as client:
        await client.delete("/api/2/connections/site", headers=WRITER)
        await client.delete("/api/2/connections/none", headers={"authorization": "Bearer shared"})
    assert management.requests == [("delete", "site", "writer"), ("delete", "none", "api")]


def test_a_token_knows_its_bearer() -> None:
    keys = TokenDigests(ApiSettings(tokens=TOKENS, token="shared"))
    found = keys.caller(b"w" * 16)
    assert found is not None
    assert (found.name, found.role, found.subjects, found.is_named) == ("writer", TokenRole.WRITE, ("acme:w",), True)
    assert keys.caller(b"shared") is ANONYMOUS_ADMIN
    assert keys.caller(b"") is keys.caller(b"w" * 15) is None
    assert keys.is_required
    assert not TokenDigests(ApiSettings(token="")).is_required


# --- tokens in the query ---


@each_row(
    "name",
    [
        *("token", "TOKEN", "access_token", "access-token", "accessToken", "api_key", "apikey", "api-key", "x-api-key"),
        *("key", "auth_token", "authorization", "bearer", "password", "secret", "id_token", "%74oken", "+token"),
    ],
)
@each_row("path", ["/api/2/connections", "/metrics", "/health/live", "/nowhere"])
async def test_a_token_in_the_query_is_refused_at_every_path(name: str, path: str) -> None:
    answer = await ask(None, "GET", f"{path}?a=b&{name}={'a' * 16}", guarded(), headers=ADMIN)
    assert (answer.status_code, answer.json()["error"]) == (400, "api:token.misplaced")
    assert "a" * 16 not in answer.text


@pytest.mark.parametrize("query", [b"", b"fields=id", b"monkey=1", b"fields=token", b"\xff\xfe", b"&&=&"])
def test_a_query_without_a_token_parameter_is_not_refused(query: bytes) -> None:
    assert check_query_token(query) is None


# --- wrong tokens ---

WRONG = {"authorization": "Bearer wrong"}


class Sleeper:
    """A sleep that ends when the test ends it; an unexpected wait of a request fails."""

    def __init__(self) -> None:
        self.requests: list[float] = []
        self._wakes = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.requests.append(seconds)
        await asyncio.wait_for(self._wakes.wait(), PATIENCE)

    def wake(self) -> None:
        self._wakes.set()


async def test_an_address_with_eight_pending_failures_is_refused_and_other_addresses_are_not() -> None:
    sleeper = Sleeper()
    app = app_of(management_with_connection(), token="secret", sleep=sleeper)
    right = {"authorization": "Bearer secret"}
    async with client_of(app, "203.0.113.9") as stranger, client_of(app, "203.0.113.10") as friend:
        guesses = [asyncio.create_task(stranger.get("/api/2/connections", headers=WRONG)) for _ in range(8)]
        await wait_until(lambda: len(sleeper.requests) == 8)
        for headers in (WRONG, right):
            answer = await stranger.get("/api/2/connections", headers=headers)
            assert (answer.status_code, answer.json()["error"]) == (429, "api:requests.toomany")
            assert int(answer.headers["retry-after"]) > 0
        assert (await stranger.get("/health/live", headers=WRONG)).status_code == 200
        assert (await stranger.get("/api/2/connections")).status_code == 401, "who brings none guesses nothing"
        assert (await friend.get("/api/2/connections", headers=right)).status_code == 200
        sleeper.wake()
        answers = await asyncio.gather(*guesses)
        assert {it.status_code for it in answers} == {401}
        assert (await stranger.get("/api/2/connections", headers=right)).status_code == 200, "at once, and right"
    assert sleeper.requests == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 4.0, 4.0]


async def test_several_authorization_headers_are_refused() -> None:
    async with client_of(app_of(token="secret")) as client:
        several = [("authorization", "Bearer secret"), ("authorization", "Bearer secret")]
        answer = await client.get("/metrics", headers=several)
    assert (answer.status_code, answer.json()["error"]) == (401, "api:unauthorized")


async def test_a_right_token_never_waits() -> None:
    sleeper = Sleeper()
    async with client_of(app_of(FakeManagement(), token="secret", sleep=sleeper)) as client:
        for _ in range(3):
            assert (await client.get("/metrics", headers={"authorization": "Bearer secret"})).status_code == 200
            assert (await client.get("/metrics")).status_code == 401
    assert sleeper.requests == []


async def test_a_wrong_token_on_a_probe_waits_like_any_other() -> None:
    """Otherwise the details in the response would reveal whether a guess was right."""
    sleeper = Sleeper()
    sleeper.wake()
    async with client_of(app_of(token="secret", sleep=sleeper)) as client:
        assert (await client.get("/health/ready", headers=WRONG)).json() == {"status": "ready"}
    assert sleeper.requests == [0.1]


@each_row(
    ("client", "address"),
    [
        (("192.0.2.7", 1), "192.0.2.7"),
        (("::ffff:192.0.2.7", 1), "192.0.2.7"),
        (("2001:db8:1:2:3:4:5:6", 1), "2001:db8:1:2::/64"),
        (("2001:db8:1:2::9", 1), "2001:db8:1:2::/64"),
        (None, ""),
        (("a-socket", 0), ""),
        (("fe80::1%eth0", 1), "fe80::/64"),
        (("x" * 60_000, 0), ""),
    ],
)
def test_authentication_failures_are_counted_per_client_address_or_network(client: Any, address: str) -> None:
    assert address_of({"client": client}) == address


# --- pages in a browser ---


@pytest.mark.parametrize("path", ["/api/2/connections", "/metrics", "/openapi.json", "/api/2/audit", "/nowhere"])
async def test_a_foreign_name_gets_at_nothing_but_probes(path: str) -> None:
    assert (await get(path, host="evil.example")).json()["error"] == "api:host.foreign"
    assert (await get("/health/live", host="evil.example")).status_code == 200


@pytest.mark.parametrize(
    ("host", "is_foreign"),
    [
        ("evil.example", True),
        ("evil.example:8080", True),
        ("acme.example", True),
        ("localhost.evil.example", True),
        ("127.0.0.1.evil.example", True),
        ("notacme.example", True),
        ("", True),
        ("localhost:8080", False),
        ("[::1]:8080", False),
        ("10.1.2.3:8080", False),
        ("[2001:db8::7]:8080", False),
        ("0.0.0.0", False),
        ("connectivity", False),
        ("CONNECTIVITY:8080", False),
        ("api.acme.example", False),
    ],
)
async def test_the_host_is_checked_with_a_right_token_too(host: str, is_foreign: bool) -> None:
    app = app_of(management_with_connection(), tokens=TOKENS, host="0.0.0.0", hosts=["connectivity", "*.acme.example"])
    async with client_of(app) as client:
        answer = await client.get("/api/2/connections", headers={**ADMIN, "host": host})
        assert (answer.json()["error"] if is_foreign else answer.status_code) == (
            "api:host.foreign" if is_foreign else 200
        )
        assert (await client.get("/health/live", headers={"host": host})).status_code == 200


@pytest.mark.parametrize(("method", "path", "more"), [it[1:] for it in OPERATIONS if it[1] not in ("GET", "HEAD")])
async def test_a_page_of_another_origin_changes_no_connection(method: str, path: str, more: dict[str, Any]) -> None:
    management = management_with_connection()
    headers = {"origin": "https://evil.example", **more.get("headers", {})}
    answer = await ask(management, method, path, **{**more, "headers": headers})
    assert (answer.status_code, answer.json()["error"], management.requests) == (403, "api:origin.foreign", [])

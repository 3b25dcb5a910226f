"""Searching things over HTTP: what is asked of whoever searches, and in whose name."""

from __future__ import annotations

from functools import cache
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from connectivity.errors import OperationRefused
from connectivity.subscriptions.search_requests import HttpSearch
from mappings.errors import Fault
from tests.support.api.fake_management import FakeManagement, ask, shared_app

THINGS, COUNT = "/api/2/search/things", "/api/2/search/things/count"
BOTH = pytest.mark.parametrize("path", [THINGS, COUNT])
TOKENS: list[dict[str, Any]] = [
    {"name": "anna", "token": "token-of-anna-the-admin", "role": "admin", "subjects": ["acme:anna"]},
    {"name": "root", "token": "token-of-root-the-admin", "role": "admin"},
    {"name": "bert", "token": "token-of-bert-who-reads", "role": "read", "subjects": ["acme:bert", "acme:staff"]},
    {"name": "nina", "token": "token-of-nina-who-reads", "role": "read"},
]


@cache
def guarded() -> FastAPI:
    return shared_app(tokens=TOKENS)


async def search(
    path: str, who: str = "bert", desk: FakeManagement | None = None, **query: Any
) -> tuple[httpx.Response, FakeManagement]:
    """What one of the token's bearers is answered, and what was asked for it."""
    desk = desk or FakeManagement()
    token = next(it["token"] for it in TOKENS if it["name"] == who)
    given = {"as" if name == "as_" else name: value for name, value in query.items()}
    headers = {"authorization": f"Bearer {token}"}
    return await ask(desk, "GET", path, guarded(), params=given, headers=headers), desk


def asked(desk: FakeManagement) -> HttpSearch:
    ((_, inquiry),) = desk.requests
    assert isinstance(inquiry, HttpSearch)
    return inquiry


async def test_things_are_answered_with_a_cursor_only_where_there_is_more() -> None:
    answer, _ = await search(THINGS)
    assert (answer.status_code, answer.json()) == (200, {"items": [{"thingId": "acme:lamp"}], "cursor": "bmV4dA"})
    answer, _ = await search(THINGS, option="cursor(bmV4dA)")
    assert (answer.status_code, answer.json()) == (200, {"items": [{"thingId": "acme:lamp"}]})


async def test_the_next_offset_is_shown_where_it_is_known() -> None:
    desk = FakeManagement()
    desk.next_offset = 5
    answer, _ = await search(THINGS, desk=desk, option="limit(4,1)")
    assert answer.json() == {"items": [{"thingId": "acme:lamp"}], "nextPageOffset": 5}


async def test_a_count_is_a_number() -> None:
    answer, desk = await search(COUNT, filter="exists(attributes/room)")
    assert (answer.status_code, answer.json(), answer.headers["content-type"]) == (200, 7, "application/json")
    assert asked(desk) == HttpSearch(("acme:bert", "acme:staff"), "exists(attributes/room)")


async def test_a_plan_is_shown_to_admins() -> None:
    answer, desk = await search(f"{THINGS}/plan", "anna", filter="exists(attributes/room)", option="size(3)")
    assert (answer.status_code, answer.json()["things"]) == (200, 7)
    assert asked(desk) == HttpSearch(("acme:anna",), "exists(attributes/room)", "size(3)")
    answer, desk = await search(f"{THINGS}/plan", "bert")
    assert (answer.status_code, desk.requests) == (403, [])


async def test_everything_that_was_asked_is_asked() -> None:
    _, desk = await search(
        THINGS,
        filter='eq(attributes/room,"a,b")',
        namespaces="acme.site, acme.lab,",
        fields="thingId,attributes(room,size)",
        option="size(3),sort(-attributes/size)",
        timeout="500ms",
    )
    assert asked(desk) == HttpSearch(
        subjects=("acme:bert", "acme:staff"),
        filter='eq(attributes/room,"a,b")',
        options="size(3),sort(-attributes/size)",
        namespaces=frozenset({"acme.site", "acme.lab"}),
        selection={"thingId": {}, "attributes": {"room": {}, "size": {}}},
        seconds=0.5,
    )


async def test_nothing_that_was_not_asked_is_asked() -> None:
    _, desk = await search(THINGS)
    assert asked(desk) == HttpSearch(("acme:bert", "acme:staff"))


@pytest.mark.parametrize("namespaces", ["", ",", " , "])
async def test_in_no_namespace_there_is_nothing(namespaces: str) -> None:
    answer, desk = await search(THINGS, namespaces=namespaces)
    assert (answer.json(), desk.requests) == ({"items": [], "nextPageOffset": -1}, [])
    answer, desk = await search(COUNT, namespaces=namespaces)
    assert (answer.json(), desk.requests) == (0, [])


@pytest.mark.parametrize(
    ("text", "seconds"), [("10", 10.0), ("10s", 10.0), ("1m", 60.0), ("60000ms", 60.0), ("1ms", 0.001)]
)
@BOTH
async def test_a_timeout_bounds_the_looking(path: str, text: str, seconds: float) -> None:
    _, desk = await search(path, timeout=text)
    assert asked(desk).seconds == seconds


# --- in whose name


@BOTH
async def test_an_admin_asks_in_anybodys_name_and_else_in_that_of_the_token(path: str) -> None:
    _, desk = await search(path, "anna", as_="acme:bert")
    assert asked(desk).subjects == ("acme:bert",)
    _, desk = await search(path, "root", as_=["acme:bert", "acme:staff", "acme:bert"])
    assert asked(desk).subjects == ("acme:bert", "acme:staff")
    assert asked(desk).instead == "root"
    _, desk = await search(path, "anna")
    assert (asked(desk).subjects, asked(desk).instead) == (("acme:anna",), None)


@BOTH
async def test_a_token_without_search_permission_is_refused_even_for_its_own_subject(path: str) -> None:
    for subject in ("acme:anna", "acme:bert"):
        answer, desk = await search(path, "bert", as_=subject)
        assert (answer.status_code, answer.json()["error"], desk.requests) == (403, "api:forbidden", [])


@BOTH
@pytest.mark.parametrize(("who", "is_told"), [("root", True), ("nina", False)])
async def test_a_token_without_subjects_gets_an_error(path: str, who: str, is_told: bool) -> None:
    """An empty answer would look like a world without things."""
    answer, desk = await search(path, who)
    assert (answer.status_code, answer.json()["error"], desk.requests) == (403, "api:subjects.missing", [])
    assert ("Name them with `as` (--as SUBJECT)." in answer.json()["message"]) is is_told


@BOTH
async def test_without_authentication_a_search_must_name_its_subject(path: str) -> None:
    desk = FakeManagement()
    assert (await ask(desk, "GET", f"{path}?as=acme:bert")).status_code == 200
    assert asked(desk).subjects == ("acme:bert",)
    assert (await ask(FakeManagement(), "GET", path)).status_code == 403


# --- what is refused


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ({"timeout": "soon"}, "api:parameter.invalid"),
        ({"timeout": "0"}, "api:parameter.invalid"),
        ({"timeout": "61"}, "api:parameter.invalid"),
        ({"timeout": "-1"}, "api:parameter.invalid"),
        ({"timeout": "1\n"}, "api:parameter.invalid"),
        ({"fields": "a("}, "json.fieldselector.invalid"),
        ({"fields": "a//b"}, "json.fieldselector.invalid"),
        ({"options": "size(3)"}, "api:parameter.invalid"),
        ({"filter": ["exists(attributes/a)", "exists(attributes/b)"]}, "api:parameter.invalid"),
        ({"filter": "x" * 33_000}, "api:parameter.invalid"),
        ({"as_": ""}, "api:parameter.invalid"),
        ({"as_": "x" * 513}, "api:parameter.invalid"),
        ({"as_": [f"acme:{number}" for number in range(101)]}, "api:parameter.invalid"),
    ],
)
async def test_an_invalid_search_parameter_is_refused_before_the_search(query: dict[str, Any], error: str) -> None:
    answer, desk = await search(THINGS, "anna", **query)
    assert (answer.status_code, answer.json()["error"], desk.requests) == (400, error, [])


@pytest.mark.parametrize(
    "fault",
    [
        Fault(400, "rql.expression.invalid", "Invalid filter expression: eq("),
        Fault(400, "thing-search:search.option.invalid", "Invalid option: 'size(300)'"),
        Fault(503, "thing-search:budget.exceeded", "Nothing was found in 5 s."),
        Fault(503, "api:store.unavailable", "The disk is full."),
    ],
)
@BOTH
async def test_an_error_of_the_search_is_returned(path: str, fault: Fault) -> None:
    desk = FakeManagement(refuses={"things": OperationRefused(fault), "count": OperationRefused(fault)})
    answer, _ = await search(path, desk=desk)
    assert (answer.status_code, answer.json()["error"]) == (fault.status, fault.error)


async def test_an_empty_selector_selects_everything() -> None:
    _, desk = await search(THINGS, fields="")
    assert asked(desk).selection is None


@BOTH
async def test_things_are_only_looked_at(path: str) -> None:
    answer = await ask(
        FakeManagement(), "POST", path, guarded(), headers={"authorization": f"Bearer {TOKENS[0]['token']}"}
    )
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")

"""Searching things over HTTP: the query that is passed on, and the subjects that it runs as."""

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
FAULTS = [
    Fault(400, "rql.expression.invalid", "Invalid filter expression: eq("),
    Fault(429, "thing-search:search.limit", "A quota of searches is used up."),
    Fault(503, "thing-search:budget.exceeded", "Nothing was found in 5 s."),
    Fault(503, "api:store.unavailable", "The disk is full."),
]
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
    path: str, who: str = "bert", management: FakeManagement | None = None, **query: Any
) -> tuple[httpx.Response, FakeManagement]:
    """Search as a bearer of a token; return the response, and the management with its recorded requests."""
    management = management or FakeManagement()
    token = next(it["token"] for it in TOKENS if it["name"] == who)
    given = {"as" if name == "as_" else name: value for name, value in query.items()}
    headers = {"authorization": f"Bearer {token}"}
    return await ask(management, "GET", path, guarded(), params=given, headers=headers), management


def recorded_search(management: FakeManagement) -> HttpSearch:
    ((_, inquiry),) = management.requests
    assert isinstance(inquiry, HttpSearch)
    return inquiry


async def test_things_are_answered_with_a_cursor_only_if_more_follow() -> None:
    answer, _ = await search(THINGS)
    assert (answer.status_code, answer.json()) == (200, {"items": [{"thingId": "acme:lamp"}], "cursor": "bmV4dA"})
    answer, _ = await search(THINGS, option="cursor(bmV4dA)")
    assert (answer.status_code, answer.json()) == (200, {"items": [{"thingId": "acme:lamp"}]})


async def test_the_next_offset_is_shown_where_it_is_known() -> None:
    management = FakeManagement()
    management.next_offset = 5
    answer, _ = await search(THINGS, management=management, option="limit(4,1)")
    assert answer.json() == {"items": [{"thingId": "acme:lamp"}], "nextPageOffset": 5}


async def test_a_count_is_a_number() -> None:
    answer, management = await search(COUNT, filter="exists(attributes/room)")
    assert (answer.status_code, answer.json(), answer.headers["content-type"]) == (200, 7, "application/json")
    assert recorded_search(management) == HttpSearch(("acme:bert", "acme:staff"), "exists(attributes/room)")


async def test_a_plan_is_shown_to_admins() -> None:
    answer, management = await search(f"{THINGS}/plan", "anna", filter="exists(attributes/room)", option="size(3)")
    assert (answer.status_code, answer.json()["things"]) == (200, 7)
    assert recorded_search(management) == HttpSearch(("acme:anna",), "exists(attributes/room)", "size(3)")
    answer, management = await search(f"{THINGS}/plan", "bert")
    assert (answer.status_code, management.requests) == (403, [])


async def test_everything_that_was_asked_is_asked() -> None:
    _, management = await search(
        THINGS,
        filter='eq(attributes/room,"a,b")',
        namespaces="acme.site, acme.lab,",
        fields="thingId,attributes(room,size)",
        option="size(3),sort(-attributes/size)",
        timeout="500ms",
    )
    assert recorded_search(management) == HttpSearch(
        subjects=("acme:bert", "acme:staff"),
        filter='eq(attributes/room,"a,b")',
        options="size(3),sort(-attributes/size)",
        namespaces=frozenset({"acme.site", "acme.lab"}),
        selection={"thingId": {}, "attributes": {"room": {}, "size": {}}},
        seconds=0.5,
    )


async def test_repeated_parameters_are_put_together() -> None:
    _, management = await search(
        THINGS,
        filter=["exists(attributes/a)", "exists(attributes/b)"],
        namespaces=["acme.site", "acme.lab,acme.hut"],
        fields=["thingId", "attributes/a"],
        option=["size(3)", "sort(+attributes/a)"],
    )
    assert recorded_search(management) == HttpSearch(
        subjects=("acme:bert", "acme:staff"),
        filter="and(exists(attributes/a),exists(attributes/b))",
        options="size(3),sort(+attributes/a)",
        namespaces=frozenset({"acme.site", "acme.lab", "acme.hut"}),
        selection={"thingId": {}, "attributes": {"a": {}}},
    )


async def test_nothing_that_was_not_asked_is_asked() -> None:
    _, management = await search(THINGS)
    assert recorded_search(management) == HttpSearch(("acme:bert", "acme:staff"))


@pytest.mark.parametrize("namespaces", ["", ",", " , "])
@BOTH
async def test_an_empty_list_of_namespaces_has_none(path: str, namespaces: str) -> None:
    _, management = await search(path, namespaces=namespaces)
    assert recorded_search(management).namespaces == frozenset()


@pytest.mark.parametrize(
    ("text", "seconds"), [("10", 10.0), ("10s", 10.0), ("1m", 60.0), ("60000ms", 60.0), ("1ms", 0.001)]
)
@BOTH
async def test_a_timeout_bounds_the_looking(path: str, text: str, seconds: float) -> None:
    _, management = await search(path, timeout=text)
    assert recorded_search(management).seconds == seconds


# --- in whose name


@BOTH
async def test_an_admin_searches_as_any_subject_and_by_default_as_the_token(path: str) -> None:
    _, management = await search(path, "anna", as_="acme:bert")
    assert recorded_search(management).subjects == ("acme:bert",)
    _, management = await search(path, "root", as_=["acme:bert", "acme:staff", "acme:bert"])
    assert recorded_search(management).subjects == ("acme:bert", "acme:staff")
    assert recorded_search(management).instead == "root"
    _, management = await search(path, "anna")
    assert (recorded_search(management).subjects, recorded_search(management).instead) == (("acme:anna",), None)


@BOTH
async def test_a_token_without_search_permission_is_refused_even_for_its_own_subject(path: str) -> None:
    for subject in ("acme:anna", "acme:bert"):
        answer, management = await search(path, "bert", as_=subject)
        assert (answer.status_code, answer.json()["error"], management.requests) == (403, "api:forbidden", [])


@BOTH
@pytest.mark.parametrize(("who", "is_hinted"), [("root", True), ("nina", False)])
async def test_a_token_without_subjects_gets_an_error(path: str, who: str, is_hinted: bool) -> None:
    """An empty answer would look like a service without things."""
    answer, management = await search(path, who)
    assert (answer.status_code, answer.json()["error"], management.requests) == (403, "api:subjects.missing", [])
    assert ("Name subjects with `as` (--as SUBJECT)." in answer.json()["message"]) is is_hinted


@BOTH
async def test_without_authentication_a_search_must_name_its_subject(path: str) -> None:
    management = FakeManagement()
    assert (await ask(management, "GET", f"{path}?as=acme:bert")).status_code == 200
    assert recorded_search(management).subjects == ("acme:bert",)
    assert (await ask(FakeManagement(), "GET", path)).status_code == 403


# --- refusals


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
        ({"filter": ["exists(attributes/a)"] * 21}, "api:parameter.invalid"),
        ({"timeout": ["1", "2"]}, "api:parameter.invalid"),
        ({"filter": "x" * 33_000}, "api:parameter.invalid"),
        ({"as_": ""}, "api:parameter.invalid"),
        ({"as_": "x" * 513}, "api:parameter.invalid"),
        ({"as_": [f"acme:{number}" for number in range(101)]}, "api:parameter.invalid"),
    ],
)
async def test_an_invalid_search_parameter_is_refused_before_the_search(query: dict[str, Any], error: str) -> None:
    answer, management = await search(THINGS, "anna", **query)
    assert (answer.status_code, answer.json()["error"], management.requests) == (400, error, [])


async def test_a_timeout_in_another_form_is_reported_with_the_expected_form() -> None:
    answer, _ = await search(THINGS, "anna", timeout="soon")
    assert answer.json()["description"] == 'timeout: found "soon", expected a duration such as 10s or 500ms'


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        *((path, fault) for path in (THINGS, COUNT) for fault in FAULTS),
        (THINGS, Fault(400, "thing-search:search.option.invalid", "Invalid option: 'size(300)'")),
    ],
)
async def test_an_error_of_the_search_is_returned(path: str, fault: Fault) -> None:
    management = FakeManagement(refuses={"things": OperationRefused(fault), "count": OperationRefused(fault)})
    answer, _ = await search(path, management=management)
    assert (answer.status_code, answer.json()["error"]) == (fault.status, fault.error)


async def test_an_empty_selector_selects_everything() -> None:
    _, management = await search(THINGS, fields="")
    assert recorded_search(management).selection is None


@BOTH
async def test_things_can_only_be_read(path: str) -> None:
    answer = await ask(
        FakeManagement(), "POST", path, guarded(), headers={"authorization": f"Bearer {TOKENS[0]['token']}"}
    )
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


async def test_a_repeated_parameter_is_named_with_its_name_and_not_with_its_position() -> None:
    answer, _ = await search(THINGS, "anna", as_=["acme:bert", ""])
    assert answer.json()["message"] == "'as' is invalid."

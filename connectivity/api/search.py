"""Search of things over HTTP: pages and counts (Ditto search, HTTP API).

A search has the token's subjects; an admin may name others with `as`, which the audit log records. Filter, options and
permissions are those of searches over brokers. A response is `{"items": [...]}`, with a `cursor` if there is more;
`option=cursor(…)` continues there. Each page shows the present.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import Field

from connectivity.api.authentication import admins_only, caller_of, insufficient_role
from connectivity.api.errors import refusal
from connectivity.api.openapi import answers, body
from connectivity.api.requests import field_selection
from connectivity.api.responses import JsonResponse
from connectivity.api.schemas import PLAN_EXAMPLE, SEARCH_PAGE_EXAMPLE
from connectivity.config.api_settings import TokenRole
from connectivity.config.text_form import TextForm
from connectivity.errors import OperationRefused
from connectivity.subscriptions.search_requests import HttpSearch, SearchRequests

PREFIX = "/api/2/search/things"

_SECONDS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0}
_LONGEST_TIMEOUT = 60.0
_LONGEST_FILTER = 32 * 1024
"""In characters. Filters over brokers may be longer; a query must fit into the head of a request."""
_MOST_SUBJECTS = 100

_MOST_REPEATED = 20
"""How often a parameter may be repeated."""

Filter = Annotated[
    list[Annotated[str, Field(max_length=_LONGEST_FILTER)]],
    Query(
        default_factory=list,
        description="RQL filter, such as `gt(attributes/size,3)`; may be repeated: then all filters must match. "
        "Default: all things.",
        examples=[['eq(attributes/room,"hall")']],
        max_length=_MOST_REPEATED,
    ),
]
Namespaces = Annotated[
    list[Annotated[str, Field(max_length=10_000)]],
    Query(
        default_factory=list,
        description="Namespaces, separated by commas; an empty list matches nothing. Default: all.",
        examples=[["acme.site,acme.lab"]],
        max_length=_MOST_REPEATED,
    ),
]
Fields = Annotated[
    list[Annotated[str, Field(max_length=10_000)]],
    Query(
        default_factory=list,
        description="The members to show, such as `thingId,attributes/room`. Members that begin with `_` are shown "
        "only if you name them: `_revision`, `_created`, `_modified`, `_namespace`, `_lifecycle`, `_metadata`, "
        "`_policy`.",
        examples=[["thingId,attributes(room,size)"]],
        max_length=_MOST_REPEATED,
    ),
]
Options = Annotated[
    list[Annotated[str, Field(max_length=20_000)]],
    Query(
        default_factory=list,
        description="`size(n)`: the page size, at most 200, default 25. `sort(+path,-path)`: the order, default "
        "`thingId`. `cursor(…)`: the page after the page that returned this cursor. A cursor contains filter, "
        "namespaces, order and size: the request may repeat filter and order, but cannot change them; other "
        "namespaces are ignored; another size applies from this page on. `limit(offset,count)`: a page by its "
        "offset, instead of `size` and `cursor`; slow for large offsets.",
        examples=[["size(50),sort(-attributes/size,+thingId)"]],
        max_length=_MOST_REPEATED,
    ),
]
Timeout = Annotated[
    Annotated[str, TextForm(r"^[0-9]{1,6}(ms|s|m|)$", "a duration such as 10s or 500ms")] | None,
    Query(
        alias="timeout",
        description="How long the search may take, such as `10s` or `500ms`; at most one minute, and never longer than "
        "the settings allow.",
        examples=["10s"],
    ),
]
Subjects = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=512)]],
    Query(
        alias="as",
        default_factory=list,
        description="Authorization subject to use instead of the token's own subjects; may be repeated. "
        "For admins only; the audit log records the user and the subjects.",
        examples=[["integration:fleet"]],
        max_length=_MOST_SUBJECTS,
    ),
]


def router(searches: SearchRequests) -> APIRouter:
    """Everything below `/api/2/search/things`."""
    api = APIRouter(prefix=PREFIX, tags=["search"])

    @api.get(
        "",
        summary="Search things",
        description="Returns the things that the caller can read, each with the parts that the caller can read.",
        operation_id="searchThings",
        responses=answers(
            {200: body("One page of things, and a cursor if more things follow.", "SearchPage", SEARCH_PAGE_EXAMPLE)},
            *("rql.expression.invalid", "thing-search:search.option.invalid", "json.fieldselector.invalid"),
            *("api:subjects.missing", "thing-search:search.limit", "thing-search:budget.exceeded"),
            "api:store.unavailable",
        ),
    )
    async def things(
        request: Request,
        subjects: Subjects,
        filter: Filter,
        namespaces: Namespaces,
        fields: Fields,
        option: Options,
        wait: Timeout = None,
    ) -> Response:
        search = _search_of(request, subjects, filter, namespaces, wait, option, fields)
        found = await searches.things(search)
        shown: dict[str, Any] = {"items": msgspec.Raw(found.items)}
        if found.next_offset is not None:
            shown["nextPageOffset"] = found.next_offset
        if found.cursor is not None:
            shown["cursor"] = found.cursor
        return JsonResponse(shown)

    @api.get(
        "/count",
        summary="Count things",
        description="Counts the things that a search with this filter would find.",
        operation_id="countThings",
        responses=answers(
            {200: body("Number of things.", "Count", 42)},
            *("rql.expression.invalid", "api:subjects.missing", "thing-search:search.limit"),
            *("thing-search:budget.exceeded", "api:store.unavailable"),
        ),
    )
    async def count(
        request: Request, subjects: Subjects, filter: Filter, namespaces: Namespaces, wait: Timeout = None
    ) -> Response:
        search = _search_of(request, subjects, filter, namespaces, wait)
        return JsonResponse(await searches.count(search))

    @api.get(
        "/plan",
        summary="Explain a search",
        description="The operation reads only the index and returns no things. Only admins may use this operation, "
        "because the result reveals the number of things.",
        operation_id="planSearch",
        dependencies=[Depends(admins_only)],
        responses=answers(
            {200: body("The plan for the first page of this search.", "Plan", PLAN_EXAMPLE)},
            *("rql.expression.invalid", "thing-search:search.option.invalid", "api:subjects.missing"),
            *("thing-search:budget.exceeded", "api:store.unavailable"),
        ),
    )
    async def plan(
        request: Request,
        subjects: Subjects,
        filter: Filter,
        namespaces: Namespaces,
        option: Options,
        wait: Timeout = None,
    ) -> Response:
        search = _search_of(request, subjects, filter, namespaces, wait, option)
        return JsonResponse(await searches.plan(search))

    return api


def _search_of(
    request: Request,
    subjects: list[str],
    filter: list[str],
    namespaces: list[str],
    wait: str | None,
    option: Sequence[str] = (),
    fields: Sequence[str] = (),
) -> HttpSearch:
    """Return the search of a request. Raises OperationRefused for invalid parameters."""
    return HttpSearch(
        subjects=searching_subjects(request, subjects),
        instead=caller_of(request).name if subjects else None,
        filter=_filter(filter),
        options=_joined(option),
        namespaces=_namespaces(namespaces),
        selection=field_selection(_joined(fields) or None),
        seconds=_seconds(wait),
    )


def searching_subjects(request: Request, wanted: list[str]) -> tuple[str, ...]:
    """Return the subjects of a search.

    Raises OperationRefused if there are none, or if only admins may name them.
    """
    caller = caller_of(request)
    if wanted:
        if not caller.role.may(TokenRole.ADMIN):
            raise OperationRefused(insufficient_role(caller, TokenRole.ADMIN))
        return tuple(dict.fromkeys(wanted))
    if not caller.subjects:
        # Shown by command lines.
        hint = " Name subjects with `as` (--as SUBJECT)." if caller.role.may(TokenRole.ADMIN) else ""
        raise refusal(
            "api:subjects.missing",
            f"Your token has no subjects.{hint}",
            "expected 'subjects' in the token's entry in api.tokens",
        )
    return caller.subjects


def _joined(texts: Sequence[str]) -> str | None:
    return ",".join(texts) if texts else None


def _filter(texts: list[str]) -> str | None:
    """Return the filter that matches if all the given ones do."""
    return f"and({','.join(texts)})" if len(texts) > 1 else _joined(texts)


def _namespaces(texts: list[str]) -> frozenset[str] | None:
    text = _joined(texts)
    return None if text is None else frozenset(name.strip() for name in text.split(",") if name.strip())


def _seconds(timeout: str | None) -> float | None:
    """Return how many seconds the search may take, from a text that `Timeout` accepts.

    Raises OperationRefused for 0, which no search could meet.
    """
    if timeout is None:
        return None
    count = timeout.rstrip("ms")
    seconds = int(count) * _SECONDS[timeout.removeprefix(count)]
    if not 0 < seconds <= _LONGEST_TIMEOUT:
        raise refusal(
            "api:parameter.invalid", f"'timeout' is {timeout}.", "expected more than 0 and at most one minute"
        )
    return seconds

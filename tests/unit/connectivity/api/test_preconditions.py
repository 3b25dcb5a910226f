"""Conditional requests on connections."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.datastructures import Headers

from connectivity.api.preconditions import PreconditionFailed, parse_past_revision, precondition_of
from connectivity.errors import OperationRefused
from tests.support.api.fake_management import (
    DOCUMENT,
    FakeManagement,
    app_of,
    ask,
    client_of,
    management_with_connection,
)
from tests.support.table import each_row

ONE = "/api/2/connections/site"
JSON = {"content-type": "application/json"}

JUDGED = [
    ({}, 3, None),
    ({}, None, None),
    ({"if-match": '"rev:3"'}, 3, None),
    ({"if-match": '"rev:1", "rev:3"'}, 3, None),
    ({"if-match": "*"}, 3, None),
    ({"if-match": '"rev:2"'}, 3, 412),
    ({"if-match": 'W/"rev:3"'}, 3, 412),
    ({"if-match": '"rev:3"'}, None, 412),
    ({"if-match": "*"}, None, 412),
    ({"if-none-match": "*"}, None, None),
    ({"if-none-match": "*"}, 3, 412),
    ({"if-none-match": 'W/"rev:3"'}, 3, 412),
    ({"if-none-match": '"rev:2"'}, 3, None),
    ({"if-match": '"rev:3"', "if-none-match": '"rev:3"'}, 3, 412),
]


def refusal_of(headers: Headers, revision: int | None) -> OperationRefused | None:
    """Return why a change of this revision is refused, or None."""
    try:
        precondition_of(headers)(revision)
    except OperationRefused as refusal:
        return refusal
    return None


@each_row(("headers", "revision", "status"), JUDGED)
def test_a_change_is_checked_with_the_present_revision(
    headers: dict[str, str], revision: int | None, status: int | None
) -> None:
    refusal = refusal_of(Headers(headers), revision)
    if status is None:
        assert refusal is None
    else:
        assert refusal is not None
        assert (refusal.fault.status, refusal.fault.error) == (status, "connectivity:precondition.failed")
        assert not isinstance(refusal, PreconditionFailed) or refusal.tag == '"rev:3"'


@each_row("text", ["rev:3", '"rev:3', "", '"a" "b"', "*, *", 'w/"a"'])
@each_row("name", ["if-match", "if-none-match"])
def test_a_header_that_names_no_tags_is_invalid(name: str, text: str) -> None:
    with pytest.raises(OperationRefused) as refusal:
        precondition_of(Headers({name: text}))
    assert (refusal.value.fault.status, refusal.value.fault.error) == (400, "header.invalid")


def test_tags_may_come_in_several_headers() -> None:
    headers = Headers(raw=[(b"if-match", b'"rev:1"'), (b"if-match", b'"rev:3"')])
    refusals = {revision: refusal_of(headers, revision) for revision in (1, 2, 3)}
    assert [revision for revision, refusal in refusals.items() if refusal is not None] == [2]


def test_without_a_selector_no_past_revision_is_selected() -> None:
    assert parse_past_revision(None, None) is None


@pytest.mark.parametrize(
    ("headers", "status", "error"),
    [
        ({"if-none-match": '"rev:1"'}, 304, "connectivity:precondition.notmodified"),
        ({"if-none-match": "*"}, 304, "connectivity:precondition.notmodified"),
        ({"if-none-match": '"rev:2"'}, 200, ""),
        ({"if-match": '"rev:1"'}, 200, ""),
        ({"if-match": '"rev:2"'}, 412, "connectivity:precondition.failed"),
        ({"if-match": "x"}, 400, "header.invalid"),
    ],
)
async def test_the_known_tags_determine_the_response_to_a_retrieve(
    headers: dict[str, str], status: int, error: str
) -> None:
    answer = await ask(management_with_connection(), "GET", ONE, headers=headers)
    assert answer.status_code == status
    assert (answer.headers.get("etag") == '"rev:1"') == (status != 400)
    if status == 304:
        assert answer.content == b""
    elif error:
        assert answer.json()["error"] == error


async def test_one_of_two_concurrent_changes_to_a_revision_gets_412() -> None:
    app = app_of(management_with_connection())
    async with client_of(app) as anna, client_of(app) as bert:
        known = [(await operator.get(ONE)).headers["etag"] for operator in (anna, bert)]
        changes = [
            operator.put(ONE, content=json.dumps({**DOCUMENT, "name": name}), headers={**JSON, "if-match": tag})
            for operator, name, tag in zip((anna, bert), ("Anna's", "Bert's"), known, strict=True)
        ]
        answers = await asyncio.gather(*changes)
        slower = next(it for it in answers if it.status_code == 412)
        assert sorted(it.status_code for it in answers) == [204, 412]
        assert (slower.json()["error"], slower.headers["etag"]) == ("connectivity:precondition.failed", '"rev:2"')
        assert (await anna.get(ONE)).headers["etag"] == '"rev:2"'


async def test_a_delete_of_another_revision_deletes_nothing() -> None:
    management = management_with_connection()
    assert (await ask(management, "DELETE", ONE, headers={"if-match": '"rev:9"'})).status_code == 412
    assert list(management.stored) == ["site"]
    assert (await ask(management, "DELETE", ONE, headers={"if-match": '"rev:1"'})).status_code == 204


async def test_a_create_only_put_does_not_change_an_existing_connection() -> None:
    headers = {**JSON, "if-none-match": "*"}
    assert (
        await ask(management_with_connection(), "PUT", ONE, content=json.dumps(DOCUMENT), headers=headers)
    ).status_code == 412
    assert (await ask(FakeManagement(), "PUT", ONE, content=json.dumps(DOCUMENT), headers=headers)).status_code == 201

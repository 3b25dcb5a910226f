"""The check of the API's answers finds each kind of deviation from the OpenAPI document."""

from __future__ import annotations

import pytest

from tests.support.api.described_answers import check_answer

ONE = "/api/2/connections/site"
JSON = {"content-type": "application/json"}
TAGGED = {**JSON, "etag": '"rev:1"'}
MISSING = b'{"status":404,"error":"connectivity:connection.notfound","message":"There is none."}'


@pytest.mark.parametrize(
    ("method", "target", "status", "headers", "body"),
    [
        ("GET", f"{ONE}?fields=id", 200, TAGGED, b'{"id":"site"}'),
        ("HEAD", ONE, 200, TAGGED, b""),
        ("GET", ONE, 404, JSON, MISSING),
        ("DELETE", ONE, 204, {}, b""),
        ("GET", "/nowhere", 404, JSON, MISSING.replace(b"connectivity:connection.notfound", b"api:path.notfound")),
    ],
)
def test_a_described_answer_passes(method: str, target: str, status: int, headers: dict[str, str], body: bytes) -> None:
    check_answer(method, target, status, headers, body)


@pytest.mark.parametrize(
    ("method", "target", "status", "headers", "body", "deviation"),
    [
        ("GET", ONE, 202, TAGGED, b"{}", "the status"),
        ("GET", ONE, 200, JSON, b"{}", "no header etag"),
        ("GET", ONE, 200, {**JSON, "etag": "1"}, b"{}", '"1" does not match'),
        ("GET", ONE, 200, {**TAGGED, "location": "/"}, b"{}", "the header location"),
        ("GET", ONE, 200, {**TAGGED, "content-type": "text/plain"}, b"{}", "the media type 'text/plain'"),
        ("GET", ONE, 200, TAGGED, b"[]", 'is not of type "object"'),
        ("DELETE", ONE, 204, {}, b"{}", "a body"),
        ("GET", ONE, 404, JSON, MISSING.replace(b"404", b"405"), "the status 405 in the body"),
        ("GET", f"{ONE}/status", 404, JSON, MISSING.replace(b"connection.n", b"n"), "the error code connectivity:notf"),
        ("GET", "/nowhere", 404, JSON, MISSING, "the error code connectivity:connection.notfound"),
    ],
)
def test_another_answer_is_reported(
    method: str, target: str, status: int, headers: dict[str, str], body: bytes, deviation: str
) -> None:
    with pytest.raises(AssertionError) as error:
        check_answer(method, target, status, headers, body)
    assert deviation in str(error.value)

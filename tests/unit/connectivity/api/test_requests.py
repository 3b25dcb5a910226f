"""HTTP requests: limits, media types, JSON."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectivity.config.documents import ParsedDocument, read_json
from tests.support.api.fake_management import (
    DOCUMENT,
    FakeManagement,
    app_of,
    ask,
    client_of,
    management_with_connection,
)
from tests.support.dice import examples
from tests.support.table import each_row

ALL = "/api/2/connections"
JSON = {"content-type": "application/json"}


@each_row(
    "content",
    [
        *(b"", b" ", b"{", b"nothing", b'{"a": 1} x', b"\xff", b'"\xed\xa0\x80"', b"{'a': 1}", b"[" * 5_000),
        *(b'{"a": NaN}', b'{"a": -Infinity}', b'{"a": 1e999}', b'{"a": ' + b"9" * 5_000 + b"}"),
        *(b'{"id": "a", "id": "b"}', b'{"a": {"b": 1, "b": 1}}', b'{"a": "\\ud800"}', b'{"\\udfff": 1}'),
        b"[" * 150 + b"]" * 150,
    ],
)
@each_row(("method", "path"), [("POST", ALL), ("PUT", f"{ALL}/site"), ("POST", f"{ALL}?dry-run=true")])
async def test_odd_json_is_refused_as_in_a_connection_file(content: bytes, method: str, path: str) -> None:
    management = management_with_connection()
    answer = await ask(management, method, path, content=content, headers=JSON)
    assert (answer.status_code, answer.json()["error"]) == (400, "json.invalid")
    assert answer.json()["problems"]
    assert management.requests == []


@pytest.mark.parametrize("content", [b"[]", b"7", b"null", b'"text"'])
async def test_json_that_is_no_object_is_refused(content: bytes) -> None:
    answer = await ask(FakeManagement(), "POST", ALL, content=content, headers=JSON)
    assert (answer.status_code, answer.json()["error"]) == (400, "api:body.invalid")


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "json", "multipart/form-data"])
async def test_another_media_type_is_refused(kind: str) -> None:
    answer = await ask(FakeManagement(), "POST", ALL, content=b"{}", headers={"content-type": kind})
    assert (answer.status_code, answer.json()["error"]) == (415, "api:contenttype.unsupported")


async def test_a_media_type_may_have_parameters_and_any_case() -> None:
    headers = {"content-type": " Application/JSON ; charset=utf-8"}
    assert (await ask(FakeManagement(), "POST", ALL, content=json.dumps(DOCUMENT), headers=headers)).status_code == 201


async def _parts(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


@pytest.mark.parametrize("has_content_length", [True, False])
async def test_a_body_beyond_the_bound_is_too_large_with_or_without_content_length(has_content_length: bool) -> None:
    content = json.dumps({"a": "x" * 100}).encode()
    async with client_of(app_of(max_body=64)) as client:
        answer = await client.post(
            ALL, content=content if has_content_length else _parts(content[:50], content[50:]), headers=JSON
        )
        assert (answer.status_code, answer.json()["error"]) == (413, "api:body.toolarge")
        answer = await client.post(ALL, content=content[:64], headers=JSON)
        assert answer.status_code == 400


async def test_by_default_a_body_may_have_a_mebibyte() -> None:
    answer = await ask(FakeManagement(), "POST", ALL, content=b" " * (1024 * 1024 + 1), headers=JSON)
    assert answer.status_code == 413


async def test_a_large_body_is_read_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of many small values takes more than half a second."""
    here, threads = threading.get_ident(), []

    def read(content: bytes) -> ParsedDocument:
        threads.append(threading.get_ident())
        return read_json(content)

    monkeypatch.setattr("connectivity.api.requests.read_json", read)
    for length in (100, 100_000):
        document = {**DOCUMENT, "name": "x" * length}
        answer = await ask(management_with_connection(), "PUT", f"{ALL}/site", json=document)
        assert answer.status_code == 204
    assert [thread == here for thread in threads] == [True, False]


async def test_a_body_that_does_not_arrive_is_not_waited_for() -> None:
    never = asyncio.Event()

    async def stalling() -> AsyncIterator[bytes]:
        yield b"{"
        await never.wait()

    async with client_of(app_of(read_timeout="50ms")) as client:
        answer = await client.post(ALL, content=stalling(), headers=JSON)
    assert (answer.status_code, answer.json()["error"]) == (408, "api:body.timeout")


@settings(max_examples=examples(60), deadline=None)
@given(
    st.binary(max_size=200),
    st.sampled_from(["application/json", "text/plain", "application/vnd.connectivity.connection-test+json"]),
)
async def test_no_body_causes_an_internal_error(content: bytes, kind: str) -> None:
    management = management_with_connection()
    for method, path in (
        ("POST", ALL),
        ("POST", f"{ALL}?dry-run=true"),
        ("PUT", f"{ALL}/site"),
        ("POST", f"{ALL}/site/command"),
    ):
        answer = await ask(management, method, path, content=content, headers={"content-type": kind})
        assert 400 <= answer.status_code < 500
        assert answer.json()["status"] == answer.status_code


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=examples(100), deadline=None)
@given(st.sampled_from([*DOCUMENT, "targets", "specificConfig", "mappingDefinitions", "tags", "clientCount"]), _JSON)
async def test_no_member_of_a_document_causes_an_internal_error(name: str, value: object) -> None:
    answer = await ask(None, "POST", ALL, content=json.dumps({**DOCUMENT, name: value}), headers=JSON)
    assert answer.status_code in (201, 400, 409)
    if answer.status_code == 400:
        assert answer.json()["problems"]

"""Connections over HTTP: the calls of `ConnectionManager`, and the responses made from its results."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from connectivity.errors import OperationRefused
from connectivity.management.definition import PastRevision, SampleMessage
from mappings.errors import Fault
from tests.support.api.fake_management import DOCUMENT, START, FakeManagement, ask, management_with_connection
from tests.support.table import each_row

ALL = "/api/2/connections"
ONE = f"{ALL}/site"
CONNECTION_TEST = "application/vnd.connectivity.connection-test+json"
SHOWN = {**DOCUMENT, "uri": "tcp://fleet:*****@broker.acme.example:1883"}
NEW = {name: value for name, value in DOCUMENT.items() if name != "id"}


async def sends(management: FakeManagement | None, method: str, path: str, body: Any, **headers: str) -> Any:
    """A request with this body as JSON."""
    given = {"content-type": "application/json", **headers}
    return await ask(management, method, path, content=json.dumps(body), headers=given)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", [SHOWN]),
        ("?ids-only=true", ["site"]),
        ("?ids-only=false", [SHOWN]),
        ("?fields=id", ["site"]),
        ("?fields=id,connectionType", [{"id": "site", "connectionType": "mqtt-5"}]),
        (
            "?fields=_revision,_owner,_file,_override",
            [{"_revision": 1, "_owner": "api", "_file": None, "_override": None}],
        ),
        ("?fields=nothing", [{}]),
    ],
)
async def test_connections_are_listed_as_asked(query: str, expected: list[Any]) -> None:
    answer = await ask(management_with_connection(), "GET", ALL + query)
    assert (answer.status_code, answer.json()) == (200, expected)
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("?fields=", "json.fieldselector.invalid"),
        ("?fields=id(", "json.fieldselector.invalid"),
        ("?ids-only=yes", "api:parameter.invalid"),
        ("?idsonly=true", "api:parameter.invalid"),
    ],
)
async def test_a_list_request_with_unknown_parameters_is_refused(query: str, error: str) -> None:
    answer = await ask(management_with_connection(), "GET", ALL + query)
    assert (answer.status_code, answer.json()["error"]) == (400, error)


async def test_a_created_connection_is_returned_with_its_location() -> None:
    management = FakeManagement()
    answer = await sends(management, "POST", ALL, NEW)
    assert answer.status_code == 201
    assert (answer.headers["location"], answer.headers["etag"]) == (f"{ALL}/made-1", '"rev:1"')
    assert answer.json() == {**SHOWN, "id": "made-1"}
    assert management.requests == [("create", NEW, "api")]


@pytest.mark.parametrize("more", [{"targets": None}, {"specificConfig": {"keepAlive": 5}}])
async def test_a_created_connection_is_returned_as_it_was_sent(more: dict[str, Any]) -> None:
    answer = await sends(None, "POST", ALL, {**DOCUMENT, **more})
    assert (answer.status_code, answer.json()) == (201, {**SHOWN, **more})


async def test_members_that_the_service_sets_are_not_shown_as_a_client_sent_them() -> None:
    sent = {**DOCUMENT, "_revision": 77, "_modified": "2020-01-01T00:00:00Z", "__lifecycle": "DELETED"}
    management = FakeManagement()
    assert (await sends(management, "POST", ALL, sent)).json() == SHOWN
    for path, expected in ((ONE, SHOWN), (f"{ONE}?fields=id,_revision,__lifecycle", {"id": "site", "_revision": 1})):
        assert (await ask(management, "GET", path)).json() == expected
    assert (await ask(management, "GET", ALL)).json() == [SHOWN]


async def test_an_id_that_is_taken_is_a_conflict() -> None:
    answer = await sends(management_with_connection(), "POST", ALL, DOCUMENT)
    assert (answer.status_code, answer.json()["error"]) == (409, "connectivity:connection.conflict")


async def test_every_problem_of_a_document_is_reported_at_once() -> None:
    answer = await sends(FakeManagement(), "POST", ALL, {**NEW, "uri": "nowhere", "clientCount": 0})
    error = answer.json()
    assert (answer.status_code, error["status"]) == (400, 400)
    assert {it["path"] for it in error["problems"]} == {"uri", "clientCount"}
    assert all(it.keys() == {"path", "found", "expected", "hint"} for it in error["problems"])


async def test_case_46_a_connection_is_created_by_put_on_a_fresh_id() -> None:
    management = FakeManagement()
    answer = await sends(management, "PUT", ONE, NEW)
    assert (answer.status_code, answer.headers["location"], answer.headers["etag"]) == (201, ONE, '"rev:1"')
    assert answer.json() == SHOWN
    assert management.requests == [("put", "site", NEW, "api")]


async def test_a_connection_is_changed_by_put() -> None:
    answer = await sends(management_with_connection(), "PUT", ONE, {**DOCUMENT, "name": "Depot"})
    assert (answer.status_code, answer.content, answer.headers["etag"]) == (204, b"", '"rev:2"')


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"connectionStatus": None}, "connectivity:connection.configuration.invalid"),
        ({"uri": 7}, "connectivity:connection.uri.invalid"),
    ],
)
async def test_a_put_with_a_missing_or_invalid_field_is_refused(change: dict[str, Any], error: str) -> None:
    answer = await sends(management_with_connection(), "PUT", ONE, {**DOCUMENT, **change})
    assert (answer.status_code, answer.json()["error"]) == (400, error)


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
async def test_the_api_does_not_change_a_connection_of_a_file(method: str) -> None:
    answer = await sends(management_with_connection(by_file=True), method, ONE, DOCUMENT)
    assert (answer.status_code, answer.json()["error"]) == (409, "connectivity:connection.conflict")
    assert "site.yaml" in answer.json()["message"]


async def test_that_it_is_stored_and_could_not_be_opened_gets_an_error() -> None:
    management = management_with_connection()
    management.refuses["put"] = OperationRefused(
        Fault(504, "connectivity:connection.failed", "bad credentials", "Retried.")
    )
    answer = await sends(management, "PUT", ONE, DOCUMENT)
    assert (answer.status_code, answer.json()) == (
        504,
        {
            "status": 504,
            "error": "connectivity:connection.failed",
            "message": "bad credentials",
            "description": "Retried.",
        },
    )


async def test_a_connection_is_retrieved_with_its_revision() -> None:
    answer = await ask(management_with_connection(), "GET", ONE)
    assert (answer.status_code, answer.json(), answer.headers["etag"]) == (200, SHOWN, '"rev:1"')
    answer = await ask(management_with_connection(), "GET", ONE + "?fields=sources,_revision,_modified")
    assert answer.json() == {"sources": DOCUMENT["sources"], "_revision": 1, "_modified": "2026-02-03T09:00:00Z"}


@pytest.mark.parametrize(
    ("headers", "moment", "revision"),
    [
        ({"at-historical-revision": "1"}, 1, 1),
        ({"at-historical-timestamp": "2026-02-03T10:30:00+01:00"}, START.replace(minute=30), 1),
        ({}, None, 2),
    ],
)
async def test_an_earlier_revision_is_retrieved(
    headers: dict[str, str], moment: PastRevision | None, revision: int
) -> None:
    management = management_with_connection()
    await sends(management, "PUT", ONE, {**DOCUMENT, "name": "later"})
    answer = await ask(management, "GET", ONE, headers=headers)
    assert (answer.status_code, answer.headers["etag"]) == (200, f'"rev:{revision}"')
    assert management.requests[-1] == ("definition", "site", moment)


@pytest.mark.parametrize(
    ("headers", "status", "error"),
    [
        ({"at-historical-revision": "9"}, 404, "connectivity:connection.history.notfound"),
        ({"at-historical-timestamp": "2020-01-01T00:00:00Z"}, 404, "connectivity:connection.history.notfound"),
        ({"at-historical-revision": "0"}, 400, "header.invalid"),
        ({"at-historical-revision": "-1"}, 400, "header.invalid"),
        ({"at-historical-revision": "9223372036854775808"}, 400, "header.invalid"),
        ({"at-historical-revision": "one"}, 400, "header.invalid"),
        ({"at-historical-timestamp": "yesterday"}, 400, "header.invalid"),
        ({"at-historical-timestamp": "2020-01-01"}, 400, "header.invalid"),
        ({"at-historical-timestamp": "0001-01-01T00:00:00+18:00"}, 400, "header.invalid"),
        ({"at-historical-timestamp": "2020-01-01T00:00:00Z", "at-historical-revision": "1"}, 400, "header.invalid"),
    ],
)
async def test_an_unknown_or_invalid_past_revision_is_refused(headers: dict[str, str], status: int, error: str) -> None:
    answer = await ask(management_with_connection(), "GET", ONE, headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (status, error)


async def test_the_revisions_are_listed() -> None:
    management = management_with_connection()
    await sends(management, "PUT", ONE, {**DOCUMENT, "name": "later"})
    assert [it["revision"] for it in (await ask(management, "GET", f"{ONE}/revisions")).json()] == [2, 1]


async def test_a_connection_is_deleted() -> None:
    management = management_with_connection()
    answer = await ask(management, "DELETE", ONE)
    assert (answer.status_code, answer.content, management.stored) == (204, b"", {})
    assert (await ask(management, "DELETE", ONE)).status_code == 404


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_an_unknown_connection_is_not_found(method: str) -> None:
    answer = await ask(FakeManagement(), method, f"{ALL}/none")
    assert (answer.status_code, answer.json()["error"]) == (404, "connectivity:connection.notfound")


@pytest.mark.parametrize("below", ["status", "metrics", "logs", "revisions"])
async def test_status_metrics_logs_and_revisions_of_a_connection_are_shown_by_its_id(below: str) -> None:
    answer = await ask(management_with_connection(), "GET", f"{ONE}/{below}")
    assert answer.status_code == 200
    assert below == "revisions" or answer.json()["connectionId"] == "site"
    answer = await ask(FakeManagement(), "GET", f"{ALL}/none/{below}")
    assert (answer.status_code, answer.json()["error"]) == (404, "connectivity:connection.notfound")


@each_row("connection_id", ["ä", "a b", "a" * 101, "a%0a", "%00"])
@each_row(("method", "below"), [("GET", ""), ("PUT", ""), ("DELETE", ""), ("GET", "/status")])
async def test_an_invalid_connection_id_is_refused(connection_id: str, method: str, below: str) -> None:
    answer = await sends(FakeManagement(), method, f"{ALL}/{connection_id}{below}", NEW)
    assert (answer.status_code, answer.json()["error"]) == (400, "connectivity:connection.id.invalid")


# --- commands ---


@pytest.mark.parametrize(
    ("command", "method"),
    [
        ("openConnection", "open"),
        ("closeConnection", "close"),
        ("resetConnectionMetrics", "reset_metrics"),
        ("enableConnectionLogs", "enable_logs"),
        ("resetConnectionLogs", "reset_logs"),
    ],
)
async def test_each_of_the_five_commands_is_carried_out(command: str, method: str) -> None:
    management = management_with_connection()
    content, headers = f"connectivity.commands:{command}", {"content-type": "text/plain; charset=utf-8"}
    answer = await ask(management, "POST", f"{ONE}/command", content=content, headers=headers)
    assert (answer.status_code, answer.content) == (200, b"")
    assert management.requests == [(method, "site", "api")]
    assert (await ask(management, "POST", f"{ALL}/none/command", content=content, headers=headers)).status_code == 404


@pytest.mark.parametrize(
    "command",
    [
        *("", "open", "connectivity.commands:openconnection", " connectivity.commands:openConnection"),
        *("connectivity.commands:openConnection\n", '"connectivity.commands:openConnection"', "\ufffe\x00"),
    ],
)
async def test_any_other_command_is_invalid(command: str) -> None:
    management = management_with_connection()
    answer = await ask(management, "POST", f"{ONE}/command", content=command, headers={"content-type": "text/plain"})
    assert (answer.status_code, answer.json()["error"]) == (400, "connectivity:command.invalid")
    assert management.requests == []


async def test_a_command_that_does_not_come_as_plain_text_is_refused() -> None:
    answer = await sends(management_with_connection(), "POST", f"{ONE}/command", "connectivity.commands:openConnection")
    assert (answer.status_code, answer.json()["error"]) == (415, "api:contenttype.unsupported")


# --- dry run ---


async def test_case_48_a_failed_dry_run_returns_its_report_and_stores_nothing() -> None:
    management = FakeManagement()
    management.refuses["test"] = OperationRefused(
        Fault(504, "connectivity:connection.failed", "connection refused"), report={"sources": []}
    )
    answer = await sends(management, "POST", ALL + "?dry-run=true", NEW)
    assert (answer.status_code, answer.json()["error"]) == (504, "connectivity:connection.failed")
    assert answer.json()["report"] == {"sources": []}
    assert management.stored == {}


async def test_a_connection_is_tried_as_it_is() -> None:
    management = FakeManagement()
    answer = await sends(management, "POST", ALL + "?dry-run=true", DOCUMENT)
    assert (answer.status_code, answer.json()) == (200, {"status": "open"})
    assert (management.requests, management.stored) == ([("test", DOCUMENT, None)], {})


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        (None, None),
        ({"payload": "ü"}, SampleMessage("ü".encode())),
        (
            {"payload": "{}", "headers": {"a": "b"}, "source": 1, "address": "cmd/1"},
            SampleMessage(b"{}", {"a": "b"}, 1, "cmd/1"),
        ),
        ({"payload": base64.b64encode(b"\xff\x00").decode(), "encoding": "base64"}, SampleMessage(b"\xff\x00")),
    ],
)
async def test_a_connection_is_tried_with_a_sample(sample: Any, expected: SampleMessage | None) -> None:
    management = FakeManagement()
    body = {"connection": DOCUMENT, "sample": sample}
    answer = await sends(management, "POST", ALL + "?dry-run=true", body, **{"content-type": CONNECTION_TEST})
    assert (answer.status_code, management.requests) == (200, [("test", DOCUMENT, expected)])


@pytest.mark.parametrize(
    ("body", "path", "found"),
    [
        (DOCUMENT, "$", '"connectionStatus"'),
        ({"sample": {"payload": ""}}, "connection", "nothing"),
        ({"connection": []}, "connection", "an empty list"),
        ({"connection": DOCUMENT, "samples": {}}, "$", '"samples"'),
        ({"connection": DOCUMENT, "sample": "{}"}, "sample", '"{}"'),
        ({"connection": DOCUMENT, "sample": {"payload": "", "payloads": 1}}, "sample", '"payloads"'),
        ({"connection": DOCUMENT, "sample": {}}, "sample.payload", "nothing"),
        ({"connection": DOCUMENT, "sample": {"payload": {}}}, "sample.payload", "an object"),
        (
            {"connection": DOCUMENT, "sample": {"payload": "ä", "encoding": "base64"}},
            "sample.payload",
            "a string that is not Base64",
        ),
        ({"connection": DOCUMENT, "sample": {"payload": "", "encoding": "hex"}}, "sample.encoding", '"hex"'),
        ({"connection": DOCUMENT, "sample": {"payload": "", "headers": {"a": 1}}}, "sample.headers.a", "1"),
        ({"connection": DOCUMENT, "sample": {"payload": "", "source": True}}, "sample.source", "true"),
        ({"connection": DOCUMENT, "sample": {"payload": "", "source": -1}}, "sample.source", "-1"),
        ({"connection": DOCUMENT, "sample": {"payload": "", "address": 1}}, "sample.address", "1"),
    ],
)
async def test_an_invalid_connection_test_reports_the_path_and_what_was_found(body: Any, path: str, found: str) -> None:
    management = FakeManagement()
    answer = await sends(management, "POST", ALL + "?dry-run=true", body, **{"content-type": CONNECTION_TEST})
    assert (answer.status_code, [(it["path"], it["found"]) for it in answer.json()["problems"]]) == (
        400,
        [(path, found)],
    )
    assert management.requests == []


@pytest.mark.parametrize(("method", "path"), [("PUT", ONE), ("POST", ALL + "?dry-run=true")], ids=["PUT", "dry run"])
async def test_all_missing_fields_are_reported_at_once(method: str, path: str) -> None:
    """Only where POST makes a connection may it be left open whether it is to be open."""
    answer = await sends(FakeManagement(), method, path, {"sources": []})
    assert answer.status_code == 400
    assert {it["path"] for it in answer.json()["problems"]} >= {"connectionType", "connectionStatus", "uri"}


async def test_a_sample_without_a_dry_run_creates_nothing() -> None:
    management = FakeManagement()
    answer = await sends(management, "POST", ALL, {"connection": DOCUMENT}, **{"content-type": CONNECTION_TEST})
    assert (answer.status_code, management.requests) == (415, [])


async def test_a_misspelt_dry_run_creates_nothing() -> None:
    management = FakeManagement()
    answer = await sends(management, "POST", ALL + "?dryrun=true", NEW)
    assert (answer.status_code, management.requests) == (400, [])
    assert "did you mean dry-run?" in answer.json()["description"]

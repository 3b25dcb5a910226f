"""`connectivity connections apply` and `test` against canned answers."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from connectivity.cli.main import app
from tests.support.api.canned_server import Canned, Reply, canned, fault

SECRET = "s3cr3t-word"
LIST = "GET /api/2/connections?fields=id%2C_owner%2C_file%2C_revision"
TRY = "POST /api/2/connections?dry-run=true"


def document(name: str, **more: Any) -> dict[str, Any]:
    source = {
        "addresses": [f"{name}/cmd"],
        "authorizationContext": ["integration:fleet"],
        "qos": 0,
        "replyTarget": {"address": "answers"},
    }
    return {
        "id": name,
        "connectionType": "mqtt-5",
        "connectionStatus": "open",
        "uri": "tcp://h:1883",
        "sources": [source],
    } | more


def owned(name: str, revision: int = 3, file: str | None = None) -> dict[str, Any]:
    return {"id": name, "_owner": "file" if file else "api", "_revision": revision} | ({"_file": file} if file else {})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Canned]:
    """A service that has `depot` and `site`."""
    table = {
        LIST: Reply([owned("depot"), owned("site", 1)]),
        "GET /api/2/connections/depot": Reply(document("depot"), headers={"etag": '"rev:3"'}),
        "GET /api/2/connections/site": Reply(document("site"), headers={"etag": '"rev:1"'}),
        **{f"PUT /api/2/connections/{name}": Reply(status=204) for name in ("depot", "site")},
        "PUT /api/2/connections/fresh": Reply({}, 201),
        "DELETE /api/2/connections/site": Reply(status=204),
    }
    with canned(table) as server:
        monkeypatch.setenv("CONNECTIVITY_URL", server.url)
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with `depot`, with another QoS, and `fresh`."""
    write(tmp_path, document("fresh"))
    changed = document("depot", uri=f"tcp://u:{SECRET}@h:1883")
    changed["sources"][0]["qos"] = 1
    write(tmp_path, changed)
    return tmp_path


def write(folder: Path, found: dict[str, Any]) -> Path:
    file = folder / f"{found['id']}.json"
    file.write_text(json.dumps(found))
    return file


def run(*arguments: object, input: bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["connections", *map(str, arguments)], input=input, catch_exceptions=False)


def changing(server: Canned) -> list[str]:
    return [line for line in server.lines if not line.startswith("GET ")]


def test_a_plan_shows_each_field_changes_nothing_and_ends_with_3(server: Canned, folder: Path) -> None:
    result = run("apply", folder, "--plan")
    assert (result.exit_code, result.stderr, changing(server)) == (3, "", [])
    assert result.stdout.splitlines() == [
        "depot: changed",
        '  uri: "tcp://h:1883" → "tcp://u:*****@h:1883"',
        "  sources[0].qos: 0 → 1",
        "fresh: new",
        "1 new, 1 changed",
    ]
    result = run("apply", folder, "--plan", "--json")
    depot, fresh = json.loads(result.stdout)["connections"]
    assert (result.exit_code, depot["action"], fresh["action"]) == (3, "changed", "new")
    assert depot["changes"][1] == {"path": "sources[0].qos", "before": 0, "after": 1}
    assert SECRET not in result.output


def test_a_plan_without_changes_ends_with_0(server: Canned, tmp_path: Path) -> None:
    write(tmp_path, document("site"))
    for more in ([], ["--plan"]):
        result = run("apply", tmp_path, *more)
        assert (result.exit_code, result.stdout) == (0, "site: unchanged\n1 unchanged\n")
    assert changing(server) == []


def test_apply_sends_the_revision_of_the_compared_connection(server: Canned, folder: Path) -> None:
    result = run("apply", folder, "--yes")
    assert (result.exit_code, result.stdout.splitlines()[-2:]) == (0, ["depot: done", "fresh: done"])
    depot, fresh = [asked for asked in server.requests if asked.line.startswith("PUT")]
    assert (depot.headers["if-match"], depot.headers.get("if-none-match")) == ('"rev:3"', None)
    assert (fresh.headers["if-none-match"], fresh.headers.get("if-match")) == ("*", None)
    assert depot.document == json.loads((folder / "depot.json").read_text())
    result = run("apply", folder, "--yes", "--json")
    assert [each["done"] for each in json.loads(result.stdout)["connections"]] == [True, True]
    assert SECRET not in result.output


def test_apply_does_not_prompt_without_a_terminal(server: Canned, folder: Path) -> None:
    result = run("apply", folder)
    assert (result.exit_code, changing(server)) == (2, [])
    assert "Make these changes (1 new, 1 changed)? Add --yes" in result.stderr


def test_a_concurrent_change_is_reported_and_the_others_continue(server: Canned, folder: Path) -> None:
    server.table["PUT /api/2/connections/depot"] = fault(412, "connectivity:precondition.failed", "no")
    result = run("apply", folder, "--yes")
    assert result.exit_code == 1
    assert "fresh: done" in result.stdout
    assert "depot: it was changed meanwhile and is left unchanged" in result.stderr
    result = run("apply", folder, "--yes", "--json")
    depot, fresh = json.loads(result.stdout)["connections"]
    assert (result.exit_code, depot["done"], fresh["done"], "meanwhile" in depot["failure"]) == (1, False, True, True)


def test_a_stored_connection_that_cannot_be_opened_causes_an_error(server: Canned, folder: Path) -> None:
    server.table["PUT /api/2/connections/fresh"] = fault(504, "connectivity:connection.failed", "timeout: h:1883")
    result = run("apply", folder, "--yes")
    assert (result.exit_code, "depot: done" in result.stdout) == (1, True)
    assert "fresh: stored, but could not be opened; the service keeps retrying" in result.stderr


def test_a_connection_of_a_service_file_stops_apply_and_is_named(server: Canned, folder: Path) -> None:
    server.table[LIST] = Reply([owned("depot", file="connections/depot.yaml")])
    for more in (["--yes"], ["--plan"], ["--yes", "--json"]):
        result = run("apply", folder, *more)
        assert (result.exit_code, changing(server)) == (1, [])
        assert "it belongs to the file connections/depot.yaml" in result.stdout
        assert "nothing was changed" in result.stderr


def test_secrets_that_cannot_be_compared_are_sent_when_asked(server: Canned, tmp_path: Path) -> None:
    stored = document("depot", uri="tcp://u:*****@h:1883")
    server.table["GET /api/2/connections/depot"] = Reply(stored, headers={"etag": '"rev:3"'})
    write(tmp_path, document("depot", uri=f"tcp://u:{SECRET}@h:1883"))
    result = run("apply", tmp_path, "--yes")
    assert (result.exit_code, changing(server)) == (0, [])
    assert "uri: a secret that cannot be compared; it is not sent without --secrets" in result.stdout
    assert run("apply", tmp_path, "--yes", "--secrets").exit_code == 0
    assert server.requests[-1].document["uri"] == f"tcp://u:{SECRET}@h:1883"
    assert SECRET not in result.output


def test_a_connection_without_a_file_is_deleted_only_with_prune(server: Canned, folder: Path) -> None:
    assert "site" not in run("apply", folder, "--plan").stdout
    result = run("apply", folder, "--prune", "--yes")
    assert (result.exit_code, "site: gone" in result.stdout) == (0, True)
    assert (server.requests[-1].line, server.requests[-1].headers["if-match"]) == (
        "DELETE /api/2/connections/site",
        '"rev:1"',
    )


def test_nothing_is_deleted_if_a_document_was_not_stored(server: Canned, folder: Path) -> None:
    server.table["PUT /api/2/connections/fresh"] = fault(400, "connectivity:connection.uri.invalid", "no")
    result = run("apply", folder, "--prune", "--yes")
    assert (result.exit_code, "depot: done" in result.stdout) == (1, True)
    assert "site: not deleted, because another change failed" in result.stderr
    assert not [line for line in changing(server) if line.startswith("DELETE")]
    server.table["PUT /api/2/connections/fresh"] = fault(504, "connectivity:connection.failed", "timeout: h:1883")
    assert run("apply", folder, "--prune", "--yes").exit_code == 1
    assert changing(server)[-1] == "DELETE /api/2/connections/site", "the document was stored"


def test_files_are_checked_before_anything_is_asked(server: Canned, folder: Path) -> None:
    write(folder, document("bad", clientCount=0, uri=f"tcp://u:{SECRET}@h:1883"))
    checked = CliRunner().invoke(app, ["validate", str(folder)])
    result = run("apply", folder, "--yes")
    assert (result.exit_code, server.requests) == (1, [])
    assert result.stdout == checked.stdout
    assert run("apply", folder / "nope").exit_code == 2
    (empty := folder / "empty").mkdir()
    nothing = run("apply", empty, "--prune", "--yes")
    assert (nothing.exit_code, server.requests) == (2, []), "an empty folder would delete everything"


def test_references_are_for_the_service_to_follow(server: Canned, tmp_path: Path) -> None:
    uri = "tcp://u:${env:NO_SUCH_VARIABLE}@h:1883"
    write(tmp_path, document("depot", uri=uri, ca="${file:nowhere.pem}"))
    assert CliRunner().invoke(app, ["validate", str(tmp_path)]).exit_code == 1
    assert run("apply", tmp_path, "--yes").exit_code == 0
    assert (server.requests[-1].document["uri"], server.requests[-1].document["ca"]) == (uri, "${file:nowhere.pem}")
    write(tmp_path, document("depot", uri=uri, clientCount=0))
    result = run("apply", tmp_path, "--yes")
    assert (result.exit_code, "clientCount" in result.stdout, "NO_SUCH" in result.stdout) == (1, True, False)


def test_a_connection_that_is_deleted_meanwhile_is_new(server: Canned, folder: Path) -> None:
    server.table["GET /api/2/connections/depot"] = fault(404, "connectivity:connection.notfound", "gone")
    assert "depot: new" in run("apply", folder, "--plan").stdout


ODD: list[Any] = [None, {}, 7, [7], [None], "x", [{"id": 7}], [{}]]


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_an_answer_of_another_shape_is_no_traceback(odd: Any, server: Canned, folder: Path) -> None:
    server.table[LIST] = Reply(odd)
    assert run("apply", folder, "--plan").exit_code in (3, 5)
    server.table[LIST] = Reply([owned("depot")])
    server.table["GET /api/2/connections/depot"] = Reply(odd)
    assert run("apply", folder, "--plan").exit_code in (3, 5)


def test_a_document_that_is_nested_without_end_is_no_traceback(server: Canned, folder: Path) -> None:
    deep = b'{"tags":' + b"[" * 500 + b"]" * 500 + b"}"
    server.table["GET /api/2/connections/depot"] = Reply(body=deep)
    result = run("apply", folder, "--plan")
    assert (result.exit_code, result.stdout) == (5, "")


# --- test ---------------------------------------------------------------------------------------------------------------

REPORT: dict[str, Any] = {
    "connection": "open",
    "clients": [{"status": "open", "details": "connected"}],
    "sources": [{"index": 0, "address": "depot/cmd", "status": "open", "details": "connected"}],
    "replyTargets": [{"index": 0, "address": "{{header:reply-to}}", "status": "unknown", "details": "a placeholder"}],
    "targets": [],
    "withoutEffect": ["targets[0].topics: the parameter filter is unknown and ignored"],
    "sample": {
        "source": 0,
        "address": "depot/cmd",
        "subjects": ["integration:fleet"],
        "signals": [
            {
                "mapper": "Ditto",
                "topic": "acme/lamp-7/things/twin/commands/modify",
                "path": "/attributes/on",
                "headers": {"correlation-id": "c-1"},
                "value": True,
                "replies": {
                    "response": {
                        "messages": [
                            {"address": "reply/1", "headers": {"correlation-id": "c-1"}, "payload": {"status": 204}}
                        ]
                    },
                    "error": {"nothing": "the source's replyTarget is not enabled"},
                },
            }
        ],
    },
}


def test_a_connection_test_shows_addresses_and_the_result_of_the_sample(server: Canned, folder: Path) -> None:
    server.table[TRY] = Reply(REPORT)
    (folder / "sample.json").write_text('{"on": true}')
    more = ["--sample", folder / "sample.json", "--header", "correlation-id=c-1", "--header", "a=b=c", "--source", "0"]
    result = run("test", folder / "depot.json", *more, "--address", "depot/cmd")
    assert (result.exit_code, result.stderr) == (0, "")
    assert server.requests[-1].headers["content-type"] == "application/vnd.connectivity.connection-test+json"
    sent = server.requests[-1].document
    assert sent["connection"] == json.loads((folder / "depot.json").read_text())
    assert sent["sample"] == {
        "payload": '{"on": true}',
        "headers": {"correlation-id": "c-1", "a": "b=c"},
        "source": 0,
        "address": "depot/cmd",
    }
    text = result.stdout
    assert "reply-target 0  {{header:reply-to}}  unknown  a placeholder" in text
    assert text.split("without effect", 1)[1].splitlines()[1:] == [
        "sample at source 0, depot/cmd:",
        "  acme/lamp-7/things/twin/commands/modify /attributes/on (Ditto)",
        "    value = true",
        "    correlation-id: c-1",
        "    response to reply/1",
        "      correlation-id: c-1",
        '      payload = {"status": 204}',
        "    error: nothing is sent: the source's replyTarget is not enabled",
    ]
    assert json.loads(run("test", folder / "depot.json", "--json").stdout) == REPORT


@pytest.mark.parametrize(
    ("more", "lines"), [({"description": "Name the address."}, ["    Name the address."]), ({}, [])]
)
def test_a_refused_sample_is_shown_with_the_remedy(
    more: dict[str, str], lines: list[str], server: Canned, folder: Path
) -> None:
    error = {"error": "json.invalid", "message": "no JSON", **more}
    server.table[TRY] = Reply({"sample": {"source": 0, "address": "in", "error": error}})
    shown = run("test", folder / "depot.json", "--sample", "-", input=b"{").stdout.splitlines()
    assert shown == ["sample at source 0, in:", "  refused: json.invalid: no JSON", *lines]


def test_a_connection_test_without_a_sample_is_the_document_alone(server: Canned, folder: Path) -> None:
    server.table[TRY] = Reply({"connection": "open"})
    assert run("test", folder / "depot.json").exit_code == 0
    assert server.requests[-1].headers["content-type"] == "application/json"
    assert server.requests[-1].document["id"] == "depot"


def test_a_sample_that_is_no_text_goes_as_base64_and_may_come_from_standard_input(server: Canned, folder: Path) -> None:
    server.table[TRY] = Reply(REPORT)
    assert run("test", folder / "depot.json", "--sample", "-", input=b"\xff\x00").exit_code == 0
    sample = server.requests[-1].document["sample"]
    assert (sample["encoding"], base64.b64decode(sample["payload"])) == ("base64", b"\xff\x00")


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            Reply(
                REPORT | {"targets": [{"index": 0, "address": "q", "status": "misconfigured", "details": "missing"}]}
            ),
            "",
        ),
        (Reply({"sample": {"error": {"error": "json.invalid", "message": "no JSON"}}}), ""),
        (fault(504, "connectivity:connection.failed", "refused", report=REPORT | {"connection": "failed"}), "refused"),
        (fault(400, "connectivity:connection.configuration.invalid", "The connection has problems."), "problems"),
    ],
)
def test_a_connection_test_with_a_problem_ends_with_1_and_shows_its_result(
    found: Reply, message: str, server: Canned, folder: Path
) -> None:
    server.table[TRY] = found
    result = run("test", folder / "depot.json")
    assert (result.exit_code, message in result.stderr) == (1, True)
    as_json = run("test", folder / "depot.json", "--json")
    assert (as_json.exit_code, json.loads(as_json.stdout)) == (1, found.document)


@pytest.mark.parametrize(
    "more",
    [
        ["--header", "a=b"],
        ["--source", "1"],
        ["--address", "x"],
        ["--sample", "nope"],
        ["--sample", "-", "--header", "a"],
    ],
    ids=" ".join,
)
def test_a_connection_test_with_invalid_options_ends_with_2(more: list[str], server: Canned, folder: Path) -> None:
    result = run("test", folder / "depot.json", *more, input=b"x")
    assert (result.exit_code, result.stdout, server.requests) == (2, "", [])


def test_of_several_connections_one_is_named(server: Canned, folder: Path) -> None:
    server.table[TRY] = Reply(REPORT)
    several = run("test", folder)
    assert (several.exit_code, "found the connections depot, fresh" in several.stderr) == (2, True)
    unknown = run("test", folder, "--id", "frsh")
    expected = "found no connection frsh, expected one of: depot, fresh; fix --id"
    assert (unknown.exit_code, expected in unknown.stderr) == (2, True)
    assert run("test", folder, "--id", "fresh").exit_code == 0
    assert server.requests[-1].document["id"] == "fresh"


def test_content_without_effect_is_reported_before_it_is_applied(server: Canned, tmp_path: Path) -> None:
    target = {
        "address": "alarms",
        "topics": ["_/_/things/twin/events?filer=exists(attributes/a)"],
        "authorizationContext": ["integration:fleet"],
        "qos": 1,
    }
    (tmp_path / "fresh.json").write_text(json.dumps(document("fresh", targets=[target])))
    applied = CliRunner().invoke(app, ["connections", "apply", str(tmp_path), "--yes"])
    assert (applied.exit_code, applied.stdout) == (0, "fresh: new\n1 new\nfresh: done\n")
    assert "without effect: targets[0].topics: the parameter filer is unknown" in applied.stderr

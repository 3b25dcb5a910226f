"""`connectivity connections …` against canned responses: the requests, the output, and the exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from connectivity.cli.main import app
from tests.support.api.canned_server import HTML, PROGRAM, Answers, Canned, Reply, canned, fault
from tests.support.api.metrics_page import METRICS, STATUS
from tests.support.brokers import free_port
from tests.support.terminal import at_terminal

TOKEN = "t0ken-nobody-else-has"
LISTED = "GET /api/2/connections?fields=" + "%2C".join(
    ("id", "connectionType", "connectionStatus", "name", "_owner", "_file", "_override", "_problems")
)
IDS = "GET /api/2/connections?ids-only=true"
DEPOT = "/api/2/connections/depot"
DOCUMENT = {"id": "depot", "connectionType": "mqtt", "uri": "tcp://u:*****@h:1", "sources": []}
ROW = {"id": "depot", "connectionType": "mqtt", "connectionStatus": "open", "name": "Depot \x1b[31m7", "_owner": "api"}
ENTRY = {"timestamp": "T1", "level": "success", "category": "source", "type": "consumed", "message": "in \x1b]0;x\x07"}
BAD = {"timestamp": "T2", "level": "failure", "category": "source", "type": "mapped", "message": "no"}
LOGS = {"connectionId": "depot", "connectionLogs": [ENTRY, BAD], "enabledSince": "T0"}

TABLE: dict[str, Answers] = {
    LISTED: Reply([ROW]),
    "GET /api/2/connections": Reply([DOCUMENT]),
    IDS: Reply(["depot", "site"]),
    f"GET {DEPOT}": Reply(DOCUMENT, headers={"etag": '"rev:3"'}),
    f"DELETE {DEPOT}": Reply(status=204),
    f"POST {DEPOT}/command": Reply(),
    f"GET {DEPOT}/status": Reply(STATUS),
    f"GET {DEPOT}/metrics": Reply(METRICS),
    f"GET {DEPOT}/logs": Reply(LOGS),
    f"GET {DEPOT}/revisions": Reply([{"revision": 3, "modified": "T", "by": "ops", "action": "modified"}]),
    "GET /api/2/connections/owned": fault(404, "connectivity:connection.notfound", "found no connection owned"),
    "DELETE /api/2/connections/owned": fault(
        409, "connectivity:connection.conflict", "The connection owned belongs to the file connections/owned.yaml."
    ),
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Canned]:
    """A service with canned answers, named by the variables."""
    with canned(TABLE) as server:
        monkeypatch.setenv("CONNECTIVITY_URL", server.url)
        monkeypatch.setenv("CONNECTIVITY_TOKEN", TOKEN)
        yield server


def run(*arguments: object, input: str | None = None) -> Result:
    return CliRunner().invoke(app, ["connections", *map(str, arguments)], input=input, catch_exceptions=False)


PRINTED: dict[str, tuple[list[str], list[str]]] = {
    "list": (
        [LISTED],
        ["id     type  wanted  owner  name", "depot  mqtt  open    api    Depot \\x1b[31m7"],
    ),
    "list --ids": ([IDS], ["depot", "site"]),
    "open depot": ([f"POST {DEPOT}/command"], ["depot: open"]),
    "close depot depot": ([f"POST {DEPOT}/command"] * 2, ["depot: closed"] * 2),
    "delete depot --yes": ([f"DELETE {DEPOT}"], ["depot: deleted"]),
    "metrics depot --reset": ([f"POST {DEPOT}/command"], ["depot: counters reset"]),
    "logs depot --enable": ([f"POST {DEPOT}/command", f"GET {DEPOT}/logs"], ["depot: log enabled"]),
    "logs depot --reset": ([f"POST {DEPOT}/command"], ["depot: entries deleted"]),
    "logs depot --level failure": ([f"GET {DEPOT}/logs"], ["T2  failure  source mapped: no"]),
    "logs depot": (
        [f"GET {DEPOT}/logs"],
        ["T1  success  source consumed: in \\x1b]0;x\\x07", "T2  failure  source mapped: no"],
    ),
    "revisions depot": (
        [f"GET {DEPOT}/revisions"],
        ["revision  modified  by   action", "3         T         ops  modified"],
    ),
}


@pytest.mark.parametrize("line", PRINTED)
def test_a_command_calls_the_api_and_prints_lines(line: str, server: Canned) -> None:
    asked, printed = PRINTED[line]
    result = run(*line.split())
    assert (result.exit_code, result.stdout.splitlines(), result.stderr) == (0, printed, "")
    assert server.lines == asked
    assert {each.headers["authorization"] for each in server.requests} == {f"Bearer {TOKEN}"}


AS_JSON: dict[str, Any] = {
    "list": [DOCUMENT],
    "list --ids": ["depot", "site"],
    "show depot": DOCUMENT,
    "status depot": STATUS,
    "status": [STATUS],
    "metrics depot": METRICS,
    "logs depot": LOGS,
    "logs depot --level failure": LOGS | {"connectionLogs": [BAD]},
    "revisions depot": [{"revision": 3, "modified": "T", "by": "ops", "action": "modified"}],
    "metrics depot --reset": METRICS,
    "logs depot --reset": LOGS,
    "open depot": [{"id": "depot", "done": "open"}],
    "close depot depot": [{"id": "depot", "done": "closed"}] * 2,
    "delete depot --yes": [{"id": "depot", "done": "deleted"}],
}


@pytest.mark.parametrize("line", AS_JSON)
def test_with_json_the_answer_of_the_api_is_printed_and_nothing_else(line: str, server: Canned) -> None:
    result = run(*line.split(), "--json")
    assert (result.exit_code, json.loads(result.stdout), result.stderr) == (0, AS_JSON[line], "")


COMMANDS = {
    "open depot": "openConnection",
    "close depot": "closeConnection",
    "metrics depot --reset": "resetConnectionMetrics",
    "logs depot --enable": "enableConnectionLogs",
    "logs depot --reset": "resetConnectionLogs",
}


@pytest.mark.parametrize("line", COMMANDS)
def test_spec_7_1_the_five_commands_are_sent_as_text(line: str, server: Canned) -> None:
    run(*line.split())
    (asked,) = (each for each in server.requests if each.line.startswith("POST "))
    assert asked.body.decode() == f"connectivity.commands:{COMMANDS[line]}"
    assert asked.headers["content-type"] == "text/plain"


@pytest.mark.parametrize("more", ["", "--follow", "--reset", "--json", "--follow --json"])
def test_the_log_of_a_closed_connection_is_not_reported_as_enabled(more: str, server: Canned) -> None:
    server.table[f"GET {DEPOT}/logs"] = Reply({"connectionId": "depot", "connectionLogs": []})
    result = run("logs", "depot", "--enable", *more.split())
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "depot: it is not running, so it has no log; opening it enables its log\n"


def test_a_connection_is_shown_as_a_file_might_hold_it(server: Canned) -> None:
    assert yaml.safe_load(run("show", "depot").stdout) == DOCUMENT
    run("show", "depot", "--revision", "2")
    run("show", "depot", "--at", "2026-02-03T10:00:00Z")
    _, revision, time = server.requests
    assert revision.headers["at-historical-revision"] == "2"
    assert time.headers["at-historical-timestamp"] == "2026-02-03T10:00:00Z"


def test_a_status_shows_the_connection_and_its_resources(server: Canned) -> None:
    lines = run("status", "depot").stdout.splitlines()
    assert "is        misconfigured" in lines
    assert any(line.split()[:3] == ["source", "c-0", "cmd"] for line in lines)
    # The other ID is of a connection that has just been deleted.
    heading, row = run("status").stdout.splitlines()
    assert heading.split() == ["id", "wanted", "is", "recovery", "since", "details"]
    assert row.split()[:3] == ["depot", "open", "misconfigured"]


def test_metrics_are_shown_as_a_table_of_counters(server: Canned) -> None:
    heading, inbound, responses = run("metrics", "depot").stdout.splitlines()
    assert heading.split() == ["of", "address", "what", "how", "minute", "hour", "day", "last"]
    assert inbound.split() == ["inbound", "–", "consumed", "success", "3", "120", "800", "2026-02-03T10:01:07Z"]
    assert responses.split() == ["target", "_responses", "published", "failure", "–", "–", "1", "–"]


def test_an_empty_list_is_reported_as_empty(server: Canned) -> None:
    server.table |= {
        LISTED: Reply([]),
        IDS: Reply([]),
        f"GET {DEPOT}/metrics": Reply({}),
        f"GET {DEPOT}/revisions": Reply([]),
    }
    assert run("list").stdout == run("status").stdout == "no connections\n"
    assert run("list", "--ids").stdout == "", "a reader of one ID per line gets no line"
    assert run("metrics", "depot").stdout == "depot: no metrics\n"
    server.table[f"GET {DEPOT}/logs"] = Reply(LOGS | {"connectionLogs": []})
    assert run("logs", "depot").stdout == "depot: no entries\n"
    assert run("revisions", "depot").stdout == "depot: no revisions\n"
    assert json.loads(run("status", "--json").stdout) == []


def test_delete_without_a_terminal_needs_yes(server: Canned) -> None:
    result = run("delete", "depot")
    assert (result.exit_code, result.stdout, server.requests) == (2, "", [])
    assert "Delete depot? Add --yes to confirm." in result.stderr


def test_deleting_a_connection_of_a_file_is_refused_with_the_file_name(server: Canned) -> None:
    result = run("delete", "depot", "owned", "--yes")
    assert (result.exit_code, result.stdout) == (1, "depot: deleted\n")
    assert "connections/owned.yaml" in result.stderr
    result = run("delete", "depot", "owned", "--yes", "--json")
    assert (result.exit_code, json.loads(result.stdout)) == (1, [{"id": "depot", "done": "deleted"}])


@pytest.mark.parametrize(
    ("command", "method", "path", "done"),
    [
        ("open", "POST", "/api/2/connections/{}/command", "open"),
        ("close", "POST", "/api/2/connections/{}/command", "closed"),
        ("delete --yes", "DELETE", "/api/2/connections/{}", "deleted"),
    ],
)
def test_a_refused_connection_does_not_stop_the_others(
    command: str, method: str, path: str, done: str, server: Canned
) -> None:
    server.table[f"{method} {path.format('away')}"] = fault(504, "connectivity:connection.failed", "Nobody listens.")
    server.table[f"{method} {path.format('depto')}"] = fault(
        404, "connectivity:connection.notfound", "It is not there."
    )
    result = run(*command.split(), "away", "depto", "depot")
    assert (result.exit_code, result.stdout) == (1, f"depot: {done}\n")
    away, missing = result.stderr.splitlines()
    assert away.startswith("away: stored, but could not be opened; the service keeps retrying: ")
    assert missing.startswith("depto: connectivity:connection.notfound: It is not there.")


def test_a_missing_permission_error_explains_how_to_set_a_token(
    server: Canned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CONNECTIVITY_TOKEN")
    server.table[LISTED] = fault(401, "api:unauthorized", "A valid bearer token is required.")
    result = run("list")
    assert (result.exit_code, result.stdout) == (4, "")
    assert "CONNECTIVITY_TOKEN or --token-file" in result.stderr


def test_a_refused_token_is_not_shown(server: Canned) -> None:
    server.table[LISTED] = fault(401, "api:unauthorized", "A valid bearer token is required.")
    result = run("list")
    assert (result.exit_code, result.stdout) == (4, "")
    assert TOKEN not in result.output


def test_no_service_ends_with_5(monkeypatch: pytest.MonkeyPatch, server: Canned) -> None:
    monkeypatch.setenv("CONNECTIVITY_URL", f"http://127.0.0.1:{free_port()}")
    for line in ("list", "status", "logs depot", "open depot", "show depot --json"):
        result = run(*line.split())
        assert (result.exit_code, result.stdout) == (5, "")
        assert "connection refused; start the service" in result.stderr


def test_address_and_token_come_from_the_nearest_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: Canned
) -> None:
    token = tmp_path / "token"
    token.write_text("from-file\n")
    settings = tmp_path / "settings.json"
    port = int(server.url.rpartition(":")[2])
    settings.write_text(json.dumps({"api": {"port": port, "token": "from-settings"}}))
    unused_url = f"http://127.0.0.1:{free_port()}"

    def asked(url: str | None, variable: str | None, *arguments: object) -> str | None:
        for name, value in (("CONNECTIVITY_URL", url), ("CONNECTIVITY_TOKEN", variable)):
            monkeypatch.setenv(name, value or "")
        assert run("list", *arguments).exit_code == 0
        return server.requests[-1].headers.get("authorization", " ").split(" ")[1]

    assert asked(server.url, "from-variable") == "from-variable"
    assert asked(unused_url, "from-variable", "--url", server.url, "--token-file", token) == "from-file"
    assert asked(None, None, "--settings", settings) == "from-settings"
    assert asked(None, "from-variable", "--settings", settings) == "from-variable"
    assert asked(unused_url, None, "--url", server.url, "--settings", settings) == "from-settings"
    # Settings that were not named give the address of the local service only.
    monkeypatch.setenv("CONNECTIVITY_API__TOKEN", "of-this-machine")
    assert asked(None, None, "--url", server.url) == ""
    monkeypatch.setenv("CONNECTIVITY_API__PORT", str(port))
    assert asked(None, None) == "of-this-machine"


@pytest.mark.parametrize(
    ("variables", "arguments"),
    [
        ({}, ["--url", "localhost:8080"]),
        ({"CONNECTIVITY_TOKEN": f"{TOKEN} {TOKEN}"}, []),
        ({}, ["--token-file", "nope"]),
        ({"CONNECTIVITY_URL": ""}, ["--settings", "nope.yaml"]),
    ],
)
def test_invalid_settings_or_options_end_with_2(
    variables: Mapping[str, str], arguments: list[str], monkeypatch: pytest.MonkeyPatch, server: Canned
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    result = run("list", *arguments)
    assert (result.exit_code, result.stdout, server.requests) == (2, "", [])
    assert result.stderr
    assert TOKEN not in result.output


READING = (
    "list",
    "list --ids",
    "show depot",
    "status",
    "status depot",
    "metrics depot",
    "logs depot",
    "revisions depot",
)
ANSWERS: dict[str, Reply] = {
    "HTML": HTML,
    "cut": Reply(body=b'[{"id": "a"'),
    "nothing": Reply(),
    "cut off": Reply(raw=b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"),
    "null": Reply(body=b"null"),
    "a number": Reply(7),
    "a text": Reply("x"),
    "an object": Reply({"a": [1, {}], "connectionLogs": [{"level": 7, "message": {}}], "clientStatus": [{"type": []}]}),
    "a list": Reply([7, None, "x", [], {}, {"id": [1], "connectionType": {}}]),
    "huge numbers": Reply(body=b'{"connectionMetrics": {"inbound": {"x": {"success": {"PT1M": 1e999}}}}}'),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_odd_answer_is_shown_or_complained_about_and_no_traceback(kind: str, server: Canned) -> None:
    """CliRunner would raise what a program prints as a traceback."""
    server.table = dict.fromkeys(TABLE, ANSWERS[kind])
    for line in READING:
        for more in ([], ["--json"]):
            result = run(*line.split(), *more)
            assert result.exit_code in (0, 5), line
            assert TOKEN not in result.output
            assert bool(result.stderr) == (result.exit_code == 5)


def environment(server: Canned, **variables: str) -> dict[str, str]:
    return {**os.environ, "CONNECTIVITY_URL": server.url, "CONNECTIVITY_TOKEN": TOKEN, "TERM": "xterm", **variables}


def test_following_prints_an_object_a_line_as_it_comes_and_ends_with_130(server: Canned) -> None:
    more = LOGS | {"connectionLogs": [ENTRY, BAD, ENTRY | {"timestamp": "T3"}]}
    server.table[f"GET {DEPOT}/logs"] = [Reply(LOGS), Reply(raw=b""), Reply(more)]
    arguments = ["connections", "logs", "depot", "--follow", "--json", "--interval", "0.1"]
    with subprocess.Popen(
        [*PROGRAM, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(server),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        lines = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(2)
        assert process.wait(30) == 130
        watchdog.cancel()
        complaints = process.stderr.read()
    assert [line["timestamp"] for line in lines] == ["T1", "T2", "T3"]
    assert "waiting" in complaints
    assert "Traceback" not in complaints


def on_terminal(server: Canned, *arguments: str, columns: int, **variables: str) -> str:
    """Return the output of a program on a terminal of this width."""
    process = subprocess.run(
        [*at_terminal("connectivity"), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment(server, COLUMNS=str(columns), **variables),
        timeout=60,
        check=True,
    )
    return process.stdout.decode()


def test_colours_are_for_terminals_and_no_color_is_respected(server: Canned) -> None:
    long = "depot-" + "x" * 34
    server.table[LISTED] = Reply([ROW | {"id": long}])
    shown = on_terminal(server, "connections", "list", columns=80)
    assert "\x1b[32m" in shown
    assert "\x1b[31m" not in shown, "what a name brings along is no colour"
    plain = on_terminal(server, "connections", "list", columns=80, NO_COLOR="1")
    assert "\x1b[" not in plain
    assert long in plain
    assert max(map(len, plain.splitlines())) <= 80
    narrow = on_terminal(server, "connections", "list", columns=40, NO_COLOR="1")
    assert narrow.count("x") == 34 + 1, "no room, and nothing left out; one is of the name"
    middle = on_terminal(server, "connections", "list", columns=66, NO_COLOR="1")
    assert max(map(len, middle.splitlines())) <= 66
    assert middle.count("x") == 34 + 1, "folded, not cut"
    piped = run("list").stdout
    assert long in piped
    assert "\x1b" not in piped


@pytest.mark.parametrize("command", ["show", "status", "logs", "metrics", "revisions", "open", "close", "delete"])
def test_an_empty_id_is_refused_before_any_request(server: Canned, command: str) -> None:
    refused = run(command, "", *(["--yes"] if command == "delete" else []))
    assert (refused.exit_code, server.requests) == (2, [])
    assert "found an empty text, expected an ID" in refused.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--at", "yesterday"], "--at: found 'yesterday', expected a time with its zone"),
        (["--at", "2026-02-03T09:12:45Z", "--revision", "2"], "found --revision and --at, expected only one of them"),
    ],
)
def test_an_invalid_past_is_refused_with_the_names_of_the_options(
    server: Canned, options: list[str], message: str
) -> None:
    refused = run("show", "depot", *options)
    assert (refused.exit_code, server.requests) == (2, [])
    assert message in " ".join(refused.stderr.replace("│", " ").split())


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "inf", "1e300"])
def test_an_interval_that_cannot_be_waited_for_is_refused_before_any_request(server: Canned, interval: str) -> None:
    refused = run("logs", "depot", "--follow", "--interval", interval)
    assert (refused.exit_code, server.requests) == (2, [])
    assert "--interval" in refused.stderr

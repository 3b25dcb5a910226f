"""The command line with the real API: requests and responses fit together. Only the brokers are fakes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import yaml
from structlog.testing import capture_logs
from typer.testing import CliRunner, Result

from connectivity.api.app import application
from connectivity.cli.main import app
from connectivity.config.api_settings import ApiSettings
from connectivity.monitoring.prometheus import PrometheusRegistry
from connectivity.security.keys import new_key
from connectivity.security.on_behalf import BehalfAudit
from connectivity.subscriptions.search_feed import SearchService
from connectivity.subscriptions.search_requests import SearchRequests
from connectivity.twins.context import CurrentStateLookup
from spark_store.search.sqlite_search import SqliteSearch
from tests.support.in_process.connection_management import NOW, ManagementHarness
from tests.support.manage_connections_page import walk
from tests.support.search_page import fill

ANNA, BERT = "token-of-anna-the-admin", "token-of-bert-who-reads"
SECRET = "s3cr3t-word"
TOKENS = [
    {"name": "anna", "token": ANNA, "role": "admin"},
    {"name": "bert", "token": BERT, "role": "read", "subjects": ["acme:guest"]},
]


class Server(uvicorn.Server):
    """A server without signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


class Shell:
    """Runs commands against a service, in a folder."""

    def __init__(self, harness: ManagementHarness, url: str, folder: Path) -> None:
        self.harness, self.folder = harness, folder
        self._variables = {"CONNECTIVITY_URL": url, "CONNECTIVITY_TOKEN": ANNA}

    async def __call__(self, line: str, code: int = 0, **variables: str) -> Result:
        """Run a command line; check its exit code, and that it prints no traceback and no secret."""
        words = [str(self.folder / word) if word.endswith((".yaml", ".json")) else word for word in line.split()]
        result = await asyncio.to_thread(CliRunner().invoke, app, words, env={**self._variables, **variables})
        assert result.exit_code == code, (line, result.output, result.exception)
        assert isinstance(result.exception, SystemExit | None)
        assert not any(secret in result.output for secret in (SECRET, ANNA, BERT))
        return result

    async def json(self, line: str) -> Any:
        return json.loads((await self(f"{line} --json")).stdout)

    def write(self, file: str, /, **more: Any) -> None:
        document = {
            "connectionType": "mqtt-5",
            "connectionStatus": "open",
            "uri": f"tcp://u:{SECRET}@127.0.0.1:1883",
            "sources": [{"addresses": ["ask"], "authorizationContext": ["acme:x"], "qos": 1}],
        }
        (self.folder / file).write_text(yaml.safe_dump(document | more))


@pytest.fixture
async def shell(tmp_path: Path) -> AsyncIterator[Shell]:
    """A service that has one connection, `owned`, from its own folder."""
    harness = ManagementHarness(tmp_path, (new_key(),))
    folder = tmp_path / "work"
    folder.mkdir()
    shell = Shell(harness, "", folder)
    shell.write("owned.yaml")
    (harness.folder / "owned.yaml").write_text((folder / "owned.yaml").read_text())
    await harness.started()
    fill(harness.journal)
    lookup = CurrentStateLookup(harness.store.snapshot, lambda: "2030-01-15T07:40:00.000000Z")
    searching = SearchService(harness.store, lookup, lambda: NOW, partial(SqliteSearch, harness.journal.path))
    inquirer = SearchRequests(
        searching,
        lambda: NOW,
        page_bytes=1 << 20,
        count_timeout=60.0,
        audit=BehalfAudit(lambda: NOW, harness.definitions.audit),
    )
    parts = (None, harness.manager, inquirer)
    asked = application(PrometheusRegistry(), lambda: (True, {}), ApiSettings(tokens=TOKENS), *parts)
    # Otherwise the log of the service would mix with the output of commands.
    with capture_logs(), socket.create_server(("127.0.0.1", 0)) as listening:
        server = Server(uvicorn.Config(asked, ws="none", log_config=None, lifespan="off", timeout_graceful_shutdown=1))
        serving = asyncio.create_task(server.serve([listening]))
        yield Shell(harness, f"http://127.0.0.1:{listening.getsockname()[1]}", folder)
        server.should_exit = True
        await serving
    await searching.close()
    await harness.store.close()


async def test_the_walk_of_the_page_on_managing_connections_can_be_walked(shell: Shell) -> None:
    files, lines = walk()
    for name, text in files.items():
        (shell.folder / name).write_text(text)
    assert len(lines) >= 15
    for line in lines:
        await shell(line, 3 if "--plan" in line else 0)
    assert await shell.json("connections list --ids") == ["owned"]


async def test_a_connection_from_its_plan_to_its_end(shell: Shell) -> None:
    shell.write("lamp.yaml")
    assert "lamp: new" in (await shell("connections apply --plan lamp.yaml", 3)).stdout
    assert await shell.json("connections list --ids") == ["owned"], "a plan changes nothing"
    await shell("connections apply --yes lamp.yaml")
    assert (await shell("connections list")).stdout.splitlines()[1].split() == ["lamp", "mqtt-5", "open", "api", "–"]
    shown = await shell("connections show lamp")
    assert yaml.safe_load(shown.stdout)["uri"] == "tcp://u:*****@127.0.0.1:1883"
    unchanged = await shell("connections apply --plan lamp.yaml")
    assert "uri: a secret that cannot be compared; it is not sent without --secrets" in unchanged.stdout
    assert "1 unchanged" in unchanged.stdout

    (shell.folder / "lamp.yaml").write_text(shown.stdout.replace("ask", "tell"))
    planned = await shell("connections apply --plan lamp.yaml", 3)
    assert planned.stdout.splitlines()[:2] == ["lamp: changed", '  sources[0].addresses: ["ask"] → ["tell"]']
    (changed,) = (await shell.json("connections apply --yes lamp.yaml"))["connections"]
    assert (changed["done"], changed["tag"]) == (True, '"rev:1"')
    assert [each["revision"] for each in await shell.json("connections revisions lamp")] == [2, 1]
    first = await shell("connections show lamp --revision 1")
    assert yaml.safe_load(first.stdout)["sources"][0]["addresses"] == ["ask"]

    await shell("connections close lamp")
    assert (await shell.json("connections status lamp"))["connectionStatus"] == "closed"
    assert 'connectionStatus: "closed" → "open"' in (await shell("connections apply --plan lamp.yaml", 3)).stdout
    await shell("connections open lamp")
    for command in ("status", "status lamp", "metrics lamp", "logs lamp", "metrics lamp --reset", "logs lamp --reset"):
        await shell(f"connections {command}")
    heading, newest, *_ = (await shell("audit")).stdout.splitlines()
    assert "anna" in newest
    assert {"at", "by", "action", "connection"} <= set(heading.split())
    assert "subscription" in (await shell("subscriptions list")).stdout
    assert "notfound" in (await shell("subscriptions cancel Zk", 1)).stderr
    await shell("connections delete lamp --yes")
    assert "lamp" in (await shell("connections show lamp", 1)).stderr
    shell.write("lamp.yaml")
    assert "lamp: new" in (await shell("connections apply --yes lamp.yaml")).stdout, "an id may come back"


async def test_a_change_to_a_connection_of_a_file_is_refused_with_the_file_name(shell: Shell) -> None:
    name = str(shell.harness.folder / "owned.yaml")
    assert (await shell("connections list")).stdout.splitlines()[1].split()[3] == name
    shell.write("owned.yaml", clientCount=2)
    shell.write("lamp.yaml")
    refused = await shell("connections apply --yes owned.yaml lamp.yaml", 1)
    assert f"owned: refused: it belongs to the file {name}" in refused.stdout
    assert await shell.json("connections list --ids") == ["owned"], "nothing at all was done"
    assert "owned.yaml" in (await shell("connections delete owned --yes", 1)).stderr
    await shell("connections close owned")
    assert (await shell("connections list")).stdout.splitlines()[1].split()[2] == "closed", "in spite of its file"


async def test_of_two_operators_the_second_gets_a_conflict(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another change is made after the plan was computed."""
    shell.write("lamp.yaml")
    await shell("connections apply --yes lamp.yaml")
    shell.write("lamp.yaml", name="mine")
    (shell.folder / "other.yaml").write_text((shell.folder / "lamp.yaml").read_text().replace("mine", "theirs"))
    from connectivity.cli import apply

    carry_out, others = apply.carry_out, iter([None])

    def late(service: Any, step: Any, wanted: Any) -> apply.StepOutcome:
        for _ in others:
            service.ask("PUT", "connections", "lamp", body={**wanted["lamp"].document, "name": "theirs"})
        return carry_out(service, step, wanted)

    monkeypatch.setattr(apply, "carry_out", late)
    assert "it was changed meanwhile" in (await shell("connections apply --yes lamp.yaml", 1)).stderr
    assert yaml.safe_load((await shell("connections show lamp")).stdout)["name"] == "theirs"


async def test_the_role_of_a_token_limits_the_allowed_commands(shell: Shell) -> None:
    shell.write("lamp.yaml")
    await shell("connections list", CONNECTIVITY_TOKEN=BERT)
    await shell("connections apply --plan lamp.yaml", 3, CONNECTIVITY_TOKEN=BERT)
    for line in ("connections apply --yes lamp.yaml", "connections close owned", "audit"):
        refused = await shell(line, 4, CONNECTIVITY_TOKEN=BERT)
        assert "Use another token" in refused.stderr
    for token, advice in (("wrong", "Use another token"), ("", "Give the token in CONNECTIVITY_TOKEN or --token-file")):
        assert advice in (await shell("connections list", 4, CONNECTIVITY_TOKEN=token)).stderr


async def test_things_are_searched_in_the_name_of_the_token_and_by_admins_in_anybodys(shell: Shell) -> None:
    """The things of the page about searching; a page has two of them at most here."""
    staff = "--as acme:staff"
    listed = await shell(
        f"search gt(attributes/size,3) {staff} --fields thingId,attributes/size --sort -attributes/size"
    )
    assert [line.split() for line in listed.stdout.splitlines()] == [
        ["thingId", "attributes/size"],
        ["acme.site:boiler-1", "40"],
        ["acme.site:lamp-7", "4"],
        ["acme.site:lamp-8", "3.5"],
    ]
    some = await shell(f"search exists(attributes/room) {staff} --namespace acme.site --limit 2")
    assert ("lamp-7" in some.stdout, "lamp-8" in some.stdout, "more exist" in some.stderr) == (True, False, True)
    assert await shell.json(f"search exists(attributes/room) --count {staff}") == 4
    (noted,) = [it for it in await shell.json("audit") if it["action"] == "search on behalf of others"]
    assert (noted["by"], noted["details"], noted["connection"]) == ("anna", "acme:staff", "")
    assert "order +thingId" in (await shell(f"search eq(attributes/room,'hall') --explain {staff}")).stdout
    assert "no subjects. Name subjects with `as` (--as SUBJECT)." in (await shell("search", 4)).stderr

    assert "lamp-7" not in (await shell("search", CONNECTIVITY_TOKEN=BERT)).stdout
    (thing,) = json.loads((await shell("search --json", CONNECTIVITY_TOKEN=BERT)).stdout)
    assert thing == {"thingId": "acme.lab:scale-2", "attributes": {"room": "hall", "size": "40"}}
    for refused in (f"search {staff}", "search --explain"):
        assert "Use another token" in (await shell(refused, 4, CONNECTIVITY_TOKEN=BERT)).stderr
    assert "^ position 3" in (await shell("search eq(", 1, CONNECTIVITY_TOKEN=BERT)).stderr


async def test_an_invalid_connection_is_refused_with_every_problem(shell: Shell) -> None:
    shell.write("bad.yaml", clientCount=0, nam="x")
    problems = (await shell("connections apply --yes bad.yaml", 1)).stdout
    assert ("clientCount" in problems, "nam" in problems) == (True, True)
    assert "connection.id.invalid" in (await shell("connections show a.b", 1)).stderr

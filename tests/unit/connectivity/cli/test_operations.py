"""`connectivity subscriptions …` against canned answers."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner, Result

from connectivity.cli.main import app
from tests.support.api.canned_server import Canned, Reply, canned, fault

OPEN = {"id": "Zk3v", "connection": "depot", "entity": "acme:lamp", "demand": 5, "sent": 12, "idle": 0.5}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Canned]:
    table = {
        "GET /api/2/connectivity/subscriptions?limit=1000": Reply([OPEN], headers={"x-total-count": "1"}),
        "DELETE /api/2/connectivity/subscriptions/Zk3v": Reply(status=204),
        "DELETE /api/2/connectivity/subscriptions/Z": fault(
            409, "connectivity:subscription.ambiguous", "2 subscriptions begin so."
        ),
    }
    with canned(table) as server:
        monkeypatch.setenv("CONNECTIVITY_URL", server.url)
        yield server


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["subscriptions", *arguments], catch_exceptions=False)


def test_open_subscriptions_are_listed(server: Canned) -> None:
    heading, row = run("list").stdout.splitlines()
    assert heading.split() == list(OPEN)
    assert row.split() == [str(value) for value in OPEN.values()]
    assert json.loads(run("list", "--json").stdout) == [OPEN]
    server.table["GET /api/2/connectivity/subscriptions?limit=1000"] = Reply([], headers={"x-total-count": "0"})
    assert run("list").stdout == "no subscriptions\n"


def test_more_than_are_wanted_are_counted(server: Canned) -> None:
    line = "GET /api/2/connectivity/subscriptions?limit=1"
    server.table[line] = Reply([OPEN], headers={"x-total-count": "100000"})
    listed = run("list", "--limit", "1", "--json")
    assert json.loads(listed.stdout) == [OPEN]
    assert listed.stderr == "only 1 of 100000 subscriptions are shown; --limit accepts at most 10000\n"


def test_one_is_cancelled_by_how_its_id_starts(server: Canned) -> None:
    assert run("cancel", "Zk3v").stdout == "Zk3v: cancelled\n"
    assert json.loads(run("cancel", "Zk3v", "--json").stdout) == [{"id": "Zk3v", "done": "cancelled"}]
    several = run("cancel", "Z")
    assert (several.exit_code, several.stdout) == (1, "")
    assert "2 subscriptions begin so." in several.stderr


def test_an_empty_prefix_is_refused_before_any_request(server: Canned) -> None:
    refused = run("cancel", "")
    assert (refused.exit_code, server.requests) == (2, [])
    assert "found an empty text, expected an ID" in refused.stderr

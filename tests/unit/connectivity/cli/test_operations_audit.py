"""`connectivity audit` against canned answers."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from connectivity.cli.main import app
from tests.support.api.canned_server import Reply, canned

FOUND: list[dict[str, str | int | None]] = [
    {"at": "T2", "by": "ops", "action": "deleted", "connection": "depot", "revision": None},
    {"at": "T1", "by": "ops", "action": "created", "connection": "depot", "revision": 1},
]


def test_the_audit_lists_changes_with_the_newest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    with canned({"GET /api/2/audit?limit=2": Reply(FOUND), "GET /api/2/audit?limit=100": Reply([])}) as server:
        monkeypatch.setenv("CONNECTIVITY_URL", server.url)
        runner = CliRunner()
        heading, newest, oldest = runner.invoke(app, ["audit", "--limit", "2"]).stdout.splitlines()
        assert heading.split() == list(FOUND[0])
        assert (newest.split()[-1], oldest.split()[-1]) == ("–", "1")
        assert json.loads(runner.invoke(app, ["audit", "--limit", "2", "--json"]).stdout) == FOUND
        assert runner.invoke(app, ["audit"]).stdout == "no entries\n"
        assert runner.invoke(app, ["audit", "--limit", "0"]).exit_code == 2

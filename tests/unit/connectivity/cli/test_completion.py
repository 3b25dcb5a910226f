"""What a shell completes: ids of connections, quickly or not at all, and never a complaint."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from connectivity.cli import completion
from tests.support.api.canned_server import HTML, SLOW, Says, canned, fault

IDS = "GET /api/2/connections?ids-only=true"


def completed(words: str, variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """What bash is told to offer for the last of these words."""
    given = {
        "_CONNECTIVITY_COMPLETE": "complete_bash",
        "COMP_WORDS": f"connectivity {words}",
        "COMP_CWORD": str(len(words.split(" "))),
        **variables,
    }
    # The name under which it runs is part of the variable's.
    script = "import sys; sys.argv[0] = 'connectivity'; from connectivity.cli.console import main; main()"
    return subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **given}, capture_output=True, text=True, check=False
    )


def test_ids_are_completed_by_how_they_begin() -> None:
    with canned({IDS: Says(["depot-7", "depot-8", "site", 7])}) as server:
        here = {"CONNECTIVITY_URL": server.url}
        assert completed("connections open dep", here).stdout.split() == ["depot-7", "depot-8"]
        assert completed("connections open depot-7 dep", here).stdout.split() == ["depot-8"], "not the same again"
        elsewhere = {"CONNECTIVITY_URL": "http://127.0.0.1:9"}
        assert completed(f"connections show --url {server.url} s", elsewhere).stdout.split() == ["site"]
    assert completed("connections sh", {}).stdout.split() == ["show"]


SILENT: dict[str, Any] = {
    "another server": HTML,
    "no right": fault(401, "api:unauthorized", "no"),
    "an object": Says({"id": "depot"}),
    "nothing": Says(raw=b""),
    "no end": Says(raw=b"", status=SLOW),
}


@pytest.mark.parametrize("says", SILENT.values(), ids=SILENT)
def test_what_cannot_be_asked_completes_nothing(
    says: Says, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(completion, "PATIENCE", 0.3)
    context: Any = type("Context", (), {"params": {}})()
    with canned({IDS: says}) as server:
        monkeypatch.setenv("CONNECTIVITY_URL", server.url)
        assert completion.connection_ids(context, "") == []
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "variables",
    [
        {"CONNECTIVITY_URL": "http://127.0.0.1:9"},
        {"CONNECTIVITY_URL": "no address"},
        {"CONNECTIVITY_TOKEN": "two words"},
        {"CONNECTIVITY_URL": "", "CONNECTIVITY_API__PORT": "no port"},
    ],
    ids=str,
)
def test_a_shell_never_hears_a_complaint(variables: dict[str, str]) -> None:
    ended = completed("connections open ", variables)
    assert (ended.stdout.strip(), ended.stderr) == ("", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_each_shell(shell: str) -> None:
    ended = completed("", {"_CONNECTIVITY_COMPLETE": f"source_{shell}"})
    assert "_CONNECTIVITY_COMPLETE=complete_" in ended.stdout

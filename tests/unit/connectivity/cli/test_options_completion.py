"""Shell completion of connection IDs: quick or not at all, and without an error."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from connectivity.cli import options
from connectivity.cli.main import main
from tests.support.api.canned_server import HTML, SLOW, Reply, canned, fault

IDS = "GET /api/2/connections?ids-only=true"


def asked(words: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which bash requests completions for the last of these words."""
    return {
        "_CONNECTIVITY_COMPLETE": "complete_bash",
        "COMP_WORDS": f"connectivity {words}",
        "COMP_CWORD": str(len(words.split(" "))),
        **variables,
    }


class Shell:
    """Return the completions, computed within this process."""

    def __init__(self, patch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[str]) -> None:
        self._patch, self._captured = patch, captured

    def ask(self, words: str, variables: Mapping[str, str]) -> tuple[str, str]:
        """Request completions; return stdout and stderr."""
        self._captured.readouterr()
        with self._patch.context() as patch:
            # The program's name is part of the variable's. It is made of these two; under `python -m pytest` it would
            # be pytest's.
            patch.setattr(sys, "argv", ["connectivity"])
            patch.setattr(sys.modules["__main__"], "__package__", None)
            for name, value in asked(words, variables).items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit):
                main()
        stdout, stderr = self._captured.readouterr()
        return stdout, stderr

    def offers(self, words: str, variables: Mapping[str, str]) -> list[str]:
        return self.ask(words, variables)[0].split()


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)


def test_ids_are_completed_by_how_they_start(shell: Shell) -> None:
    with canned({IDS: Reply(["depot-7", "depot-8", "site", 7])}) as server:
        here = {"CONNECTIVITY_URL": server.url}
        assert shell.offers("connections open dep", here) == ["depot-7", "depot-8"]
        assert shell.offers("connections open depot-7 dep", here) == ["depot-8"], "not the same again"
        elsewhere = {"CONNECTIVITY_URL": "http://127.0.0.1:9"}
        assert shell.offers(f"connections show --url {server.url} s", elsewhere) == ["site"]
    assert shell.offers("connections sh", {}) == ["show"]


def test_a_process_of_its_own_completes_ids() -> None:
    script = "import sys; sys.argv[0] = 'connectivity'; from connectivity.cli.main import main; main()"
    with canned({IDS: Reply(["depot-7", "site"])}) as server:
        ended = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, **asked("connections open dep", {"CONNECTIVITY_URL": server.url})},
            capture_output=True,
            text=True,
            check=False,
        )
    assert (ended.stdout.split(), ended.stderr) == (["depot-7"], "")


SILENT: dict[str, Any] = {
    "another server": HTML,
    "no right": fault(401, "api:unauthorized", "no"),
    "an object": Reply({"id": "depot"}),
    "nothing": Reply(raw=b""),
    "no end": Reply(raw=b"", status=SLOW),
}


@pytest.mark.parametrize("says", SILENT.values(), ids=SILENT)
def test_completion_returns_nothing_if_the_service_does_not_answer(
    says: Reply, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(options, "COMPLETION_TIMEOUT_SECONDS", 0.3)
    context: Any = type("Context", (), {"params": {}})()
    with canned({IDS: says}) as server:
        monkeypatch.setenv("CONNECTIVITY_URL", server.url)
        assert options.connection_ids(context, "") == []
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
def test_a_shell_never_receives_a_complaint(variables: dict[str, str], shell: Shell) -> None:
    stdout, stderr = shell.ask("connections open ", variables)
    assert (stdout.strip(), stderr) == ("", "")


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_each_shell(name: str, shell: Shell) -> None:
    stdout, _ = shell.ask("", {"_CONNECTIVITY_COMPLETE": f"source_{name}"})
    assert "_CONNECTIVITY_COMPLETE=complete_" in stdout

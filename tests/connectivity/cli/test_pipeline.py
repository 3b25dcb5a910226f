"""The commands `connectivity pipeline …`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from connectivity.cli import pipeline as module
from connectivity.cli.console import app
from spark_store.journal import SqliteJournal
from tests.behaviours.journal import LAMP, history


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["pipeline", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    file = tmp_path / "settings.yaml"
    file.write_text(f"data_dir: {tmp_path}\nspark: {{memory: 2g}}\n")
    return file


def test_the_status_is_shown_to_people_and_to_machines(settings: Path) -> None:
    journal = SqliteJournal.open(settings.parent / "journal.db")
    journal.append(history(LAMP, 3))
    journal.close()
    shown = run("status", "--settings", settings)
    assert shown.exit_code == 0
    assert "lag events             3\n" in shown.stdout
    assert "batch                  –\n" in shown.stdout
    assert json.loads(run("status", "--settings", settings, "--json").stdout)["lag_events"] == 3


def test_a_status_that_cannot_be_read_ends_with_1(settings: Path) -> None:
    result = run("status", "--settings", settings)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "journal.db" in result.stderr


@pytest.mark.parametrize("action", ["run", "optimize", "verify"])
def test_the_others_become_a_pipeline_with_the_services_settings(
    action: str, settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr(module.os, "execv", lambda _, command: became.append(command))
    assert run(action, "--settings", settings).exit_code == 0
    assert became[0][1:4] == ["-m", "spark_store.pipeline", action]
    assert became[0][-4:] == ["--master", "local[*]", "--memory", "2g"]


def test_settings_that_cannot_be_used_end_with_2(settings: Path) -> None:
    settings.write_text("spark: {memory: much}\n")
    result = run("status", "--settings", settings)
    assert result.exit_code == 2
    assert "spark.memory" in result.stderr

"""The commands `connectivity pipeline …`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from connectivity import pipeline
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


def test_a_preview_is_a_table_or_json(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [{"namespace": "acme", "events": 4, "entities": 1, "oldest": "2030", "newest": "2031"}]
    monkeypatch.setattr(pipeline, "preview", lambda _: found)
    shown = run("retention", "--preview", "--settings", settings)
    assert shown.stdout == ("namespace  events  entities  oldest  newest\nacme       4       1         2030    2031\n")
    assert json.loads(run("retention", "--preview", "--json", "--settings", settings).stdout) == found
    monkeypatch.setattr(pipeline, "preview", lambda _: [])
    assert run("retention", "--preview", "--settings", settings).stdout == "nothing would go\n"


def test_a_preview_that_cannot_be_had_ends_as_its_process_did(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(_: object) -> None:
        raise pipeline.PipelineEnded(4, "expected Java 17")

    monkeypatch.setattr(pipeline, "preview", ended)
    result = run("retention", "--preview", "--settings", settings)
    assert (result.exit_code, result.stderr) == (4, "expected Java 17\n")


@pytest.mark.parametrize("action", ["run", "optimize", "verify", "retention"])
def test_the_others_become_a_pipeline_with_the_services_settings(
    action: str, settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr(module.os, "execv", lambda _, command: became.append(command))
    assert run(action, "--settings", settings).exit_code == 0
    assert became[0][1:4] == ["-m", "spark_store.pipeline", action]
    assert became[0][-4:] == ["--master", "local[*]", "--memory", "2g"]


def test_a_comparison_of_everything_from_the_beginning(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr(module.os, "execv", lambda _, command: became.append(command))
    run("verify", "--settings", settings, "--all", "--restart")
    assert became[0][-2:] == ["--all", "--restart"]


def test_settings_that_cannot_be_used_end_with_2(settings: Path) -> None:
    settings.write_text("spark: {memory: much}\n")
    result = run("status", "--settings", settings)
    assert result.exit_code == 2
    assert "spark.memory" in result.stderr

"""The commands `connectivity pipeline …`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from connectivity.cli import pipeline as module
from connectivity.cli.main import app
from connectivity.config.extras import Extra
from connectivity.maintenance import pipeline_process
from spark_store.journal.journal import Journal
from spark_store.pipeline.settings import decode_settings
from tests.support.journal_entries import LAMP, history


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["pipeline", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    file = tmp_path / "settings.yaml"
    file.write_text(f"data_dir: {tmp_path}\nspark: {{memory: 2g}}\n")
    return file


@pytest.mark.extra("lake")
def test_the_status_is_shown_to_people_and_to_machines(settings: Path) -> None:
    journal = Journal.open(settings.parent / "journal.db")
    journal.append(history(LAMP, 3))
    journal.close()
    shown = run("status", "--settings", settings)
    assert shown.exit_code == 0
    assert re.search(r"^lag events +3$", shown.stdout, re.MULTILINE)
    assert re.search(r"^batch +–$", shown.stdout, re.MULTILINE)
    assert json.loads(run("status", "--settings", settings, "--json").stdout)["lag_events"] == 3


@pytest.mark.extra("lake")
def test_a_status_that_cannot_be_read_ends_with_1(settings: Path) -> None:
    result = run("status", "--settings", settings)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "journal.db" in result.stderr


def test_a_preview_is_a_table_or_json(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [{"namespace": "acme", "events": 4, "entities": 1, "oldest": "2030", "newest": "2031"}]
    monkeypatch.setattr(pipeline_process, "preview", lambda _: found)
    shown = run("retention", "--preview", "--settings", settings)
    assert shown.stdout == ("namespace  events  entities  oldest  newest\nacme       4       1         2030    2031\n")
    assert json.loads(run("retention", "--preview", "--json", "--settings", settings).stdout) == found
    monkeypatch.setattr(pipeline_process, "preview", lambda _: [])
    assert run("retention", "--preview", "--settings", settings).stdout == "no events would be deleted\n"


def test_a_preview_that_cannot_be_had_ends_as_its_process_did(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(_: object) -> None:
        raise pipeline_process.PipelineEnded(4, "expected Java 17")

    monkeypatch.setattr(pipeline_process, "preview", ended)
    result = run("retention", "--preview", "--settings", settings)
    assert (result.exit_code, result.stderr) == (4, "expected Java 17\n")


def test_nested_status_fields_are_shown_as_separate_fields() -> None:
    found = {"seq": 3, "batch": {"rows": 2}, "tables": {"events": {"files": 4, "bytes": 700}}, "failure": None}
    assert module._flat(found) == {
        "seq": 3, "batch rows": 2, "tables events files": 4, "tables events bytes": 700, "failure": None,
    }  # fmt: skip


def answers(monkeypatch: pytest.MonkeyPatch, *events: dict[str, Any]) -> list[list[str]]:
    """Replace the pipeline process by one with these events; return its recorded calls."""
    called: list[list[str]] = []

    def answer(_: object, action: str, *options: str, on_event: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        called.append([action, *options])
        for line in events:
            on_event(line)
        return {name: value for name, value in events[-1].items() if name != "event"}

    monkeypatch.setattr(pipeline_process, "answer", answer)
    return called


def test_a_compaction_prints_the_files_and_bytes_of_each_table(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, {"event": "optimized", "tables": {"events": {"files": 1, "bytes": 700}}})
    assert run("optimize", "--settings", settings).stdout == "table   files  bytes\nevents  1      700\n"
    assert json.loads(run("optimize", "--json", "--settings", settings).stdout)["tables"]["events"]["files"] == 1


@pytest.mark.parametrize(
    ("events", "shown"), [(0, "no events deleted\n"), (1, "1 event deleted\n"), (7, "7 events deleted\n")]
)
def test_retention_reports_the_number_of_deleted_events(
    events: int, shown: str, settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, {"event": "expired", "events": events})
    assert run("retention", "--settings", settings).stdout == shown
    assert json.loads(run("retention", "--json", "--settings", settings).stdout) == {"events": events}


VERIFIED = {
    "event": "verified",
    "first": 1,
    "last": 5000,
    "entities": 1,
    "differences": 0,
    "waiting": 0,
    "erasures_pending": 0,
    "indexed": 7,
    "unindexed": 0,
}
MISSING = {
    "event": "difference",
    "table": "events",
    "what": "missing in the lake",
    "entity": "acme:lamp",
    "revision": 2,
}


def test_a_comparison_ends_with_a_sentence(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = answers(monkeypatch, VERIFIED)
    shown = run("verify", "--settings", settings)
    assert (shown.exit_code, shown.stdout.splitlines()) == (
        0,
        [
            "lake and journal: the same (events 1 to 5,000, 1 entity)",
            "search index: compared with the states of 7 entities",
        ],
    )
    assert called == [["verify"]]


def test_differences_are_a_table_and_end_with_1(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"differences": 3, "waiting": 4, "erasures_pending": 1, "entities": 2}
    answers(monkeypatch, {**MISSING, "seq": 7}, {**VERIFIED, **counts})
    shown = run("verify", "--settings", settings)
    assert shown.exit_code == 1
    assert shown.stdout.splitlines() == [
        "table   event  what                 entity     revision",
        "events  7      missing in the lake  acme:lamp  2",
        "and 2 differences more",
        "lake and journal: 3 differences (events 1 to 5,000, 2 entities)",
        "search index: compared with the states of 7 entities",
        "4 newer events not compared yet: a running pipeline merges them into `latest` within minutes",
        "1 erasure not carried out in the lake yet: the pipeline does that while it runs",
    ]
    report = json.loads(run("verify", "--json", "--settings", settings).stdout)
    assert (report["found"], report["differences"][0]["seq"]) == (3, 7)


def test_an_index_that_is_being_made_is_no_difference(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, {**VERIFIED, "unindexed": 30})
    shown = run("verify", "--settings", settings)
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[-1] == "the search index is being built: 30 entities not in it yet"


def test_a_failed_pipeline_action_prints_its_reason_and_returns_its_exit_code(
    settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*_: object, **__: object) -> None:
        raise pipeline_process.PipelineEnded(3, "held by another pipeline")

    monkeypatch.setattr(pipeline_process, "answer", ended)
    for action in ("optimize", "retention", "verify"):
        result = run(action, "--settings", settings)
        assert (result.exit_code, result.stdout, result.stderr) == (3, "", "held by another pipeline\n")


@pytest.mark.parametrize("action", ["run"])
def test_the_other_becomes_a_pipeline_with_the_services_settings(
    action: str, settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[list[str]] = []
    given: dict[str, str] = {}

    def become(_: str, command: list[str], variables: dict[str, str]) -> None:
        became.append(command)
        given.update(variables)

    monkeypatch.setattr("connectivity.cli.pipeline.os.execve", become)
    monkeypatch.setattr(pipeline_process, "environment", lambda: {"without": "secrets"})
    assert run(action, "--settings", settings).exit_code == 0
    assert became[0][1:4] == ["-m", "spark_store.pipeline", action]
    assert decode_settings(became[0][-1]).memory == "2g"
    assert given == {"without": "secrets"}


@pytest.mark.parametrize("action", ["run", "optimize", "retention", "rebuild --only latest"])
def test_without_a_lake_in_the_settings_no_command_writes_one(
    action: str, settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Journal.open(settings.parent / "journal.db").close()
    settings.write_text(f"data_dir: {settings.parent}\nspark: {{mode: off}}\n")
    started: list[object] = []
    monkeypatch.setattr("connectivity.cli.pipeline.os.execve", lambda *call: started.append(call))
    monkeypatch.setattr("subprocess.Popen", lambda *call, **_: started.append(call))
    result = run(*action.split(), "--settings", settings)
    assert (result.exit_code, started) == (2, [])
    assert result.stderr.startswith("spark.mode: found off, expected external or embedded")


def test_a_mode_that_follows_from_a_missing_extra_is_no_setting_to_refuse(
    settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipeline's process then names the extra."""
    monkeypatch.setattr(Extra, "is_installed", False)
    settings.write_text(f"data_dir: {settings.parent}\n")
    called = answers(monkeypatch, {"event": "expired", "events": 0})
    assert run("retention", "--settings", settings).exit_code == 0
    assert called == [["retention"]]


def test_settings_that_cannot_be_used_end_with_2(settings: Path) -> None:
    settings.write_text("spark: {memory: much}\n")
    result = run("status", "--settings", settings)
    assert result.exit_code == 2
    assert "spark.memory" in result.stderr


def test_a_rebuild_in_a_folder_that_cannot_be_locked_ends_with_the_reason(settings: Path) -> None:
    Journal.open(settings.parent / "journal.db").close()
    (settings.parent / "lock").mkdir()
    result = run("rebuild", "--only", "index", "--settings", settings)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"data_dir {settings.parent}: expected a folder that can be written")

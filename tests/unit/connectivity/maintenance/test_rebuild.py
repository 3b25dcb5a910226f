"""Both halves of a rebuild, as an operator starts it, without Spark: the pipeline process is a script."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from connectivity.cli.main import app
from connectivity.config.settings import Settings
from connectivity.maintenance import rebuild as module
from connectivity.maintenance.index_builder import MARK
from connectivity.maintenance.rebuild import RebuildPart, rebuild
from connectivity.store.folder_lock import lock_folder
from spark_store.journal.schema import STEPS, migrate
from spark_store.lake.tables import Lake
from tests.support.lake.pipeline_process import DataFolder
from tests.support.lake.pipeline_tables import add_events, write_lake
from tests.support.lake.twin_changes import states, tamper, write_eventful_past
from tests.support.oracles import search_index as indexed

FOLDED = """
import json
for event in ({"event": "spark"}, {"event": "rebuilt", "changed": 3}):
    print(json.dumps(event))
print("Java has something to say")
"""


@pytest.fixture
def data_folder(tmp_path: Path) -> DataFolder:
    data_folder = DataFolder(tmp_path / "data")
    write_eventful_past(data_folder)
    return data_folder


def script(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Replace the pipeline by this script."""
    monkeypatch.setattr(module, "command", lambda *_: [sys.executable, "-c", text])


def settings(data_folder: DataFolder) -> Settings:
    return Settings(data_dir=data_folder.folder)


def test_both_halves_are_made_again_and_counted(data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lake(data_folder.folder)
    before = states(data_folder)
    tamper(data_folder, "UPDATE entities SET state = '{}' WHERE id = 'acme.site:lamp-4'")
    script(monkeypatch, FOLDED)
    messages: list[str] = []
    outcome = rebuild(settings(data_folder), tell=messages.append)
    assert (outcome.exit_code, outcome.reason) == (0, None)
    assert outcome.changed["latest"] == {"changed": 3}
    assert outcome.changed["journal"]["changed"] == 1
    assert messages == ["journal: 10 entities"]
    assert states(data_folder) == before


def test_without_a_lake_the_journal_alone_is_rebuilt(data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, "raise SystemExit(4)")
    assert list(rebuild(settings(data_folder)).changed) == ["journal"]
    assert rebuild(settings(data_folder), RebuildPart.LATEST).exit_code == 4


def test_the_search_index_can_be_made_again_alone(data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lake(data_folder.folder)
    script(monkeypatch, "raise SystemExit(4)")
    tamper(data_folder, "DELETE FROM search_values")
    tamper(data_folder, "UPDATE entities SET state = '{\"attributes\":{\"a\":1}}' WHERE id = 'acme.site:lamp-4'")
    outcome = rebuild(settings(data_folder), RebuildPart.INDEX)
    assert outcome.changed == {"index": {"indexed": 10}}
    there = indexed.found(data_folder.lake.journal)
    assert ("attributes/a", 2, 1) in {row[:3] for row in there.values}
    assert there == indexed.expected(data_folder.lake.journal)


def test_the_journal_is_left_alone_while_a_service_runs(
    data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, FOLDED)
    with lock_folder(data_folder.folder):
        outcome = rebuild(settings(data_folder))
        assert outcome.exit_code == 3
        assert outcome.reason is not None
        assert outcome.reason.startswith("stop the service before rebuilding the journal: ")
        assert list(rebuild(settings(data_folder), RebuildPart.LATEST).changed) == ["latest"]
        # The index alone is the service's own business.
        asked = rebuild(settings(data_folder), RebuildPart.INDEX)
        assert (asked.exit_code, asked.reason) == (0, None)
        assert asked.changed == {
            "index": {"requested": "from the running service; its log reports when the index is built"}
        }
        assert (data_folder.folder / MARK).exists()


@pytest.mark.parametrize(
    ("text", "exit_code", "reason"),
    [
        ('print(\'{"event": "failed", "reason": "no jars"}\'); raise SystemExit(4)', 4, "no jars"),
        ("print('odd'); raise SystemExit(1)", 1, "the pipeline's process ended with 1: odd"),
        (
            "import os; os.kill(os.getpid(), 9)",
            1,
            "the pipeline's process ended with -9: the process printed no result",
        ),
    ],
)
def test_where_the_first_half_fails_the_second_is_not_started(
    text: str, exit_code: int, reason: str, data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lake(data_folder.folder)
    script(monkeypatch, text)
    outcome = rebuild(settings(data_folder))
    assert (outcome.exit_code, outcome.reason, outcome.changed) == (exit_code, reason, {})


def test_a_journal_of_tomorrow_is_left_alone(data_folder: DataFolder) -> None:
    tamper(data_folder, "PRAGMA user_version = 99")
    assert rebuild(settings(data_folder)).exit_code == 5


@pytest.mark.parametrize("only", [None, *RebuildPart])
def test_in_a_folder_without_a_journal_there_is_nothing_to_rebuild_and_nothing_is_made(
    only: RebuildPart | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, "raise SystemExit(4)")
    outcome = rebuild(Settings(data_dir=tmp_path / "other"), only)
    assert outcome.exit_code == 1
    assert outcome.reason is not None
    assert outcome.reason.endswith(
        "found no journal; start the service once, or name the settings file with --settings"
    )
    assert not (tmp_path / "other").exists()


def test_a_journal_of_an_earlier_version_is_upgraded_before_the_pipeline_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process reads the erasures, and changes nothing."""
    place = Lake(tmp_path)
    with contextlib.closing(sqlite3.connect(place.journal, isolation_level=None)) as file:
        migrate(file, "journal.db", STEPS[:-1])
    add_events(tmp_path, [], 0)
    imported = "from pathlib import Path; from spark_store.journal.reader import JournalReader"
    reader_script = f"{imported}; JournalReader.open(Path({str(place.journal)!r})).close()"
    script(monkeypatch, reader_script)
    outcome = rebuild(Settings(data_dir=tmp_path))
    assert (outcome.exit_code, outcome.reason) == (0, None)


def test_the_process_is_not_given_the_secrets_of_the_service(
    data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = settings(data_folder)
    monkeypatch.setenv("CONNECTIVITY_SECRETS__KEY", "x")
    script(monkeypatch, "import os, sys; sys.exit('CONNECTIVITY_SECRETS__KEY' in os.environ)")
    assert rebuild(given, RebuildPart.LATEST).exit_code == 0


def test_the_rebuild_command_prints_the_number_of_changes(
    data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = data_folder.folder / "settings.yaml"
    file.write_text(f"data_dir: {data_folder.folder}\n")
    given = ["pipeline", "rebuild", "--settings", str(file)]
    shown = CliRunner().invoke(app, given, catch_exceptions=False)
    assert (shown.exit_code, shown.stderr) == (0, "journal: 10 entities\n")
    assert "journal changed    0\n" in shown.stdout
    as_json = CliRunner().invoke(app, [*given, "--json", "--only", "journal"], catch_exceptions=False)
    assert json.loads(as_json.stdout)["journal"]["checked"] == 10
    script(monkeypatch, "raise SystemExit(4)")
    failed = CliRunner().invoke(app, [*given, "--only", "latest"], catch_exceptions=False)
    assert (failed.exit_code, failed.stdout) == (4, "")
    assert "ended with 4" in failed.stderr

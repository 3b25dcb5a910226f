"""`connectivity backup`, as a shell calls it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from connectivity.cli.main import app
from spark_store.journal.journal import Journal


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    Journal.open(folder / "journal.db").close()
    return folder


def backup(data: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["backup", *arguments], env={"CONNECTIVITY_DATA_DIR": str(data)})


def test_backup_reports_the_copied_files(data: Path, tmp_path: Path) -> None:
    (data / "secrets.key").write_text("x")
    ended = backup(data, str(tmp_path / "copy"))
    assert ended.exit_code == 0
    assert [line.split("  ")[0] for line in ended.stdout.splitlines()] == ["events", "in the lake", "size"]
    assert "the backup does not contain" in ended.stderr
    assert (tmp_path / "copy" / "backup.json").is_file()


def test_for_machines_it_is_json(data: Path, tmp_path: Path) -> None:
    first = backup(data, str(tmp_path / "first"), "--json")
    assert json.loads(first.stdout)["events"] == 0
    second = backup(data, str(tmp_path / "second"), "--like", str(tmp_path / "first"), "--json")
    assert json.loads(second.stdout)["linked"] == 0


def test_a_folder_that_cannot_be_used_is_reported(data: Path) -> None:
    ended = backup(data, str(data / "copy"))
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert "expected a folder outside the data folder" in ended.stderr


def test_an_earlier_backup_that_cannot_be_looked_up_is_reported(data: Path, tmp_path: Path) -> None:
    ended = backup(data, str(tmp_path / "copy"), "--like", str(tmp_path / ("x" * 300)))
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr.endswith("expected a complete earlier backup: File name too long\n")


def test_settings_that_cannot_be_used_are_reported(data: Path, tmp_path: Path) -> None:
    ended = backup(data, str(tmp_path / "copy"), "--settings", str(tmp_path / "none.yaml"))
    assert ended.exit_code == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_a_backup_and_removes_the_copy(
    number: signal.Signals, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def end(*_: object) -> None:
        assert (tmp_path / "copy" / "journal.db").exists()
        signal.raise_signal(number)

    monkeypatch.setattr("spark_store.maintenance.backup._check_content", end)
    before = signal.signal(number, signal.default_int_handler)
    try:
        assert backup(data, str(tmp_path / "copy")).exit_code == 128 + number
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
    assert not (tmp_path / "copy").exists()

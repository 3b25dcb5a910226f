"""The commands `connectivity secrets …`."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from connectivity.cli.main import app
from connectivity.maintenance.keyring import KEY_FILE_NAME, add_key, read_key_file
from connectivity.security.keys import KEY_BYTES, key_id, key_text, read_key
from connectivity.store.folder_lock import lock_folder
from tests.support.sealed_journal import OLD, SECRETS, fill, opened


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["secrets", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    file = tmp_path / "settings.yaml"
    file.write_text(f"data_dir: {tmp_path / 'data'}\n")
    return file


def test_a_new_key_is_printed_and_each_is_another() -> None:
    first, second = run("new-key"), run("new-key")
    assert len(read_key(first.stdout)) == KEY_BYTES
    assert (first.exit_code, first.stdout != second.stdout) == (0, True)


def test_a_new_key_is_put_at_the_head_of_a_file_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    assert run("new-key", "--file", file).exit_code == 0
    output = run("new-key", "--file", file).stdout
    newest, _ = read_key_file(file, "x")
    assert key_id(newest) in output
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not any(line in output for line in file.read_text().split())
    assert run("new-key", "--file", tmp_path / "nowhere" / "keys").exit_code == 2


def test_stored_secrets_are_sealed_again(settings: Path) -> None:
    folder = settings.parent / "data"
    fill(folder)
    add_key(folder / KEY_FILE_NAME, OLD)
    run("new-key", "--file", folder / KEY_FILE_NAME)
    newest, _ = read_key_file(folder / KEY_FILE_NAME, "x")
    done = run("rotate", "--settings", settings)
    assert done.stdout == (
        f"{SECRETS} secrets in {SECRETS} revisions encrypted with key {key_id(newest)}\nno longer needed: {key_id(OLD)}\n"
    )
    assert opened(folder, newest) == SECRETS
    again = json.loads(run("rotate", "--json", "--settings", settings).stdout)
    assert again == {"key": key_id(newest), "secrets": 0, "revisions": 0, "unneeded": [key_id(OLD)]}


def test_a_rotation_that_cannot_start_reports_its_reason(settings: Path) -> None:
    folder = settings.parent / "data"
    fill(folder)
    without = run("rotate", "--settings", settings)
    assert (without.exit_code, "found no key" in without.stderr) == (1, True)
    run("new-key", "--file", folder / KEY_FILE_NAME)
    unknown = run("rotate", "--settings", settings)
    assert (unknown.exit_code, "nothing has changed" in unknown.stderr) == (1, True)
    with lock_folder(folder):
        locked = run("rotate", "--settings", settings)
    assert (locked.exit_code, locked.stderr.count("stop")) == (3, 1)
    assert locked.stderr.endswith("expected none; stop that service or choose another data_dir\n")
    (folder / KEY_FILE_NAME).chmod(0o644)
    assert run("rotate", "--settings", settings).exit_code == 2


def test_a_rotation_without_a_journal_is_refused_and_creates_nothing(
    settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a wrong data folder, the operator would discard the former keys."""
    monkeypatch.setenv("CONNECTIVITY_SECRETS__KEY", key_text(OLD))
    ended = run("rotate", "--settings", settings)
    assert (ended.exit_code, ended.stdout) == (1, "")
    assert "journal.db: found no journal" in ended.stderr
    assert not (settings.parent / "data").exists()


def test_a_path_that_cannot_be_looked_up_is_reported(tmp_path: Path) -> None:
    """Like one in a folder of another user, which root's tests can look up."""
    long = tmp_path / ("x" * 300)
    for arguments in (("new-key", "--file", long), ("rotate", "--settings", _settings_for(long))):
        ended = run(*arguments)
        assert (ended.exit_code, ended.stdout) == (2, "")
        assert ended.stderr.endswith("File name too long\n")


def _settings_for(data: Path) -> Path:
    file = data.with_name("settings.yaml")
    file.write_text(f"data_dir: {data}\n")
    return file

"""Output and exit codes of the backup command. The tests of the store cover the copying."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from connectivity.config.settings import Settings
from connectivity.errors import CommandFailed
from connectivity.maintenance.backup import back_up
from spark_store.errors import LakeUnfit, OutputUnusable, SchemaTooNew, StoreError, StoreUnavailable
from spark_store.journal.journal import Journal


@pytest.fixture
def data(tmp_path: Path) -> Settings:
    (tmp_path / "data").mkdir()
    Journal.open(tmp_path / "data" / "journal.db").close()
    return Settings(data_dir=tmp_path / "data")


def test_a_backup_reports_the_copied_data_as_json(data: Settings, tmp_path: Path) -> None:
    made = back_up(data, tmp_path / "copy")
    assert json.loads(json.dumps(made)) == made
    assert (made["events"], made["lake"], made["key_left_out"]) == (0, None, None)


def test_the_key_of_stored_secrets_is_left_out_and_named(data: Settings, tmp_path: Path) -> None:
    """In the same backup as the secrets it would protect nothing."""
    key = Path(data.data_dir) / "secrets.key"
    key.write_text("x")
    assert back_up(data, tmp_path / "copy")["key_left_out"] == str(key)
    assert not (tmp_path / "copy" / "secrets.key").exists()


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (StoreUnavailable("x"), 1),
        (SchemaTooNew("journal.db", 99, 1), 1),
        (OutputUnusable("x"), 2),
        (LakeUnfit("x"), 5),
    ],
    ids=lambda it: type(it).__name__,
)
def test_each_failure_has_its_exit_code(
    data: Settings, monkeypatch: pytest.MonkeyPatch, error: StoreError, exit_code: int
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("connectivity.maintenance.backup.backup.back_up", fail)
    with pytest.raises(CommandFailed) as failed:
        back_up(data, Path("copy"))
    assert (failed.value.exit_code, str(failed.value)) == (exit_code, str(error))

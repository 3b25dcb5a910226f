"""Another key for everything that is stored, in one transaction."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from connectivity.config.settings import Settings
from connectivity.connections.vault import Vault
from connectivity.errors import AlteredSecret, UnknownKey
from connectivity.maintenance.keyring import (
    ACTION,
    KEY_FILE_NAME,
    RotationFailed,
    RotationResult,
    add_key,
    rotate_offline,
)
from connectivity.security.keys import key_id
from connectivity.store.folder_lock import DataFolderLocked, lock_folder
from spark_store.errors import StoreUnavailable
from spark_store.journal import connections
from spark_store.journal.journal import Journal
from tests.support.failing_sqlite import Fragile
from tests.support.paths import ROOT
from tests.support.sealed_journal import NEW, OLD, SECRETS, fill, opened, stored, with_journal


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_everything_is_under_the_newest_key_and_the_old_one_opens_nothing(folder: Path) -> None:
    settings = fill(folder)
    add_key(folder / KEY_FILE_NAME, OLD)
    add_key(folder / KEY_FILE_NAME, NEW)
    before = stored(folder)
    assert rotate_offline(settings, "ada") == RotationResult(key_id(NEW), SECRETS, SECRETS, (key_id(OLD),))
    assert opened(folder, NEW) == SECRETS
    with pytest.raises(UnknownKey):
        opened(folder, OLD)
    assert [row._replace(document=None) for row in stored(folder)] == [row._replace(document=None) for row in before]
    assert key_id(OLD).encode() not in b"".join(
        file.read_bytes() for file in folder.iterdir() if "journal" in file.name
    )


def test_a_rotation_succeeds_though_the_write_ahead_log_cannot_be_emptied(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_journal: Journal) -> bool:
        raise StoreUnavailable("the disk is full")

    settings = fill(folder)
    add_key(folder / KEY_FILE_NAME, OLD)
    add_key(folder / KEY_FILE_NAME, NEW)
    monkeypatch.setattr(Journal, "scrub", refuse)
    assert rotate_offline(settings, "ada").secrets == SECRETS
    assert opened(folder, NEW) == SECRETS


def test_a_rotation_adds_its_operator_to_the_audit_log_once(folder: Path) -> None:
    settings = fill(folder)
    add_key(folder / KEY_FILE_NAME, OLD)
    add_key(folder / KEY_FILE_NAME, NEW)
    rotate_offline(settings, "ada")
    assert rotate_offline(settings, "bert") == RotationResult(key_id(NEW), 0, 0, (key_id(OLD),))
    entries = with_journal(folder, lambda it: connections.audit_entries(it, 2))
    assert isinstance(entries, list)
    assert [(it.by, it.action, it.details) for it in entries[:1]] == [
        ("ada", ACTION, f"{SECRETS} under key {key_id(NEW)}")
    ]
    assert entries[1].action != ACTION


def test_a_secret_that_does_not_open_stops_it_and_nothing_has_changed(folder: Path) -> None:
    settings = fill(folder)
    add_key(folder / KEY_FILE_NAME, NEW)
    before = stored(folder)
    with pytest.raises(UnknownKey, match=rf"connection depot-7, uri: .*encrypted with key {key_id(OLD)}"):
        rotate_offline(settings, "ada")
    assert stored(folder) == before


def test_an_altered_secret_stops_it_too(folder: Path) -> None:
    settings = fill(folder)
    add_key(folder / KEY_FILE_NAME, OLD)
    add_key(folder / KEY_FILE_NAME, NEW)
    with_journal(folder, lambda it: it.execute("UPDATE connections SET id = 'depot-9' WHERE id = 'depot-8'"))
    # A sealed text is bound to the ID in its document; here another document's text was put in.
    row = stored(folder)[0]
    moved = json.dumps({**json.loads(str(row.document)), "id": "depot-9"})
    with_journal(folder, lambda it: it.execute("UPDATE connections SET document = ? WHERE revision = 1", (moved,)))
    with pytest.raises(AlteredSecret, match="connection depot-9"):
        rotate_offline(settings, "ada")
    assert [Vault([OLD]).unseal(json.loads(str(it.document))) for it in stored(folder)[:1]]


def test_sealing_requires_a_key(folder: Path) -> None:
    with pytest.raises(RotationFailed, match=r"found no key, expected secrets\.key"):
        rotate_offline(fill(folder), "ada")


def test_a_service_that_has_the_folder_keeps_it(folder: Path) -> None:
    settings = fill(folder)
    add_key(folder / KEY_FILE_NAME, NEW)
    with lock_folder(folder), pytest.raises(DataFolderLocked):
        rotate_offline(settings, "ada")


@pytest.mark.parametrize("late", [False, True])
def test_after_a_disk_failure_at_any_step_everything_opens_with_the_existing_keys(
    folder: Path, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = fill(folder)
    add_key(folder / KEY_FILE_NAME, OLD)
    add_key(folder / KEY_FILE_NAME, NEW)
    failures, unknown, number = 0, 0, 0
    while True:
        number += 1
        before, failure = stored(folder), ""
        with monkeypatch.context() as failing:
            failing.setattr("spark_store.journal.journal.sqlite3.connect", connecting(number, late=late))
            try:
                rotate_offline(settings, "ada")
            except RotationFailed as error:
                failures, failure = failures + 1, str(error)
            has_failed = Fragile.count >= number
            Fragile.arm(0)
        assert opened(folder, NEW, OLD) == SECRETS
        unknown += "it is not known which key" in failure
        assert "nothing has changed" not in failure or stored(folder) == before
        if not has_failed:
            break
    assert failures >= SECRETS
    assert unknown == 1, "only the commit leaves doubt"
    assert opened(folder, NEW) == SECRETS


def connecting(number: int, *, late: bool) -> object:
    original = sqlite3.connect
    Fragile.arm(number, late)

    def connect(*arguments: object, **more: object) -> object:
        return original(*arguments, **{**more, "factory": Fragile})  # type: ignore[call-overload]

    return connect


_KILLED = """
import os, signal, sys
from pathlib import Path
from connectivity.maintenance import keyring
from connectivity.config.settings import Settings
from spark_store.journal.journal import Journal
commit = Journal.commit

def killed(journal):
    if sys.argv[2] == "after":
        commit(journal)
    os.kill(os.getpid(), signal.SIGKILL)

Journal.commit = killed
keyring.rotate_offline(Settings(data_dir=Path(sys.argv[1])), "ada")
"""


@pytest.mark.parametrize(("moment", "keys"), [("before", [OLD]), ("after", [NEW])])
def test_a_kill_leaves_all_secrets_under_one_key_or_all_under_the_other(
    folder: Path, moment: str, keys: list[bytes]
) -> None:
    fill(folder)
    add_key(folder / KEY_FILE_NAME, OLD)
    add_key(folder / KEY_FILE_NAME, NEW)
    ended = subprocess.run(
        [sys.executable, "-c", _KILLED, str(folder), moment],
        cwd=ROOT,
        env={**os.environ},
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL
    assert opened(folder, *keys) == SECRETS
    rotate_offline(Settings(data_dir=folder), "ada")
    assert opened(folder, NEW) == SECRETS

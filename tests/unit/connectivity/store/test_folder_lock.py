"""The data folder's lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from connectivity.errors import SettingsError
from connectivity.store.folder_lock import DataFolderLocked, lock_folder
from tests.support.paths import ROOT

HOLDER = """
import sys
from pathlib import Path
from connectivity.store.folder_lock import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    """Start a process that holds the lock until its input ends."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "locked\n"
    return child


def test_a_new_folder_is_private_and_an_existing_one_is_unchanged(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "new" / "data"):
        assert (tmp_path / "new" / "data").stat().st_mode & 0o077 == 0
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o750)
    with lock_folder(shared):
        assert shared.stat().st_mode & 0o777 == 0o750


def test_a_second_lock_is_refused_with_the_process_id_of_the_owner(tmp_path: Path) -> None:
    child = holder(tmp_path)
    with pytest.raises(DataFolderLocked, match=f"process {child.pid}") as refused, lock_folder(tmp_path):
        pass
    assert refused.value.exit_code == 3
    child.communicate()
    with lock_folder(tmp_path):
        pass


def test_a_killed_owner_leaves_no_lock(tmp_path: Path) -> None:
    child = holder(tmp_path)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    with lock_folder(tmp_path) as path:
        assert path.read_text() == f"process {os.getpid()}\n"


def test_two_owners_in_one_process_are_refused_too(tmp_path: Path) -> None:
    with lock_folder(tmp_path), pytest.raises(DataFolderLocked), lock_folder(tmp_path):
        pass
    with lock_folder(tmp_path):
        pass


def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "a" / "b") as path:
        assert path == tmp_path / "a" / "b" / "lock"


def test_a_folder_that_cannot_be_made_is_a_matter_of_settings(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="expected a folder that can be written"), lock_folder(tmp_path / "file"):
        pass


def test_a_full_disk_does_not_prevent_the_lock(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to("/dev/full")
    with lock_folder(tmp_path), pytest.raises(DataFolderLocked), lock_folder(tmp_path):
        pass

"""Jars are taken if they are exactly those of the file of hashes."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two jars that were fetched, and their hashes."""
    (tmp_path / "part").mkdir()
    contents = {"a-1.jar": b"one", "b-2.jar": b"two"}
    lines = [f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in contents.items()]
    for name, content in contents.items():
        (tmp_path / "part" / name).write_bytes(content)
    (tmp_path / "sums").write_text("".join(lines), encoding="ascii")
    return tmp_path


def take(folder: Path) -> subprocess.CompletedProcess[str]:
    script = f"set -euo pipefail; . {ROOT}/tools/system.sh; . {ROOT}/tools/java.sh; take_jars part jars sums"
    return subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=False)


def test_exactly_the_listed_jars_are_taken(folder: Path) -> None:
    assert take(folder).returncode == 0
    assert sorted(path.name for path in (folder / "jars").iterdir()) == ["a-1.jar", "b-2.jar"]


@pytest.mark.parametrize("name", ["c-3.jar", ".hidden.jar", "C.JAR"])
def test_a_jar_that_is_not_listed_is_refused_by_name(folder: Path, name: str) -> None:
    (folder / "part" / name).write_bytes(b"three")
    taken = take(folder)
    assert (taken.returncode, (folder / "jars").exists()) == (1, False)
    assert "the downloaded jars are not exactly those of sums" in taken.stderr
    assert name in taken.stdout


def test_an_altered_or_missing_jar_is_refused(folder: Path) -> None:
    (folder / "part" / "a-1.jar").write_bytes(b"other")
    assert take(folder).returncode == 1
    (folder / "part" / "a-1.jar").unlink()
    assert take(folder).returncode == 1
    assert not (folder / "jars").exists()


def test_a_folder_with_another_jar_is_fetched_again(folder: Path) -> None:
    script = f". {ROOT}/tools/java.sh; java() {{ :; }}; has_jars part sums"
    command = ["bash", "-c", script]
    (folder / "part" / "classes.jsa").write_bytes(b"made here")
    assert subprocess.run(command, cwd=folder, check=False).returncode == 0
    (folder / "part" / "c-3.jar").write_bytes(b"three")
    assert subprocess.run(command, cwd=folder, check=False).returncode == 1

"""Rules for every file of the project: its length, and no trace of one machine or one day."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.paths import ROOT, TESTS

LONGEST_FILE = 600
LONGEST_PAGE = 250
NOT_OURS = {".git", ".venv", ".run", ".hypothesis", "__pycache__", "build", "dist", "data"}
TEXT = {".py", ".md", ".toml", ".yaml", ".yml", ".json", ".txt", ".conf", ".sh", ".cfg", ""}


def project_files() -> Iterator[Path]:
    """Yield every text file of the project."""
    for file in sorted(ROOT.rglob("*")):
        parts = file.relative_to(ROOT).parts
        if any(part in NOT_OURS or part.endswith(("_cache", ".egg-info")) for part in parts):
            continue
        if file.is_file() and file.suffix in TEXT:
            yield file


def test_no_file_is_longer_than_600_lines() -> None:
    lengths = {file: file.read_text(encoding="utf-8").count("\n") for file in project_files() if file.suffix == ".py"}
    assert lengths
    long = [f"{file.relative_to(ROOT)}: {lines} lines" for file, lines in lengths.items() if lines > LONGEST_FILE]
    assert long == [], "split them"


def test_no_page_but_references_is_longer_than_250_lines() -> None:
    pages = [file for file in (ROOT / "docs").rglob("*.md") if "reference" not in file.parts]
    assert len(pages) > 40
    lengths = {file.name: file.read_text(encoding="utf-8").count("\n") for file in pages}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_PAGE} == {}


def test_no_test_module_imports_another() -> None:
    """Shared code is in tests/support."""
    pattern = re.compile(r"^(?:from|import) tests\.\S*\btest_.*$", re.MULTILINE)
    found = {
        f"{file.relative_to(ROOT)}: {line}"
        for file in TESTS.rglob("*.py")
        for line in pattern.findall(file.read_text(encoding="utf-8"))
    }
    assert found == set()


# Built from parts, so that this file does not contain the text itself.
MACHINE_PATH = re.compile(
    r"(?<![\w.~}])/(?:" + "|".join(["work", "shared", "root", "home", "farm", "Users"]) + r")/[\w.]"
)
UNFINISHED = re.compile(r"\b(?:" + "|".join(["TO" + "DO", "FIX" + "ME", "X" * 3, "NotImplemented" + "Error"]) + r")\b")


@pytest.mark.parametrize(
    ("pattern", "why"),
    [(MACHINE_PATH, "a path of one machine"), (UNFINISHED, "something unfinished")],
    ids=["machine paths", "unfinished work"],
)
def test_no_file_contains_a_path_of_one_machine_or_unfinished_work(pattern: re.Pattern[str], why: str) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{number}: {why}: {line.strip()[:80]}"
        for file in project_files()
        for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


def test_constraints_pin_every_dependency_with_hashes_and_name_no_place() -> None:
    """So that an installation is the same with every registry."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pins = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))
    for requirement in map(Requirement, wanted):
        pin = pins.get(canonicalize_name(requirement.name), "0")
        assert requirement.specifier.contains(pin), f"{requirement}, pinned is {pin}: run `make constraints`"
    entries = re.split(r"\n(?=[a-z])", text)
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []
    assert re.findall(r"://|^-|^\s*#", text, re.MULTILINE) == []

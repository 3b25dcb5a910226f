"""The wheel holds the modules of the source tree, and building it leaves nothing there."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.support.paths import ROOT

PACKAGES = ("connectivity", "mappings", "spark_store")


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of what the package is made of."""
    folder = tmp_path / "sources"
    (folder / "tools").mkdir(parents=True)
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "tools/build_backend.py"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, folder / name)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def build(sources: Path, *options: str) -> set[str]:
    """Build the wheel, and return the files of the packages in it."""
    dist = sources.parent / "dist"
    uv = Path(sys.executable).with_name("uv")
    where = ["--python", sys.executable, "--out-dir", str(dist), str(sources)]
    subprocess.run([uv, "build", "-q", "--no-build-isolation", *options, *where], check=True)
    [wheel] = dist.glob("*.whl")
    return {name for name in ZipFile(wheel).namelist() if name.partition("/")[0] in PACKAGES}


def files(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file() and file.suffix != ".pyc"}


def test_a_module_of_an_earlier_build_is_not_in_the_wheel(sources: Path) -> None:
    removed = sources / "connectivity" / "removed.py"
    removed.write_text('"""A module that a later version does not have."""\n', encoding="utf-8")
    assert "connectivity/removed.py" in build(sources, "--wheel")
    removed.unlink()
    assert "connectivity/removed.py" not in build(sources, "--wheel")


def test_building_the_wheel_leaves_no_files_in_the_sources(sources: Path) -> None:
    before = files(sources)
    build(sources, "--wheel")
    assert files(sources) == before


def test_a_source_distribution_holds_what_building_the_wheel_needs(sources: Path) -> None:
    modules = {str(file.relative_to(sources)) for name in PACKAGES for file in (sources / name).rglob("*.py")}
    assert {name for name in build(sources) if name.endswith(".py")} == modules


def test_make_wheel_leaves_one_wheel_in_dist(sources: Path) -> None:
    """The documentation installs `dist/*.whl`, and pip refuses two versions of one package."""
    shutil.copy(ROOT / "Makefile", sources)
    (sources / ".venv").symlink_to(sys.prefix)
    (sources / "dist").mkdir()
    (sources / "dist" / "broker_connectivity-0.0.1-py3-none-any.whl").touch()
    subprocess.run(["make", "-s", "-o", ".venv/ready", "wheel"], cwd=sources, check=True)
    assert len(list((sources / "dist").glob("*.whl"))) == 1

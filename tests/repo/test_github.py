"""Static checks of GitHub's workflows and forms, with GitHub's schemas."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.markdown import prose
from tests.support.paths import ROOT

GITHUB = ROOT / ".github"
WORKFLOW = GITHUB / "workflows" / "ci.yml"
FORMS = sorted(it for it in (GITHUB / "ISSUE_TEMPLATE").iterdir() if it.name != "config.yml")


def jobs() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]
    return found


def commands(job: str) -> list[str]:
    return [step["run"] for step in jobs()[job]["steps"] if "run" in step]


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", [WORKFLOW]),
        ("custom.github-workflows-require-timeout", [WORKFLOW]),
        ("vendor.github-issue-forms", FORMS),
        ("vendor.github-issue-config", [GITHUB / "ISSUE_TEMPLATE" / "config.yml"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_for_github_is_of_its_form(schema: str, files: list[Path]) -> None:
    assert files
    result = subprocess.run(
        [Path(sys.executable).with_name("check-jsonschema"), "--builtin-schema", schema, *files],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_one_job_runs_what_anybody_can_run_by_hand() -> None:
    assert commands("processes") == [".ci/run"]
    assert jobs()["processes"]["env"]["DOCKER_HOST"].startswith("unix:///nonexistent")


def test_one_job_starts_the_brokers_in_containers() -> None:
    """The fixtures use the engine that answers: nothing but that it answers makes the difference."""
    assert "env" not in jobs()["containers"]
    assert commands("containers")[0] == "docker version"
    assert "-m broker tests/links tests/service" in commands("containers")[-1]


@pytest.mark.parametrize("name", ["CODE_OF_CONDUCT.md", "SECURITY.md"])
def test_a_page_about_reports_names_no_person_and_no_address(name: str) -> None:
    assert "@" not in prose(ROOT / name)
    assert "://" not in prose(ROOT / name)


def test_the_package_is_described_and_typed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    described, packaged = project["project"], project["tool"]["setuptools"]["package-data"]
    assert {"Typing :: Typed", "Operating System :: POSIX"} <= set(described["classifiers"])
    assert described["keywords"]
    for package in ("connectivity", "mappings", "spark_store"):
        assert (ROOT / package / "py.typed").is_file()
        assert "py.typed" in packaged[package]

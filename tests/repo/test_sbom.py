"""The output of `make sbom` is complete, and names no path."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import version
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.paths import ROOT


@pytest.fixture(scope="module")
def text() -> str:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (arguments,) = re.findall(r"^\t@\$\(RUN\)/cyclonedx-py (.*) -o build/sbom\.cdx\.json$", makefile, re.MULTILINE)
    # `make sbom` validates its output, which takes ten times as long.
    command = [sys.executable, "-m", "cyclonedx_py", *shlex.split(arguments), "--no-validate"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def document(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found


def test_each_package_has_version_and_package_url(document: dict[str, Any]) -> None:
    assert document["metadata"]["component"]["name"] == "broker-connectivity"
    for each in document["components"]:
        name, _, number = each["purl"].removeprefix("pkg:pypi/").partition("@")
        assert (canonicalize_name(name), number) == (canonicalize_name(each["name"]), version(each["name"]))
    assert sum("licenses" in each for each in document["components"]) > len(document["components"]) * 0.9


def test_the_sbom_lists_the_dependencies_of_each_package(document: dict[str, Any]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {each["bom-ref"]: canonicalize_name(each["name"]) for each in document["components"]}
    below = {each["ref"]: {names[ref] for ref in each.get("dependsOn", ())} for each in document["dependencies"]}
    declared = {canonicalize_name(Requirement(text).name) for text in project["dependencies"]}
    assert declared <= below["root-component"]
    assert any("cffi" in below[ref] for ref, name in names.items() if name == "cryptography")


def test_it_names_no_path_and_no_registry_of_this_machine(text: str) -> None:
    assert str(ROOT) not in text
    assert sys.prefix not in text
    assert "file:" not in text

"""The list of what is installed is CycloneDX, complete, and names no place."""

from __future__ import annotations

import json
import re
import tomllib
from importlib.metadata import version
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.paths import ROOT
from tools import sbom


@pytest.fixture(scope="module")
def text() -> str:
    return sbom.document(sbom.environment())


@pytest.fixture(scope="module")
def document(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found


def test_it_is_cyclonedx(text: str) -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


def test_the_sbom_separates_service_dependencies_from_test_dependencies(document: dict[str, Any]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = {canonicalize_name(Requirement(text).name) for text in project["dependencies"]}
    scopes = {each["name"]: each["scope"] for each in document["components"]}
    assert {scopes[name] for name in wanted} == {"required"}
    assert (scopes["pytest"], scopes["pip-audit"], scopes["cffi"]) == ("excluded", "excluded", "required")
    # An extra that is asked for: Spark Connect talks gRPC.
    assert scopes["grpcio"] == "required"


def test_each_package_has_version_and_package_url(document: dict[str, Any]) -> None:
    assert document["metadata"]["component"]["name"] == "broker-connectivity"
    for each in document["components"]:
        assert each["purl"] == f"pkg:pypi/{each['name']}@{version(each['name'])}"
    assert sum("licenses" in each for each in document["components"]) > len(document["components"]) * 0.9


def test_the_sbom_lists_the_dependencies_of_each_package(document: dict[str, Any]) -> None:
    below = {each["ref"].partition("@")[0]: each.get("dependsOn", []) for each in document["dependencies"]}
    assert any("/cryptography@" in ref for ref in below["pkg:pypi/broker-connectivity"])
    assert any("/cffi@" in ref for ref in below["pkg:pypi/cryptography"])


def test_it_names_no_place(text: str) -> None:
    addresses = set(re.findall(r"\w+://[^\"]*", text)) - {"http://cyclonedx.org/schema/bom-1.6.schema.json"}
    assert addresses == set()
    assert str(ROOT) not in text
    assert "file:" not in text

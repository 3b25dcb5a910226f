"""The packages import declared dependencies only."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.paths import ROOT

PACKAGES = ("connectivity", "mappings", "spark_store")


def imported(file: Path) -> Iterator[str]:
    """The modules that a file imports, also those that it imports late, without their submodules."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"{file}:{node.lineno}: a relative import"
            yield node.module.partition(".")[0]


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DISTRIBUTIONS = packages_distributions()
USED_BY_ANOTHER = {"pandas"}
"""Spark Connect imports it."""


def declared() -> set[str]:
    """The dependencies of the packages and of their extras."""
    extras = PROJECT["optional-dependencies"]
    texts = PROJECT["dependencies"] + [
        each for name, extra in extras.items() if name not in ("demo", "dev") for each in extra
    ]
    return {canonicalize_name(Requirement(text).name) for text in texts}


def foreign_modules() -> set[str]:
    """The modules of others that the packages import."""
    modules = {module for package in PACKAGES for file in (ROOT / package).rglob("*.py") for module in imported(file)}
    return modules - sys.stdlib_module_names - set(PACKAGES)


def test_every_module_that_the_packages_import_belongs_to_a_declared_dependency() -> None:
    """A dependency of a dependency may be gone with the next version of that."""
    undeclared = {
        module: DISTRIBUTIONS.get(module, ["not installed"])
        for module in foreign_modules()
        if not declared() & {canonicalize_name(name) for name in DISTRIBUTIONS.get(module, ())}
    }
    assert undeclared == {}


def test_the_packages_import_every_declared_dependency() -> None:
    used = {canonicalize_name(name) for module in foreign_modules() for name in DISTRIBUTIONS.get(module, ())}
    assert declared() - used == {canonicalize_name(PROJECT["name"]), *USED_BY_ANOTHER}

"""Vectors of connection documents: a base document, changes to it, and the problems of each change."""

from __future__ import annotations

import copy
import re
from functools import cache
from typing import Any, NamedTuple

import yaml

from tests.support.paths import VECTORS
from tests.support.validation import validate

FOLDER = VECTORS / "connections"
CODES = {"CONFIG": "connectivity:connection.configuration.invalid"}

_STEP = re.compile(r'\[(\d+)\]|([^.\[\]"]+)')


class Case(NamedTuple):
    """One changed document and the error code at the path of each of its problems."""

    rule: str
    document: dict[str, Any]
    problems: dict[str, str]

    def __str__(self) -> str:
        return self.rule

    def check(self) -> None:
        found = validate(self.document, environ={})
        assert {problem.path: problem.code for problem in found} == self.problems, found
        assert len(found) == len(self.problems), found


@cache
def _content(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return content


def load_cases(name: str) -> list[Case]:
    """Return the cases of `tests/vectors/connections/<name>.yaml`."""
    content = _content(name)
    return [_case(content["base"], case) for case in content["cases"]]


def base_document(name: str) -> dict[str, Any]:
    """Return the valid document that the cases change."""
    base: dict[str, Any] = copy.deepcopy(_content(name)["base"])
    return base


def _case(base: dict[str, Any], case: dict[str, Any]) -> Case:
    document = copy.deepcopy(base)
    for path, value in case.get("set", {}).items():
        holder, name = _place(document, path)
        holder[name] = copy.deepcopy(value)
    for path in case.get("drop", []):
        holder, name = _place(document, path)
        del holder[name]
    for name, number in case.get("repeat", {}).items():
        document[name] = document[name] * number
    problems = {path: CODES.get(code, code) for path, code in case["problems"].items()}
    return Case(case["rule"], document, problems)


def _place(document: Any, path: str) -> tuple[Any, Any]:
    *above, last = [int(index) if index else name for index, name in _STEP.findall(path)]
    for step in above:
        document = document[step]
    return document, last

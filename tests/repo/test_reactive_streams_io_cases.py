"""Each case of reactive-streams-io has a test with its number in its name or its parameters.

The names are read, so a written, moved or renamed test needs no entry here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.support.paths import TESTS

Test: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
PROTOCOL = "mappings.reactive_streams_io"

COUNTS = {"H": 12, "V": 13, "D": 22, "I": 5, "F": 8, "P": 12, "G": 6, "W": 6, "B": 12, "R": 14, "K": 2, "N": 13}
"""The number of cases in each group.

The groups: handshake, varints and framing, demand, reused IDs, fixed sizes, splitting, goodbye, both directions, brokers,
resume, keepalive, names.
"""

VOID = {
    "W05": "more is requested before the last element has come, so nobody finds out whether one too many is refused"
}

CASES = [*(f"{group}{number:02}" for group, count in COUNTS.items() for number in range(1, count + 1)), "N02A"]

OF_THE_MACHINE = {
    *("H06", "D18", "D19", "D20", "D21", "I03", "I04", "I05", "F03", "F04", "F05", "F06", "F07", "F08"),
    *("P01", "P02", "P03", "P04", "P05", "P06", "P07", "P08", "P09", "P12"),
}
"""The cases in which the peer publishes.

Every other one is tested with the service too, over messages or sockets.
"""

_CASE = re.compile(r"([A-Za-z])(\d\d)([Aa]?)")
_GROUP = re.compile(r"[a-z]")
_PARAMETER = re.compile(r"([A-Z]\d\d[Aa]?|[a-z]\d\d)\b")


def cases_of(test: Test, module: ast.Module) -> set[str]:
    """Return the cases that a test covers: those in its name.

    For a range in the name, those of its parameters if they are named there.
    """
    words = test.name.removeprefix("test_").split("_")
    if words[0] not in ("case", "cases"):
        return set()
    parameters = set(_parameters(test, module))
    found: set[str] = set()
    last, is_range = "", False
    for word in words[1:]:
        if word in ("to", "and"):
            is_range = word == "to"
        elif _CASE.fullmatch(word):
            case = word.upper()
            found |= _between(last, case) if is_range and not parameters else {case}
            last, is_range = case, False
        elif not _GROUP.fullmatch(word):
            break
    return found | parameters


def _parameters(test: Test, module: ast.Module) -> Iterator[str]:
    """The cases that parameters name, in the decorator or in a table of the module."""
    nodes = [node for decorator in test.decorator_list for node in ast.walk(decorator)]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    tables = [
        statement.value
        for statement in module.body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and statement.targets[0].id in names
    ]
    for node in [*nodes, *(node for table in tables for node in ast.walk(table))]:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _PARAMETER.match(node.value):
            yield from (case.upper() for case in re.findall(_PARAMETER, node.value))


def _between(first: str, last: str) -> set[str]:
    return {f"{first[0]}{number:02}" for number in range(int(first[1:3]), int(last[1:3]) + 1)}


@cache
def covered() -> dict[str, list[str]]:
    """The tests of each case. Those of Streamr have numbers of their own."""
    tests: dict[str, list[str]] = {}
    for file in sorted(TESTS.rglob("test_*.py")):
        text = file.read_text(encoding="utf-8")
        if PROTOCOL not in text or "streamr" in file.name or file == Path(__file__):
            continue
        module = ast.parse(text)
        for node in module.body:
            if isinstance(node, Test):
                for case in cases_of(node, module):
                    tests.setdefault(case, []).append(f"{file.relative_to(TESTS)}::{node.name}")
    return tests


def test_every_case_but_the_void_ones_is_a_test_and_there_are_no_others() -> None:
    assert sorted(covered()) == sorted(set(CASES) - VOID.keys())


def test_every_client_case_has_a_test_of_the_service() -> None:
    of_the_service = {
        case for case, tests in covered().items() if any(not test.startswith("unit/mappings") for test in tests)
    }
    assert sorted(set(CASES) - OF_THE_MACHINE - VOID.keys() - of_the_service) == []


@pytest.mark.parametrize(
    ("code", "cases"),
    [
        ("def test_case_d05_an_empty_one_is_complete(): ...", {"D05"}),
        ("async def test_case_n02a_to_the_newest(): ...", {"N02A"}),
        ("def test_cases_d11_to_d13_and_g01_frames_that_cross_on_the_wire(): ...", {"D11", "D12", "D13", "G01"}),
        (
            "@mark('x', [param('a b', id='N01'), ('V02', 'D')])\ndef test_cases_n01_to_n09_a(): ...",
            {"N01", "N09", "V02"},
        ),
        ("TABLE = {'h12 at once': 1}\n@mark('x', TABLE)\ndef test_cases_h_and_v_are_so(): ...", {"H12"}),
        ("def test_d05_and_others(): ...", set()),
    ],
)
def test_names_say_which_cases_a_test_is_of(code: str, cases: set[str]) -> None:
    module = ast.parse(code)
    test = module.body[-1]
    assert isinstance(test, Test)
    assert cases_of(test, module) == cases

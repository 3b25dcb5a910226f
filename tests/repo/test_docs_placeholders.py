"""The generated page of the expression language."""

from __future__ import annotations

import json
import re

from mappings.placeholders.functions import FUNCTIONS
from mappings.placeholders.resolution import ResolutionState
from mappings.placeholders.template import PlaceholderContext, Scope, parse
from mappings.placeholders.values import PLACEHOLDERS
from tests.support.paths import ROOT
from tests.support.table import each_row
from tools.docs.placeholders import placeholders_page

PAGE = placeholders_page()
FILE = ROOT / "docs" / "reference" / "placeholders.md"
BLOCKS = re.findall(r"```text\n(.*)\nheaders (.*)\ngives   (.*)\n```", PAGE)


def test_every_row_of_the_tables_is_on_the_page() -> None:
    assert [f"### `fn:{name}`" for name in FUNCTIONS if f"### `fn:{name}`\n" not in PAGE] == []
    assert [prefix for prefix in PLACEHOLDERS if f"| `{prefix}:` |" not in PAGE] == []
    assert [scope.place for scope in Scope if f"| {scope.place} |" not in PAGE] == []
    assert len(BLOCKS) == len(FUNCTIONS)


@each_row(("expression", "headers", "gives"), BLOCKS)
def test_a_placeholder_example_on_the_page_resolves_to_the_documented_result(
    expression: str, headers: str, gives: str
) -> None:
    resolution = parse(expression).resolve(PlaceholderContext(headers=json.loads(headers)))
    if resolution.state is ResolutionState.RESOLVED:
        expected = json.loads(gives)
        assert list(resolution.values) == (expected if isinstance(expected, list) else [expected])
    else:
        assert resolution.state.value == gives


def test_the_example_of_the_introduction_can_be_parsed() -> None:
    example = re.search(r"```text\n(out/.*)\n```", PAGE)
    assert example is not None
    assert parse(example[1]).names == {"thing:namespace", "header:lang"}


def test_every_line_of_a_table_has_as_many_cells_as_its_head() -> None:
    assert sum(line.startswith("|") for line in PAGE.splitlines()) > len(PLACEHOLDERS) + len(Scope)
    widths: list[int] = []
    for line in PAGE.splitlines():
        if not line.startswith("|"):
            widths = []
            continue
        widths.append(len(re.split(r"(?<!\\)\|", line)))
        assert widths[-1] == widths[0], line


def test_the_page_in_the_documentation_is_the_generated_one() -> None:
    assert FILE.read_text(encoding="utf-8") == PAGE
